"""Whole sessions of the command, as real processes against the real API, kept as files to read (S14).

`AUTOPILOT_WRITE_GOLDEN=1` writes them anew; ids, times and secrets are shown as what they are.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import re
import shlex
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from uuid import UUID

import pytest
from tests.support import rules
from tests.support.api import Api, running_api
from tests.support.cli import environment
from tests.support.dispatching import drain, execute, receive, worker
from tests.support.work import Shop, make_shop

from autopilot.domain.ids import TriggerId
from autopilot.domain.permissions import TokenKind
from autopilot.kit import ids

# Some seventy processes of Python in all: each takes its time on a busy machine.
pytestmark = pytest.mark.timeout(180)

GOLDEN = Path(__file__).parent / "golden"
WRITE = os.environ.get("AUTOPILOT_WRITE_GOLDEN") == "1"
SECRET = "a signing secret of a decent length"

_ID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|\b[0-9a-f]{8}(?:-[0-9a-f]{4}){0,3}\b(?!-)")
_INSTANT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z")
_TOLD = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d(?::\d\d)? UTC")
_RELATIVE = re.compile(r"(?:in )?\d+[dhms](?: ago)? \([^)]*\)|due \([^)]*\)")
_SPAN = re.compile(r"\b\d+ (?:s|min|h)\b|(?<=  )\d+s(?=  )")
_TOKEN = re.compile(r"ap[tsr]_[\w-]+|awt_[\w-]+")
_HINT = re.compile(r"…[\w-]{4}")


class Session:
    """Commands that are typed one after the other, and what they print; `names` are what its ids are called."""

    def __init__(self, shop: Shop, env: dict[str, str], directory: Path) -> None:
        self.shop = shop
        self.env = env
        self.directory = directory
        self.lines: list[str] = []
        self.last = ""
        self._names: dict[str, str] = {}

    async def type(self, command: str, *, stdin: str = "", code: int = 0) -> str:
        """Run one line; `$NAME` in it stands for an id that was named before. Returns stdout."""
        typed = re.sub(r"\$(\w+)", lambda found: self._id(found[1]), command)
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "autopilot.cli", *shlex.split(typed)[1:]),
            env=self.env,
            cwd=self.directory,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, err = await process.communicate(stdin.encode())
        self.last = out.decode()
        self.lines.append(f"$ {command}")
        self.lines += [line.rstrip() for line in (self.last + err.decode()).splitlines()]
        if process.returncode:
            self.lines.append(f"[exit {process.returncode}]")
        assert process.returncode == code, self.last + err.decode()
        return self.last

    def name(self, name: str, id_: str | None = None) -> str:
        """Call an id by a name: the first one of the last output, unless given."""
        found = id_ or next(match[0] for match in _ID.finditer(self.last) if len(match[0]) == 36)
        self._names[found] = name
        return found

    def _id(self, name: str) -> str:
        return next(id_ for id_, called in self._names.items() if called == name)

    def text(self) -> str:
        """What the file holds."""
        text = "\n".join(self.lines) + "\n"
        for length in (36, 18, 13):
            for id_, name in self._names.items():
                if sum(other[:length] == id_[:length] for other in self._names) == 1:
                    text = re.sub(rf"\b{id_[:length]}\b(?!-)", f"<{name}>", text)
        for pattern, shown in (
            (_TOKEN, "<secret>"),
            (_ID, "<id>"),
            (_INSTANT, "<time>"),
            (_TOLD, "<time>"),
            (_RELATIVE, "<when>"),
            (_SPAN, "<span>"),
            (_HINT, "<hint>"),
            (re.compile(re.escape(self.shop.api.base)), "<api>"),
        ):
            text = pattern.sub(shown, text)
        return re.sub(r"(?<=\S) {2,}", "  ", text)

    def check(self, name: str) -> None:
        """Compare with the file, or write it."""
        path = GOLDEN / f"{name}.txt"
        if WRITE:
            path.parent.mkdir(exist_ok=True)
            path.write_text(self.text(), "utf-8")
        assert self.text() == path.read_text("utf-8")


@pytest.fixture
def alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ids that all begin with the same eight digits, whose next four tell them apart.

    The eight are a time in steps of 65 s: where two ids of one list stood either side of a step, they would be shown shorter.
    """
    milliseconds = itertools.count(time.time_ns() // 1_000_000 >> 16 << 16)
    monkeypatch.setattr(ids, "time", SimpleNamespace(time_ns=lambda: next(milliseconds) * 1_000_000))
    monkeypatch.setattr(ids, "_sequence", ids._Sequence())


@pytest.fixture
async def api(alike: None, postgres_url: str) -> AsyncIterator[Api]:
    async with running_api(postgres_url) as running:
        yield running


@pytest.fixture
async def session(api: Api, tmp_path: Path) -> Session:
    shop = await make_shop(api)
    await execute(api.database, "UPDATE agent SET name = 'reviewer'")
    await rules.set_runtime(api.database, shop.setting.runtime_id, seen_s_ago=-3600)  # online to the end
    token = await api.token(TokenKind.PERSONAL, shop.place.owner_id)
    env = environment(
        api.base, AUTOPILOT_TOKEN=token, AUTOPILOT_WORKSPACE=shop.place.slug, HOME=str(tmp_path)
    )
    opened = Session(shop, env, tmp_path)
    opened.name("reviewer", str(shop.setting.agent_id))
    opened.name("box", str(shop.setting.runtime_id))
    return opened


async def test_a_rule_is_made_shared_changed_and_retired(session: Session) -> None:
    """S14: the whole life of a rule at the command line."""
    await session.shop.api.joined(session.shop.place, "mia")
    (session.directory / "runbook.md").write_text("Read what changed.\n")
    await session.type(
        'autopilot create --title "Nightly review" --description-file runbook.md --mode create_issue --agent reviewer'
        " --subscriber mia@acme.example"
    )
    session.name("rule")
    await session.type(
        'autopilot trigger-add $rule --kind schedule --cron "0 9 * * MON-FRI" --timezone Europe/Berlin'
    )
    session.name("weekdays")
    await session.type(
        "autopilot trigger-add $rule --kind webhook --provider github --event-filter pull_request:opened,reopened"
        " --signing-secret-stdin --label pulls",
        stdin=SECRET + "\n",
    )
    session.name("pulls")
    await session.type("autopilot trigger-list $rule")
    await session.type("autopilot list")
    await session.type("autopilot collaborator-add $rule mia@acme.example")
    await session.type("autopilot update $rule --title Review --overlap skip --clear-subscribers")
    await session.type("autopilot trigger-update $rule $weekdays --disabled")
    await session.type("autopilot trigger-update $rule $pulls --clear-event-filters --clear-signing-secret")
    await session.type("autopilot trigger-rotate-url $rule $pulls", stdin="n\n", code=1)
    await session.type("autopilot trigger-rotate-url $rule $pulls --yes")
    await session.type("autopilot versions $rule")
    await session.type("autopilot collaborator-remove $rule mia@acme.example")
    await session.type("autopilot trigger-delete $rule $weekdays")
    await session.type("autopilot delete $rule")
    await session.type("autopilot list")
    await session.type("autopilot list --status archived")
    await session.type("autopilot update $rule --status active")
    session.check("life_of_a_rule")
    assert SECRET not in session.text()


async def test_runs_are_started_and_explained(session: Session) -> None:
    """S14: what an agent or a person does to debug a rule, in order."""
    await session.type(
        'autopilot create --title Digest --description "Sum up." --mode run_only --agent reviewer'
    )
    session.name("rule")
    await session.type("autopilot trigger $rule --wait 0")
    session.name("run")
    await session.type("autopilot runs $rule --full-id")
    await execute(
        session.shop.database, "UPDATE dispatch_queue SET enqueued_at = clock_timestamp() + interval '1 min'"
    )
    await session.type("autopilot explain $rule --run $run")
    await drain(worker(session.shop.database))
    await session.type("autopilot trigger-add $rule --kind webhook")
    trigger = session.name("hook")
    _, delivery = await receive(session.shop.database, TriggerId(UUID(trigger)), b"{}", key="k")
    session.name("delivery", str(delivery))
    await session.type("autopilot deliveries $rule --full-id")
    await rules.set_runtime(session.shop.database, session.shop.setting.runtime_id, seen_s_ago=3600)
    await session.type("autopilot trigger $rule", code=1)
    session.name("skipped")
    await session.type("autopilot explain $rule")
    await session.type("autopilot update $rule --status paused")
    await session.type("autopilot trigger $rule", code=1)
    session.check("debugging")


async def test_agents_squads_runtimes_and_tokens(session: Session) -> None:
    """S14"""
    await session.type("autopilot agent list")
    await session.type("autopilot agent create helper --runtime box --visibility workspace")
    session.name("helper")
    await session.type("autopilot squad create docs --leader helper")
    session.name("docs")
    await session.type("autopilot squad update docs --leader reviewer")
    await session.type("autopilot squad list")
    await session.type("autopilot squad get docs --output table")
    await session.type("autopilot runtime list")
    await session.type("autopilot agent update helper --unbind")
    await session.type("autopilot agent archive helper")
    await session.type("autopilot squad archive docs")
    await session.type("autopilot agent list --archived")
    await session.type("autopilot token create laptop --days 30")
    await session.type("autopilot token list --full-id")
    await session.type("autopilot agent get nobody", code=1)
    await session.type("autopilot squad create docs", code=2)
    session.check("workers")


async def test_times_and_refusals(session: Session) -> None:
    """S14, S13.2: exit codes 1 and 2, each with one clear line."""
    await session.type(
        'autopilot cron-preview "0 9 * * MON-FRI" --timezone Europe/Berlin --count 2 --after 2026-03-27T12:00:00Z'
        " --output json"
    )
    await session.type('autopilot cron-preview "0 9 * * MOON"', code=1)
    await session.type("autopilot create --title X", code=2)
    await session.type("autopilot create --title X --description Y --mode issue --agent reviewer", code=2)
    await session.type("autopilot create --title X --description Y --mode run_only --agent nobody", code=1)
    await session.type("autopilot get 0000", code=1)
    await session.type("autopilot get rule-one", code=2)
    await session.type("autopilot update 0000", code=2)
    await session.type("autopilot get 0000 --output table --show-secrets", code=2)
    await session.type("autopilot --workspace elsewhere list", code=1)
    session.env["AUTOPILOT_TOKEN"] = "apt_wrong"
    await session.type("autopilot list", code=1)
    del session.env["AUTOPILOT_TOKEN"]
    await session.type("autopilot list", code=2)
    session.check("refusals")


async def test_a_profile_stands_in_for_flags_and_environment(session: Session) -> None:
    """S14: flags before environment before file; faults in the file are named."""
    config = session.directory / ".config" / "autopilot"
    config.mkdir(parents=True)
    file = config / "config.toml"
    token = session.env.pop("AUTOPILOT_TOKEN")
    base = session.env.pop("AUTOPILOT_API_URL")
    del session.env["AUTOPILOT_WORKSPACE"]
    file.write_text(
        f"""profile = "home"
[profiles.home]
api_url = "{base}"
token = "{token}"
workspace = "acme"
[profiles.away]
api_url = "http://127.0.0.1:9"
token = "apt_other"
"""
    )
    file.chmod(0o600)
    await session.type("autopilot list")
    await session.type("autopilot --workspace elsewhere list", code=1)
    await session.type("autopilot --profile away list", code=1)
    session.env["AUTOPILOT_PROFILE"] = "nowhere"
    await session.type("autopilot list", code=2)
    session.env["AUTOPILOT_API_URL"] = base
    session.env["AUTOPILOT_PROFILE"] = "home"
    file.chmod(0o644)
    await session.type("autopilot list")
    file.chmod(0o600)
    file.write_text('[profiles.home]\napi_ulr = "x"\n')
    await session.type("autopilot list", code=2)
    file.write_text("profiles = [")
    await session.type("autopilot list", code=2)
    session.lines = [line.replace(str(session.directory), "~") for line in session.lines]
    session.check("profiles")


async def test_secrets_show_only_when_asked_for_and_with_a_warning(session: Session) -> None:
    """S6.5, S14, CASES SE1"""
    await session.type(
        'autopilot create --title Hook --description "Do it." --mode run_only --agent reviewer'
    )
    session.name("rule")
    await session.type("autopilot trigger-add $rule --kind webhook --output json")
    added = json.loads(session.last)
    assert (added["webhook_token"], added["webhook_url"], added["has_webhook_token"]) == (None, None, True)
    hidden = json.loads(await session.type("autopilot get $rule"))["triggers"][0]
    assert (hidden["webhook_token"], hidden["webhook_path"], hidden["webhook_url"]) == (None, None, None)
    shown = json.loads(await session.type("autopilot get $rule --show-secrets"))["triggers"][0]
    assert shown["webhook_token"].startswith("awt_")
    assert hidden["webhook_token_hint"] == shown["webhook_token"][-4:]
    assert session.lines[-1].startswith("Warning: --show-secrets shows live webhook credentials")


async def test_output_goes_into_pipes_and_files_as_it_is(session: Session) -> None:
    """S14: NO_COLOR, a pipe that closes early, and completion."""
    for n in range(3):
        await session.type(
            f'autopilot create --title "{"long " * 38}{n}" --description D --mode run_only --agent reviewer'
        )
    listed = await session.type("autopilot list")
    assert all(len(line) > 190 for line in listed.splitlines()[1:]), "nothing is cut in a pipe"
    assert "\x1b" not in listed
    command = f"{sys.executable} -m autopilot.cli list --output json | head -c 10"
    process = await asyncio.create_subprocess_shell(
        command, env=session.env, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, err = await process.communicate()
    assert (len(out), err) == (10, b"")
    for shell in ("bash", "zsh", "fish"):
        assert "_AUTOPILOT_COMPLETE" in await session.type(f"autopilot completion {shell}")
    session.env |= {
        "_AUTOPILOT_COMPLETE": "bash_complete",
        "COMP_WORDS": "autopilot trigger-",
        "COMP_CWORD": "1",
    }
    completed = await session.type("autopilot")
    assert "plain,trigger-rotate-url" in completed.splitlines()


async def test_help_of_what_acts_for_real_begins_so(session: Session) -> None:
    """S14: those who only look must see it at once; and every command has help with what it takes."""
    for command in ("trigger", "delete", "trigger-delete", "trigger-rotate-url", "delivery-replay"):
        told = await session.type(f"autopilot {command} --help")
        assert told.splitlines()[2].strip().startswith("acts for real:")
