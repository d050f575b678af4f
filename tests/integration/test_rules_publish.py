"""Rules in the database: what edits publish, re-stamp and reschedule, also when they meet each other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import datetime
from typing import Any

import pytest
from tests.support import rules as world

from autopilot.domain.errors import Conflict, Forbidden, InvalidValue
from autopilot.domain.ids import AutopilotId, TriggerId, UserId
from autopilot.domain.permissions import Role
from autopilot.domain.states import AssigneeType, AutopilotStatus, ExecutionMode, PauseReason
from autopilot.engine import rule_access, rules, system_edits, triggers
from autopilot.engine.rules import AutopilotEdit
from autopilot.engine.triggers import TriggerEdit
from autopilot.storage import versions
from autopilot.storage.autopilots import Autopilot, find_autopilot
from autopilot.storage.database import Database
from autopilot.storage.errors import ConstraintViolated
from autopilot.storage.invariants import check_on
from autopilot.storage.versions import RuleVersion


class Rule:
    """One active rule of the owner's with a schedule and a webhook, and a collaborator, Mia."""

    def __init__(self, database: Database, setting: world.Setting, mia: UserId, ids: tuple[Any, ...]) -> None:
        self.database, self.setting, self.mia = database, setting, mia
        self.id: AutopilotId
        self.schedule: TriggerId
        self.webhook: TriggerId
        self.id, self.schedule, self.webhook = ids

    async def edit(self, editor: UserId, *, expected_rev: int | None = None, **fields: Any) -> Autopilot:
        edit = AutopilotEdit(**fields)
        return await self.database.transact(
            lambda conn: rules.update_autopilot(
                conn, self.setting.workspace_id, self.id, editor, edit, expected_rev=expected_rev
            )
        )

    async def edit_trigger(self, editor: UserId, trigger_id: TriggerId, **fields: Any) -> None:
        edit = TriggerEdit(**fields)
        await self.database.transact(
            lambda conn: triggers.update_trigger(
                conn, self.setting.workspace_id, self.id, trigger_id, editor, edit
            )
        )

    async def now(self) -> Autopilot:
        async with self.database.connection() as conn:
            found = await find_autopilot(conn, self.setting.workspace_id, self.id)
        assert found is not None
        return found

    async def newest(self) -> RuleVersion:
        return (await self.history())[0]

    async def history(self) -> list[RuleVersion]:
        async with self.database.connection() as conn:
            return await versions.list_versions(
                conn, self.setting.workspace_id, self.id, before=None, limit=100
            )

    async def publishers(self) -> tuple[UserId, UserId]:
        """Of the schedule and of the webhook."""
        async with self.database.connection() as conn:
            rows = await conn.fetch("SELECT id, published_by FROM autopilot_trigger WHERE deleted_at IS NULL")
        found = {row["id"]: row["published_by"] for row in rows}
        return found[self.schedule], found[self.webhook]

    async def next_run(self) -> tuple[datetime | None, int]:
        async with self.database.connection() as conn:
            row = await conn.fetchrow(
                "SELECT next_run_at, schedule_rev FROM autopilot_trigger WHERE id = $1", self.schedule
            )
        assert row is not None
        return row["next_run_at"], row["schedule_rev"]


@pytest.fixture
async def database(postgres_url: str) -> AsyncIterator[Database]:
    async with Database(postgres_url, name="test-rules", max_size=12) as database:
        yield database


@pytest.fixture
async def setting(database: Database) -> world.Setting:
    return await world.make_setting(database)


@pytest.fixture
async def rule(database: Database, setting: world.Setting) -> Rule:
    async with database.transaction() as conn:
        autopilot = await world.make_autopilot(conn, setting)
        schedule = await world.make_schedule_trigger(conn, setting, autopilot.id, "0 9 * * 1-5")
        webhook = await world.make_webhook_trigger(conn, setting, autopilot.id, secret="s" * 16)
        mia = await world.make_user(conn, setting.workspace_id)
        await rule_access.grant(conn, setting.workspace_id, autopilot.id, setting.owner_id, mia)
    return Rule(database, setting, mia, (autopilot.id, schedule.id, webhook.id))


async def test_a_version_holds_the_whole_rule_and_no_secret(rule: Rule) -> None:
    """S5.4: a fingerprint where a secret matters; dense from the first."""
    history = await rule.history()
    assert [(v.version, v.change) for v in history] == [(3, "add trigger"), (2, "add trigger"), (1, "create")]
    schedule, webhook = history[0].rule["triggers"]
    assert (schedule["cron"], schedule["timezone"], webhook["provider"]) == ("0 9 * * 1-5", "UTC", "generic")
    assert {"secret_fingerprint", "url_fingerprint"} <= webhook.keys()
    assert "s" * 16 not in str(history)
    assert history[2].rule["triggers"] == []
    now = await rule.now()
    assert (now.version, now.version_id, now.rule_owner_id) == (3, history[0].id, rule.setting.owner_id)


async def test_the_collaborator_who_edits_becomes_the_publisher_of_everything(rule: Rule) -> None:
    """S5.5, S5.6: a change of substance re-stamps every trigger."""
    now = await rule.edit(rule.mia, description="Mia's way.")
    assert now.rule_owner_id == rule.mia
    assert await rule.publishers() == (rule.mia, rule.mia)
    newest = await rule.newest()
    assert (newest.published_by, newest.change, newest.rule["description"]) == (
        rule.mia,
        "edit description",
        "Mia's way.",
    )
    async with rule.database.connection() as conn:
        stamped = await conn.fetch("SELECT DISTINCT published_version_id FROM autopilot_trigger")
    assert [row[0] for row in stamped] == [newest.id]


async def test_editing_one_trigger_restamps_only_it(rule: Rule) -> None:
    """S5.5."""
    await rule.edit_trigger(rule.mia, rule.schedule, cron="0 8 * * 1-5")
    assert await rule.publishers() == (rule.mia, rule.setting.owner_id)
    assert (await rule.now()).rule_owner_id == rule.mia


async def test_a_label_or_a_project_publishes_nothing(rule: Rule) -> None:
    """S5.5: nor does an edit that says what is so already."""
    before = await rule.now()
    await rule.edit_trigger(rule.mia, rule.webhook, label="from the shop", enabled=True)
    await rule.edit(rule.mia, title=before.title, description=before.description, status=before.status)
    assert await rule.now() == before
    assert await rule.publishers() == (rule.setting.owner_id,) * 2


async def test_a_title_keeps_the_publisher_and_tells_the_editor(rule: Rule) -> None:
    """S5.5, S5.7."""
    await rule.edit(rule.mia, title="Renamed")
    newest = await rule.newest()
    assert (newest.version, newest.published_by, newest.edited_by) == (4, rule.setting.owner_id, rule.mia)
    assert (await rule.now()).rule_owner_id == rule.setting.owner_id
    assert await rule.publishers() == (rule.setting.owner_id,) * 2


async def test_a_pause_of_the_system_publishes_and_leaves_the_owners_be(rule: Rule) -> None:
    """S2.7, S5.5, S5.7: also when a title is edited on top of it."""

    async def pause() -> list[AutopilotId]:
        return await rule.database.transact(
            lambda conn: system_edits.system_pause(
                conn, rule.setting.workspace_id, [rule.id], PauseReason.TOO_MANY_FAILURES
            )
        )

    assert await pause() == [rule.id]
    assert await pause() == []
    now, newest = await rule.now(), await rule.newest()
    assert (now.status, now.pause_reason) == (AutopilotStatus.PAUSED, PauseReason.TOO_MANY_FAILURES)
    assert (newest.publisher_type, newest.published_by, newest.edited_by) == ("system", None, None)
    assert (now.rule_owner_id, await rule.publishers()) == (
        rule.setting.owner_id,
        (rule.setting.owner_id,) * 2,
    )
    assert (await rule.next_run())[0] is None
    await rule.edit(rule.mia, title="Renamed")
    newest = await rule.newest()
    assert (newest.publisher_type, newest.edited_by) == ("system", rule.mia)
    resumed = await rule.edit(rule.mia, status=AutopilotStatus.ACTIVE)
    assert (resumed.pause_reason, resumed.rule_owner_id) == (None, rule.mia)
    assert await rule.publishers() == (rule.mia, rule.mia)


async def test_the_database_refuses_to_change_or_delete_a_version(rule: Rule) -> None:
    """S5.4."""
    for statement in (
        "UPDATE autopilot_rule_version SET published_by = NULL",
        "DELETE FROM autopilot_rule_version",
        "TRUNCATE autopilot_rule_version",
    ):
        with pytest.raises(ConstraintViolated) as refused:
            async with rule.database.transaction() as conn:
                await conn.execute(statement)
        assert refused.value.constraint == "autopilot_rule_version_immutable"


async def test_edits_at_the_same_time_give_versions_in_order(rule: Rule) -> None:
    """S5.5: none lost, none numbered twice, and the last version is what stands."""
    await asyncio.gather(
        *(rule.edit(rule.setting.owner_id, description=f"Way {n}") for n in range(6)),
        *(rule.edit_trigger(rule.mia, rule.schedule, cron=f"{n} 9 * * *") for n in range(6)),
    )
    history = await rule.history()
    assert [v.version for v in history] == list(range(15, 0, -1))
    now = await rule.now()
    assert (now.version, now.version_id, now.description) == (
        15,
        history[0].id,
        history[0].rule["description"],
    )
    for older, newer in zip(history[1:], history, strict=False):
        assert older.rule != newer.rule
    assert await check_on(rule.database) == []


async def test_of_two_edits_made_on_the_same_state_one_is_a_conflict(rule: Rule) -> None:
    """S13.2."""
    rev = (await rule.now()).rev
    outcomes = await asyncio.gather(
        rule.edit(rule.mia, title="Mia's", expected_rev=rev),
        rule.edit(rule.setting.owner_id, title="Owner's", expected_rev=rev),
        return_exceptions=True,
    )
    assert {type(outcome) for outcome in outcomes} == {Autopilot, Conflict}


async def test_a_right_revoked_while_an_edit_waits_is_gone(rule: Rule) -> None:
    """S6.2: judged under the lock, not before it."""
    async with rule.database.transaction() as conn:
        await rule_access.revoke(conn, rule.setting.workspace_id, rule.id, rule.setting.owner_id, rule.mia)
        edit = asyncio.create_task(rule.edit(rule.mia, title="Mia's"))
        await _until_waiting(rule.database)
    with pytest.raises(Forbidden):
        await edit


async def test_resuming_gives_the_next_future_occurrence_however_late_the_last(rule: Rule) -> None:
    """S7.10, CU8: what came due while paused is not made up for."""
    before = await rule.next_run()
    async with rule.database.transaction() as conn:
        await conn.execute(
            "UPDATE autopilot_trigger SET next_run_at = '2020-01-01T09:00Z' WHERE cron IS NOT NULL"
        )
    await rule.edit(rule.mia, description="Otherwise.")
    overdue, rev = await rule.next_run()
    assert overdue is not None
    assert (overdue.year, rev) == (2020, before[1])
    await rule.edit(rule.mia, status=AutopilotStatus.PAUSED)
    assert await rule.next_run() == (None, rev + 1)
    assert await check_on(rule.database) == []
    await rule.edit(rule.mia, status=AutopilotStatus.ACTIVE)
    assert await rule.next_run() == (before[0], rev + 2)
    assert await check_on(rule.database) == []


async def test_an_expression_that_no_longer_reads_stops_alone_and_says_so(rule: Rule) -> None:
    """HAZARDS 9: a rule saved by another release resumes; its broken schedule shows the fault."""
    async with rule.database.transaction() as conn:
        await conn.execute(
            "UPDATE autopilot_trigger SET timezone = 'Mars/Olympus', next_run_at = NULL WHERE cron IS NOT NULL"
        )
    await rule.edit(rule.mia, status=AutopilotStatus.PAUSED)
    await rule.edit(rule.mia, status=AutopilotStatus.ACTIVE)
    async with rule.database.connection() as conn:
        row = await conn.fetchrow(
            "SELECT next_run_at, schedule_error FROM autopilot_trigger WHERE cron IS NOT NULL"
        )
    assert row is not None
    assert row["next_run_at"] is None
    assert "Mars/Olympus" in row["schedule_error"]
    await rule.edit_trigger(rule.mia, rule.schedule, timezone="UTC")
    assert (await rule.next_run())[0] is not None


async def test_activating_waits_for_an_agent_being_archived_and_is_refused(rule: Rule) -> None:
    """S13.5, S11.5: whichever commits first, no active rule is left on an archived agent."""
    await rule.edit(rule.setting.owner_id, status=AutopilotStatus.PAUSED)
    async with rule.database.transaction() as conn:
        await conn.execute("UPDATE agent SET archived_at = now() WHERE id = $1", rule.setting.agent_id)
        resume = asyncio.create_task(rule.edit(rule.setting.owner_id, status=AutopilotStatus.ACTIVE))
        await _until_waiting(rule.database)
        await system_edits.pause_dependents(
            conn,
            rule.setting.workspace_id,
            PauseReason.TARGET_UNAVAILABLE,
            agents=[rule.setting.agent_id],
        )
    with pytest.raises(InvalidValue) as refused:
        await resume
    assert refused.value.field == "assignee_id"


async def test_a_subscriber_cannot_leave_between_the_check_and_the_row(rule: Rule) -> None:
    """HAZARDS 22: the edit waits for the leaving, and then names nobody who is gone."""
    tom = await world.make_user(rule.database, rule.setting.workspace_id)
    async with rule.database.transaction() as conn:
        await world.remove_member(conn, rule.setting.workspace_id, tom)
        edit = asyncio.create_task(rule.edit(rule.mia, subscribers=[tom]))
        await _until_waiting(rule.database)
    with pytest.raises(InvalidValue) as refused:
        await edit
    assert refused.value.field == "subscribers"


async def test_what_depends_on_an_agent_is_paused_by_the_system(
    database: Database, setting: world.Setting
) -> None:
    """S11.5: its own rules and those of the squads it leads; others and those already paused stay."""
    workspace_id, owner = setting.workspace_id, setting.owner_id
    agent_id, _ = await world.make_agent(database, workspace_id, owner)
    squad = await world.make_squad(database, workspace_id, owner, agent_id)
    own = await world.make_autopilot(database, setting, assignee_id=agent_id)
    led = await world.make_autopilot(database, setting, assignee_type=AssigneeType.SQUAD, assignee_id=squad)
    await world.make_autopilot(database, setting, assignee_id=agent_id, status=AutopilotStatus.PAUSED)
    await world.make_autopilot(database, setting)
    async with database.transaction() as conn:
        paused = await system_edits.pause_dependents(
            conn, workspace_id, PauseReason.AGENT_RUNTIME_REQUIRED, agents=[agent_id]
        )
    assert paused == [own.id, led.id]
    async with database.connection() as conn:
        told = await conn.fetch("SELECT autopilot_id, user_id, kind, title FROM inbox_item ORDER BY id")
        assert [tuple(row.values()) for row in told] == [
            (
                id_,
                owner,
                "autopilot_paused",
                f"“{own.title}” was paused by the system: its agent has no runtime",
            )
            for id_ in paused
        ]
        rows = await conn.fetch(
            "SELECT id FROM autopilot WHERE pause_reason = 'agent_runtime_required' ORDER BY id"
        )
    assert [row["id"] for row in rows] == paused


async def test_a_squads_rules_are_handed_to_its_leader(database: Database, setting: world.Setting) -> None:
    """S11.5, S5.5: a system edit; the rules stay active and nobody new answers for them."""
    squad = await world.make_squad(database, setting.workspace_id, setting.owner_id, setting.agent_id)
    led = await world.make_autopilot(
        database,
        setting,
        assignee_type=AssigneeType.SQUAD,
        assignee_id=squad,
        execution_mode=ExecutionMode.RUN_ONLY,
    )
    hook = await world.make_webhook_trigger(database, setting, led.id)
    async with database.transaction() as conn:
        handed = await system_edits.hand_to_leader(conn, setting.workspace_id, squad, setting.agent_id)
        now = await find_autopilot(conn, setting.workspace_id, led.id)
        row = await conn.fetchrow("SELECT published_by FROM autopilot_trigger WHERE id = $1", hook.id)
    assert now is not None
    assert row is not None
    assert handed == [led.id]
    assert (now.assignee_type, now.assignee_id, now.status, now.version) == (
        AssigneeType.AGENT,
        setting.agent_id,
        AutopilotStatus.ACTIVE,
        3,
    )
    assert row["published_by"] == now.rule_owner_id == setting.owner_id


async def test_nobody_outside_the_workspace_makes_a_rule(database: Database, setting: world.Setting) -> None:
    """S6.1."""
    elsewhere = await world.make_workspace(database, "globex")
    stranger = await world.make_user(database, elsewhere, Role.OWNER)
    with pytest.raises(Forbidden):
        await world.make_autopilot(database, setting, editor=stranger)


async def _until_waiting(database: Database) -> None:
    """Return when some session of this database waits for a lock."""
    async with database.connection() as conn:
        async with asyncio.timeout(30):
            while not await conn.fetchval(
                """SELECT EXISTS (SELECT 1 FROM pg_stat_activity
                                   WHERE datname = current_database() AND wait_event_type = 'Lock')"""
            ):
                await asyncio.sleep(0)
