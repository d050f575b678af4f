"""Signed pushes of 250 KiB, nearly the largest there may be: as `ingress`, without the plain inserts."""

from __future__ import annotations

import statistics

import uvloop
from tests.bench.ingress import accept, print_latency, repeat
from tests.bench.ingress_load import CONNECTIONS, LARGE_BYTES, push
from tests.bench.ingress_servers import echo, make_bench
from tests.bench.support import print_ratio

SECONDS = 3.0
ROUNDS = 3


async def bench() -> None:
    body = push(LARGE_BYTES)
    async with make_bench() as bench, bench.ingress() as ours, echo() as bare:
        accepted, echoed = [], []
        for _ in range(ROUNDS):
            accepted.append(await accept(bench, ours, body, SECONDS))
            echoed.append(await repeat(bare, body, SECONDS))
        print(f"pushes of {len(body):,} bytes over {CONNECTIONS} connections")
        print_ratio("webhooks accepted", accepted, echoed, "a second", "aiohttp echo")
        await print_latency(bench, ours, body, statistics.median(accepted), SECONDS)


def main() -> None:
    """Measure and print."""
    uvloop.run(bench())


if __name__ == "__main__":
    main()
