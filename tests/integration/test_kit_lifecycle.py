"""A service as a process: it starts with one clear word, stops in order, and exits with a true code (S15, NA10)."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import ClientSession
from tests.support.nats import free_port

PROGRAM = """
import asyncio, os, sys
from contextlib import asynccontextmanager
from aiohttp import ClientSession, web
from autopilot.domain.errors import InfrastructureError
from autopilot.kit import config, http, lifecycle, log, loop

logger = log.get_logger()
tries = 0

class Example(config.CommonConfig, frozen=True, kw_only=True):
    port: int = 0
    down_for: int = 0
    stubborn: bool = False

@asynccontextmanager
async def resource(name):
    logger.info("entered", name=name)
    yield name
    logger.info("left", name=name)

async def build(service, settings):
    global tries
    tries += 1
    await service.resource(resource("outer"))
    if tries <= settings.down_for:
        raise InfrastructureError("postgresql://me:hunter2@db is away")
    await service.resource(resource("inner"))
    async def step():
        if settings.stubborn:
            logger.info("stuck")
            await asyncio.Event().wait()
    service.loop(loop.Loop("work", step))
    started = asyncio.Event()
    async def slow(request):
        logger.info("asked")
        await released.wait()
        async with ClientSession() as client, client.get(f"http://127.0.0.1:{settings.health_port}/readyz") as health:
            return http.json_response({"ready": health.status})
    released = asyncio.Event()
    service.on_drain(released.set)
    app = web.Application(middlewares=[http.server_middleware()])
    app.router.add_get("/slow", slow)
    service.http(app, "127.0.0.1", settings.port)

sys.exit(lifecycle.run_service("example", Example, build))
"""


class Process:
    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.lines: list[dict[str, Any]] = []

    async def until(self, event: str, **facts: object) -> dict[str, Any]:
        """Read its log up to a line."""
        assert self._process.stderr is not None
        async with asyncio.timeout(30):
            while text := await self._process.stderr.readline():
                line = json.loads(text)
                self.lines.append(line)
                if line["event"] == event and facts.items() <= line.items():
                    return dict(line)
        raise AssertionError(f"it ended without {event}: {self.lines}")

    def signal(self, number: signal.Signals = signal.SIGTERM) -> None:
        self._process.send_signal(number)

    async def end(self) -> tuple[int, str]:
        async with asyncio.timeout(30):
            _, errors = await self._process.communicate()
        assert self._process.returncode is not None
        for text in errors.decode().splitlines():
            if text.startswith("{"):
                self.lines.append(json.loads(text))
        return self._process.returncode, errors.decode()


@asynccontextmanager
async def started(**settings: str) -> AsyncIterator[Process]:
    environ = {"AUTOPILOT_DATABASE_URL": "postgresql://nowhere/a"}
    environ |= {f"AUTOPILOT_{name.upper()}": value for name, value in settings.items()}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PROGRAM, env=environ, stderr=asyncio.subprocess.PIPE
    )
    try:
        yield Process(process)
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_it_stops_in_reverse_order_and_exits_0(number: signal.Signals) -> None:
    async with started() as process:
        await process.until("service_started")
        process.signal(number)
        code, _ = await process.end()
    assert code == 0
    events = [(line["event"], line.get("name")) for line in process.lines if "name" in line]
    assert events == [("entered", "outer"), ("entered", "inner"), ("left", "inner"), ("left", "outer")]


async def test_a_request_in_flight_is_answered_and_readiness_is_off_meanwhile() -> None:
    """S15: what turns traffic away comes before what refuses it."""
    async with started(health_port=str(free_port())) as process, ClientSession() as client:
        port = (await process.until("listening", what="example"))["port"]
        await process.until("service_started")
        asking = asyncio.create_task(client.get(f"http://127.0.0.1:{port}/slow"))
        await process.until("asked")
        process.signal()
        async with await asking as response:
            assert (response.status, await response.json()) == (200, {"ready": 503})
        assert (await process.end())[0] == 0


async def test_readiness_and_liveness_are_served_on_their_own_port() -> None:
    async with started() as process, ClientSession() as client:
        port = (await process.until("listening", what="health"))["port"]
        await process.until("service_started")
        for path in ("/livez", "/readyz", "/metrics"):
            async with client.get(f"http://127.0.0.1:{port}{path}") as response:
                assert response.status == 200


async def test_what_outlasts_the_grace_period_is_cut_off_and_said() -> None:
    """NA10."""
    async with started(stubborn="yes", grace_s="0.2") as process:
        await process.until("stuck")
        process.signal()
        code, _ = await process.end()
    assert code == 1
    assert process.lines[-1]["drained"] is False


async def test_a_second_signal_ends_it_at_once() -> None:
    async with started(stubborn="yes", grace_s="60") as process:
        await process.until("stuck")
        process.signal()
        await process.until("service_stopping")
        process.signal()
        assert (await process.end())[0] == 128 + signal.SIGTERM


async def test_a_database_that_is_down_at_start_is_waited_for() -> None:
    """S1.3: no process exits."""
    async with started(down_for="2") as process:
        await process.until("start_waits_for_infrastructure")
        await process.until("service_started")
        process.signal()
        assert (await process.end())[0] == 0
    assert [line["name"] for line in process.lines if line["event"] == "left"] == [
        "outer",
        "outer",
        "inner",
        "outer",
    ]
    assert "hunter2" not in str(process.lines)


async def test_it_can_be_stopped_while_it_waits_to_start() -> None:
    async with started(down_for="1000") as process:
        await process.until("start_waits_for_infrastructure")
        process.signal()
        assert (await process.end())[0] == 0


@pytest.mark.parametrize("setting", ["port", "health_port"])
async def test_a_port_in_use_is_one_sentence_and_exit_2(setting: str) -> None:
    async def refuse(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    holder = await asyncio.start_server(refuse, "127.0.0.1", 0)
    port = holder.sockets[0].getsockname()[1]
    async with holder, started(**{setting: str(port)}) as process:
        code, errors = await process.end()
    assert code == 2
    assert "Traceback" not in errors
    last = errors.splitlines()[-1]
    assert last.startswith("autopilot example cannot start:")
    assert f"127.0.0.1:{port}: Address already in use" in last


async def test_a_refused_configuration_names_every_fault_and_exits_2() -> None:
    async with started(database_url="", health_port="many") as process:
        code, errors = await process.end()
    assert code == 2
    assert "Traceback" not in errors
    assert len(errors.splitlines()) == 3
