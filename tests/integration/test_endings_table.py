"""How runs end, as one table: every state of a run's work with every fact that may come, once, late or again (S2.1, S11)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from uuid import UUID

import pytest
from tests.support.api import Api, running_api
from tests.support.dispatching import assert_coherent, execute, fetch
from tests.support.endings import (
    Fact,
    apply,
    cancel,
    complete,
    delete,
    expire,
    fail,
    issue_of,
    lose,
    moved,
    refuse,
    time_out,
)
from tests.support.work import Shop, Started, make_shop

from autopilot.domain.ids import LeaseToken, RunId
from autopilot.domain.states import RUN_NEXT, ExecutionMode, IssueStatus, ReasonCode, RunStatus
from autopilot.kit.ids import uuid7
from autopilot.storage import endings
from autopilot.storage.errors import ConstraintViolated

pytestmark = pytest.mark.timeout(180)  # whole tables, each cell a run of its own

ISSUE, BARE = ExecutionMode.CREATE_ISSUE, ExecutionMode.RUN_ONLY

TASK_FACTS: dict[str, Fact] = {
    "complete": complete,
    "fail": fail,
    "time out": time_out,
    "cancel": cancel,
    "lose": lose,
    "expire": expire,
    "refuse": refuse,
}
ISSUE_FACTS: dict[str, Fact] = TASK_FACTS | {status.value: moved(status) for status in IssueStatus}
ISSUE_FACTS["delete"] = delete

STILL = "still"
# The state of the task when the fact comes: queued, or held by a lease that has just run out and that nobody took, before or after
# the start. Then what the fact makes of the run and of the task; `still` is what it was.
BARE_TABLE = {
    #             queued                                      claimed                                    running
    "complete": (f"{STILL} queued",                          "completed completed",                     "completed completed"),
    "fail":     (f"{STILL} queued",                          "failed:task_failed failed",               "failed:task_failed failed"),
    "time out": (f"{STILL} queued",                          "failed:task_failed failed",               "failed:task_failed failed"),
    "cancel":   ("failed:task_cancelled cancelled",          "failed:task_cancelled cancelled",         "failed:task_cancelled cancelled"),
    "lose":     (f"{STILL} queued",                          f"{STILL} queued",                         "failed:task_failed failed"),
    "expire":   ("failed:task_expired expired",              f"{STILL} claimed",                        f"{STILL} running"),
    "refuse":   ("failed:target_unavailable failed",         f"{STILL} claimed",                        f"{STILL} running"),
}  # fmt: skip
ISSUE_TABLE = BARE_TABLE | {
    "time out":    (f"{STILL} queued",                       f"{STILL} queued",                         f"{STILL} queued"),
    "lose":        (f"{STILL} queued",                       f"{STILL} queued",                         f"{STILL} queued"),
    "backlog":     (f"{STILL} queued",                       f"{STILL} claimed",                        f"{STILL} running"),
    "todo":        (f"{STILL} queued",                       f"{STILL} claimed",                        f"{STILL} running"),
    "in_progress": (f"{STILL} queued",                       f"{STILL} claimed",                        f"{STILL} running"),
    "in_review":   ("completed queued",                      "completed claimed",                       "completed running"),
    "done":        ("completed cancelled",                   "completed cancelled",                     "completed cancelled"),
    "blocked":     ("failed:issue_blocked queued",           "failed:issue_blocked claimed",            "failed:issue_blocked running"),
    "cancelled":   ("failed:issue_cancelled cancelled",      "failed:issue_cancelled cancelled",        "failed:issue_cancelled cancelled"),
    "delete":      ("failed:issue_deleted cancelled",        "failed:issue_deleted cancelled",          "failed:issue_deleted cancelled"),
}  # fmt: skip
FINISHING_LAST = "delete"


@pytest.fixture
async def shop(postgres_url: str) -> AsyncIterator[Shop]:
    async with running_api(postgres_url) as api:
        yield await _shop(api)


async def _shop(api: Api) -> Shop:
    return await make_shop(api, concurrency=1000)


async def in_state(shop: Shop, mode: ExecutionMode, state: str) -> tuple[Started, LeaseToken]:
    """A run whose task is in that state; its lease, or any where there is none."""
    started = await shop.start(mode)
    if state == "queued":
        return started, LeaseToken(uuid7())
    task = await shop.held(started, running=state == "running")
    await shop.end_lease(started.task_id)
    return started, LeaseToken(UUID(task["lease_token"]))


async def put_away(shop: Shop) -> None:
    """Nothing of the tries before is claimed by the next."""
    await execute(shop.database, "UPDATE agent_task SET available_at = 'infinity' WHERE status = 'queued'")


async def outcome(shop: Shop, started: Started) -> str:
    run, task = await shop.run(started.run_id), await shop.task(started.task_id)
    status = run["status"] if run["reason_code"] is None else f"{run['status']}:{run['reason_code']}"
    at_work = run["status"] in ("running", "issue_created")
    return f"{STILL if at_work else status} {task['status']}"


async def told(shop: Shop, started: Started) -> list[str]:
    """The run's events in order."""
    query = "SELECT kind FROM run_event_outbox WHERE run_id = $1 ORDER BY id"
    return [row["kind"] for row in await fetch(shop.database, query, started.run_id)]


@pytest.mark.parametrize(("mode", "table"), [(BARE, BARE_TABLE), (ISSUE, ISSUE_TABLE)], ids=["bare", "issue"])
async def test_every_fact_makes_of_every_live_run_what_the_table_says(
    shop: Shop, mode: ExecutionMode, table: dict[str, tuple[str, str, str]]
) -> None:
    """S11.1, S11.2, S11.6: and its end is told once (S2.5), whichever it is."""
    facts = TASK_FACTS if mode is BARE else ISSUE_FACTS
    assert table.keys() == facts.keys()
    found: dict[str, tuple[str, ...]] = {}
    for name, fact in facts.items():
        outcomes = []
        for state in ("queued", "claimed", "running"):
            await put_away(shop)
            started, lease = await in_state(shop, mode, state)
            await apply(shop, fact, started, lease)
            outcomes.append(await outcome(shop, started))
            ends = [] if outcomes[-1].startswith(STILL) else ["run.done"]
            assert await told(shop, started) == ["run.started", *ends], (name, state)
        found[name] = tuple(outcomes)
    assert found == table
    await assert_coherent(shop.database)


@pytest.mark.parametrize("mode", [BARE, ISSUE], ids=["bare", "issue"])
async def test_whatever_comes_late_or_again_changes_no_run_that_has_ended(
    shop: Shop, mode: ExecutionMode
) -> None:
    """S2.1: after each fact that ends a run, each fact once more; nothing is told twice."""
    facts, table = (TASK_FACTS, BARE_TABLE) if mode is BARE else (ISSUE_FACTS, ISSUE_TABLE)
    for first, fact in facts.items():
        for place, state in enumerate(("queued", "claimed", "running")):
            if table[first][place].startswith(STILL):
                continue
            await put_away(shop)
            started, lease = await in_state(shop, mode, state)
            await apply(shop, fact, started, lease)
            ended = await shop.run(started.run_id)
            for late in sorted(facts, key=lambda name: name == FINISHING_LAST):
                await apply(shop, facts[late], started, lease)
                assert await shop.run(started.run_id) == ended, (first, state, late)
            assert await told(shop, started) == ["run.started", "run.done"]
    await assert_coherent(shop.database)


async def test_an_issue_that_waits_for_a_person_ends_its_run_when_they_move_it(shop: Shop) -> None:
    """S11.6: its task is completed, somebody has put it back; what is left are the facts about issues."""
    ends = {status: ISSUE_TABLE[status.value][0].split()[0] for status in IssueStatus} | {
        "delete": "failed:issue_deleted"
    }
    for fact, expected in ends.items():
        started, lease = await in_state(shop, ISSUE, "running")
        await apply(shop, moved(IssueStatus.BACKLOG), started, lease)
        await apply(shop, complete, started, lease)
        assert (await outcome(shop, started), (await shop.issue(issue_of(started)))["status"]) == (
            f"{STILL} completed",
            "backlog",
        )
        await apply(shop, ISSUE_FACTS[str(fact)], started, lease)
        assert await outcome(shop, started) == f"{expected} completed"
    await assert_coherent(shop.database)


async def test_no_fact_about_work_reaches_a_run_that_has_none(shop: Shop) -> None:
    """S2.1: pending and skipped runs have neither task nor issue; and no transition is there but those that are drawn."""
    started = await shop.start(BARE)
    run_ids = {"running": started.run_id}
    for status in ("pending", "skipped"):
        await execute(
            shop.database,
            f"""INSERT INTO autopilot_run (id, workspace_id, autopilot_id, source, status, execution_mode, rule_version_id, rule_version,
                       accountable_id, attribution_source{", reason_code, failure_reason, completed_at" if status == "skipped" else ""})
                SELECT $1, workspace_id, autopilot_id, source, '{status}', execution_mode, rule_version_id, rule_version,
                       accountable_id, attribution_source{", 'runtime_offline', 'x', now()" if status == "skipped" else ""}
                  FROM autopilot_run WHERE id = $2""",
            *((run_id := RunId(uuid7())), started.run_id),
        )
        run_ids[status] = run_id
        for end in (RunStatus.COMPLETED, RunStatus.FAILED):
            code = None if end is RunStatus.COMPLETED else ReasonCode.TASK_FAILED
            async with shop.database.transaction() as conn:
                assert not await endings.finish_run(conn, run_id, end, code=code, text=code)
    for now, run_id in run_ids.items():
        for target in RunStatus:
            if target in RUN_NEXT[RunStatus(now)] or target == now:
                continue
            with pytest.raises(ConstraintViolated):
                await execute(
                    shop.database, "UPDATE autopilot_run SET status = $2 WHERE id = $1", run_id, target
                )
