"""Rules that fail again and again are paused, and people are told, each thing once (S7.14)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.support import rules
from tests.support.dispatching import assert_coherent, execute, fetch, row
from tests.support.history import end_run, end_runs, resume_long_ago
from tests.support.rules import Setting

from autopilot.domain.health import Limits
from autopilot.domain.ids import AutopilotId
from autopilot.domain.permissions import Role
from autopilot.domain.states import AutopilotStatus
from autopilot.engine.rules import AutopilotEdit, update_autopilot
from autopilot.scheduler.claims import Claimant
from autopilot.scheduler.jobs import failures
from autopilot.scheduler.jobs.failures import RulesNotReviewed, review_rules
from autopilot.scheduler.manager import RunningJob
from autopilot.scheduler.spec import Registry
from autopilot.storage.database import Database

LIMITS = Limits()
FIRM = Limits(pause_streak=0, pause_min_runs=0)  # tells, and never pauses


@pytest.fixture
async def database(postgres_url: str) -> AsyncIterator[Database]:
    async with Database(postgres_url, name="test") as opened:
        yield opened


@pytest.fixture
async def setting(database: Database) -> Setting:
    return await rules.make_setting(database)


async def old_rule(database: Database, setting: Setting, **fields: Any) -> AutopilotId:
    """A rule that has been active for a month."""
    autopilot = await rules.make_autopilot(database, setting, **fields)
    await resume_long_ago(database, autopilot.id)
    return autopilot.id


async def told(database: Database, autopilot_id: AutopilotId) -> list[str]:
    """The kinds of what the owner was told of a rule, oldest first."""
    sql = """SELECT i.kind FROM inbox_item i JOIN member m ON m.user_id = i.user_id AND m.role = 'owner'
              WHERE i.autopilot_id = $1 ORDER BY i.id"""
    return [item["kind"].removeprefix("autopilot_") for item in await fetch(database, sql, autopilot_id)]


async def test_ten_failures_in_a_row_pause_a_rule_as_the_system_and_tell_creator_and_admins(
    database: Database, setting: Setting
) -> None:
    """S7.14, S2.7, CASES OB2, OB4: time, actor, reason and the run that shows it."""
    mia = await rules.make_user(database, setting.workspace_id)
    admin = await rules.make_user(database, setting.workspace_id, Role.ADMIN)
    await rules.make_user(database, setting.workspace_id)
    rule = await old_rule(database, setting, editor=mia, title="Triage")
    trigger = await rules.make_schedule_trigger(database, setting, rule)
    runs = await end_runs(database, rule, "c" + "f" * 10)
    result = await review_rules(database, LIMITS)
    assert (result["reviewed"], result["autopilot_paused"]) == (1, 1)
    found = await row(database, "autopilot", rule)
    assert (found["status"], found["pause_reason"]) == ("paused", "too_many_failures")
    assert (await row(database, "autopilot_trigger", trigger.id))["next_run_at"] is None
    version = await row(database, "autopilot_rule_version", found["version_id"])
    assert (version["publisher_type"], version["published_by"]) == ("system", None)
    items = await fetch(database, "SELECT * FROM inbox_item")
    assert {item["user_id"] for item in items} == {mia, admin, setting.owner_id}
    assert {(item["kind"], item["title"], item["autopilot_id"], item["run_id"]) for item in items} == {
        ("autopilot_paused", "“Triage” was paused by the system: 10 runs in a row failed", rule, runs[-1])
    }
    assert (await review_rules(database, LIMITS))["autopilot_paused"] == 0
    assert len(await fetch(database, "SELECT 1 FROM inbox_item")) == 3


@pytest.mark.parametrize(
    ("ended", "status"),
    [
        ("f" * 9, "active"),
        ("f" * 10, "paused"),
        ("f" * 9 + "c" + "f" * 9, "active"),
        ("ffsff" * 2 + "fsf", "paused"),
    ],
    ids=["nine", "ten", "a success between", "skips between"],
)
async def test_only_failures_in_a_row_count_and_skips_are_not_among_them(
    database: Database, setting: Setting, ended: str, status: str
) -> None:
    """S7.14"""
    rule = await old_rule(database, setting)
    await end_runs(database, rule, ended)
    await review_rules(database, LIMITS)
    assert (await row(database, "autopilot", rule))["status"] == status


async def test_manual_runs_neither_hide_nor_create_a_streak(database: Database, setting: Setting) -> None:
    """S7.14, CASES OB2"""
    shaky, clicked = await old_rule(database, setting), await old_rule(database, setting)
    for ago_s in range(20, 0, -1):
        await end_run(database, shaky, "failed", ago_s=ago_s)
        await end_run(database, shaky, "completed", ago_s=ago_s - 0.5, source="manual")
        await end_run(database, clicked, "failed", ago_s=ago_s, source="manual")
    await end_run(database, clicked, "failed")
    await review_rules(database, LIMITS)
    assert (await row(database, "autopilot", shaky))["status"] == "paused"
    assert (await row(database, "autopilot", clicked))["status"] == "active"
    assert await told(database, clicked) == []


@pytest.mark.parametrize("code", ["issue_cancelled", "issue_blocked", "issue_deleted"])
async def test_an_issue_that_people_closed_is_no_failure(
    database: Database, setting: Setting, code: str
) -> None:
    """S7.14: neither in a row nor as a share."""
    rule = await old_rule(database, setting)
    for ago_s in range(60, 0, -1):
        await end_run(database, rule, "failed", ago_s=ago_s, code=code)
    assert (await review_rules(database, LIMITS))["autopilot_paused"] == 0
    assert await told(database, rule) == []


@pytest.mark.parametrize(
    ("failed", "completed", "days", "paused"),
    [(45, 5, 1, True), (44, 5, 1, False), (45, 6, 1, False), (90, 10, 1, True), (45, 5, 8, False)],
    ids=["nine in ten of fifty", "of forty-nine", "less than nine in ten", "of a hundred", "eight days ago"],
)
async def test_nine_in_ten_of_fifty_failed_within_a_week_pause_a_rule(
    database: Database, setting: Setting, failed: int, completed: int, days: int, paused: bool
) -> None:
    """S7.14: also when no ten failed in a row; skips do not count."""
    rule = await old_rule(database, setting)
    between = failed // (completed + 1) + 1
    assert between <= 9
    ended = ("f" * between + "sc") * (completed + 1)
    for _ in range(ended.count("f") - failed):
        ended = ended.replace("f", "", 1)
    ended = ended[: ended.rindex("c")]
    assert (ended.count("f"), ended.count("c")) == (failed, completed)
    await end_runs(database, rule, ended, ago_s=days * 86400)
    await end_run(database, rule, "skipped")
    await review_rules(database, LIMITS)
    assert ((await row(database, "autopilot", rule))["status"] == "paused") is paused
    if paused:
        [item] = await fetch(database, "SELECT title FROM inbox_item WHERE kind = 'autopilot_paused'")
        assert item["title"].endswith(f": {failed} of {failed + completed} runs in 7 days failed")


async def test_a_resume_begins_anew(database: Database, setting: Setting) -> None:
    """S7.14: what ended before it is forgiven, and the next success is news."""
    rule = await old_rule(database, setting)
    await end_runs(database, rule, "f" * 60)
    await review_rules(database, LIMITS)

    async with database.transaction() as conn:
        edit = AutopilotEdit(status=AutopilotStatus.ACTIVE)
        await update_autopilot(conn, setting.workspace_id, rule, setting.owner_id, edit)
    await end_run(database, rule, "failed")
    await review_rules(database, LIMITS)
    assert (await row(database, "autopilot", rule))["status"] == "active"
    await end_run(database, rule, "completed")
    await review_rules(database, LIMITS)
    await review_rules(database, LIMITS)
    assert await told(database, rule) == ["paused", "recovered"]


async def test_a_pause_by_share_that_follows_a_success_shows_a_failed_run_and_its_recovery_is_told(
    database: Database, setting: Setting
) -> None:
    """S7.14: though there is no streak at that moment, and the last recovery was told before the pause."""
    rule = await old_rule(database, setting)
    by_share = Limits(pause_streak=0, pause_percent=60, pause_min_runs=5)
    runs = await end_runs(database, rule, "fff", ago_s=400)
    await review_rules(database, by_share)
    await end_runs(database, rule, "c", ago_s=300)
    await review_rules(database, by_share)
    await end_runs(database, rule, "c", ago_s=200)
    await review_rules(database, by_share)
    [item] = await fetch(database, "SELECT run_id FROM inbox_item WHERE kind = 'autopilot_paused'")
    assert item["run_id"] == runs[-1]

    async with database.transaction() as conn:
        edit = AutopilotEdit(status=AutopilotStatus.ACTIVE)
        await update_autopilot(conn, setting.workspace_id, rule, setting.owner_id, edit)
    await end_run(database, rule, "completed")
    for _ in range(2):
        await review_rules(database, by_share)
    assert await told(database, rule) == ["failing", "recovered", "paused", "recovered"]


async def test_each_streak_and_each_recovery_is_told_once(database: Database, setting: Setting) -> None:
    """S7.14: not each hour, and again for the next streak."""
    rule = await old_rule(database, setting)
    seen: list[list[str]] = []
    for ended in ["ff", "f", "f", "sf", "c", "c", "fff", "c"]:
        for letter in ended:
            await end_runs(database, rule, letter, ago_s=0)
        for _ in range(2):
            await review_rules(database, FIRM)
        seen.append(await told(database, rule))
    once = ["failing"]
    again = [*once, "recovered", "failing"]
    assert seen == [[], once, once, once, again[:2], again[:2], again, [*again, "recovered"]]


async def test_a_recovery_and_the_next_streak_within_an_hour_are_both_told(
    database: Database, setting: Setting
) -> None:
    """S7.14"""
    rule = await old_rule(database, setting)
    await end_runs(database, rule, "fff")
    await review_rules(database, FIRM)
    await end_runs(database, rule, "cfff", ago_s=30)
    await review_rules(database, FIRM)
    assert await told(database, rule) == ["failing", "recovered", "failing"]
    items = await fetch(database, "SELECT title FROM inbox_item WHERE kind = 'autopilot_failing'")
    assert all(item["title"].endswith("failed 3 times in a row") for item in items)


async def test_twenty_skips_in_a_row_are_told_once_and_pause_nothing(
    database: Database, setting: Setting
) -> None:
    """S7.14, CASES OB2"""
    rule = await old_rule(database, setting)
    await end_runs(database, rule, "c" + "s" * 19, ago_s=500)
    await review_rules(database, LIMITS)
    assert await told(database, rule) == []
    for ago_s in (400, 300):
        await end_runs(database, rule, "s", ago_s=ago_s)
        await review_rules(database, LIMITS)
    assert await told(database, rule) == ["skipping"]
    await end_runs(database, rule, "f" + "s" * 20, ago_s=200)
    await review_rules(database, LIMITS)
    assert await told(database, rule) == ["skipping", "skipping"]
    assert (await row(database, "autopilot", rule))["status"] == "active"


async def test_a_monitor_waits_for_another_and_sees_what_it_told(
    database: Database, setting: Setting
) -> None:
    """S1.1, HAZARDS 2: a plan whose runner was thought lost runs twice, and people are told once."""
    flaky, lazy = await old_rule(database, setting), await old_rule(database, setting)
    await end_runs(database, flaky, "fff")
    await end_runs(database, lazy, "s" * 20)
    async with database.transaction() as conn:
        acted = await failures.act_on(conn, setting.workspace_id, [flaky, lazy], LIMITS)
        other = asyncio.create_task(review_rules(database, LIMITS))
        await _until_waiting(database)
    assert [kind.value for kind in acted] == ["autopilot_failing", "autopilot_skipping"]
    assert (await other)["autopilot_failing"] == 0
    assert (await told(database, flaky), await told(database, lazy)) == (["failing"], ["skipping"])


async def test_a_rule_that_cannot_be_written_harms_no_other_and_fails_the_plan(
    database: Database, setting: Setting
) -> None:
    """S7.7: the next plan then looks back as far as this one."""
    good, bad, other = [await old_rule(database, setting) for _ in range(3)]
    for rule in (good, bad, other):
        await end_runs(database, rule, "f" * 10)
    await execute(
        database,
        f"ALTER TABLE autopilot ADD CONSTRAINT poison CHECK (id <> '{bad}' OR status = 'active')",
    )
    with pytest.raises(RulesNotReviewed):
        await review_rules(database, LIMITS)
    states = {
        item["id"]: item["status"] for item in await fetch(database, "SELECT id, status FROM autopilot")
    }
    assert states == {good: "paused", bad: "active", other: "paused"}
    assert (await told(database, good), await told(database, bad)) == (["paused"], [])
    await execute(database, "ALTER TABLE autopilot DROP CONSTRAINT poison")
    assert (await review_rules(database, LIMITS))["autopilot_paused"] == 1


async def test_the_job_looks_at_what_ended_since_its_last_success(
    database: Database, setting: Setting
) -> None:
    """S7.13: a real JobSpec; what was looked at before is left alone."""
    old, new = await old_rule(database, setting), await old_rule(database, setting)
    await end_runs(database, old, "fff", ago_s=7200)
    spec = Registry().register(failures.failures_job(database, LIMITS))
    async with RunningJob(spec, Claimant(database), database) as job:
        await job.tick()
        await job.idle()
        await execute(
            database,
            """UPDATE sys_cron_executions SET id = gen_random_uuid(), plan_time = plan_time - interval '1 hour',
                      started_at = started_at - interval '1 hour'""",
        )
        await end_runs(database, new, "fff")
        await job.tick()
        await job.idle()
    [first, second] = await fetch(
        database, "SELECT job_name, state, result FROM sys_cron_executions ORDER BY plan_time"
    )
    assert (first["job_name"], first["state"], second["state"]) == ("failure_monitor", "SUCCESS", "SUCCESS")
    assert [(one["result"]["reviewed"], one["result"]["autopilot_failing"]) for one in (first, second)] == [
        (1, 1),
        (1, 1),
    ]
    assert (await told(database, old), await told(database, new)) == (["failing"], ["failing"])


async def test_a_pause_leaves_everything_coherent(database: Database, setting: Setting) -> None:
    """S7.14, S5.5: version, triggers and notices commit together."""
    rule = (await rules.make_autopilot(database, setting)).id
    for _ in range(3):
        await end_run(database, rule, "failed", code="dispatch_exhausted")
    await review_rules(database, Limits(pause_streak=3))
    assert (await row(database, "autopilot", rule))["pause_reason"] == "too_many_failures"
    await assert_coherent(database)


async def _until_waiting(database: Database) -> None:
    """Return when some session of this database waits for a lock."""
    async with database.connection() as conn, asyncio.timeout(30):
        while not await conn.fetchval(
            """SELECT EXISTS (SELECT 1 FROM pg_stat_activity
                               WHERE datname = current_database() AND wait_event_type = 'Lock')"""
        ):
            await asyncio.sleep(0)
