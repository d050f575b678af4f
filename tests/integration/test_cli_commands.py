"""`list`, `get`, `runs` and `trigger` as processes, against an API that refuses, loses answers or is not there (S14)."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from tests.support.cli import TOKEN, Call, FakeApi, autopilot, environment, problem

from autopilot.cli.client import older_of

FIRST = "0195a1b2-0000-7000-8000-000000000001"
SECOND = "0195a1b2-1111-7000-8000-000000000002"
ARCHIVED = "0195ffff-2222-7000-8000-000000000003"
TRIGGER = f"/api/autopilots/{FIRST}/trigger"


def listed(autopilot_id: str, title: str, status: str = "active") -> dict[str, Any]:
    return {
        "id": autopilot_id,
        "title": title,
        "status": status,
        "execution_mode": "create_issue",
        "trigger_kinds": ["webhook"],
        "next_run_at": None,
        "last_run_at": None,
        "last_run_status": None,
        "added_by_a_later_version": 1,
    }


def run(status: str = "running", **fields: object) -> dict[str, Any]:
    return {
        "id": SECOND,
        "status": status,
        "source": "manual",
        "created_at": "2026-01-01T00:00:00Z",
        "payload": {"n": 10**40},
    } | fields


class RulesApi(FakeApi):
    """Three autopilots in two pages (and one archived), with a run each."""

    def __init__(self) -> None:
        super().__init__()
        self.run = run()
        self.runs: list[dict[str, Any]] = [
            run("completed"),
            run("skipped", reason_code="runtime_offline", failure_reason="It is offline."),
        ]

    async def answer(self, call: Call) -> Any:
        if call.path == "/api/autopilots":
            if call.query.get("status") == "archived":
                return {"items": [listed(ARCHIVED, "Old", "archived")], "next_cursor": None}
            if "cursor" in call.query:
                return {"items": [listed(SECOND, "Second")], "next_cursor": None}
            return {"items": [listed(FIRST, "First")], "next_cursor": "more"}
        if call.path.endswith("/trigger"):
            return self.run
        if call.path.endswith("/runs"):
            return {"items": self.runs, "next_cursor": None}
        if call.path.startswith("/api/autopilots/"):
            hook = {
                "id": SECOND,
                "kind": "webhook",
                "enabled": True,
                "label": None,
                "cron": None,
                "timezone": None,
                "next_run_at": None,
                "last_fired_at": None,
                "schedule_error": None,
                "provider": "github",
                "has_signing_secret": True,
                "webhook_token": "awt_live",
                "webhook_path": "/api/webhooks/autopilots/awt_live",
                "webhook_url": "https://hooks.test/api/webhooks/autopilots/awt_live",
            }
            return listed(call.path.split("/")[-1], "First") | {
                "description": "Look at\nall of it.",
                "created_at": "2026-01-01T00:00:00Z",
                "rule_version": 3,
                "overlap_policy": "skip",
                "triggers": [hook],
            }
        return problem(404, "not_found", "Nothing here.")


@pytest.fixture
async def api() -> AsyncIterator[RulesApi]:
    fake = RulesApi()
    await fake.start()
    yield fake
    await fake.stop()


async def test_list_reads_every_page_with_the_token_and_the_workspace(api: RulesApi) -> None:
    ran = await autopilot(api.base, "--workspace", "acme", "list")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.splitlines() == [
        "ID             TITLE   STATUS  MODE          TRIGGERS  NEXT_RUN  LAST_RUN",
        "0195a1b2-0000  First   active  create_issue  webhook   -         -",
        "0195a1b2-1111  Second  active  create_issue  webhook   -         -",
    ]
    first, second = api.calls
    assert (first.headers["Authorization"], first.headers["X-Workspace"]) == (f"Bearer {TOKEN}", "acme")
    assert second.query == {"limit": "100", "cursor": "more"}


async def test_list_gives_programs_the_items_as_json(api: RulesApi) -> None:
    ran = await autopilot(api.base, "list", "--output", "json")
    assert [item["id"] for item in json.loads(ran.out)] == [FIRST, SECOND]
    assert "X-Workspace" not in api.calls[0].headers


async def test_list_filters_and_shows_whole_ids(api: RulesApi) -> None:
    ran = await autopilot(api.base, "list", "--status", "archived", "--full-id")
    assert ran.out.splitlines()[1].startswith(f"{ARCHIVED}  Old    archived")


async def test_get_finds_an_archived_autopilot_by_a_unique_beginning(api: RulesApi) -> None:
    ran = await autopilot(api.base, "get", "0195FF")
    assert ran.code == 0
    assert json.loads(ran.out)["id"] == ARCHIVED


async def test_a_whole_id_is_not_looked_up_first(api: RulesApi) -> None:
    await autopilot(api.base, "get", FIRST)
    assert [call.path for call in api.calls] == [f"/api/autopilots/{FIRST}"]


async def test_a_beginning_of_several_ids_names_them_and_does_nothing(api: RulesApi) -> None:
    ran = await autopilot(api.base, "trigger", "0195a1b2")
    assert (ran.code, ran.out) == (1, "")
    assert ran.err == (
        f"Error: 2 autopilots have ids that begin with 0195a1b2: {FIRST} 'First', {SECOND} 'Second'.\n"
    )
    assert not api.of("/trigger")


async def test_a_beginning_of_no_id_is_refused(api: RulesApi) -> None:
    ran = await autopilot(api.base, "runs", "ffff")
    assert (ran.code, ran.err) == (1, "Error: No autopilot here has an id that begins with ffff.\n")


@pytest.mark.parametrize("wrong", ["nightly", "../x", "0195a1b2-0000-7000-8000-0000000000011", ""])
async def test_what_cannot_be_an_id_is_wrong_usage(api: RulesApi, wrong: str) -> None:
    ran = await autopilot(api.base, "get", wrong)
    assert ran.code == 2
    assert not api.calls


async def test_get_hides_the_webhook_credentials(api: RulesApi) -> None:
    """S6.5, S14."""
    told = await autopilot(api.base, "get", FIRST)
    assert json.loads(told.out)["triggers"][0]["webhook_token_hint"] == "live"
    shown = await autopilot(api.base, "get", FIRST, "--output", "table")
    assert "github, signed, token …live" in shown.out
    assert "awt_live" not in told.out + shown.out


async def test_secrets_are_shown_as_json_only_and_with_a_warning(api: RulesApi) -> None:
    ran = await autopilot(api.base, "get", FIRST, "--show-secrets")
    assert ran.code == 0
    assert json.loads(ran.out)["triggers"][0]["webhook_token"] == "awt_live"
    assert ran.err.startswith("Warning: --show-secrets shows live webhook credentials")
    refused = await autopilot(api.base, "get", FIRST, "--show-secrets", "--output", "table")
    assert (refused.code, refused.out) == (2, "")
    assert "--show-secrets requires --output json" in refused.err


async def test_runs_are_asked_for_by_page_and_tell_their_reasons(api: RulesApi) -> None:
    ran = await autopilot(api.base, "runs", FIRST, "--limit", "5", "--offset", "10")
    assert ran.code == 0
    assert api.calls[0].query == {"limit": "5", "offset": "10"}
    assert "runtime_offline: It is offline." in ran.out
    assert (await autopilot(api.base, "runs", FIRST, "--offset", "10001")).code == 2


async def test_runs_as_json_keep_integers_of_any_size(api: RulesApi) -> None:
    ran = await autopilot(api.base, "runs", FIRST, "--output", "json")
    assert json.loads(ran.out)[0]["payload"] == {"n": 10**40}


@pytest.mark.parametrize("status", ["pending", "issue_created", "running", "completed"])
async def test_trigger_is_content_with_a_run_that_is_under_way(api: RulesApi, status: str) -> None:
    api.run = run(status)
    ran = await autopilot(api.base, "trigger", FIRST, "--output", "json")
    assert (ran.code, json.loads(ran.out)["status"], ran.err) == (0, status, "")


@pytest.mark.parametrize("status", ["skipped", "failed"])
async def test_trigger_fails_with_the_reason_of_a_run_that_is_refused(api: RulesApi, status: str) -> None:
    """AT1: a refused run must not look like success."""
    api.run = run(status, reason_code="invocation_not_allowed", failure_reason="The agent\nis private.")
    ran = await autopilot(api.base, "trigger", FIRST, "--output", "json")
    assert (ran.code, json.loads(ran.out)["status"]) == (1, status)
    assert ran.err == f"Error: The run is {status}: invocation_not_allowed: The agent is private.\n"


async def test_trigger_sends_key_and_wait_as_asked(api: RulesApi) -> None:
    await autopilot(api.base, "trigger", FIRST, "--idempotency-key", "once", "--wait", "2.5")
    (call,) = api.of("/trigger")
    assert (call.method, call.headers["Idempotency-Key"], call.query, call.body) == (
        "POST",
        "once",
        {"wait": "2.5"},
        {},
    )
    assert (await autopilot(api.base, "trigger", FIRST, "--wait", "11")).code == 2


async def test_trigger_asks_again_with_the_same_key_when_the_answer_is_lost(api: RulesApi) -> None:
    """S13: the run is made once."""
    api.lose("/trigger")
    api.refuse("/trigger", problem(503, "unavailable", "Try again in a moment."))
    ran = await autopilot(api.base, "trigger", FIRST)
    assert ran.code == 0
    keys = [call.headers["Idempotency-Key"] for call in api.of("/trigger")]
    assert len(keys) == 3
    assert len(set(keys)) == 1


async def test_trigger_that_never_hears_an_answer_says_how_to_ask_again(api: RulesApi) -> None:
    api.lose("/trigger", times=3)
    ran = await autopilot(api.base, "trigger", FIRST)
    assert (ran.code, len(api.of("/trigger"))) == (1, 3)
    assert f"repeat with --idempotency-key {api.of('/trigger')[0].headers['Idempotency-Key']}" in ran.err


async def test_two_triggers_are_two_runs(api: RulesApi) -> None:
    await autopilot(api.base, "trigger", FIRST)
    await autopilot(api.base, "trigger", FIRST)
    assert len({call.headers["Idempotency-Key"] for call in api.of("/trigger")}) == 2


async def test_a_refusal_is_one_line_with_title_detail_field_and_code(api: RulesApi) -> None:
    api.refuse(TRIGGER, problem(422, "invalid_value", "wait: at most\n10.\x1b[2J", field="wait"))
    ran = await autopilot(api.base, "trigger", FIRST)
    assert (ran.code, ran.out) == (1, "")
    assert ran.err == "Error: Title of 422: wait: at most 10.\ufffd[2J (field wait, invalid_value)\n"


async def test_a_refused_token_is_not_repeated_and_the_reader_is_told_where_to_look(api: RulesApi) -> None:
    api.refuse("/api/autopilots", problem(401, "unauthorized", "The token has expired."))
    ran = await autopilot(api.base, "list")
    assert ran.code == 1
    assert (
        ran.err
        == "Error: Title of 401: The token has expired. Check AUTOPILOT_TOKEN, or the token of the profile. (unauthorized)\n"
    )
    assert TOKEN not in ran.err + ran.out


async def test_an_api_that_is_not_there_is_one_sentence(api: RulesApi) -> None:
    await api.stop()
    ran = await autopilot(api.base, "list")
    assert (ran.code, ran.out) == (1, "")
    assert ran.err == f"Error: Cannot reach the API at {api.base}: connection refused.\n"


@pytest.mark.parametrize(
    "answer",
    [
        web.Response(status=404, text="<h1>nginx</h1>", content_type="text/html"),
        web.Response(status=302, headers={"Location": "http://127.0.0.1:9/"}),
        web.Response(status=200, text="<h1>hello</h1>", content_type="text/html"),
        web.Response(
            status=200, text='{"items": [{"id": 1}], "next_cursor": null}', content_type="application/json"
        ),
    ],
    ids=["other 404", "redirect", "other page", "other version"],
)
async def test_what_is_not_our_api_is_said_to_be_so(api: RulesApi, answer: web.Response) -> None:
    api.refuse("/api/autopilots", answer)
    ran = await autopilot(api.base, "list")
    assert (ran.code, ran.out) == (1, "")
    assert "version" in ran.err
    assert ran.err.count("\n") == 1


async def test_without_a_token_nothing_is_called(api: RulesApi) -> None:
    ran = await autopilot(api.base, "list", env=environment(api.base, AUTOPILOT_TOKEN=""))
    assert ran.code == 2
    assert "set AUTOPILOT_TOKEN" in ran.err
    assert not api.calls


@pytest.mark.parametrize("colour", [{}, {"NO_COLOR": "1"}, {"TERM": "dumb"}, {"FORCE_COLOR": "1"}])
async def test_a_pipe_gets_plain_text(api: RulesApi, colour: dict[str, str]) -> None:
    ran = await autopilot(api.base, "list", env=environment(api.base, **colour))
    assert ran.code == 0
    assert "\x1b" not in ran.out


async def test_the_help_of_trigger_begins_with_its_warning(api: RulesApi) -> None:
    ran = await autopilot(api.base, "trigger", "--help", env={"PATH": ""})
    usage, _, text = ran.out.partition("\n\n")
    assert usage == "Usage: autopilot trigger [OPTIONS] ID"
    assert text.lstrip().startswith("acts for real")


@pytest.mark.parametrize(("server", "older"), [("99.1", "command"), ("0.0.1", "API")])
async def test_a_refusal_by_another_version_says_which_side_is_old(
    api: RulesApi, server: str, older: str
) -> None:
    """CASES UI3"""
    refusal = problem(400, "malformed", "status is not a field here.")
    refusal.headers["Server"] = f"autopilot/{server}"
    api.refuse("/api/autopilots", refusal)
    ran = await autopilot(api.base, "list")
    assert ran.code == 1
    assert f"and the API {server}: update the {older}." in ran.err


_WRITES = (
    ("create", "--title", "T", "--description", "D", "--mode", "run_only", "--agent", FIRST),
    ("delete", FIRST),
    ("trigger-add", FIRST, "--kind", "webhook"),
    ("trigger-delete", FIRST, SECOND),
    ("collaborator-add", FIRST, SECOND),
    ("token", "revoke", FIRST),
)


async def test_nothing_is_said_to_be_done_by_what_is_not_our_api(api: RulesApi) -> None:
    """CASES UI3: a proxy's page with status 200 is no sign that anything was archived, deleted or made."""
    page = [web.Response(text="<h1>hello</h1>", content_type="text/html") for _ in _WRITES]
    api.refuse("", *page)
    for command in _WRITES:
        ran = await autopilot(api.base, *command)
        assert (ran.code, ran.out, ran.err.count("\n")) == (1, "", 1), (command, ran.err)
        assert "is not Autopilot's API" in ran.err, command


async def test_no_text_of_an_answer_steers_the_terminal(api: RulesApi) -> None:
    hostile = "\x1b]0;title\x07\u202e\r"
    finding: dict[str, Any] = {
        "about": hostile,
        "id": hostile,
        "verdict": "v",
        "summary": hostile,
        "next_step": None,
        "checks": [],
    }
    api.refuse("/explain", web.json_response(finding | {"findings": [finding]}))
    api.refuse("/cron-preview", web.json_response({"description": hostile, "next_runs": []}))
    for command in (("explain", FIRST), ("cron-preview", "* * * * *")):
        ran = await autopilot(api.base, *command)
        assert ran.code == 0, ran.err
        assert not set("\x1b\x07\u202e\r") & set(ran.out), command


async def test_a_secret_is_one_line_of_stdin(api: RulesApi) -> None:
    """S14: a file of several lines, an empty one, and no stdin at all are wrong usage, and nothing is sent."""
    command = f"{sys.executable} -m autopilot.cli trigger-add {FIRST} --kind webhook --signing-secret-stdin"
    for stdin in ("< /dev/null", "<&-", "<<< $'one\\ntwo'"):
        process = await asyncio.create_subprocess_exec(
            *("bash", "-c", f"{command} {stdin}"), env=environment(api.base), stderr=asyncio.subprocess.PIPE
        )
        _, err = await process.communicate()
        assert (process.returncode, b"Traceback" in err) == (2, False), (stdin, err)
    assert not api.calls


async def test_a_secret_that_is_refused_behind_another_change_says_what_has_been_done(api: RulesApi) -> None:
    api.refuse("/signing-secret", problem(409, "conflict", "Somebody else was quicker."))
    ran = await autopilot(
        api.base, "trigger-update", FIRST, SECOND, "--label", "hooks", "--clear-signing-secret"
    )
    assert ran.code == 1
    assert ran.err.endswith("The rest has been changed.\n")
    assert [call.method for call in api.calls] == ["PATCH", "DELETE"]


async def test_a_configuration_file_that_cannot_be_looked_at_is_named(api: RulesApi) -> None:
    ran = await autopilot(api.base, "list", env=environment(api.base, XDG_CONFIG_HOME=f"/{'x' * 300}"))
    assert (ran.code, "Traceback" in ran.err) == (2, False)
    assert "cannot be read" in ran.err


async def test_a_profile_named_by_its_flag_comes_before_the_environment(
    api: RulesApi, tmp_path: Path
) -> None:
    """S14: its server is not sent the environment's token; a flag still comes first, and what it lacks is looked for."""
    folder = tmp_path / "autopilot"
    folder.mkdir()
    (folder / "config.toml").write_text(
        f'[profiles.away]\napi_url = "{api.base}"\ntoken = "apt_away"\n[profiles.bare]\napi_url = "{api.base}"\n'
    )
    (folder / "config.toml").chmod(0o600)
    env = environment("http://127.0.0.1:9", AUTOPILOT_WORKSPACE="home", XDG_CONFIG_HOME=str(tmp_path))
    for given in (("--profile", "away"), ("--profile", "bare", "--workspace", "acme")):
        ran = await autopilot(api.base, *given, "get", FIRST, env=env)
        assert ran.code == 0, ran.err
    away, bare = (call.headers for call in api.calls)
    assert (away["Authorization"], away.get("X-Workspace")) == ("Bearer apt_away", None)
    assert (bare["Authorization"], bare["X-Workspace"]) == (f"Bearer {TOKEN}", "acme")
    ran = await autopilot(api.base, "list", env=env | {"AUTOPILOT_PROFILE": "away"})
    assert "http://127.0.0.1:9" in ran.err


def test_a_version_that_is_not_all_numbers_is_compared_with_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.metadata.version", lambda _name: "1.0rc1")
    assert older_of("autopilot/2.0") == ""
