"""A flood of pushes with tokens that nobody ever had: each looked up (404), and with its sender in debt (429, no query at all)."""

from __future__ import annotations

import asyncio

import uvloop
from tests.bench.ingress import repeat
from tests.bench.ingress_load import CONNECTIONS, SMALL_BYTES, load, push, strangers
from tests.bench.ingress_servers import Bench, Server, echo, make_bench
from tests.bench.support import percentile, print_ratio

SECONDS = 3.0
ROUNDS = 3
DEBT = 30
_TRANSACTIONS = "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database()"


async def run_into_debt(server: Server) -> None:
    """Ask for as many unknown tokens as a minute allows."""
    requests = strangers(b"{}")
    for _ in range(DEBT):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(next(requests))
        assert (await reader.readline()).startswith(b"HTTP/1.1 404")
        writer.close()


async def flood(name: str, server: Server, bare: Server, body: bytes, status: int) -> int:
    """Print what is refused in a second and how quickly; how many were."""
    expected = b'"not_found"' if status == 404 else b'"too_many_requests"'
    took_s: list[float] = []
    refused, echoed = [], []
    for _ in range(ROUNDS):
        measured = await load(server.port, strangers(body), expected, status=status, seconds=SECONDS)
        refused.append(measured.rate)
        took_s += measured.took_s
        echoed.append(await repeat(bare, body, SECONDS))
    print_ratio(name, refused, echoed, "a second", "aiohttp echo")
    p50, p99 = (percentile(took_s, share) * 1000 for share in (0.5, 0.99))
    print(f"  p50 {p50:.1f} ms, p99 {p99:.1f} ms")
    return len(took_s)


async def flood_in_debt(bench: Bench, server: Server, bare: Server, body: bytes) -> None:
    """The same by a sender in debt, and what it asks of the database: other transactions are a handful."""
    await run_into_debt(server)
    before = await bench.count(_TRANSACTIONS)
    refused = await flood("answered 429", server, bare, body, 429)
    spent = await bench.count(_TRANSACTIONS) - before
    print(f"  {spent} transactions in the database meanwhile, {refused:,} requests")


async def bench() -> None:
    body = push(SMALL_BYTES)
    strict = {"AUTOPILOT_INGRESS_BAD_PER_MIN": str(DEBT)}
    print(f"pushes with unknown tokens, {len(body):,} bytes over {CONNECTIONS} connections")
    async with make_bench() as bench, echo() as bare:
        async with bench.ingress(**strict) as server:
            await flood_in_debt(bench, server, bare, body)
        async with bench.ingress() as server:
            await flood("answered 404", server, bare, body, 404)


def main() -> None:
    """Measure and print."""
    uvloop.run(bench())


if __name__ == "__main__":
    main()
