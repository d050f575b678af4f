"""The stack as system tests use it, with stand-ins for the services."""

from __future__ import annotations

import asyncio
import socket
import stat
from pathlib import Path

import asyncpg
import pytest

from autopilot.local import stack as stack_module
from autopilot.local.commands import env_file
from autopilot.local.errors import LocalError
from autopilot.local.seed import Seed
from autopilot.local.services import KINDS, ServiceKind
from autopilot.local.settings import FREE_PORTS, USUAL_PORTS, Ports, ports_from
from autopilot.local.stack import Stack


@pytest.fixture(autouse=True)
def stand_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = [ServiceKind(kind.name, "tests.support.stand_in_service", kind.http_port) for kind in KINDS]
    monkeypatch.setattr(stack_module, "KINDS", kinds)
    monkeypatch.setattr(stack_module, "BY_NAME", {kind.name: kind for kind in kinds})


async def test_it_runs_replicas_that_can_be_killed_restarted_and_added(
    tmp_path: Path, postgres_url: str
) -> None:
    stack = Stack(tmp_path, nats=False, replicas={"dispatcher": 2, "scheduler": 0}, database_url=postgres_url)
    await asyncio.to_thread(stack.start)
    try:
        assert {name: len(replicas) for name, replicas in stack.processes.items()} == {
            "dispatcher": 2,
            "scheduler": 0,
            "rules-api": 1,
            "ingress": 1,
        }
        assert stack.dead() is None
        second = stack.processes["dispatcher"][1]
        second.kill()
        words = stack.dead()
        assert words is not None
        assert words.startswith("dispatcher-1 was ended by signal 9")
        await asyncio.to_thread(second.restart)
        assert stack.dead() is None
        added = await asyncio.to_thread(stack.start_service, "scheduler", {"AUTOPILOT_POINTS": "x"})
        assert stack.processes["scheduler"] == [added]
        assert stack.api_url != stack.ingress_url
    finally:
        await asyncio.to_thread(stack.stop)
    assert all(process.exit_code == -15 for process in stack.all_processes())


async def test_its_own_servers_are_migrated_reachable_and_kept_over_a_restart(tmp_path: Path) -> None:
    stack = Stack(tmp_path)
    await asyncio.to_thread(stack.start)
    try:
        url = stack.database_url
        connection = await asyncpg.connect(url)
        assert await connection.fetchval("SELECT count(*) FROM autopilot_run") == 0
        await connection.close()
        with pytest.raises(LocalError, match=r"The stack in .* is in use by process"):
            Stack(tmp_path).start()
        text = env_file(stack, Seed(workspace="w", token="it's", runtime_token="r"))
        assert f"export AUTOPILOT_API_URL={stack.api_url}\n" in text
        assert """export AUTOPILOT_TOKEN='it'"'"'s'\n""" in text
        for name in ("postgres.password", "secret.key"):
            assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600
    finally:
        await asyncio.to_thread(stack.stop)

    assert Stack(tmp_path, ports=Ports(postgres=stack.postgres.port)).postgres.url == url
    stack.postgres.destroy()


def test_a_taken_port_stops_it_before_anything_has_started(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        stack = Stack(tmp_path, ports=Ports(ingress=port))
        with pytest.raises(
            LocalError, match=f"Port {port}, wanted for webhooks, .*AUTOPILOT_LOCAL_INGRESS_PORT"
        ):
            stack.start()
        assert not (tmp_path / "postgres").exists()


def test_the_address_of_its_own_server_is_not_taken_for_a_foreign_one(tmp_path: Path) -> None:
    ports = Ports(postgres=54999, nats=54998)
    own = Stack(tmp_path, ports=ports)
    again = Stack(tmp_path, ports=ports, database_url=own.postgres.url, nats_url=own.nats.url)
    foreign = Stack(tmp_path, ports=ports, database_url="postgresql://elsewhere/db")
    assert again.foreign_servers == ()
    assert foreign.foreign_servers == ("Postgres",)


def test_ports_come_from_variables_and_a_wrong_one_is_named() -> None:
    assert ports_from({}) == USUAL_PORTS
    assert ports_from({"AUTOPILOT_LOCAL_API_PORT": "0"}).api == FREE_PORTS.api
    with pytest.raises(LocalError, match="AUTOPILOT_LOCAL_NATS_PORT is 'x', not a port number"):
        ports_from({"AUTOPILOT_LOCAL_NATS_PORT": "x"})
