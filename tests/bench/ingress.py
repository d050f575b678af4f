"""Signed pushes of 8 KiB, durable with their runs: how many a second, beside a bare echo and beside plain inserts; and how quickly."""

from __future__ import annotations

import statistics

import uvloop
from tests.bench.ingress_load import CONNECTIONS, SMALL_BYTES, load, posts, push
from tests.bench.ingress_servers import TABLES, Bench, Server, echo, make_bench
from tests.bench.support import percentile, print_ratio, truncate

ACCEPTED = b'"status":"accepted"'
SECONDS = 3.0
ROUNDS = 3


async def accept(bench: Bench, server: Server, body: bytes, seconds: float) -> float:
    """Webhooks that a server accepts in a second; each must have been kept."""
    await truncate(bench.url, *TABLES)
    measured = await load(server.port, posts(bench.token, body), ACCEPTED, seconds=seconds)
    kept = await bench.count("SELECT count(*) FROM autopilot_run WHERE status = 'pending'")
    assert kept >= len(measured.took_s), f"only {kept} of {len(measured.took_s)} were kept"
    return measured.rate


async def repeat(server: Server, body: bytes, seconds: float) -> float:
    """What the echo answers in a second."""
    return (await load(server.port, posts("", body), body[-64:], seconds=seconds)).rate


async def print_latency(bench: Bench, server: Server, body: bytes, rate: float, seconds: float) -> None:
    """How long answers take at half of the peak load."""
    await truncate(bench.url, *TABLES)
    half = await load(server.port, posts(bench.token, body), ACCEPTED, seconds=seconds, rate=rate / 2)
    p50, p99 = (percentile(half.took_s, share) * 1000 for share in (0.5, 0.99))
    print(f"  at half of that ({half.rate:,.0f} a second) p50 {p50:.1f} ms, p99 {p99:.1f} ms")


async def bench() -> None:
    body = push(SMALL_BYTES)
    async with make_bench() as bench, bench.ingress() as ours, bench.plain() as plain, echo() as bare:
        accepted, echoed, inserted = [], [], []
        for _ in range(ROUNDS):
            accepted.append(await accept(bench, ours, body, SECONDS))
            echoed.append(await repeat(bare, body, SECONDS))
            inserted.append(await accept(bench, plain, body, SECONDS))
        print(f"pushes of {len(body):,} bytes over {CONNECTIONS} connections")
        print_ratio("webhooks accepted", accepted, echoed, "a second", "aiohttp echo")
        print_ratio("webhooks accepted", accepted, inserted, "a second", "two plain inserts each")
        await print_latency(bench, ours, body, statistics.median(accepted), SECONDS)


def main() -> None:
    """Measure and print."""
    uvloop.run(bench())


if __name__ == "__main__":
    main()
