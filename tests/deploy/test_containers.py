"""The Dockerfile and the compose file, read: what an image is made of and how it is run."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.support import chart_files, charts

from autopilot.engine.secrets import new_key
from autopilot.kit.config import load, misspelt

DOCKERFILE = charts.ROOT / "deploy" / "docker" / "Dockerfile"
COMPOSE = charts.ROOT / "deploy" / "compose.yaml"
SERVICES = sorted(chart_files.CONFIGS)


def stages() -> dict[str, list[str]]:
    """The instructions of each stage by its name, the last one's as `final`."""
    text = re.sub(r"^#.*\n", "", DOCKERFILE.read_text("utf-8"), flags=re.MULTILINE).replace("\\\n", " ")
    found: dict[str, list[str]] = {}
    name = "before"
    for line in filter(None, map(str.strip, text.splitlines())):
        if started := re.fullmatch(r"FROM (\S+)(?: AS (\S+))?", line):
            name = started[2] or "final"
        found.setdefault(name, []).append(line)
    return found


def test_hadolint_has_nothing_to_say() -> None:
    linter = shutil.which("hadolint", path=str(Path(sys.executable).parent)) or shutil.which("hadolint")
    if linter is None:
        pytest.skip("there is no hadolint for this machine")
    done = charts.run(linter, "--failure-threshold", "style", str(DOCKERFILE))
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_an_argument_chooses_the_service_and_each_has_its_stage() -> None:
    """The process is the container's first, by an exec form: signals reach it and no shell is in between."""
    parts = stages()
    assert parts["final"][0] == "FROM ${SERVICE}"
    for service in SERVICES:
        entry = json.loads(parts[service][-1].removeprefix("ENTRYPOINT "))
        assert entry[:2] == ["/app/bin/python", "-m"]
        assert importlib.util.find_spec(f"{entry[2]}.__main__") is not None
        assert entry[2].rpartition(".")[2] == service.replace("-", "_")


def test_nothing_is_installed_without_its_hash_and_nothing_is_built_in_the_final_stages() -> None:
    parts = stages()
    installs = [part for line in parts["build"] for part in line.split("&&") if " install " in part]
    assert len(installs) == 4
    assert all("--require-hashes" in part or "--no-index --no-deps" in part for part in installs)
    for name in ("base", "final", *SERVICES):
        assert not [line for line in parts[name] if line.startswith(("RUN", "ADD"))], name
    assert [line for line in parts["base"] if line.startswith("COPY")] == ["COPY --from=build /app /app"]
    (user,) = [line for line in parts["base"] if line.startswith("USER")]
    assert re.fullmatch(r"USER [1-9][0-9]+:[1-9][0-9]+", user)
    (check,) = [line for line in parts["base"] if line.startswith("HEALTHCHECK")]
    assert json.loads(check.partition(" CMD ")[2]) == [
        "/app/bin/python",
        "-m",
        "autopilot.kit.probe",
        "/livez",
    ]


def test_ports_of_an_image_are_those_that_its_variables_name() -> None:
    """And they are the chart's: one image runs in both."""
    parts = stages()
    base = dict(re.findall(r"(AUTOPILOT_\w+)=(\S+)", " ".join(parts["base"])))
    for service, struct in chart_files.CONFIGS.items():
        variables = base | dict(re.findall(r"(AUTOPILOT_\w+)=(\S+)", " ".join(parts[service])))
        exposed = {
            line.removeprefix("EXPOSE ")
            for line in parts["base"] + parts[service]
            if line.startswith("EXPOSE")
        }
        assert exposed == {value for key, value in variables.items() if key.endswith("_PORT")}
        assert {value for key, value in variables.items() if key.endswith("_HOST")} == {"0.0.0.0"}
        assert misspelt(struct, variables) == []
        of_chart = charts.named(charts.rendered(None), "ConfigMap", f"autopilot-{service}")["data"]
        assert variables.items() <= of_chart.items()


def test_images_get_only_what_they_are_made_of() -> None:
    """Everything is left out but what is listed: no data, keys or virtual environments of whoever builds."""
    lines = (charts.ROOT / ".dockerignore").read_text("utf-8").splitlines()
    assert lines[1] == "*"
    assert [line for line in lines if line.startswith("!")] == [
        "!requirements.lock",
        "!deploy/uv-requirements.txt",
        "!shared",
        "!services",
    ]


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    found = yaml.safe_load(COMPOSE.read_text("utf-8"))
    assert isinstance(found, dict)
    return found


def environment(service: dict[str, Any]) -> dict[str, str]:
    """What a container gets when no variable is set beside the secrets."""
    secrets = {
        "POSTGRES_PASSWORD": "x",
        "AUTOPILOT_SECRET_KEYS": new_key(),
        "AUTOPILOT_RUNTIME_TOKEN": "apr_x",
    }
    read = re.compile(r"\$\{(\w+):-([^}]*)\}")
    return {
        key: read.sub(lambda found: secrets.get(found[1], found[2]), value)
        for key, value in service.get("environment", {}).items()
    }


def test_compose_starts_the_four_services_with_settings_that_they_take(compose: dict[str, Any]) -> None:
    for name, struct in chart_files.CONFIGS.items():
        service = compose["services"][name]
        given = environment(service)
        load(struct, given)
        assert misspelt(struct, given) == []
        assert service["build"]["args"] == {"SERVICE": name}
        assert (
            COMPOSE.parent / service["build"]["context"] / service["build"]["dockerfile"]
        ).resolve() == DOCKERFILE
        assert service["depends_on"] == {"migrate": {"condition": "service_completed_successfully"}}
        assert int(service["stop_grace_period"].removesuffix("s")) >= 35


def test_compose_has_every_part_and_each_part_what_it_names(compose: dict[str, Any]) -> None:
    services = compose["services"]
    assert {"postgres", "nats", "migrate", "runtime", "prometheus", *SERVICES} <= services.keys()
    assert "--jetstream" in services["nats"]["command"]
    for name, service in services.items():
        assert set(service.get("depends_on", [])) <= services.keys(), name
        assert set(service.get("networks", [])) <= compose["networks"].keys(), name
        for volume in service.get("volumes", []):
            source = volume.partition(":")[0]
            assert source in compose["volumes"] or (COMPOSE.parent / source).is_dir(), name
        for port in service.get("ports", []):
            assert port.startswith("127.0.0.1:"), f"{name} is open to the network"
        if "autopilot-" in service["image"]:
            assert service["read_only"] is True, name
            assert service["cap_drop"] == ["ALL"], name
            assert "privileged" not in service, name
    assert compose["networks"]["inside"] == {"internal": True}
    assert services["postgres"]["networks"] == services["nats"]["networks"] == ["inside"]


def test_compose_runs_the_runtime_and_its_tools_by_commands_that_exist(compose: dict[str, Any]) -> None:
    from click.testing import CliRunner

    from autopilot.cli.app import app

    runtime = compose["services"]["runtime"]
    words = [*runtime["entrypoint"][1:], *runtime["command"]]
    options = [word for word in words if word.startswith("--")]
    helped = CliRunner().invoke(app, [*words[:2], "--help"]).output
    assert all(option in helped for option in options)
    assert runtime["init"] is True
    for name in ("migrate", "bootstrap", "new-key"):
        python, flag, module, *_rest = compose["services"][name]["entrypoint"]
        assert (python, flag) == ("python", "-m")
        assert importlib.util.find_spec(f"{module}.__main__") is not None


def test_prometheus_scrapes_what_compose_runs(compose: dict[str, Any]) -> None:
    """Each service by its name, at the port that its image shows metrics on."""
    scrapes = yaml.safe_load((COMPOSE.parent / "prometheus" / "prometheus.yml").read_text("utf-8"))
    targets = {
        target: group["labels"]["service"]
        for scrape in scrapes["scrape_configs"]
        for group in scrape["static_configs"]
        for target in group["targets"]
    }
    (port,) = [line.removeprefix("EXPOSE ") for line in stages()["base"] if line.startswith("EXPOSE")]
    assert targets == {f"{service}:{port}": service for service in SERVICES}
    config = compose["services"]["prometheus"]["command"][0]
    assert config == "--config.file=/etc/prometheus/prometheus.yml"
    assert all("inside" in compose["services"][name]["networks"] for name in ("prometheus", *SERVICES))
