"""Memory of ingress under load: pushes of 8 KiB, of 250 KiB, unknown tokens; for a dozen seconds each, or AUTOPILOT_BENCH_REQUESTS=1000000.

The large pushes are then as many as bring as many bytes.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import uvloop
from tests.bench.ingress import ACCEPTED
from tests.bench.ingress_load import LARGE_BYTES, SMALL_BYTES, load, posts, push, strangers
from tests.bench.ingress_servers import TABLES, Bench, Server, make_bench
from tests.bench.support import truncate

REQUESTS = int(os.environ.get("AUTOPILOT_BENCH_REQUESTS", "0"))
SLICES = 6
SLICE_S = 2.0
SHOWN = 8


async def hold(
    bench: Bench,
    server: Server,
    name: str,
    requests: Iterator[bytes],
    expected: bytes,
    *,
    at_least: int = REQUESTS,
    status: int = 200,
) -> None:
    """Send for as long as is asked, and print what the process holds meanwhile; what was written is thrown away."""
    done, held = 0, [server.rss_mib]
    while len(held) <= SLICES or done < at_least:
        measured = await load(server.port, requests, expected, status=status, seconds=SLICE_S)
        done += len(measured.took_s)
        await truncate(bench.url, *TABLES)
        held.append(server.rss_mib)
    third = held[len(held) // 3]
    shown = ", ".join(f"{held[len(held) * place // SHOWN]:.0f}" for place in range(SHOWN))
    print(
        f"{name}: {done:,} requests; {shown}, {held[-1]:.0f} MiB, {held[-1] - third:+.1f} after the first third"
    )


async def bench() -> None:
    small, large = push(SMALL_BYTES), push(LARGE_BYTES)
    async with make_bench() as bench, bench.ingress() as server:
        await hold(bench, server, f"pushes of {len(small):,} bytes", posts(bench.token, small), ACCEPTED)
        await hold(
            bench,
            server,
            f"pushes of {len(large):,} bytes",
            posts(bench.token, large),
            ACCEPTED,
            at_least=REQUESTS * len(small) // len(large),
        )
        await hold(bench, server, "unknown tokens", strangers(small), b'"not_found"', status=404)


def main() -> None:
    """Measure and print."""
    uvloop.run(bench())


if __name__ == "__main__":
    main()
