"""Explain: why a schedule fired, did not fire, or seems to have fired twice (S13.3)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from tests.support import rules
from tests.support.api import running_api
from tests.support.dispatching import admit_one, drain, execute, fetch, worker
from tests.support.explaining import codes, explained, fact
from tests.support.scheduling import (
    YEARLY,
    Scheduler,
    due_at,
    due_trigger,
    executions_of,
    forbid_runs,
    make_retry_due,
    runs_of,
)
from tests.support.work import Shop, make_shop

from autopilot.domain.ids import AutopilotId, TriggerId
from autopilot.domain.states import Source
from autopilot.kit.ids import uuid7

SCHEDULE = "autopilot_schedule_dispatch"
LONG_AGO = datetime(2026, 3, 4, 9, tzinfo=UTC)  # a Wednesday


@pytest.fixture
async def shop(postgres_url: str) -> AsyncIterator[Shop]:
    async with running_api(postgres_url) as api:
        yield await make_shop(api)


async def rule_of(shop: Shop, trigger_id: TriggerId) -> AutopilotId:
    [row] = await fetch(shop.database, "SELECT autopilot_id FROM autopilot_trigger WHERE id = $1", trigger_id)
    return AutopilotId(row["autopilot_id"])


async def old_rule(shop: Shop, cron: str, zone: str = "UTC", **fields: Any) -> tuple[AutopilotId, TriggerId]:
    """A schedule that has stood since the beginning of the year."""
    rule = await shop.rule()
    trigger = await rules.make_schedule_trigger(
        shop.database, shop.setting, rule, cron, timezone=zone, **fields
    )
    await age(shop, rule)
    return rule, trigger.id


async def age(shop: Shop, rule: AutopilotId, to: str = "2026-01-01") -> None:
    """Let all that was published of a rule so far have been published at that day."""
    for table, column, key in (
        ("autopilot_trigger", "created_at", "autopilot_id"),
        ("autopilot", "created_at", "id"),
    ):
        await execute(
            shop.database,
            f"UPDATE {table} SET {column} = least({column}, $2::text::timestamptz) WHERE {key} = $1",
            rule,
            to,
        )
    await execute(
        shop.database, "ALTER TABLE autopilot_rule_version DISABLE TRIGGER autopilot_rule_version_immutable"
    )
    await execute(
        shop.database,
        """UPDATE autopilot_rule_version SET published_at = $2::text::timestamptz + version * interval '1 second'
            WHERE autopilot_id = $1 AND published_at > now() - interval '1 hour'""",
        *(rule, to),
    )
    await execute(
        shop.database, "ALTER TABLE autopilot_rule_version ENABLE TRIGGER autopilot_rule_version_immutable"
    )


async def plan(
    shop: Shop, trigger_id: TriggerId, at: datetime, *, state: str = "SUCCESS", **fields: Any
) -> None:
    """A plan's row as the scheduler leaves it."""
    row = {
        "result": {"outcome": "admitted"} if state == "SUCCESS" else None,
        "error_code": "handler_error" if state == "FAILED" else None,
        "error_message": "unexpected RuntimeError" if state == "FAILED" else None,
        "finished_at": None if state == "RUNNING" else at,
        **fields,
    }
    await execute(
        shop.database,
        f"""INSERT INTO sys_cron_executions (id, job_name, scope_kind, scope_id, plan_time, state, max_attempts, reentry, runner_id,
                   lease_token, stale_at, started_at, {", ".join(row)})
            VALUES ($1, $2, 'trigger', $3, $4, $5, 3, true, $1, $1, $4::timestamptz + interval '1 minute', $4,
                    {", ".join(f"${n + 6}" for n in range(len(row)))})""",
        *(uuid7(), SCHEDULE, str(trigger_id), at, state, *row.values()),
    )


async def test_a_rule_that_was_paused_then_is_named_with_who_paused_it(shop: Shop) -> None:
    """S13.3: also after it was resumed; what the rule said then counts."""
    rule, trigger = await old_rule(shop, "0 9 * * *")
    await shop.owner("PATCH", f"/api/autopilots/{rule}", {"status": "paused"})
    await age(shop, rule, "2026-03-01")
    await shop.owner("PATCH", f"/api/autopilots/{rule}", {"status": "active"})
    answer = await explained(shop.owner, rule, at=LONG_AGO)
    assert answer["verdict"] == "autopilot_paused"
    assert "version 3 (pause, by owner, 2026-03-01 00:00:03 UTC)" in answer["summary"]
    assert "Resume" in answer["next_step"]
    assert (fact(answer, "rule_version"), answer["findings"][0]["id"]) == (3, str(trigger))
    before = await explained(shop.owner, rule, at=datetime(2026, 2, 4, 9, tzinfo=UTC))
    assert before["verdict"] != "autopilot_paused"


async def test_a_trigger_that_was_off_is_named_with_who_turned_it_off(shop: Shop) -> None:
    rule, trigger = await old_rule(shop, "0 9 * * *")
    await shop.owner("PATCH", f"/api/autopilots/{rule}/triggers/{trigger}", {"enabled": False})
    await age(shop, rule, "2026-03-01")
    answer = await explained(shop.owner, rule, at=LONG_AGO, trigger_id=trigger)
    assert answer["verdict"] == "trigger_disabled"
    assert "version 3 (edit trigger, by owner" in answer["summary"]
    now = await explained(shop.owner, rule, trigger_id=trigger)
    assert now["verdict"] == "trigger_disabled"


async def test_a_cron_that_nobody_can_read_or_that_never_comes_is_said_so(shop: Shop) -> None:
    rule, trigger = await old_rule(shop, "0 9 * * *")
    sql = "UPDATE autopilot_trigger SET next_run_at = NULL, schedule_error = $2, cron = $3 WHERE id = $1"
    await execute(shop.database, sql, trigger, "minute: 99 is out of range", "99 9 * * *")
    answer = await explained(shop.owner, rule)
    assert answer["verdict"] == "schedule_error"
    assert "99 is out of range" in answer["summary"]
    await execute(shop.database, sql, trigger, None, "0 0 31 2 *")
    answer = await explained(shop.owner, rule)
    assert answer["verdict"] == "cron_never_matches"
    assert "`0 0 31 2 *` in UTC" in answer["summary"]


@pytest.mark.parametrize(
    ("zone", "at", "verdict", "said"),
    [
        (
            "UTC",
            datetime(2026, 3, 4, 10, tzinfo=UTC),
            "cron_no_match",
            "last before it was 2026-03-04 09:00 UTC",
        ),
        ("Asia/Shanghai", LONG_AGO, "cron_timezone", "2026-03-04 17:00 CST (Asia/Shanghai), which is"),
    ],
)
async def test_a_minute_without_an_occurrence_shows_its_neighbours_and_the_zone(
    shop: Shop, zone: str, at: datetime, verdict: str, said: str
) -> None:
    """S8.2, S13.3: who thinks in another zone is told so."""
    rule, _ = await old_rule(shop, "0 9 * * *", zone)
    answer = await explained(shop.owner, rule, at=at)
    assert (answer["verdict"], said in answer["summary"]) == (verdict, True), answer["summary"]


async def test_what_was_missed_by_lateness_is_said_to_be_missed(shop: Shop) -> None:
    """S7.11: the newest one has a skipped run, the ones before it are counted in it."""
    database = shop.database
    phase = (datetime.now(UTC).hour + 3) % 6  # so that the newest occurrence was hours ago
    trigger = await due_trigger(database, shop.setting, cron=f"0 {phase}-23/6 * * *", late_s=86_400 * 3)
    rule = await rule_of(shop, trigger)
    await age(shop, rule)
    due = await due_at(database, trigger)
    assert due is not None
    await execute(
        database,
        """UPDATE autopilot_trigger SET next_run_at = date_bin('6 hours', $2, '2026-01-01Z'::timestamptz + $3 * interval '1 hour')
            WHERE id = $1""",
        *(trigger, due, phase),
    )
    await execute(
        database, "UPDATE autopilot_trigger SET catch_up = 'latest', lateness_s = 1 WHERE id = $1", trigger
    )
    await Scheduler(database).drain()
    [run] = await runs_of(database, trigger)
    answer = await explained(shop.owner, rule, at=run["planned_at"])
    assert answer["verdict"] == "schedule_missed"
    assert fact(answer, "run_id") == str(run["id"])
    before = await explained(shop.owner, rule, at=run["planned_at"] - timedelta(hours=12))
    assert before["verdict"] == "schedule_missed"
    assert fact(before, "missed") == run["missed_count"]
    assert "catch-up is latest" in before["summary"]


async def test_a_plan_that_failed_tells_its_error_and_its_next_attempt(shop: Shop) -> None:
    """S7.12, CASES QW4: until the attempts are spent, and then that there is none."""
    trigger = await due_trigger(shop.database, shop.setting, late_s=60)
    rule = await rule_of(shop, trigger)
    await forbid_runs(shop.database, trigger)
    await Scheduler(shop.database).drain()
    [failed] = await executions_of(shop.database, trigger)
    answer = await explained(shop.owner, rule, at=failed["plan_time"])
    assert answer["verdict"] == "plan_failed"
    assert fact(answer, "attempts") == 1
    assert fact(answer, "next_retry_at") is not None
    for _ in range(failed["max_attempts"] - 1):
        await make_retry_due(shop.database, trigger)
        await Scheduler(shop.database).drain()
    answer = await explained(shop.owner, rule, at=failed["plan_time"])
    assert (answer["verdict"], fact(answer, "attempts")) == ("plan_exhausted", failed["max_attempts"])
    assert "internal_error" in codes(answer)


async def test_a_plan_in_hand_names_who_holds_it(shop: Shop) -> None:
    rule, trigger = await old_rule(shop, "0 9 * * *")
    await plan(shop, trigger, LONG_AGO, state="RUNNING")
    answer = await explained(shop.owner, rule, at=LONG_AGO)
    assert answer["verdict"] == "plan_claimed"
    assert fact(answer, "runner_id") in answer["summary"]
    assert "2026-03-04 09:01 UTC" in answer["summary"]


async def test_a_plan_dropped_after_an_edit_is_not_made_up_for(shop: Shop) -> None:
    rule, trigger = await old_rule(shop, "0 9 * * *")
    await plan(shop, trigger, LONG_AGO, result={"outcome": "not_due"})
    assert (await explained(shop.owner, rule, at=LONG_AGO))["verdict"] == "plan_not_due"


async def test_one_that_is_due_says_whether_a_scheduler_is_late_or_it_is_still_to_come(shop: Shop) -> None:
    rule, trigger = await old_rule(shop, "*/5 * * * *")
    now = datetime.now(UTC)
    due = now.replace(minute=now.minute // 5 * 5, second=0, microsecond=0) - timedelta(hours=1)
    await execute(shop.database, "UPDATE autopilot_trigger SET next_run_at = $2 WHERE id = $1", trigger, due)
    late = await explained(shop.owner, rule, at=due)
    assert late["verdict"] == "schedule_overdue"
    assert "scheduler" in late["next_step"]
    assert (await explained(shop.owner, rule, at=due + timedelta(hours=2)))["verdict"] == "not_yet"


async def test_an_edit_in_between_and_a_history_that_is_gone_are_told_apart(shop: Shop) -> None:
    rule, trigger = await old_rule(shop, "0 9 * * *")
    gone = await explained(shop.owner, rule, at=LONG_AGO)
    assert gone["verdict"] == "history_gone"
    await plan(shop, trigger, LONG_AGO - timedelta(days=1))
    await shop.owner("PATCH", f"/api/autopilots/{rule}/triggers/{trigger}", {"catch_up": "none"})
    await age(shop, rule, "2026-03-04T09:00:10Z")
    anew = await explained(shop.owner, rule, at=LONG_AGO)
    assert anew["verdict"] == "planned_anew"
    assert "version 3 (edit trigger" in anew["summary"]


async def test_a_trigger_is_not_asked_about_times_before_and_after_it(shop: Shop) -> None:
    rule, trigger = await old_rule(shop, "0 9 * * *")
    early = await explained(shop.owner, rule, at=datetime(2025, 3, 4, 9, tzinfo=UTC))
    assert early["verdict"] == "trigger_not_there_yet"
    await shop.owner("DELETE", f"/api/autopilots/{rule}/triggers/{trigger}")
    await execute(
        shop.database, "UPDATE autopilot_trigger SET deleted_at = '2026-02-01' WHERE id = $1", trigger
    )
    late = await explained(shop.owner, rule, at=LONG_AGO, trigger_id=trigger)
    assert late["verdict"] == "trigger_deleted"
    assert (await explained(shop.owner, rule, at=LONG_AGO))["verdict"] == "nothing_received"


async def test_two_runs_of_one_minute_are_told_apart_by_what_fired_them(shop: Shop) -> None:
    """S13.3: two triggers, and a person."""
    database = shop.database
    rule = await shop.rule()
    triggers = [await due_trigger(database, shop.setting, autopilot_id=rule, cron=YEARLY) for _ in range(2)]
    # Of one minute, also when a new one begins between the two.
    await execute(
        database,
        "UPDATE autopilot_trigger SET next_run_at = (SELECT min(next_run_at) FROM autopilot_trigger WHERE id = ANY($1)) WHERE id = ANY($1)",
        triggers,
    )
    await Scheduler(database).drain()
    await admit_one(database, rule, source=Source.MANUAL, clicker=shop.setting.owner_id)
    await drain(worker(database))
    [planned] = await runs_of(database, triggers[0])
    await execute(
        database, "UPDATE autopilot_run SET created_at = $1 WHERE source = 'manual'", planned["planned_at"]
    )
    answer = await explained(shop.owner, rule, at=planned["planned_at"])
    assert answer["verdict"] == "several_runs"
    assert f"by trigger {triggers[0]}" in answer["summary"]
    assert f"by trigger {triggers[1]}" in answer["summary"]
    assert "by hand by owner" in answer["summary"]
    assert len(fact(answer, "runs")) == 3
    assert [found["about"] for found in answer["findings"]] == ["time", "trigger", "trigger", "run"]
    alone = await explained(shop.owner, rule, at=planned["planned_at"], trigger_id=triggers[0])
    assert alone["verdict"] == "task_queued"


async def test_the_same_time_on_the_wall_twice_is_explained_by_the_clock(shop: Shop) -> None:
    """S8.4: an hourly schedule runs in both hours when clocks go back."""
    rule, trigger = await old_rule(shop, "30 * * * *", "America/New_York")
    first, second = datetime(2026, 11, 1, 5, 30, tzinfo=UTC), datetime(2026, 11, 1, 6, 30, tzinfo=UTC)
    for at in (first, second):
        run_id = await admit_one(
            shop.database, rule, source=Source.SCHEDULE, trigger_id=trigger, planned_at=at
        )
        await plan(shop, trigger, at, result={"outcome": "admitted", "run_id": str(run_id)})
    answer = await explained(shop.owner, rule, at=first)
    [twin] = [check for check in answer["findings"][0]["checks"] if check["code"] == "same_local_time"]
    assert "2026-11-01 01:30 EDT" in twin["text"]
    assert "2026-11-01 01:30 EST" in twin["text"]
    runs = await runs_of(shop.database, trigger)
    assert [UUID(one) for one in twin["facts"]["run_ids"]] == [runs[1]["id"]]


async def test_a_time_is_the_same_whatever_its_offset_and_ends_before_calendars_do(shop: Shop) -> None:
    """S13.3: eight hours east, and the ends of what can be counted."""
    rule, _ = await old_rule(shop, "0 9 * * *", "Pacific/Kiritimati")
    path = f"/api/autopilots/{rule}/explain?at="
    answers = [
        (await shop.owner("GET", path + at)).body["summary"]
        for at in ("2026-03-04T09:00:30Z", "2026-03-04T17:00:00%2B08:00")
    ]
    assert answers[0] == answers[1]
    assert "which is 2026-03-04 09:00 UTC" in answers[0]
    for at in ("0001-01-01T00:00:00%2B14:00", "1969-12-31T23:59:59Z", "9999-12-31T23:59:30-10:00"):
        assert (await shop.owner("GET", path + at)).problem() == (422, "invalid_value", "at"), at
    for at in ("1970-01-01T00:00:00Z", "9998-12-31T23:59:30Z"):
        assert (await shop.owner("GET", path + at)).status == 200, at


async def test_how_a_rule_stands_names_its_only_trigger_that_is_off_and_a_scheduler_that_is_away(
    shop: Shop,
) -> None:
    rule, trigger = await old_rule(shop, "0 9 * * *")
    path = f"/api/autopilots/{rule}/triggers/{trigger}"
    await shop.owner("PATCH", path, {"enabled": False})
    assert (await explained(shop.owner, rule))["verdict"] == "trigger_disabled"
    await shop.owner("PATCH", path, {"enabled": True})
    assert (await explained(shop.owner, rule))["verdict"] == "nothing_stops_it"
    await execute(
        shop.database,
        "UPDATE autopilot_trigger SET next_run_at = now() - interval '1 hour' WHERE id = $1",
        trigger,
    )
    overdue = await explained(shop.owner, rule)
    assert (overdue["verdict"], "60 min ago" in overdue["summary"]) == ("schedule_overdue", True)


async def test_a_run_is_found_without_its_plan_and_without_its_trigger(shop: Shop) -> None:
    """S7.15, S7.17: runs are kept longer than plans, and outlive a trigger that was deleted since."""
    rule, trigger = await old_rule(shop, "0 9 * * *")
    run_id = await admit_one(
        shop.database, rule, source=Source.SCHEDULE, trigger_id=trigger, planned_at=LONG_AGO
    )
    for _ in range(2):
        answer = await explained(shop.owner, rule, at=LONG_AGO)
        assert (answer["verdict"], len(answer["findings"])) == ("queued", 1)
        assert [
            one["facts"]["run_id"] for one in answer["findings"][0]["checks"] if "run_id" in one["facts"]
        ] == [str(run_id)]
        await shop.owner("DELETE", f"/api/autopilots/{rule}/triggers/{trigger}")


async def test_a_trigger_that_was_off_comes_before_one_that_does_not_fire_then(shop: Shop) -> None:
    rule, _ = await old_rule(shop, "30 * * * *")
    daily = await rules.make_schedule_trigger(shop.database, shop.setting, rule, "0 9 * * *")
    await shop.owner("PATCH", f"/api/autopilots/{rule}/triggers/{daily.id}", {"enabled": False})
    await age(shop, rule)
    answer = await explained(shop.owner, rule, at=LONG_AGO)
    assert (answer["verdict"], answer["findings"][0]["id"]) == ("trigger_disabled", str(daily.id))
    assert answer["findings"][1]["verdict"] == "cron_no_match"


async def test_history_can_be_read_in_a_zone_that_is_known_no_more(shop: Shop) -> None:
    """S8.2"""
    rule, trigger = await old_rule(shop, "0 9 * * *")
    await plan(shop, trigger, LONG_AGO)
    await admit_one(shop.database, rule, source=Source.SCHEDULE, trigger_id=trigger, planned_at=LONG_AGO)
    await execute(
        shop.database,
        "UPDATE autopilot_trigger SET timezone = 'Mars/Base', schedule_error = 'no such zone', next_run_at = NULL WHERE id = $1",
        trigger,
    )
    assert (await explained(shop.owner, rule, at=LONG_AGO))["verdict"] == "queued"
    assert (await explained(shop.owner, rule))["verdict"] == "schedule_error"


async def test_a_plan_that_nobody_tries_again_or_takes_over_sends_for_a_scheduler(shop: Shop) -> None:
    """S13.3: failed, its next attempt due long ago; held by one that is gone."""
    rule, trigger = await old_rule(shop, "0 9,10 * * *")
    await plan(
        shop, trigger, LONG_AGO, state="FAILED", next_retry_at=LONG_AGO + timedelta(minutes=5), attempts=1
    )
    failed = await explained(shop.owner, rule, at=LONG_AGO)
    assert failed["verdict"] == "schedule_overdue"
    assert "It was to be tried again at 2026-03-04 09:05 UTC" in failed["summary"]
    later = LONG_AGO + timedelta(hours=1)
    await plan(shop, trigger, later, state="RUNNING")
    held = await explained(shop.owner, rule, at=later)
    assert "is gone" in held["summary"]
    assert "See that a scheduler runs" in held["next_step"]


async def test_the_reason_of_a_pause_is_not_that_of_another(shop: Shop) -> None:
    """S2.7: paused by a person then, by the system now."""
    rule, _ = await old_rule(shop, "0 9 * * *")
    path = f"/api/autopilots/{rule}"
    await shop.owner("PATCH", path, {"status": "paused"})
    await age(shop, rule, "2026-03-01")
    await shop.owner("PATCH", path, {"status": "active"})
    await shop.owner("PATCH", path, {"status": "paused"})
    await execute(shop.database, "UPDATE autopilot SET pause_reason = 'owner_left' WHERE id = $1", rule)
    then, now = await explained(shop.owner, rule, at=LONG_AGO), await explained(shop.owner, rule)
    assert (fact(then, "pause_reason"), fact(now, "pause_reason")) == (None, "owner_left")
    assert (fact(then, "rule_version"), fact(now, "rule_version")) == (3, 5)


async def test_an_occurrence_without_a_run_comes_before_what_ran_in_that_minute(shop: Shop) -> None:
    """S13.3: others were busy at nine; the schedule that was due then has no run."""
    rule, trigger = await old_rule(shop, "0 9 * * *")
    await plan(shop, trigger, LONG_AGO, state="FAILED", attempts=3)
    for n in range(2):
        run_id = await admit_one(shop.database, rule, source=Source.MANUAL, clicker=shop.setting.owner_id)
        sql = "UPDATE autopilot_run SET id = uuid7_floor($2::timestamptz + interval '1 s' * $3), created_at = $2 WHERE id = $1"
        await execute(shop.database, "DELETE FROM dispatch_queue WHERE run_id = $1", run_id)
        await execute(shop.database, sql, run_id, LONG_AGO, n + 1)
    answer = await explained(shop.owner, rule, at=LONG_AGO)
    assert [found["about"] for found in answer["findings"]] == ["trigger", "time", "run", "run"]
    assert answer["verdict"] == "plan_exhausted"


async def test_a_plan_that_was_off_when_its_turn_came_says_by_what(shop: Shop) -> None:
    """S7.8"""
    rule, trigger = await old_rule(shop, "0 9 * * *")
    await plan(shop, trigger, LONG_AGO, result={"outcome": "not_due", "code": "trigger_disabled"})
    answer = await explained(shop.owner, rule, at=LONG_AGO)
    assert (answer["verdict"], fact(answer, "reason_code")) == ("plan_not_due", "trigger_disabled")
    assert "failed first" not in answer["summary"]


async def test_an_edit_long_after_a_first_occurrence_that_nobody_ran_is_named(shop: Shop) -> None:
    rule, trigger = await old_rule(shop, "0 9 * * *")
    await shop.owner("PATCH", f"/api/autopilots/{rule}/triggers/{trigger}", {"cron": "0 10 * * *"})
    await age(shop, rule, "2026-03-04T15:00:00Z")
    answer = await explained(shop.owner, rule, at=LONG_AGO)
    assert answer["verdict"] == "planned_anew"
    assert "version 3 (edit trigger" in answer["summary"]
