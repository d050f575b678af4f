"""The Postgres brick of the local stack: it starts anywhere, survives kills, and explains itself."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import psutil
import pytest
from tests.support.processes import has_ended

from autopilot.local.errors import LocalError
from autopilot.local.ports import free_port
from autopilot.local.postgres import PostgresServer


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "postgres"
    yield place
    PostgresServer(place).destroy()


async def query(url: str, sql: str) -> object:
    connection = await asyncpg.connect(url, timeout=30)
    try:
        return await connection.fetchval(sql)
    finally:
        await connection.close()


async def test_it_starts_in_a_closed_folder_and_keeps_committed_data_over_a_crash(folder: Path) -> None:
    # pytest's temporary folders are closed to other accounts, so as root this is the sheltered case.
    server = PostgresServer(folder, durable=False)
    server.start()
    await query(server.url, "CREATE TABLE t AS SELECT 7 AS n")
    port = server.port
    server.stop(immediate=True)
    server.start()
    assert server.port == port
    assert await query(server.url, "SELECT n FROM t") == 7
    server.destroy()
    assert not folder.exists()


async def test_it_does_not_run_as_root(folder: Path) -> None:
    with PostgresServer(folder, durable=False) as server:
        assert server.pid is not None
        assert psutil.Process(server.pid).uids().effective != 0


async def test_a_password_is_asked_for_when_one_is_set(folder: Path) -> None:
    with PostgresServer(folder, durable=False, password="né w/p@ss") as server:
        assert await query(server.url, "SELECT 1") == 1
        without = f"postgresql://postgres:wrong@127.0.0.1:{server.port}/postgres"
        with pytest.raises(asyncpg.InvalidPasswordError):
            await query(without, "SELECT 1")


async def test_a_server_left_behind_by_a_killed_process_is_ended_and_replaced(folder: Path) -> None:
    program = (
        "import sys, signal; from pathlib import Path; from autopilot.local.postgres import PostgresServer\n"
        "s = PostgresServer(Path(sys.argv[1]), durable=False); s.start(); print(s.pid, flush=True); signal.pause()"
    )
    parent = subprocess.Popen([sys.executable, "-c", program, folder], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    leftover = psutil.Process(int(await asyncio.to_thread(parent.stdout.readline)))

    with pytest.raises(LocalError, match=f"in use by process {parent.pid}"):
        PostgresServer(folder).start()
    assert not has_ended(leftover)

    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    assert not has_ended(leftover)

    with PostgresServer(folder, durable=False) as server:
        assert server.pid != leftover.pid
        assert has_ended(leftover)
        assert await query(server.url, "SELECT 1") == 1


def test_data_of_another_major_version_are_refused_in_one_sentence(folder: Path) -> None:
    server = PostgresServer(folder, durable=False)
    server.start()
    server.stop()
    (server.data / "PG_VERSION").write_text("12\n")
    with pytest.raises(
        LocalError, match=r"belong to Postgres 12, but this is Postgres \d+: move that folder"
    ):
        server.start()


def test_a_taken_port_is_named_with_its_holder_and_the_variable(folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        server = PostgresServer(folder, port=port, port_variable="AUTOPILOT_X_PORT")
        with pytest.raises(
            LocalError, match=rf"Port {port}, .* by .*pid {os.getpid()}.* set AUTOPILOT_X_PORT"
        ):
            server.start()


def test_programs_that_are_not_there_are_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOPILOT_PG_BIN", "/nonexistent")
    with pytest.raises(
        LocalError, match="no Postgres programs in /nonexistent, which AUTOPILOT_PG_BIN names"
    ):
        PostgresServer(folder, port=free_port()).start()


async def test_sheltered_data_whose_folder_was_removed_are_made_anew(tmp_path: Path) -> None:
    folder = tmp_path / "postgres"
    with PostgresServer(folder, durable=False, password="first") as server:
        await query(server.url, "CREATE TABLE t ()")
    shutil.rmtree(folder)
    server = PostgresServer(folder, durable=False, password="second")
    server.start()
    assert await query(server.url, "SELECT to_regclass('t')") is None
    home = server.data.parent
    server.destroy()
    assert not home.exists()
