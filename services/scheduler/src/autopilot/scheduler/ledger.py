"""The statements of one job's plans, gathered: thousands of scopes claim, beat and finish in a few round trips."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final, TypeVar

from autopilot.kit.batch import Coalescer
from autopilot.scheduler.spec import JobSpec
from autopilot.storage import executions
from autopilot.storage.database import Conn, Database
from autopilot.storage.errors import Contention
from autopilot.storage.executions import Claim, FailedExecution, Failure, Lease, Success

T = TypeVar("T")
R = TypeVar("R")

_MAX_ITEMS: Final = 50  # whoever gets an answer goes on at once, and the schedule shares the event loop
_MAX_PENDING: Final = 1_000_000  # there is never more than one item of a scope
_CLAIM_HOLD_S: Final = 2.0


class Ledger:
    """Each call waits for the statement that carries it and gets its own answer; it raises InfrastructureError.

    A row that somebody else holds delays its own item alone: the others are written one by one. A job has a ledger
    of its own, so that jobs do not wait for each other (S7.7).
    """

    def __init__(self, database: Database, spec: JobSpec) -> None:
        self._database = database
        self._spec = spec
        self._claims = self._gather("claim", executions.claim, hold_s=_CLAIM_HOLD_S)
        self._beats = self._gather("heartbeat", executions.heartbeat)
        self._successes = self._gather("succeed", executions.succeed)
        self._failures = self._gather("fail", self._fail)

    async def claim(self, claim: Claim) -> Lease | None:
        """Take a plan; None where it is not to be had."""
        return await self._claims.submit(claim)

    async def heartbeat(self, lease: Lease) -> bool:
        """Keep a lease; False where it is lost."""
        return await self._beats.submit(lease)

    async def succeed(self, end: Success) -> bool:
        """Finish a plan well; False where its lease is lost."""
        return await self._successes.submit(end)

    async def fail(self, end: Failure) -> FailedExecution | None:
        """Finish a plan badly, and tell it where it is for good; None where its lease is lost."""
        return await self._failures.submit(end)

    async def fail_stale(self, stale: Sequence[executions.Stale]) -> list[FailedExecution]:
        """Fail what is still stale, all in one transaction with whoever has to be told."""
        return await self._database.transact(partial(self._fail_stale, stale=stale))

    def _gather(
        self,
        name: str,
        statement: Callable[[Conn, Sequence[T]], Awaitable[Sequence[R]]],
        *,
        hold_s: float = 0.0,
    ) -> Coalescer[T, R]:
        return Coalescer(
            partial(self._write, statement),
            name=f"plan_{name}",
            max_items=_MAX_ITEMS,
            max_pending=_MAX_PENDING,
            hold_s=hold_s,
            patience_s=0.02,
        )

    async def _write(
        self, statement: Callable[[Conn, Sequence[T]], Awaitable[Sequence[R]]], items: Sequence[T]
    ) -> Sequence[R | Exception]:
        try:
            return await self._database.transact(lambda conn: statement(conn, items), tries=1)
        except Contention:
            if len(items) == 1:
                raise
        return [await self._write_alone(statement, item) for item in items]

    async def _write_alone(
        self, statement: Callable[[Conn, Sequence[T]], Awaitable[Sequence[R]]], item: T
    ) -> R | Exception:
        try:
            [answer] = await self._database.transact(lambda conn: statement(conn, [item]), tries=1)
        except Contention as error:
            return error
        return answer

    async def _fail(self, conn: Conn, ends: Sequence[Failure]) -> list[FailedExecution | None]:
        failed = await executions.fail(conn, ends)
        await self._tell_exhausted(conn, [one for one in failed if one is not None])
        return failed

    async def _fail_stale(self, conn: Conn, stale: Sequence[executions.Stale]) -> list[FailedExecution]:
        failed = await executions.fail_stale(conn, [one.id for one in stale])
        await self._tell_exhausted(conn, failed)
        return failed

    async def _tell_exhausted(self, conn: Conn, failed: Sequence[FailedExecution]) -> None:
        if self._spec.on_exhausted is None:
            return
        for one in failed:
            if one.next_retry_at is None:
                await self._spec.on_exhausted(conn, one)
