"""How the local stack starts services, waits for them and tells why one is not there."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from tests.support.processes import has_ended

from autopilot.local.errors import LocalError
from autopilot.local.ports import free_port
from autopilot.local.processes import Child
from autopilot.local.services import ServiceKind, ServiceProcess

KIND = ServiceKind("stand-in", "tests.support.stand_in_service")


@pytest.fixture
def started(tmp_path: Path) -> Iterator[list[ServiceProcess]]:
    processes: list[ServiceProcess] = []
    yield processes
    for process in processes:
        process.kill()


def make(folder: Path, started: list[ServiceProcess], **env: str) -> ServiceProcess:
    process = ServiceProcess(
        KIND, 0, folder, env={**os.environ, **env}, health_port=free_port(), http_port=None
    )
    started.append(process)
    process.start()
    return process


def test_a_service_is_ready_when_its_health_says_so_and_keeps_its_port_over_a_kill(
    tmp_path: Path, started: list[ServiceProcess]
) -> None:
    process = make(tmp_path, started)
    process.wait_ready()
    first = process.pid
    process.kill()
    assert process.exit_code == -9
    assert process.readiness() == (False, "it does not answer")
    process.start()
    process.wait_ready()
    assert process.pid not in {None, first}
    process.stop()
    assert process.exit_code == -15


def test_a_service_that_dies_is_told_with_its_last_words(
    tmp_path: Path, started: list[ServiceProcess]
) -> None:
    process = make(tmp_path, started, STAND_IN_DIES="AUTOPILOT_SECRET_KEYS is missing")
    words = r"^stand-in ended with exit code 1: AUTOPILOT_SECRET_KEYS is missing \(log: .*stand-in.log\)$"
    with pytest.raises(LocalError, match=words):
        process.wait_ready()


def test_a_service_that_stays_unready_is_told_with_its_faults(
    tmp_path: Path, started: list[ServiceProcess]
) -> None:
    process = make(tmp_path, started, STAND_IN_FAULTS='{"database": "refused"}')
    while process.readiness() == (False, "it does not answer"):
        assert process.is_running()
    with pytest.raises(LocalError, match=r"stand-in was not ready in 2 s: database: refused"):
        process.wait_ready(timeout_s=2)


def test_a_child_left_behind_is_ended_by_the_next_start(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import signal; signal.pause()"]
    program = (
        "import os, sys; from pathlib import Path; from autopilot.local.processes import Child\n"
        "c = Child('c', sys.argv[2:], Path(sys.argv[1])); c.start(); print(c.pid, flush=True); os._exit(1)"
    )
    told = subprocess.run(
        [sys.executable, "-c", program, tmp_path, *command], capture_output=True, text=True, check=False
    )
    leftover = psutil.Process(int(told.stdout))
    assert not has_ended(leftover)

    child = Child("c", command, tmp_path)
    child.start()
    try:
        assert has_ended(leftover)
        assert child.pid != leftover.pid
    finally:
        child.stop()


def test_a_pid_that_another_process_has_now_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "c.pid").write_text(f"{os.getpid()} 1.0\n")
    assert Child("c", [], tmp_path).end_leftover() is False


def test_a_program_that_takes_its_time_to_end_is_asked_once(tmp_path: Path) -> None:
    """S15: a service that gets a second SIGTERM ends at once, whatever is left to finish."""
    program = (
        "import signal, sys, time\nasked = []\n"
        "signal.signal(signal.SIGTERM, lambda *_: asked.append(1))\nprint('ready', flush=True)\n"
        "while not asked: time.sleep(0.01)\n"
        "time.sleep(0.3)\nsys.exit(len(asked))"
    )
    child = Child("c", [sys.executable, "-c", program], tmp_path)
    child.start()
    while b"ready" not in child.log.read_bytes():
        assert child.is_running()
    child.ask_to_end()
    child.stop()
    assert child.exit_code == 1
