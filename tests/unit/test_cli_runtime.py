"""The parts of a runtime that need no process and no server (S11.4, S11.7)."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest

from autopilot.cli.errors import ApiProblem, ApiUnreachable, NotUnderstood
from autopilot.cli.runtime.environment import environment_for, machine_environment
from autopilot.cli.runtime.execution import Command, Outcome, outcome_of
from autopilot.cli.runtime.folder import NoFolder, TaskFolder
from autopilot.cli.runtime.printed import ERROR_CHARACTERS, OUTPUT_LIMIT, RESULT_LIMIT, Printed, Tail
from autopilot.cli.runtime.process import Ended, StopReason
from autopilot.cli.runtime.protocol import Registration, RuntimeApi, Task
from autopilot.cli.runtime.spoken import PIECE_CHARACTERS, WAITING_CHARACTERS, Spoken
from autopilot.cli.runtime.worker import Options, RegistrationRefused, Worker
from autopilot.domain.states import FailureKind
from autopilot.kit.clock import FakeClock

TASK = Task(
    id="t",
    lease_token="l",
    prompt="p",
    timeout_s=60,
    attempt=2,
    max_attempts=3,
    workspace_id="w",
    agent_id="a",
    agent_name="Ada\0",
    run_id="r",
)


def test_the_command_gets_the_facts_and_nothing_of_ours() -> None:
    """S11.4: never a token, a key or a database URL."""
    environ = {
        "PATH": "/bin",
        "LC_ALL": "C",
        "AWS_SECRET_ACCESS_KEY": "s",
        "GITHUB_TOKEN": "t",
        "AUTOPILOT_API_URL": "http://x",
        "AUTOPILOT_TOKEN": "apt_1",
        "AUTOPILOT_RUNTIME_TOKEN": "apr_1",
        "AUTOPILOT_DATABASE_URL": "postgresql://u:p@h/d",
        "AUTOPILOT_SECRET_KEYS": "k",
        "AUTOPILOT_ISSUE_ID": "an older issue",
    }
    assert environment_for(TASK, environ) == {
        "PATH": "/bin",
        "LC_ALL": "C",
        "AUTOPILOT_API_URL": "http://x",
        "AUTOPILOT_TASK_ID": "t",
        "AUTOPILOT_RUN_ID": "r",
        "AUTOPILOT_WORKSPACE_ID": "w",
        "AUTOPILOT_AGENT": "Ada",
        "AUTOPILOT_AGENT_ID": "a",
        "AUTOPILOT_ATTEMPT": "2",
        "AUTOPILOT_MAX_ATTEMPTS": "3",
        "AUTOPILOT_TIMEOUT_S": "60",
        "AUTOPILOT_RUNTIME_DIR": str(Path.cwd()),
    }


@pytest.mark.parametrize(
    ("allowed", "passed"),
    [
        ((), set()),
        (("GITHUB_TOKEN",), {"GITHUB_TOKEN"}),
        (("AWS_*",), {"AWS_REGION", "AWS_SECRET"}),
        (("*",), {"GITHUB_TOKEN", "AWS_REGION", "AWS_SECRET"}),
        (("AUTOPILOT_*",), set()),
        (("AUTOPILOT_TOKEN",), {"AUTOPILOT_TOKEN"}),
    ],
)
def test_a_variable_is_passed_on_if_it_is_listed_and_one_of_ours_only_by_its_whole_name(
    allowed: tuple[str, ...], passed: set[str]
) -> None:
    names = ("GITHUB_TOKEN", "AWS_REGION", "AWS_SECRET", "AUTOPILOT_TOKEN", "AUTOPILOT_RUNTIME_TOKEN")
    assert set(machine_environment(dict.fromkeys(names, "x"), allowed)) == passed


def told_pieces(spoken: Spoken) -> list[tuple[int, str]]:
    pieces = []
    while (piece := spoken.next_piece()) is not None:
        pieces.append(piece)
        spoken.told(*piece)
    return pieces


def test_what_is_printed_is_told_in_pieces_that_join_without_a_gap() -> None:
    spoken = Spoken()
    text = "é" * PIECE_CHARACTERS + "the end\0"
    raw = text.encode()
    for start in range(0, len(raw), 1001):  # characters are cut in two on the way
        spoken.take(1, raw[start : start + 1001])
    first, second = told_pieces(spoken)
    assert first == (0, "é" * PIECE_CHARACTERS)
    assert second == (PIECE_CHARACTERS, "the end")
    assert len(first[1].encode()) <= 64 * 1024
    spoken.take(2, b"more\xff")
    assert told_pieces(spoken) == [(PIECE_CHARACTERS + 7, "more\ufffd")]


def test_a_flood_leaves_its_end_and_a_gap() -> None:
    """Memory stays within bounds, and what is told while more came is let go once."""
    spoken = Spoken()
    spoken.take(1, b"x" * 100)
    piece = spoken.next_piece()
    assert piece is not None
    assert piece == (0, "x" * 100)
    spoken.take(1, b"z")
    assert spoken.next_piece() == piece  # its answer may be lost, and the server has it under this place
    for _ in range(20):
        spoken.take(1, b"y" * 1_000_000)
    spoken.told(*piece)
    pieces = told_pieces(spoken)
    assert pieces[0][0] == 101 + 20_000_000 - WAITING_CHARACTERS
    assert "".join(text for _, text in pieces) == "y" * WAITING_CHARACTERS


def test_a_folder_goes_with_whatever_its_command_has_left_in_it(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "mine").write_text("stays")
    folder = TaskFolder.make(tmp_path / "not" / "there", TASK)
    assert folder.path.parent == tmp_path / "not" / "there"
    assert folder.path.stat().st_mode & 0o777 == 0o700
    shut = folder.work / "a" / "b"
    shut.mkdir(parents=True)
    (shut / "file").write_text("x")
    (folder.work / "link").symlink_to(elsewhere)
    shut.chmod(0)
    shut.parent.chmod(0)
    assert folder.remove()
    assert not folder.path.exists()
    assert (elsewhere / "mine").read_text() == "stays"


def test_a_folder_that_cannot_be_made_is_the_machines_fault(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(NoFolder):
        TaskFolder.make(tmp_path / "file", TASK)


def test_the_runtimes_own_limit_only_shortens_what_a_task_allows() -> None:
    assert Command(line="x").time_for(TASK) == 60
    assert Command(line="x", timeout_s=10).time_for(TASK) == 10
    assert Command(line="x", timeout_s=100).time_for(TASK) == 60


@pytest.mark.parametrize("chunk", [1, 7, 100, 1_000])
def test_a_tail_keeps_the_last_bytes_within_its_bounds(chunk: int) -> None:
    tail = Tail(limit=100)
    whole = bytes(number % 251 for number in range(1_005))
    for start in range(0, len(whole), chunk):
        tail.add(whole[start : start + chunk])
        assert len(tail._kept) < 200 + 1
    assert tail.end(100) == whole[-100:]
    assert tail.end(1_000) == whole[-100:]
    assert tail.end(3) == whole[-3:]
    assert tail.total == len(whole)


def printed(stdout: bytes = b"", stderr: bytes = b"") -> Printed:
    both = Printed()
    both.take(1, stdout)
    both.take(2, stderr)
    return both


def test_a_short_result_is_what_was_printed_without_the_last_blanks_and_without_nul() -> None:
    assert printed(b"  one\ntwo\0\n\n").result() == "  one\ntwo"
    assert printed(b"\xff!").result() == "\ufffd!"


def test_a_long_result_is_its_end_with_a_mark_and_whole_characters() -> None:
    """S11.7: 64 KiB of UTF-8."""
    result = printed(b"start" + "é".encode() * OUTPUT_LIMIT).result()
    mark, end = result.split("\n")
    assert mark == f"[The first part of {5 + 2 * OUTPUT_LIMIT} bytes of output is cut.]"
    assert set(end) == {"é"}
    assert RESULT_LIMIT - 4 < len(result.encode()) <= RESULT_LIMIT


def test_bytes_that_grow_when_they_are_marked_still_fit() -> None:
    result = printed(b"\xff" * RESULT_LIMIT).result()
    assert result.startswith("[The first part")
    assert len(result.encode()) <= RESULT_LIMIT


def test_a_result_of_exactly_the_limit_is_whole() -> None:
    assert printed(b"x" * RESULT_LIMIT).result() == "x" * RESULT_LIMIT


def test_an_error_is_its_headline_and_the_end_of_stderr() -> None:
    error = printed(b"out", b"first\n" + b"y" * 10_000 + b" last\n").error("It failed.")
    assert error.startswith("It failed.\nyyy")
    assert error.endswith("y last")
    assert len(error) == ERROR_CHARACTERS


def test_an_error_without_stderr_shows_what_was_printed_at_all() -> None:
    assert printed(b"only this\n").error("It failed.") == "It failed.\nonly this"
    assert printed().error("It failed.") == "It failed."


def test_progress_is_the_latest_line_of_whichever_stream_spoke_last() -> None:
    both = printed(b"one\ntwo\n")
    assert printed().latest_line() is None
    both.take(1, b"10%\r20%\r\n\n")
    assert both.latest_line() == "20%"
    both.take(2, b"\x1b[31mwarning\x07\n")
    assert both.latest_line() == "[31mwarning"
    both.take(1, b"z" * 50_000)
    assert both.latest_line() == "z" * 2_000


@pytest.mark.parametrize(
    ("ended", "outcome"),
    [
        (Ended(exit_code=0, stopped=None), Outcome(result="out")),
        (Ended(exit_code=3, stopped=None), Outcome(error="The command ended with exit code 3.\nerr")),
        (Ended(exit_code=-9, stopped=None), Outcome(error="The command was ended by SIGKILL.\nerr")),
        (
            Ended(exit_code=0, stopped=StopReason.TIMEOUT),
            Outcome(error="The command was stopped: it ran longer than 60 s.\nerr", kind=FailureKind.TIMEOUT),
        ),
        (
            Ended(exit_code=0, stopped=StopReason.SHUTDOWN),
            Outcome(
                error="The command was stopped: its runtime was shut down.\nerr",
                kind=FailureKind.RUNTIME_LOST,
            ),
        ),
        (Ended(exit_code=0, stopped=StopReason.LOST), None),
        (Ended(exit_code=1, stopped=StopReason.CANCELLED), None),
    ],
)
def test_how_a_command_ended_decides_what_is_reported(ended: Ended, outcome: Outcome | None) -> None:
    """S11.4: the exit code is the outcome; what was lost or cancelled is reported to nobody."""
    assert outcome_of(ended, printed(b"out\n", b"err\n"), 60) == outcome


class ScriptedApi(RuntimeApi):
    """Answers without HTTP; `trouble` is raised by every call after registration while it is set."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.trouble: Exception | None = None
        self.refusal: Exception | None = None
        self.said: list[tuple[bool, str | None]] = []

    def _note(self, name: str) -> None:
        self.calls[name] += 1
        if self.trouble is not None:
            raise self.trouble

    async def register(self, name: str, concurrency: int, capabilities: Mapping[str, str]) -> Registration:
        self.calls["register"] += 1
        if self.refusal is not None:
            raise self.refusal
        return Registration(runtime_id=str(self.calls["register"]), heartbeat_s=15, renew_s=10, poll_s=30)

    async def heartbeat(
        self,
        runtime_id: str,
        *,
        usable: bool = True,
        detail: str | None = None,
        repair_hint: str | None = None,
    ) -> None:
        self.said.append((usable, detail))
        self._note("heartbeat")

    async def claim(self, runtime_id: str, claim_id: str, limit: int, wait_s: float) -> list[Task]:
        self._note("claim")
        return []

    async def bye(self, runtime_id: str) -> None:
        self.calls["bye"] += 1


def worker(api: RuntimeApi, clock: FakeClock) -> Worker:
    return Worker(api, Options(command=Command(line="true"), name="box"), clock=clock)


async def work_for(api: RuntimeApi, seconds: float) -> None:
    clock, stopping = FakeClock(), asyncio.Event()
    working = asyncio.create_task(worker(api, clock).run(stopping))
    await clock.advance(seconds)
    stopping.set()
    await working


async def test_a_server_that_says_nothing_at_once_is_asked_once_a_second() -> None:
    api = ScriptedApi()
    await work_for(api, 60)
    assert 55 <= api.calls["claim"] <= 62
    assert 4 <= api.calls["heartbeat"] <= 5
    assert (api.calls["register"], api.calls["bye"]) == (1, 1)


async def test_an_api_that_is_away_is_tried_again_with_growing_pauses() -> None:
    api = ScriptedApi()
    api.trouble = ApiUnreachable()
    await work_for(api, 60)
    assert 10 <= api.calls["claim"] <= 20
    assert 10 <= api.calls["heartbeat"] <= 20
    assert api.calls["register"] == 1


async def test_something_else_that_answers_for_the_api_is_waited_out() -> None:
    """A proxy's page while the API restarts must not end a runtime with tasks in hand."""
    api = ScriptedApi()
    api.trouble = NotUnderstood()
    await work_for(api, 60)
    assert api.calls["bye"] == 1


async def test_an_address_that_never_was_an_api_is_refused_at_once() -> None:
    api = ScriptedApi()
    api.refusal = NotUnderstood()
    with pytest.raises(RegistrationRefused):
        await asyncio.wait_for(worker(api, FakeClock()).run(asyncio.Event()), 5)


async def test_an_api_that_is_away_at_the_start_is_waited_for() -> None:
    api = ScriptedApi()
    api.refusal = ApiUnreachable()
    await work_for(api, 60)
    assert 20 <= api.calls["register"] <= 60
    assert api.calls["claim"] == 0


def refused(status: int) -> ApiProblem:
    return ApiProblem(status=status, title="No", code="no", detail=None, field=None)


async def test_a_runtime_that_the_server_forgot_registers_again_without_haste() -> None:
    api = ScriptedApi()
    api.trouble = refused(404)
    await work_for(api, 60)
    assert 5 <= api.calls["register"] <= 40


@pytest.mark.parametrize("status", [401, 403])
async def test_a_revoked_token_ends_the_runtime(status: int) -> None:
    api = ScriptedApi()
    api.trouble = refused(status)
    with pytest.raises(ApiProblem):
        await asyncio.wait_for(worker(api, FakeClock()).run(asyncio.Event()), 5)


async def test_a_refused_registration_ends_the_runtime() -> None:
    api = ScriptedApi()
    api.refusal = refused(422)
    with pytest.raises(RegistrationRefused):
        await asyncio.wait_for(worker(api, FakeClock()).run(asyncio.Event()), 5)
