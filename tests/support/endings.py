"""Everything that may be said of work that a run made, each as one transaction of the real use case (S11.1, S11.2, S11.6)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from uuid import UUID

from tests.support.work import Shop, Started

from autopilot.domain.ids import IssueId, LeaseToken
from autopilot.domain.states import FailureKind, IssueStatus
from autopilot.engine import finish
from autopilot.storage.database import Conn

Fact = Callable[[Conn, Shop, Started, LeaseToken], Awaitable[object]]


def issue_of(started: Started) -> IssueId:
    assert started.issue_id is not None
    return started.issue_id


async def complete(conn: Conn, _shop: Shop, started: Started, lease: LeaseToken) -> object:
    return await finish.complete_task(conn, started.task_id, lease, "the result")


async def fail(conn: Conn, _shop: Shop, started: Started, lease: LeaseToken) -> object:
    return await finish.fail_task(conn, started.task_id, lease, "it broke", FailureKind.AGENT)


async def time_out(conn: Conn, _shop: Shop, started: Started, lease: LeaseToken) -> object:
    return await finish.fail_task(conn, started.task_id, lease, "too slow", FailureKind.TIMEOUT)


async def cancel(conn: Conn, _shop: Shop, started: Started, _lease: LeaseToken) -> object:
    return await finish.cancel_task(conn, started.task_id)


async def lose(conn: Conn, _shop: Shop, started: Started, _lease: LeaseToken) -> object:
    return await finish.lose_task(conn, started.task_id, "gone", FailureKind.RUNTIME_LOST)


async def expire(conn: Conn, _shop: Shop, started: Started, _lease: LeaseToken) -> object:
    return await finish.expire_task(conn, started.task_id)


async def refuse(conn: Conn, _shop: Shop, started: Started, _lease: LeaseToken) -> object:
    return await finish.refuse_task(conn, started.task_id)


async def delete(conn: Conn, shop: Shop, started: Started, _lease: LeaseToken) -> object:
    return await finish.delete_issue(conn, shop.place.id, issue_of(started))


def moved(status: IssueStatus) -> Fact:
    async def move(conn: Conn, shop: Shop, started: Started, _lease: LeaseToken) -> object:
        held = await finish.hold_issue(conn, shop.place.id, issue_of(started))
        return await finish.move_issue(conn, held, status)

    return move


async def hold(shop: Shop, started: Started) -> LeaseToken:
    """The run's task, claimed and running, with a lease that has just run out."""
    task = await shop.held(started)
    await shop.end_lease(started.task_id)
    return LeaseToken(UUID(task["lease_token"]))


async def apply(shop: Shop, fact: Fact, started: Started, lease: LeaseToken) -> object:
    """One fact in a transaction of its own; what it refuses is its answer."""
    try:
        async with shop.database.transaction() as conn:
            return await fact(conn, shop, started, lease)
    except (finish.LeaseLost, finish.NoSuchIssue) as error:
        return type(error)
