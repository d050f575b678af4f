"""The NATS brick of the local stack: it keeps its port and store over kills, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import nats
import psutil
import pytest

from autopilot.local.errors import LocalError
from autopilot.local.nats import NatsServer


async def test_a_stream_survives_a_kill_and_a_restart_on_the_same_port(tmp_path: Path) -> None:
    with NatsServer(tmp_path / "nats") as server:
        url = server.url
        client = await nats.connect(url)
        await client.jetstream().add_stream(name="S", subjects=["s"])
        await client.jetstream().publish("s", b"kept")
        await client.close()

        server.kill()
        assert server.pid is None
        server.start()

        assert server.url == url
        client = await nats.connect(url)
        message = await client.jetstream().get_msg("S", seq=1)
        await client.close()
        assert message.data == b"kept"


async def test_a_server_left_behind_by_a_killed_process_is_ended_and_replaced(tmp_path: Path) -> None:
    program = (
        "import sys, signal; from pathlib import Path; from autopilot.local.nats import NatsServer\n"
        "s = NatsServer(Path(sys.argv[1])); s.start(); print(s.pid, s.port, flush=True); signal.pause()"
    )
    parent = subprocess.Popen([sys.executable, "-c", program, tmp_path], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pid, port = (await asyncio.to_thread(parent.stdout.readline)).split()
    with pytest.raises(LocalError, match=f"in use by process {parent.pid}"):
        NatsServer(tmp_path).start()
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    assert psutil.pid_exists(int(pid))

    with NatsServer(tmp_path, port=int(port)) as server:
        assert server.pid != int(pid)


def test_a_taken_port_is_refused_in_one_sentence(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        with pytest.raises(LocalError, match=f"Port {port}, wanted for NATS, is in use"):
            NatsServer(tmp_path, port=port).start()
