"""What a fresh stack is furnished with, over the real rules-api and a real database."""

from __future__ import annotations

import asyncio
import stat
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import msgspec
import pytest

from autopilot.local.commands import State, how_to_use
from autopilot.local.rest import Rest
from autopilot.local.seed import Seed, ensure_seed, read_seed
from autopilot.local.stack import Stack

ONLY_THE_API = {"dispatcher": 0, "scheduler": 0, "ingress": 0}
STATE = State(api_url="http://127.0.0.1:1", ingress_url="http://127.0.0.1:2", parts=())


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Callable[[str], Stack]]:
    """Starts a stack that is rules-api alone, always in the same folder, on the database at a URL."""
    running: list[Stack] = []

    def start(url: str) -> Stack:
        stack = Stack(tmp_path, nats=False, replicas=ONLY_THE_API, database_url=url)
        running.append(stack)
        stack.start()
        return stack

    yield start
    for stack in running:
        await asyncio.to_thread(stack.stop)


async def agents(stack: Stack, seed: Seed) -> list[tuple[str, str]]:
    rest = Rest(url=stack.api_url, token=seed.token, workspace=seed.workspace)
    page = await asyncio.to_thread(rest.get, "/api/agents")
    return [(agent["id"], agent["name"]) for agent in page["items"]]


async def test_it_is_made_once_and_remembered_for_its_owner_alone(
    tmp_path: Path, postgres_url: str, start: Callable[[str], Stack]
) -> None:
    stack = await asyncio.to_thread(start, postgres_url)
    seed = await asyncio.to_thread(ensure_seed, stack)
    assert await agents(stack, seed) == [(seed.agent_id, "local")]
    runtimes = Rest(url=stack.api_url, token=seed.token, workspace=seed.workspace)
    [runtime] = (await asyncio.to_thread(runtimes.get, "/api/runtimes"))["items"]
    assert (runtime["name"], runtime["state"]) == ("local", "offline"), "nobody runs it yet"
    assert await asyncio.to_thread(ensure_seed, stack) == seed
    assert stat.S_IMODE((tmp_path / "seed.json").stat().st_mode) == 0o600


async def test_tokens_that_the_database_does_not_know_are_made_anew_for_what_is_there(
    tmp_path: Path, postgres_url: str, start: Callable[[str], Stack]
) -> None:
    stack = await asyncio.to_thread(start, postgres_url)
    first = await asyncio.to_thread(ensure_seed, stack)
    for forgotten in ({"token": "apt_of-another-database"}, {"runtime_token": "apr_of-another-database"}):
        stale = msgspec.structs.replace(first, **forgotten)
        (tmp_path / "seed.json").write_bytes(msgspec.json.encode(stale))
        made = await asyncio.to_thread(ensure_seed, stack)
        assert made.token != stale.token
        assert made.runtime_token != stale.runtime_token
        assert await agents(stack, made) == [(first.agent_id, "local")]
    (tmp_path / "seed.json").write_text("half a fi")
    assert (await asyncio.to_thread(ensure_seed, stack)).agent_id == first.agent_id


def test_tokens_are_told_to_eyes_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seed = Seed(workspace="local", token="apt_mine", runtime_token="apr_mine", agent_id="the-agent")
    assert "apt_mine" not in how_to_use(STATE, seed, tmp_path)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    text = how_to_use(STATE, seed, tmp_path)
    assert "apt_mine" in text
    assert "apr_mine" in text
    assert '"assignee_id": "the-agent"' in text


def test_nothing_remembered_is_no_seed(tmp_path: Path) -> None:
    assert read_seed(tmp_path / "seed.json") is None
