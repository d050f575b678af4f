"""Triggers over REST: kinds that keep to their fields, URLs and secrets that rotate, next runs, cron previews."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from tests.support import rules as world
from tests.support.api import Api, Client, Place, running_api

from autopilot.domain.permissions import TokenKind
from autopilot.domain.webhook.tokens import token_hash
from autopilot.kit.ids import uuid7

SECRET, NEXT = "first-signing-secret", "second-signing-secret"


class Rule:
    """One rule of the owner's, by its path."""

    def __init__(self, owner: Client, body: dict[str, Any]) -> None:
        self.owner = owner
        self.path = f"/api/autopilots/{body['id']}"

    async def add(self, **fields: Any) -> dict[str, Any]:
        answer = await self.owner("POST", f"{self.path}/triggers", fields)
        assert answer.status == 201, answer.body
        made: dict[str, Any] = answer.body
        return made

    async def show(self) -> dict[str, Any]:
        body: dict[str, Any] = (await self.owner("GET", self.path)).body
        return body

    def at(self, trigger: dict[str, Any], suffix: str = "") -> str:
        return f"{self.path}/triggers/{trigger['id']}{suffix}"


@pytest.fixture
async def api(postgres_url: str) -> AsyncIterator[Api]:
    async with running_api(postgres_url) as api:
        yield api


@pytest.fixture
async def rule(api: Api, acme: Place) -> Rule:
    agent_id, _ = await world.make_agent(api.database, acme.id, acme.owner_id, visibility="workspace")
    body = {
        "title": "Watch",
        "description": "Look.",
        "execution_mode": "run_only",
        "assignee_id": str(agent_id),
    }
    answer = await acme.owner("POST", "/api/autopilots", body)
    assert answer.status == 201, answer.body
    return Rule(acme.owner, answer.body)


def instant(text: str) -> datetime:
    return datetime.fromisoformat(text)


async def test_a_schedule_gets_its_defaults_and_its_next_run(rule: Rule) -> None:
    """S8.7, S7.9, S7.11."""
    before = datetime.now(UTC)
    made = await rule.add(
        kind="schedule", cron=" 0  9 * * MON-fri ", timezone="Europe/Berlin", label=" mornings "
    )
    assert (
        made
        | {
            "label": "mornings",
            "enabled": True,
            "timezone": "Europe/Berlin",
            "catch_up": "latest",
            "lateness_s": None,
            "provider": None,
            "webhook_url": None,
            "has_signing_secret": False,
        }
        == made
    )
    assert made["cron"] == "0 9 * * MON-fri"
    upcoming = instant(made["next_run_at"])
    assert before < upcoming < before + timedelta(days=4)
    assert (await rule.show())["next_run_at"] == made["next_run_at"]
    never = await rule.add(kind="schedule", cron="0 0 31 2 *")
    assert (never["next_run_at"], never["schedule_error"], never["timezone"]) == (None, None, "UTC")


async def test_a_schedule_is_shown_in_plain_words(api: Api, rule: Rule) -> None:
    """S8.3, S8.4: the next clock change with it; a webhook, and a schedule that nobody can read any more, have none."""
    made = await rule.add(kind="schedule", cron="30 2 * * *", timezone="America/New_York")
    said, _, change = made["description"].partition("; ")
    assert said == "every day at 02:30 America/New_York"
    assert re.fullmatch(r"on \d+ March \d{4} at 03:00", change)
    never = await rule.add(kind="schedule", cron="0 0 31 2 *")
    webhook = await rule.add(kind="webhook")
    patched = await rule.owner("PATCH", rule.at(made), {"cron": "0 9 13 * FRI"})
    words = "on day 13 of every month or any Friday (either is enough) at 09:00 America/New_York"
    assert patched.body["description"] == words
    shown = [trigger["description"] for trigger in (await rule.show())["triggers"]]
    assert shown == [words, "never runs", None]
    listed = await rule.owner("GET", f"{rule.path}/triggers")
    assert [trigger["description"] for trigger in listed.body["items"]] == shown
    assert never["description"] == "never runs"
    assert webhook["description"] is None
    async with api.database.connection() as conn:
        await conn.execute("UPDATE autopilot_trigger SET cron = 'some day' WHERE id = $1", UUID(made["id"]))
        await conn.execute(
            "UPDATE autopilot_trigger SET timezone = 'Mars/Base' WHERE id = $1", UUID(never["id"])
        )
    assert [trigger["description"] for trigger in (await rule.show())["triggers"]] == [None, None, None]


async def test_a_webhook_shows_its_url_to_writers_alone(api: Api, acme: Place, rule: Rule) -> None:
    """S9.1, S6.5: readers see null, and of a signing secret that there is one."""
    _, mia = await api.joined(acme, "mia")
    program = await api.program(acme, TokenKind.SERVICE)
    made = await rule.add(kind="webhook", provider="github", signing_secret=SECRET)
    token = made["webhook_token"]
    assert made["webhook_path"] == f"/api/webhooks/autopilots/{token}"
    assert made["webhook_url"] == f"https://hooks.example.test{made['webhook_path']}"
    assert (made["has_signing_secret"], made["signing_secret_hint"]) == (True, SECRET[-4:])
    for reader in (mia, program):
        listed = await reader("GET", f"{rule.path}/triggers")
        detail = await reader("GET", rule.path)
        for shown in (listed.body["items"][0], detail.body["triggers"][0]):
            hidden = ("webhook_token", "webhook_path", "webhook_url", "signing_secret_hint")
            assert [shown[name] for name in hidden] == [None] * 4
            assert shown["has_signing_secret"] is True
        assert token not in str(detail.body)
        assert SECRET not in str(detail.body)
    async with api.database.connection() as conn:
        stored = await conn.fetchrow("SELECT token_hash, token_enc, secret_enc FROM autopilot_trigger")
    assert stored is not None
    assert stored["token_hash"] == token_hash(token)
    assert token.encode() not in stored["token_enc"]
    assert SECRET.encode() not in stored["secret_enc"]


@pytest.mark.parametrize(
    ("fields", "status", "field"),
    [
        ({"kind": "schedule"}, 422, "cron"),
        ({"kind": "schedule", "cron": "  "}, 422, "cron"),
        ({"kind": "schedule", "cron": "@daily"}, 422, "cron"),
        ({"kind": "schedule", "cron": "61 * * * *"}, 422, "cron"),
        ({"kind": "schedule", "cron": "* * * * *", "timezone": "Europe/Berlim"}, 422, "timezone"),
        ({"kind": "schedule", "cron": "* * * * *", "timezone": ""}, 422, "timezone"),
        ({"kind": "schedule", "cron": "* * * * *", "catch_up": "some"}, 422, "catch_up"),
        ({"kind": "schedule", "cron": "* * * * *", "catch_up": "none", "lateness_s": 60}, 422, "lateness_s"),
        ({"kind": "schedule", "cron": "* * * * *", "lateness_s": 2_678_401}, 422, "lateness_s"),
        ({"kind": "schedule", "cron": "* * * * *", "lateness_s": "soon"}, 400, "lateness_s"),
        ({"kind": "schedule", "cron": "* * * * *", "provider": "github"}, 422, "provider"),
        ({"kind": "schedule", "cron": "* * * * *", "event_filters": []}, 422, "event_filters"),
        ({"kind": "schedule", "cron": "* * * * *", "pace_per_min": 5}, 422, "pace_per_min"),
        ({"kind": "schedule", "cron": "* * * * *", "signing_secret": SECRET}, 422, "signing_secret"),
        ({"kind": "schedule", "cron": "* * * * *", "provider": None}, 422, "provider"),
        ({"kind": "webhook", "cron": None}, 422, "cron"),
        ({"kind": "webhook", "cron": "* * * * *"}, 422, "cron"),
        ({"kind": "webhook", "timezone": "UTC"}, 422, "timezone"),
        ({"kind": "webhook", "catch_up": "latest"}, 422, "catch_up"),
        ({"kind": "webhook", "lateness_s": 60}, 422, "lateness_s"),
        ({"kind": "webhook", "provider": "guthib"}, 422, "provider"),
        ({"kind": "webhook", "pace_per_min": 0}, 422, "pace_per_min"),
        ({"kind": "webhook", "pace_per_min": 6_001}, 422, "pace_per_min"),
        ({"kind": "webhook", "signing_secret": "s" * 15}, 422, "signing_secret"),
        ({"kind": "webhook", "signing_secret": "s" * 257}, 422, "signing_secret"),
        ({"kind": "webhook", "event_filters": [{"event": ""}]}, 422, "event_filters"),
        ({"kind": "webhook", "event_filters": [{"event": "push"}] * 51}, 422, "event_filters"),
        ({"kind": "webhook", "event_filters": [{"event": "push", "branch": "main"}]}, 422, "event_filters"),
        ({"kind": "webhook", "event_filters": "push"}, 400, "event_filters"),
        ({"kind": "webhook", "label": "x" * 101}, 422, "label"),
        ({"kind": "carrier pigeon"}, 422, "kind"),
        ({"cron": "* * * * *"}, 400, "kind"),
    ],
)
async def test_a_trigger_that_cannot_be_is_refused_by_name(
    rule: Rule, fields: dict[str, Any], status: int, field: str
) -> None:
    """S8.1, S8.2, S8.7, S7.11, S9.9, S9.16, S13.8: and nothing is published."""
    answer = await rule.owner("POST", f"{rule.path}/triggers", fields)
    assert (answer.status, answer.body["field"]) == (status, field), answer.body
    assert SECRET not in str(answer.body)
    shown = await rule.show()
    assert (shown["triggers"], shown["rule_version"]) == ([], 1)


async def test_the_other_kinds_fields_are_refused_on_edit_too(rule: Rule) -> None:
    """S8.7: and a kind never changes."""
    schedule = await rule.add(kind="schedule", cron="* * * * *")
    webhook = await rule.add(kind="webhook")
    for trigger, fields, expected in [
        (schedule, {"provider": "github"}, (422, "provider")),
        (schedule, {"pace_per_min": 9}, (422, "pace_per_min")),
        (schedule, {"cron": ""}, (422, "cron")),
        (schedule, {"cron": None}, (400, "cron")),
        (schedule, {"kind": "webhook"}, (400, "kind")),
        (schedule, {"lateness_s": 60, "catch_up": "all"}, (422, "lateness_s")),
        (webhook, {"cron": "* * * * *"}, (422, "cron")),
        (webhook, {"lateness_s": 60}, (422, "lateness_s")),
        (webhook, {"timezone": None}, (422, "timezone")),
        (webhook, {"signing_secret": SECRET}, (400, "signing_secret")),
    ]:
        answer = await rule.owner("PATCH", rule.at(trigger), fields)
        assert (answer.status, answer.body["field"]) == expected, fields
    for route in ("/rotate-url", "/signing-secret"):
        method, body = ("POST", {}) if route == "/rotate-url" else ("PUT", {"secret": SECRET})
        answer = await rule.owner(method, rule.at(schedule, route), body)
        assert answer.problem() == (409, "not_a_webhook", None)
    assert (await rule.show())["triggers"] == [schedule, webhook]


async def test_settings_that_contradict_each_other_are_refused_from_either_side(rule: Rule) -> None:
    """S7.11, HAZARDS 22."""
    trigger = await rule.add(kind="schedule", cron="* * * * *", catch_up="all")
    refused = await rule.owner("PATCH", rule.path, {"overlap_policy": "skip"})
    assert refused.problem() == (422, "invalid_value", "overlap_policy")
    assert (
        await rule.owner("PATCH", rule.at(trigger), {"catch_up": "latest", "lateness_s": 600})
    ).status == 200
    assert (await rule.owner("PATCH", rule.path, {"overlap_policy": "queue_one"})).status == 200
    refused = await rule.owner("PATCH", rule.at(trigger), {"catch_up": "all", "lateness_s": None})
    assert refused.problem() == (422, "invalid_value", "catch_up")
    refused = await rule.owner(
        "POST", f"{rule.path}/triggers", {"kind": "schedule", "cron": "* * * * *", "catch_up": "all"}
    )
    assert refused.problem() == (422, "invalid_value", "catch_up")


async def test_next_run_follows_every_change_of_when_and_nothing_else(rule: Rule) -> None:
    """S7.9, S7.10, DU6: null while disabled, paused or archived; a label moves nothing."""
    month = (
        datetime.now(UTC).month + 5
    ) % 12 + 1  # half a year away: no occurrence passes while the test runs
    trigger = await rule.add(kind="schedule", cron=f"0 9 1 {month} *")
    other = await rule.add(kind="schedule", cron=f"30 4 1 {month} *", timezone="Asia/Tokyo")

    async def next_runs() -> tuple[str | None, str | None]:
        first, second = (await rule.show())["triggers"]
        return first["next_run_at"], second["next_run_at"]

    before = await next_runs()
    assert None not in before
    await rule.owner("PATCH", rule.at(trigger), {"label": "daily", "catch_up": "none"})
    await rule.owner("PATCH", rule.path, {"title": "Renamed", "description": "Otherwise."})
    assert await next_runs() == before
    moved = (await rule.owner("PATCH", rule.at(trigger), {"cron": f"0 10 1 {month} *"})).body
    assert instant(moved["next_run_at"]).hour == 10
    zoned = (await rule.owner("PATCH", rule.at(trigger), {"timezone": "Asia/Tokyo"})).body
    assert instant(zoned["next_run_at"]).hour == 1
    for change in ({"status": "paused"}, {"status": "archived"}):
        await rule.owner("PATCH", rule.path, change)
        assert await next_runs() == (None, None)
    await rule.owner("PATCH", rule.path, {"status": "active"})
    assert await next_runs() == (zoned["next_run_at"], before[1])
    await rule.owner("PATCH", rule.at(other), {"enabled": False})
    assert await next_runs() == (zoned["next_run_at"], None)
    await rule.owner("PATCH", rule.at(other), {"enabled": True})
    assert await next_runs() == (zoned["next_run_at"], before[1])


async def test_an_edit_of_a_trigger_made_on_an_old_state_is_a_conflict(rule: Rule) -> None:
    """S13.2."""
    trigger = await rule.add(kind="schedule", cron="0 9 * * *")
    assert (await rule.owner("PATCH", rule.at(trigger), {"enabled": False, "version": 1})).body[
        "version"
    ] == 2
    late = await rule.owner("PATCH", rule.at(trigger), {"enabled": True, "version": 1})
    assert late.problem() == (409, "edit_conflict", None)
    late = await rule.owner("PATCH", rule.at(trigger), {"enabled": True}, headers={"If-Match": '"1"'})
    assert late.problem() == (409, "edit_conflict", None)


@pytest.mark.parametrize(
    ("method", "below", "body"),
    [
        ("POST", "/rotate-url", {}),
        ("PUT", "/signing-secret", {"secret": "a secret of some length"}),
        ("DELETE", "/signing-secret", {}),
        ("DELETE", "", {}),
    ],
    ids=["rotate", "sign", "unsign", "delete"],
)
async def test_whatever_changes_a_trigger_heeds_if_match(
    rule: Rule, method: str, below: str, body: dict[str, Any]
) -> None:
    """S13.2: a secret is not replaced, nor a trigger deleted, by somebody who saw another one."""
    made = await rule.add(kind="webhook", signing_secret="the first one of some length")
    path = rule.at(made, below)
    late = await rule.owner(method, path, body, headers={"If-Match": '"2"'})
    assert late.problem() == (409, "edit_conflict", None)
    assert (await rule.owner(method, path, body, headers={"If-Match": '"1"'})).status in (200, 204)


async def test_a_new_url_ends_the_old_one_at_once(api: Api, rule: Rule) -> None:
    """S9.1."""
    made = await rule.add(kind="webhook")
    rotated = (await rule.owner("POST", rule.at(made, "/rotate-url"))).body
    assert rotated["webhook_token"] != made["webhook_token"]
    async with api.database.connection() as conn:
        hashes = [r["token_hash"] for r in await conn.fetch("SELECT token_hash FROM autopilot_trigger")]
    assert hashes == [token_hash(rotated["webhook_token"])]
    assert (await rule.show())["rule_version"] == 3


async def test_a_signing_secret_is_rotated_with_a_grace_period(api: Api, rule: Rule) -> None:
    """S9.13, S5.5: default 24 h, 0 ends the old one at once, the same secret again changes nothing."""
    made = await rule.add(kind="webhook")
    path = rule.at(made, "/signing-secret")

    async def put(**body: Any) -> dict[str, Any]:
        answer = await rule.owner("PUT", path, body)
        assert answer.status == 200, answer.body
        shown: dict[str, Any] = answer.body
        return shown

    async def stored() -> tuple[str | None, str | None]:
        async with api.database.connection() as conn:
            row = await conn.fetchrow("SELECT secret_enc, previous_secret_enc FROM autopilot_trigger")
        assert row is not None
        now, before = row
        return now and world.VAULT.decrypt(now), before and world.VAULT.decrypt(before)

    first = await put(secret=SECRET)
    assert (first["signing_secret_hint"], first["previous_secret_until"]) == (SECRET[-4:], None)
    assert await put(secret=SECRET) == first
    second = await put(secret=NEXT)
    assert await stored() == (NEXT, SECRET)
    left = instant(second["previous_secret_until"]) - datetime.now(UTC)
    assert timedelta(hours=23) < left <= timedelta(hours=24)
    assert await put(secret=NEXT) == second
    ended = await put(secret=NEXT, grace_s=0)
    assert (ended["previous_secret_until"], await stored()) == (None, (NEXT, None))
    await put(secret=SECRET, grace_s=0)
    assert await stored() == (SECRET, None)
    cleared = (await rule.owner("DELETE", path)).body
    assert (cleared["has_signing_secret"], cleared["signing_secret_hint"]) == (False, None)
    assert await stored() == (None, None)
    for body, status, field in [
        ({"secret": "short"}, 422, "secret"),
        ({"secret": SECRET, "grace_s": 7 * 86_400 + 1}, 422, "grace_s"),
        ({"secret": SECRET, "grace_s": -1}, 422, "grace_s"),
        ({}, 400, "secret"),
    ]:
        answer = await rule.owner("PUT", path, body)
        assert (answer.status, answer.body["field"]) == (status, field)
    history = (await rule.owner("GET", f"{rule.path}/versions?limit=100")).body["items"]
    # add, set, rotate, grace ended, rotate, removed; the repeats published nothing.
    assert [v["version"] for v in history] == [7, 6, 5, 4, 3, 2, 1]
    assert not any(secret in str(history) for secret in (SECRET, NEXT))


async def test_a_provider_may_be_chosen_by_its_other_name(rule: Rule) -> None:
    """S9.5"""
    made = await rule.add(kind="webhook", provider="forgejo")
    assert made["provider"] == "gitea"
    patched = await rule.owner("PATCH", rule.at(made), {"provider": "svix"})
    assert patched.body["provider"] == "standard-webhooks"
    refused = await rule.owner("PATCH", rule.at(made), {"provider": "Slak"})
    assert (refused.status, refused.body["field"]) == (422, "provider")
    assert "did you mean slack" in refused.body["detail"]


async def test_a_deleted_trigger_is_dead_at_once_and_leaves_the_lists(api: Api, rule: Rule) -> None:
    """S7.15: the row stays for what refers to it, without token or secret."""
    schedule = await rule.add(kind="schedule", cron="* * * * *")
    webhook = await rule.add(kind="webhook", signing_secret=SECRET)
    for trigger in (schedule, webhook):
        assert (await rule.owner("DELETE", rule.at(trigger))).status == 204
        assert (await rule.owner("DELETE", rule.at(trigger))).status == 404
        assert (await rule.owner("PATCH", rule.at(trigger), {"enabled": True})).status == 404
    shown = await rule.show()
    assert (shown["triggers"], shown["trigger_kinds"], shown["next_run_at"]) == ([], [], None)
    async with api.database.connection() as conn:
        rows = await conn.fetch(
            "SELECT num_nonnulls(next_run_at, token_hash, token_enc, secret_enc) AS left FROM autopilot_trigger"
        )
    assert [r["left"] for r in rows] == [0, 0]


async def test_a_rule_has_at_most_50_triggers(api: Api, acme: Place, rule: Rule) -> None:
    """S13.8: deleted ones do not count."""
    body = {"kind": "webhook"}
    async with api.database.transaction() as conn:
        row = await conn.fetchrow("SELECT id FROM autopilot")
        assert row is not None
        setting = world.Setting(
            workspace_id=acme.id, owner_id=acme.owner_id, agent_id=row["id"], runtime_id=row["id"]
        )
        last = await world.make_webhook_trigger(conn, setting, row["id"])
        for _ in range(49):
            await world.make_webhook_trigger(conn, setting, row["id"])
    assert (await rule.owner("POST", f"{rule.path}/triggers", body)).problem() == (
        422,
        "invalid_value",
        "kind",
    )
    assert (await rule.owner("DELETE", f"{rule.path}/triggers/{last.id}")).status == 204
    assert (await rule.owner("POST", f"{rule.path}/triggers", body)).status == 201


async def test_only_writers_touch_triggers(api: Api, acme: Place, rule: Rule) -> None:
    """S6.2."""
    _, mia = await api.joined(acme, "mia")
    made = await rule.add(kind="webhook")
    for method, path, body in [
        ("POST", f"{rule.path}/triggers", {"kind": "webhook"}),
        ("PATCH", rule.at(made), {"enabled": False}),
        ("DELETE", rule.at(made), {}),
        ("POST", rule.at(made, "/rotate-url"), {}),
        ("PUT", rule.at(made, "/signing-secret"), {"secret": SECRET}),
        ("DELETE", rule.at(made, "/signing-secret"), {}),
    ]:
        assert (await mia(method, path, body)).problem() == (403, "forbidden", None), (method, path)
    assert (await rule.show())["triggers"] == [made]
    assert (await mia("PATCH", f"{rule.path}/triggers/{uuid7()}", {"enabled": False})).status == 403


async def test_the_scheduler_is_woken_once_an_edit_is_committed(
    api: Api, rule: Rule, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S1.2: and not for an edit that was refused."""
    woken: list[str] = []
    monkeypatch.setattr(api.deps.bus, "wake", woken.append)
    trigger = await rule.add(kind="schedule", cron="* * * * *")
    await rule.owner("PATCH", rule.at(trigger), {"cron": "*/5 * * * *"})
    await rule.owner("PATCH", rule.path, {"status": "paused"})
    assert woken == ["autopilot.wake.schedule"] * 3
    await rule.owner("PATCH", rule.at(trigger), {"cron": "never"})
    assert len(woken) == 3


async def test_a_preview_shows_the_next_runs_in_utc(acme: Place) -> None:
    """S8.6, CR1, CR12: no autopilot is touched."""
    for query, expected, words in [
        (
            "expr=0+9+*+*+1-1&after=2026-06-01T00:00:00Z",
            ["2026-06-01T09:00:00Z", "2026-06-08T09:00:00Z", "2026-06-15T09:00:00Z"],
            "every Monday at 09:00 UTC",
        ),
        (
            "expr=10+17+*+*+1-5&tz=Asia/Shanghai&after=2026-06-22T04:13:00Z&count=2",
            ["2026-06-22T09:10:00Z", "2026-06-23T09:10:00Z"],
            "every day from Monday to Friday at 17:10 Asia/Shanghai",
        ),
        (
            "expr=0+9+*+*+*&count=1&after=2026-06-01T12:00:00%2B02:00",
            ["2026-06-02T09:00:00Z"],
            "every day at 09:00 UTC",
        ),
        (
            "expr=30+2+*+*+*&tz=America/New_York&count=1&after=2026-11-30T00:00:00Z",
            ["2026-11-30T07:30:00Z"],
            "every day at 02:30 America/New_York; on 14 March 2027 at 03:00",
        ),
        ("expr=0+0+31+2+*", [], "never runs"),
    ]:
        answer = await acme.owner("GET", f"/api/autopilots/cron-preview?{query}")
        assert (answer.status, answer.body) == (200, {"next_runs": expected, "description": words})
    now = (await acme.owner("GET", "/api/autopilots/cron-preview?expr=*+*+*+*+*&count=50")).body["next_runs"]
    assert len(now) == 50
    assert abs(instant(now[0]) - datetime.now(UTC)) <= timedelta(minutes=2)


@pytest.mark.parametrize(
    ("query", "problem"),
    [
        ("", (400, "invalid_cron", "expr")),
        ("expr=nonsense&tz=Mars/Olympus", (400, "invalid_timezone", "tz")),
        ("expr=*+*+*+*+*&tz=UTC%2B2", (400, "invalid_timezone", "tz")),
        ("expr=@hourly", (400, "invalid_cron", "expr")),
        ("expr=*+*+*+*+*&count=51", (422, "invalid_value", "count")),
        ("expr=*+*+*+*+*&count=some", (400, "malformed", "count")),
        ("expr=*+*+*+*+*&after=2026-06-01T00:00:00", (400, "malformed", "after")),
        ("expr=*+*+*+*+*&after=tomorrow", (400, "malformed", "after")),
        ("expr=*+*+*+*+*&after=1767225600", (400, "malformed", "after")),
        ("expr=*+*+*+*+*&before=now", (400, "malformed", "before")),
    ],
)
async def test_a_preview_refuses_by_name(acme: Place, query: str, problem: tuple[int, str, str]) -> None:
    """S8.6: the timezone is judged first."""
    answer = await acme.owner("GET", f"/api/autopilots/cron-preview?{query}")
    assert answer.problem() == problem
