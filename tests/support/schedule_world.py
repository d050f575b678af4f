"""A story of schedules lived through by the real scheduler on a real database, and compared with its model."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any, NamedTuple

from tests.support import rules
from tests.support.database_time import DatabaseTime, simulated_time
from tests.support.dispatching import execute, fetch
from tests.support.postgres import cloned_database
from tests.support.rules import VAULT, Setting
from tests.support.schedule_model import ATTEMPTS, Fate, Model, Step, Timing
from tests.support.scheduling import Scheduler

from autopilot.domain.ids import AutopilotId, TriggerId
from autopilot.domain.schedule import CatchUp
from autopilot.domain.states import AutopilotStatus, TriggerKind
from autopilot.engine import rules as rules_engine
from autopilot.engine import triggers as triggers_engine
from autopilot.engine.rules import AutopilotEdit
from autopilot.engine.triggers import NewTrigger, TriggerEdit
from autopilot.kit import points
from autopilot.kit.ids import uuid7
from autopilot.kit.tasks import end
from autopilot.scheduler.jobs.schedule import LOOK_AGAIN_S
from autopilot.storage.database import Database

BEFORE_COMMIT = "scheduler.schedule.before_commit"
AFTER_COMMIT = "scheduler.schedule.after_commit"
SMALL_BATCH, WHOLE_BATCH = 150, 100_000
STATUSES = {
    "pause": AutopilotStatus.PAUSED,
    "resume": AutopilotStatus.ACTIVE,
    "archive": AutopilotStatus.ARCHIVED,
}


class Killed(BaseException):
    """The process ends here: nothing of the code gets to handle it."""


class Mismatch(NamedTuple):
    """Where the scheduler did other than the model says; None stands for nothing at all."""

    at: datetime
    trigger: int | None
    expected: object
    found: object

    def __str__(self) -> str:
        return f"trigger {self.trigger}, {self.at}: expected {self.expected}, found {self.found}"


class World:
    """The product side of a story: rules and triggers by number, one scheduler after the other."""

    def __init__(self, database: Database, time: DatabaseTime, setting: Setting) -> None:
        self.database = database
        self.triggers: dict[int, TriggerId] = {}
        self.scheduler = Scheduler(database, batch=SMALL_BATCH)
        self._time = time
        self._setting = setting
        self._rules: dict[int, AutopilotId] = {}
        self._poisoned: set[int] = set()
        self._sick: set[int] = set()  # what the database knows of it

    def restart(self) -> None:
        """A new process takes over from the one before."""
        self.scheduler = Scheduler(self.database, batch=SMALL_BATCH)

    async def apply(self, step: Step, model: Model) -> None:
        """Do to the real thing what the step says; `model` is as it was before."""
        if self._time.now != step.at:
            await self._time.set(step.at)
        if step.what == "look":
            await self._look(step, model)
        elif step.trigger is None:
            assert step.rule is not None
            await self._set_status(step.rule, STATUSES[step.what])
        elif step.what == "add":
            await self._add(step)
        elif step.what in ("poison", "cure"):
            (self._poisoned.add if step.what == "poison" else self._poisoned.discard)(step.trigger)
            await self._poison(self._poisoned)
        else:
            await self._edit(step)

    async def _look(self, step: Step, model: Model) -> None:
        if step.how == "killed before commit":
            await self._die(BEFORE_COMMIT)
        elif step.how == "killed after commit":
            await self._die(AFTER_COMMIT)
        elif step.how.startswith("held") and model.can_hold(step.at):
            await self._hold(killed=step.how == "held and killed")
        else:
            await self.scheduler.drain()

    async def _die(self, point: str) -> None:
        """A scheduler that dies at its first commit, whose batch is all there is; for once nothing is poisoned."""
        await self._poison(set())
        with points.armed(point, "raise", on_hit=1, error=Killed()):
            try:
                await Scheduler(self.database, batch=WHOLE_BATCH).step()
            except Killed:
                self.restart()
        await self._poison(self._poisoned)

    async def _hold(self, *, killed: bool) -> None:
        """One scheduler stands before its commit with all locks; another finds nothing that it may touch."""
        slow = Scheduler(self.database, batch=WHOLE_BATCH)
        with points.armed(BEFORE_COMMIT, "block", on_hit=1) as point:
            step = asyncio.create_task(slow.step())
            await point.wait_reached()
            assert await self.scheduler.step() == LOOK_AGAIN_S
            if killed:
                await end(step)
            else:
                point.release()
                await step
        if not killed:
            await self.scheduler.drain()

    async def _poison(self, triggers: set[int]) -> None:
        if triggers == self._sick:
            return
        self._sick = set(triggers)
        ids = [self.triggers[trigger] for trigger in triggers]
        await execute(self.database, "UPDATE poison SET trigger_ids = $1", ids)

    async def _add(self, step: Step) -> None:
        assert step.rule is not None
        assert step.trigger is not None
        assert step.timing is not None
        if step.rule not in self._rules:
            made = await rules.make_autopilot(self.database, self._setting)
            self._rules[step.rule] = made.id
        new = NewTrigger(id=TriggerId(uuid7()), kind=TriggerKind.SCHEDULE, **_fields(step.timing))
        workspace_id, owner_id = self._setting.workspace_id, self._setting.owner_id
        async with self.database.transaction() as conn:
            await triggers_engine.add_trigger(
                conn, VAULT, workspace_id, self._rules[step.rule], owner_id, new
            )
        self.triggers[step.trigger] = new.id

    async def _edit(self, step: Step) -> None:
        assert step.rule is not None
        assert step.trigger is not None
        workspace_id, owner_id = self._setting.workspace_id, self._setting.owner_id
        key = (workspace_id, self._rules[step.rule], self.triggers[step.trigger], owner_id)
        async with self.database.transaction() as conn:
            if step.what == "delete":
                await triggers_engine.delete_trigger(conn, *key)
            elif step.what == "rename":
                await triggers_engine.update_trigger(conn, *key, TriggerEdit(label=f"since {step.at}"))
            else:
                changes = dict(map(_as_sent, step.changes))
                await triggers_engine.update_trigger(conn, *key, TriggerEdit(**changes))

    async def _set_status(self, rule: int, status: AutopilotStatus) -> None:
        edit = AutopilotEdit(status=status)
        async with self.database.transaction() as conn:
            await rules_engine.update_autopilot(
                conn, self._setting.workspace_id, self._rules[rule], self._setting.owner_id, edit
            )

    async def ran(self, trigger: int) -> list[datetime]:
        """The plans that a trigger has run, oldest first, one for each run."""
        sql = "SELECT planned_at FROM autopilot_run WHERE trigger_id = $1 AND status = 'pending' ORDER BY planned_at"
        return [row["planned_at"] for row in await fetch(self.database, sql, self.triggers[trigger])]

    async def compare_next(self, model: Model) -> list[Mismatch]:
        """Triggers whose next_run_at is not the model's."""
        numbers = {id_: number for number, id_ in self.triggers.items()}
        rows = await fetch(self.database, "SELECT id, next_run_at, schedule_error FROM autopilot_trigger")
        wrong = []
        for row in rows:
            number = numbers[row["id"]]
            wanted, found = model.schedules[number].next_due, row["next_run_at"]
            if wanted != found or row["schedule_error"] is not None:
                told = f"next run {found}, error {row['schedule_error']}"
                wrong.append(Mismatch(self._time.now, number, f"next run {wanted}", told))
        return wrong

    async def compare_plans(self, model: Model) -> list[Mismatch]:
        """Plans and runs that are not as the model says, oldest plan first."""
        rows = await fetch(self.database, _PLANS)
        found = {(row["trigger_id"], row["planned_at"]): row for row in rows}
        wanted = {
            (self.triggers[number], planned_at): (number, fate)
            for number, one in model.schedules.items()
            for planned_at, fate in one.fates.items()
        }
        numbers = {id_: number for number, id_ in self.triggers.items()}
        wrong = [
            Mismatch(key[1], numbers[key[0]], "no such plan", _told(found[key]))
            for key in found.keys() - wanted.keys()
        ]
        for key, (number, fate) in wanted.items():
            told = _told(found[key]) if key in found else None
            if told != fate:
                wrong.append(Mismatch(key[1], number, fate, told))
        return sorted(wrong, key=lambda one: (one.at, one.trigger))


# Every plan with its execution and how many runs there are of it; runs whose plan was taken are plans at null.
_PLANS = """
    SELECT coalesce(r.trigger_id::text, e.scope_id)::uuid AS trigger_id, coalesce(r.planned_at, e.plan_time) AS planned_at,
           e.state, e.attempts, e.next_retry_at, e.result::text AS result, r.runs, r.status, r.reason_code, r.missed_count
      FROM (SELECT * FROM sys_cron_executions WHERE job_name = 'autopilot_schedule_dispatch') e
      FULL JOIN (SELECT trigger_id, planned_at, count(*) AS runs, min(status) AS status, min(reason_code) AS reason_code,
                        min(missed_count) AS missed_count
                   FROM autopilot_run GROUP BY trigger_id, planned_at) r
             ON r.trigger_id = e.scope_id::uuid AND r.planned_at = e.plan_time"""


def _told(row: Any) -> Fate | str:
    """What the rows of a plan say; a text where they do not agree with each other."""
    result = json.loads(row["result"] or "{}")
    match row["state"], result.get("outcome"), row["runs"], row["status"], row["reason_code"]:
        case "SUCCESS", "admitted", 1, "pending", None:
            return Fate("ran", result.get("missed"))
        case "SUCCESS", "skipped", 1, "skipped", "schedule_missed" if row["missed_count"] == result.get(
            "missed"
        ):
            return Fate("missed", row["missed_count"])
        case "SUCCESS", "not_due", None, None, None:
            return Fate("not due")
        case "FAILED", None, 1, "failed", "internal_error" if (
            row["next_retry_at"] is None and row["attempts"] == ATTEMPTS
        ):
            return Fate("failed")
        case "FAILED", None, None, None, None if row["next_retry_at"] is not None:
            return Fate("retrying", None, row["next_retry_at"])
        case _:
            return f"rows that disagree: {dict(row)}"


def _fields(timing: Timing) -> dict[str, Any]:
    return dict(map(_as_sent, vars(timing).items()))


def _as_sent(field: tuple[str, Any]) -> tuple[str, Any]:
    match field:
        case "cron", cron:
            return "cron", cron.expr
        case "zone", zone:
            return "timezone", zone
        case "catch_up", catch_up:
            return "catch_up", CatchUp(catch_up)
        case _:
            return field


@asynccontextmanager
async def world(admin_url: str, template: str, start: datetime) -> AsyncIterator[World]:
    """A fresh world at an instant, with a database of its own."""
    async with (
        cloned_database(admin_url, template) as url,
        simulated_time(url, start) as time,
        Database(url, name="simulation", settings=time.url_settings) as database,
    ):
        setting = await rules.make_setting(database)
        await execute(database, _POISON)
        yield World(database, time, setting)


_POISON = """
    CREATE TABLE public.poison AS SELECT '{}'::uuid[] AS trigger_ids;
    CREATE FUNCTION public.refuse_run() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        IF NEW.status <> 'failed' AND EXISTS (SELECT 1 FROM public.poison WHERE NEW.trigger_id = ANY(trigger_ids)) THEN
            RAISE EXCEPTION 'poison';
        END IF;
        RETURN NEW;
    END $$;
    CREATE TRIGGER refuse_run BEFORE INSERT ON public.autopilot_run FOR EACH ROW EXECUTE FUNCTION public.refuse_run()"""


async def live(world: World, steps: Sequence[Step], *, restarts: bool = False) -> list[Mismatch]:
    """Let a story happen; what went otherwise than the model says, [] if nothing did.

    `restarts`: each look is that of a new scheduler.
    """
    model = Model()
    for number, step in enumerate(steps):
        if not model.can(step):
            continue
        if restarts:
            world.restart()
        try:
            await world.apply(step, model)
        except Exception as error:  # noqa: BLE001 - a story that cannot go on is told like one that goes wrong
            broken = Mismatch(step.at, step.trigger, f"this to be possible: {step}", repr(error))
            return [*await world.compare_plans(model), broken]
        model.apply(step)
        if number % 100 == 99 and (wrong := await world.compare_next(model)):
            return [*await world.compare_plans(model), *wrong]
    return [*await world.compare_plans(model), *await world.compare_next(model)]
