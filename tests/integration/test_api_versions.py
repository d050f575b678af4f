"""What an edit over the API publishes and re-stamps, the table of S5.5 row by row, and what a run of long ago still answers."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.support.api import Answer, Api, Client, Place
from tests.support.dispatching import fetch

from autopilot.domain.ids import UserId

MORNING, HOOK, NEW = "morning", "hook", "new"
ALL = {MORNING, HOOK}
SECRET = "a secret that is long enough"


class Row(msgspec.Struct, frozen=True):
    """One edit: a method, a path below the rule (`{morning}` and `{hook}` are its triggers) and a body; what it publishes.

    `change` None: nothing at all. `stamped`: the triggers whose publisher becomes the editor.
    """

    method: str
    path: str
    body: dict[str, Any] | None
    change: str | None
    stamped: set[str] = msgspec.field(default_factory=set)
    keeps_publisher: bool = False
    before: list[tuple[str, str, dict[str, Any] | None]] = msgspec.field(default_factory=list)


PAUSE = ("PATCH", "", {"status": "paused"})
SIGN = ("PUT", "/triggers/{hook}/signing-secret", {"secret": SECRET})

ROWS = {
    "runbook": Row("PATCH", "", {"description": "Read twice."}, "edit description", ALL),
    "mode": Row("PATCH", "", {"execution_mode": "create_issue"}, "edit execution_mode", ALL),
    "template": Row("PATCH", "", {"issue_title_template": "{{date}}"}, "edit issue_title_template", ALL),
    "assignee": Row("PATCH", "", {"assignee_id": "{other}"}, "edit assignee_id", ALL),
    "overlap": Row("PATCH", "", {"overlap_policy": "skip"}, "edit overlap_policy", ALL),
    "pause": Row("PATCH", "", {"status": "paused"}, "pause"),
    "resume": Row("PATCH", "", {"status": "active"}, "resume", ALL, before=[PAUSE]),
    "archive": Row("DELETE", "", None, "archive"),
    "archive twice": Row("DELETE", "", None, None, before=[("DELETE", "", None)]),
    "restore": Row("PATCH", "", {"status": "active"}, "restore", ALL, before=[("DELETE", "", None)]),
    "title": Row("PATCH", "", {"title": "Another"}, "edit title", keeps_publisher=True),
    "nothing": Row("PATCH", "", {"title": "Review", "overlap_policy": "allow"}, None),
    "project": Row("PATCH", "", {"project_id": "{project}"}, None),
    "subscribers": Row("PATCH", "", {"subscribers": ["{editor}"]}, None),
    "label": Row("PATCH", "/triggers/{hook}", {"label": "pushes"}, None),
    "add": Row("POST", "/triggers", {"kind": "webhook"}, "add trigger", {NEW}),
    "delete": Row("DELETE", "/triggers/{hook}", None, "delete trigger"),
    "enabled": Row("PATCH", "/triggers/{hook}", {"enabled": False}, "edit trigger", {HOOK}),
    "cron": Row("PATCH", "/triggers/{morning}", {"cron": "0 8 * * *"}, "edit trigger", {MORNING}),
    "timezone": Row("PATCH", "/triggers/{morning}", {"timezone": "Asia/Tokyo"}, "edit trigger", {MORNING}),
    "catch-up": Row("PATCH", "/triggers/{morning}", {"catch_up": "none"}, "edit trigger", {MORNING}),
    "lateness": Row("PATCH", "/triggers/{morning}", {"lateness_s": 60}, "edit trigger", {MORNING}),
    "same cron": Row("PATCH", "/triggers/{morning}", {"cron": "0 9 * * *", "timezone": "UTC"}, None),
    "filters": Row(
        "PATCH", "/triggers/{hook}", {"event_filters": [{"event": "push"}]}, "edit trigger", {HOOK}
    ),
    "provider": Row("PATCH", "/triggers/{hook}", {"provider": "gitlab"}, "edit trigger", {HOOK}),
    "pacing": Row("PATCH", "/triggers/{hook}", {"pace_per_min": 5}, "edit trigger", {HOOK}),
    "secret set": Row(*SIGN, "edit trigger", {HOOK}),
    "same secret": Row(*SIGN, None, before=[SIGN]),
    "secret removed": Row(
        "DELETE", "/triggers/{hook}/signing-secret", None, "edit trigger", {HOOK}, before=[SIGN]
    ),
    "grace": Row(
        "PUT",
        "/triggers/{hook}/signing-secret",
        {"secret": "another secret, long enough", "grace_s": 60},
        "edit trigger",
        {HOOK},
        before=[SIGN],
    ),
    "URL rotation": Row("POST", "/triggers/{hook}/rotate-url", None, "edit trigger", {HOOK}),
}


class Bench:
    """Rules of the owner's that a collaborator, Cleo, edits."""

    def __init__(self, place: Place, cleo: Client, names: dict[str, str]) -> None:
        self.owner, self.cleo, self.names = place.owner, cleo, names

    async def rule(self) -> str:
        """An active rule with a schedule and a webhook, shared with Cleo."""
        body = {
            "title": "Review",
            "description": "Read it.",
            "execution_mode": "run_only",
            "assignee_id": self.names["agent"],
        }
        path = f"/api/autopilots/{(await done(self.owner, 'POST', '/api/autopilots', body)).body['id']}"
        await done(self.owner, "POST", f"{path}/collaborators", {"user_id": self.names["editor"]})
        for name, trigger in (
            (MORNING, {"kind": "schedule", "cron": "0 9 * * *"}),
            (HOOK, {"kind": "webhook"}),
        ):
            self.names[name] = (await done(self.owner, "POST", f"{path}/triggers", trigger)).body["id"]
        return path

    def filled(self, value: Any) -> Any:
        if isinstance(value, str) and value.startswith("{") and value[1:-1] in self.names:
            return self.names[value[1:-1]]
        if isinstance(value, list):
            return [self.filled(item) for item in value]
        return value

    async def edit(self, who: Client, rule: str, method: str, path: str, body: dict[str, Any] | None) -> None:
        told = msgspec.UNSET if body is None else {name: self.filled(value) for name, value in body.items()}
        await done(who, method, rule + path.format(**self.names), told)


async def done(who: Client, method: str, path: str, body: object = msgspec.UNSET) -> Answer:
    answer = await who(method, path, body)
    assert answer.status < 300, (method, path, answer.body)
    return answer


@pytest.fixture
async def bench(api: Api, acme: Place) -> Bench:
    cleo_id, cleo = await api.joined(acme, "cleo")
    runtime = await api.runtime(acme, seen_s_ago=0)
    names = {"editor": str(cleo_id)}
    for name in ("agent", "other"):
        body = {"name": name, "visibility": "workspace", "runtime_id": runtime}
        names[name] = (await done(acme.owner, "POST", "/api/agents", body)).body["id"]
    names["project"] = (await done(acme.owner, "POST", "/api/projects", {"name": "site"})).body["id"]
    return Bench(acme, cleo, names)


async def history(who: Client, rule: str) -> list[dict[str, Any]]:
    return list((await done(who, "GET", f"{rule}/versions?limit=100")).body["items"])


async def test_every_edit_publishes_and_restamps_what_the_table_says(api: Api, bench: Bench) -> None:
    """S5.3, S5.5, S5.6, S5.7."""
    wrong: list[str] = []
    for name, row in ROWS.items():
        rule = await bench.rule()
        for edit in row.before:
            await bench.edit(bench.owner, rule, *edit)
        before = await history(bench.owner, rule)
        await bench.edit(bench.cleo, rule, row.method, row.path, row.body)
        after = await history(bench.owner, rule)
        found = verdict(bench, before, after)
        publisher = before[0]["published_by"] if row.keeps_publisher else bench.names["editor"]
        expected = (row.change, bench.names["editor"], publisher) if row.change else None
        stamped = await stamped_by(api, bench, rule)
        if found != expected or stamped != row.stamped:
            wrong.append(f"{name}: {found} {stamped} instead of {expected} {row.stamped}")
    assert wrong == []


def verdict(
    bench: Bench, before: list[dict[str, Any]], after: list[dict[str, Any]]
) -> tuple[str, str, str] | None:
    """What was published on top of what there was: the change, who made it, who answers for it."""
    if before == after:
        return None
    newest, *rest = after
    assert rest == before  # nothing that was published ever changes (S5.4)
    assert newest["version"] == before[0]["version"] + 1
    return newest["change"], newest["edited_by"], newest["published_by"]


async def stamped_by(api: Api, bench: Bench, rule: str) -> set[str]:
    """Which triggers the editor answers for, deleted ones too."""
    rows = await fetch(
        api.database,
        "SELECT id, published_by FROM autopilot_trigger WHERE autopilot_id = $1",
        UserId(msgspec.convert(rule.rpartition("/")[2], UserId)),
    )
    names = {bench.names[MORNING]: MORNING, bench.names[HOOK]: HOOK}
    return {
        names.get(str(row["id"]), NEW) for row in rows if str(row["published_by"]) == bench.names["editor"]
    }


async def test_a_run_of_long_ago_tells_what_was_published_then_and_by_whom(bench: Bench) -> None:
    """S2.6, S5.3, S5.4: also when all of it has been edited, the triggers deleted and the rule archived."""
    rule = await bench.rule()
    await bench.edit(bench.cleo, rule, "PATCH", "", {"description": "The old runbook.", "title": "Old"})
    await bench.edit(
        bench.cleo, rule, "PATCH", "/triggers/{hook}", {"event_filters": [{"event": "push"}], "label": "x"}
    )
    run = (await done(bench.owner, "POST", f"{rule}/trigger?wait=0")).body
    was = (await history(bench.owner, rule))[0]

    later = {"description": "Another.", "issue_title_template": "{{date}}", "execution_mode": "create_issue"}
    await bench.edit(bench.owner, rule, "PATCH", "", later | {"title": "New"})
    for trigger in (MORNING, HOOK):
        await bench.edit(bench.owner, rule, "DELETE", f"/triggers/{{{trigger}}}", None)
    await bench.edit(bench.owner, rule, "DELETE", "", None)

    run_id = run["id"]
    told = (await done(bench.cleo, "GET", f"{rule}/runs/{run_id}")).body
    (version,) = [v for v in await history(bench.cleo, rule) if v["id"] == told["rule_version_id"]]
    assert version == was
    assert (version["version"], version["published_by"]) == (told["rule_version"], bench.names["editor"])
    kept = version["rule"]
    assert (kept["title"], kept["description"], kept["issue_title_template"]) == (
        "Old",
        "The old runbook.",
        None,
    )
    by_kind = {trigger["kind"]: trigger for trigger in kept["triggers"]}
    assert (by_kind["schedule"]["cron"], by_kind["schedule"]["timezone"]) == ("0 9 * * *", "UTC")
    assert by_kind["webhook"]["event_filters"] == [{"event": "push"}]


async def test_a_rule_has_at_most_50_triggers(bench: Bench) -> None:
    """S13.8: one more is refused by name, and changes nothing."""
    rule = await bench.rule()
    for _ in range(48):
        await bench.edit(bench.owner, rule, "POST", "/triggers", {"kind": "webhook"})
    before = await history(bench.owner, rule)
    over = await bench.owner("POST", f"{rule}/triggers", {"kind": "webhook"})
    assert over.problem() == (422, "invalid_value", "kind")
    assert len((await done(bench.owner, "GET", f"{rule}/triggers")).body["items"]) == 50
    assert await history(bench.owner, rule) == before
