"""`make bench`: every figure, measured beside what it is compared to in one run."""

from __future__ import annotations

import importlib
import sys
import time

FIGURES = (
    "cron",
    "dispatch",
    "queue",
    "handoff",
    "schedule",
    "idle_tick",
    "jobs",
    "precision",
    "rivals",
    "retention",
    "ingress",
    "ingress_large",
    "ingress_flood",
    "ingress_memory",
    "latency",
    "events",
    "rules_list",
)


def main() -> int:
    """Run the named figures, or all; unknown names are refused."""
    chosen = sys.argv[1:] or FIGURES
    unknown = [name for name in chosen if name not in FIGURES]
    if unknown:
        print(f"no such figure: {', '.join(unknown)}; there are {', '.join(FIGURES)}", file=sys.stderr)
        return 2
    for name in chosen:
        began = time.monotonic()
        print(f"== {name}", flush=True)
        importlib.import_module(f"tests.bench.{name}").main()
        print(f"   ({time.monotonic() - began:.0f} s)\n", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
