"""The images that `make image` built from this very code, run as they run in production: no rights, nothing to write on."""

from __future__ import annotations

import asyncio
import json
import runpy
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import aiohttp
import asyncpg
import pytest
from tests.support import chart_files, charts
from tests.support.nats import free_port

from autopilot.engine.secrets import new_key

VERSION = "0.1.0"
USER = "65532:65532"
HARDENED = [
    *("--read-only", "--read-only-tmpfs=false", "--cap-drop=all", "--security-opt=no-new-privileges"),
    *(
        "--network=host",
        "--pids-limit=128",
        "--memory=512m",
        "--ulimit=nofile=1024:1024",
        "--ulimit=nproc=1024:1024",
    ),
    *("--no-healthcheck", "--rm"),  # its timers are systemd's; the test asks what they would ask
]


def podman(*arguments: str) -> list[str]:
    runtime = ["--runtime", "runc"] if shutil.which("runc") else []
    return ["podman", *runtime, *arguments]


def told(*arguments: str) -> subprocess.CompletedProcess[str]:
    return charts.run(*podman(*arguments))


@pytest.fixture(scope="module")
def images() -> dict[str, str]:
    """Each service's image; skipped where there is none that was made of this commit."""
    if shutil.which("podman") is None:
        pytest.skip("there is no podman to run an image with")
    now = runpy.run_path(str(charts.ROOT / "deploy" / "docker" / "image.py"))["revision"]()
    names = {service: f"localhost/autopilot-{service}:{VERSION}" for service in chart_files.CONFIGS}
    for name in names.values():
        label = '{{index .Labels "org.opencontainers.image.revision"}}'
        made_of = told("image", "inspect", "--format", label, name).stdout.strip()
        if made_of != now:
            pytest.skip(f"there is no image {name} of what is here: make image builds it")
    return names


@pytest.fixture
def settings(postgres_url: str) -> dict[str, str]:
    return {
        "AUTOPILOT_DATABASE_URL": postgres_url,
        "AUTOPILOT_SECRET_KEYS": new_key(),
        "AUTOPILOT_HEALTH_HOST": "127.0.0.1",
        "AUTOPILOT_INGRESS_HOST": "127.0.0.1",
        "AUTOPILOT_API_HOST": "127.0.0.1",
        "AUTOPILOT_HEALTH_PORT": str(free_port()),
        "AUTOPILOT_INGRESS_PORT": str(free_port()),
        "AUTOPILOT_API_PORT": str(free_port()),
    }


def options(settings: dict[str, str]) -> list[str]:
    return [*HARDENED, f"--user={USER}", *(f"--env={key}={value}" for key, value in settings.items())]


async def answered(url: str, deadline_s: float) -> dict[str, Any]:
    """The first 200 with JSON."""
    ends = time.monotonic() + deadline_s
    async with aiohttp.ClientSession() as session:
        while True:
            try:
                async with session.get(url) as response:
                    if response.status == 200:
                        found = await response.json()
                        assert isinstance(found, dict)
                        return found
            except aiohttp.ClientError:
                pass
            assert time.monotonic() < ends, f"{url} did not answer in {deadline_s:g} s"
            await asyncio.sleep(0.02)


@pytest.fixture
def container() -> Iterator[str]:
    name = f"autopilot-test-{free_port()}"
    yield name
    told("rm", "--force", "--ignore", name)


@pytest.mark.timeout(180)
@pytest.mark.parametrize("service", chart_files.CONFIGS)
async def test_a_service_runs_without_rights_and_stops_when_told(
    images: dict[str, str], settings: dict[str, str], container: str, service: str
) -> None:
    """S15: ready by its database, alive by its own probe, one process of a user without rights, SIGTERM ends it with 0."""
    began = time.monotonic()
    process = await asyncio.create_subprocess_exec(
        *podman("run", "--name", container, *options(settings), images[service]),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    ready = await answered(f"http://127.0.0.1:{settings['AUTOPILOT_HEALTH_PORT']}/readyz", 60)
    started_s = time.monotonic() - began
    assert ready["service"] == service

    probe = json.loads(
        told("image", "inspect", "--format", "{{json .HealthCheck.Test}}", images[service]).stdout
    )
    assert probe[0] == "CMD"
    healthy = told("exec", container, *probe[1:])
    assert (healthy.returncode, healthy.stderr) == (0, "")
    listed = told("top", container, "user", "pid", "args").stdout.splitlines()[1:]
    assert len(listed) == 1, "nothing beside the service runs, and no shell around it"
    assert listed[0].split()[:2] in (["65532", "1"], ["nobody", "1"])
    wrote = told("exec", container, "python", "-c", "open('/app/x', 'w')")
    assert "Read-only file system" in wrote.stderr

    stopped = time.monotonic()
    assert told("kill", "--signal=TERM", container).returncode == 0
    assert process.stderr is not None
    logged = (await process.stderr.read()).decode()
    assert await process.wait() == 0, logged
    assert "service_stopped" in logged
    size = int(told("image", "inspect", "--format", "{{.Size}}", images[service]).stdout)
    print(
        f"{service}: {size / 1e6:.0f} MB, ready {started_s:.2f} s after `run`, gone {time.monotonic() - stopped:.2f} s after SIGTERM",
        file=sys.stderr,
    )


@pytest.mark.timeout(180)
async def test_the_image_brings_the_schema_and_the_commands(
    images: dict[str, str], empty_postgres_url: str, settings: dict[str, str]
) -> None:
    """What the migration Job, bootstrap and the runtime of compose call is in the image of rules-api."""
    given = options(settings | {"AUTOPILOT_DATABASE_URL": empty_postgres_url})
    command = charts.named(charts.rendered(None), "Job", "autopilot-migration")["spec"]["template"]["spec"]
    words = command["containers"][0]["command"]
    migrated = told("run", *given, f"--entrypoint={json.dumps(words)}", images["rules-api"])
    assert migrated.returncode == 0, migrated.stderr
    connection = await asyncpg.connect(empty_postgres_url)
    try:
        assert await connection.fetchval("SELECT count(*) FROM autopilot") == 0
    finally:
        await connection.close()
    entrypoint = json.dumps(["python", "-m", "autopilot.rules_api", "bootstrap"])
    rest = ["--workspace=acme", "--name=Acme", "--email=a@example.com", "--json"]
    made = told("run", *given, f"--entrypoint={entrypoint}", images["rules-api"], *rest)
    assert json.loads(made.stdout)["workspace"] == "acme"
    helped = told("run", *given, "--entrypoint=autopilot", images["rules-api"], "runtime", "run", "--help")
    assert "--exec" in helped.stdout


def test_no_image_has_tools_to_build_with(images: dict[str, str], settings: dict[str, str]) -> None:
    """Of what we put there: neither an installer nor a compiler, nor the packages of another service."""
    finds = "import sys, os; print(sorted(os.listdir('/app/bin')), sorted(os.listdir(next(p for p in sys.path if '/app/' in p))))"
    for service, image in images.items():
        found = told("run", *options(settings), "--entrypoint=python", image, "-c", finds).stdout
        assert "'uvloop'" in found, service
        for unwanted in ("pip", "uv", "pytest", "mypy", "setuptools", "ruff"):
            assert f"'{unwanted}'" not in found, f"{service} has {unwanted}"
        assert ("'rich'" in found) == (service == "rules-api")
