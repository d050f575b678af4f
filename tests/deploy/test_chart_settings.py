"""The settings, ports and paths of the chart are those of the code, and what is refused is refused before it is installed."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest
from tests.deploy.test_chart_schemas import SETS, name_of
from tests.support import chart_files, charts
from tests.support.charts import component_of, named, of_kind

from autopilot.engine.secrets import new_key
from autopilot.ingress.receive import PATH as WEBHOOKS
from autopilot.kit.config import describe, load, misspelt
from autopilot.kit.health import Health

SECRETS = {
    "AUTOPILOT_DATABASE_URL": "postgresql://db/autopilot",
    "AUTOPILOT_NATS_URL": "nats://nats:4222",
    "AUTOPILOT_SECRET_KEYS": new_key(),
}
every_set = pytest.mark.parametrize("values", SETS, ids=name_of)


@every_set
def test_services_start_with_what_the_chart_sets(values: Path | None) -> None:
    """S15: every variable is a key of the service's configuration, and the configuration takes every value."""
    objects = charts.rendered(values)
    for found in of_kind(objects, "Deployment"):
        struct = chart_files.CONFIGS[component_of(found)]
        (container,) = found["spec"]["template"]["spec"]["containers"]
        (source,) = container["envFrom"]
        settings = named(objects, "ConfigMap", source["configMapRef"]["name"])["data"]
        secrets = [one["name"] for one in container["env"]]
        assert all("secretKeyRef" in one["valueFrom"] for one in container["env"])
        assert not settings.keys() & set(secrets)
        assert settings.keys() | set(secrets) <= {key.name for key in describe(struct)}
        given = settings | {name: SECRETS[name] for name in secrets}
        config = load(struct, given)
        assert misspelt(struct, given) == []
        secret_settings = {key.name for key in describe(struct) if key.secret}
        assert not settings.keys() & secret_settings
        ports = {port["name"]: port["containerPort"] for port in container["ports"]}
        assert ports.pop("health") == config.health_port
        assert list(ports.values()) == [
            int(value) for key, value in settings.items() if key.endswith("_PORT") and "HEALTH" not in key
        ]


def test_values_arrive_as_the_service_reads_them() -> None:
    """Numbers without an exponent, lists with commas, and a service's own value before the common one."""
    objects = charts.rendered(charts.VALUES / "everything.yaml")
    dispatcher = named(objects, "ConfigMap", "autopilot-dispatcher")["data"]
    assert dispatcher["AUTOPILOT_EVENT_STREAM_MAX_BYTES"] == "1099511627776"
    assert (dispatcher["AUTOPILOT_DB_POOLER"], dispatcher["AUTOPILOT_POLL_INTERVAL_S"]) == ("true", "0.5")
    ingress = named(objects, "ConfigMap", "autopilot-ingress")["data"]
    assert ingress["AUTOPILOT_INGRESS_TRUSTED_PROXIES"] == "10.0.0.0/8,fd00::/8"
    assert (dispatcher["AUTOPILOT_LOG_LEVEL"], ingress["AUTOPILOT_LOG_LEVEL"]) == ("debug", "warning")
    rules_api = named(objects, "ConfigMap", "autopilot-rules-api")["data"]
    assert rules_api["AUTOPILOT_INGRESS_URL"] == "https://hooks.acme.example"


def test_only_those_that_keep_secrets_get_their_key() -> None:
    with_key = [
        component_of(found)
        for found in of_kind(charts.rendered(None), "Deployment")
        if "AUTOPILOT_SECRET_KEYS" in json.dumps(found)
    ]
    assert sorted(with_key) == ["ingress", "rules-api"]


def test_a_changed_setting_restarts_the_pods() -> None:
    def sums(*arguments: str) -> list[str]:
        return [
            found["spec"]["template"]["metadata"]["annotations"]["checksum/settings"]
            for found in of_kind(charts.rendered(None, *arguments), "Deployment")
        ]

    changed = sums("--set", "settings.common.AUTOPILOT_LOG_LEVEL=debug")
    assert all(new != old for new, old in zip(changed, sums(), strict=True))


@every_set
def test_probes_ask_for_paths_that_are_served(values: Path | None) -> None:
    """K82: liveness never asks for the database. S15: readiness does."""
    served = {route.resource.canonical for route in Health("x").app().router.routes() if route.resource}
    for found in of_kind(charts.rendered(values), "Deployment"):
        (container,) = found["spec"]["template"]["spec"]["containers"]
        asked = {
            name.removesuffix("Probe"): part["httpGet"]
            for name, part in container.items()
            if name.endswith("Probe")
        }
        assert {name: probe["path"] for name, probe in asked.items()} == {
            "startup": "/livez",
            "liveness": "/livez",
            "readiness": "/readyz",
        }
        assert {probe["path"] for probe in asked.values()} <= served
        assert {probe["port"] for probe in asked.values()} == {"health"}
    for monitor in of_kind(charts.rendered(values), "ServiceMonitor"):
        assert {endpoint["path"] for endpoint in monitor["spec"]["endpoints"]} <= served


def test_strangers_reach_webhooks_and_nothing_else_on_a_host_of_their_own() -> None:
    routes = {component_of(found): found for found in of_kind(charts.rendered(None), "Ingress")}
    assert sorted(routes) == ["ingress", "rules-api"]
    rules = {name: found["spec"]["rules"] for name, found in routes.items()}
    assert all(len(found) == 1 and len(found[0]["http"]["paths"]) == 1 for found in rules.values())
    assert rules["ingress"][0]["host"] != rules["rules-api"][0]["host"]
    path = rules["ingress"][0]["http"]["paths"][0]
    assert WEBHOOKS.startswith(path["path"])
    assert path["pathType"] == "Prefix"


def test_commands_run_modules_that_exist() -> None:
    (job,) = of_kind(charts.rendered(None), "Job")
    command = job["spec"]["template"]["spec"]["containers"][0]["command"]
    assert command[:2] == ["python", "-m"]
    assert importlib.util.find_spec(command[2] + ".__main__") is not None


def test_scaling_names_a_metric_that_exists() -> None:
    from autopilot.dispatcher import __main__  # noqa: F401 - it makes the dispatcher's metrics
    from autopilot.kit import metrics

    (scaled,) = of_kind(charts.rendered(charts.VALUES / "everything.yaml"), "ScaledObject")
    query = next(
        one["metadata"]["query"] for one in scaled["spec"]["triggers"] if one["type"] == "prometheus"
    )
    name = query.removeprefix("max(").partition("{")[0]
    assert name in {family.name for family in metrics.registry.collect()}


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("settings.common.AUTOPILOT_LOGLEVEL=info",), "AUTOPILOT_LOGLEVEL"),
        (("settings.ingress.AUTOPILOT_RETAIN_RUNS_DAYS=400",), "AUTOPILOT_RETAIN_RUNS_DAYS"),
        (("settings.dispatcher.AUTOPILOT_DISPATCH_CONCURRENCY=65",), "maximum"),
        (("settings.common.AUTOPILOT_LOG_LEVEL=loud",), "AUTOPILOT_LOG_LEVEL"),
        (("settings.common.AUTOPILOT_DATABASE_URL=postgresql://u:p@h/d",), "AUTOPILOT_DATABASE_URL"),
        (("settings.common.AUTOPILOT_GRACE_S=60",), "AUTOPILOT_GRACE_S"),
        (("replicas=3",), "replicas"),
        (("services.ingress.replica=3",), "replica"),
        (("networkPolicy.scrapers=null",), "scrapers"),
        (("networkPolicy.postgres.peers=[]",), "peers"),
        (("networkPolicy.scrapers[0]=null", "networkPolicy.scrapers[0].ipBlock=null"), "scrapers"),
        (("database.existingSecret=",), "existingSecret"),
        (("services.rulesApi.route.host=hooks.example.com",), "must differ"),
        (("services.dispatcher.autoscaling.queueAge.enabled=true",), "prometheusUrl"),
        (("image.digests.ingress=latest",), "digests"),
    ],
    ids=lambda found: found if isinstance(found, str) else found[0].partition("=")[0],
)
def test_what_would_be_wrong_is_refused(arguments: tuple[str, ...], word: str) -> None:
    """By the schema or by the templates, naming what is wrong; never installed and ignored."""

    def how(argument: str) -> str:
        return "--set-json" if argument.endswith("]") else "--set"

    done = charts.template(*(part for argument in arguments for part in (how(argument), argument)))
    assert done.returncode != 0
    assert word in done.stderr


def test_every_setting_of_the_chart_is_explained_where_it_is_set() -> None:
    """In values.schema.json with the words of the code, in values.yaml for the rest."""
    schema = json.loads(chart_files.SCHEMA.read_text("utf-8"))
    for name, part in schema["$defs"].items():
        if name.startswith("settings"):
            assert all(found["description"] for found in part["properties"].values())
    for struct in chart_files.CONFIGS.values():
        known = {key.name for key in describe(struct)}
        of_the_schema = {key for part in schema["$defs"].values() for key in part.get("properties", ())}
        assert known - of_the_schema <= chart_files.OWN


def test_the_notes_say_which_secrets_are_needed_and_what_comes_next() -> None:
    """What `helm install` prints: the Secrets by name and key, the first command, and what was left unsafe."""
    command = ["install", "autopilot", str(charts.CHART), "--dry-run=client", "--kubeconfig=/dev/null"]
    values = charts.VALUES / "everything.yaml"
    notes = {
        told: charts.run(charts.program("helm"), *command, *told).stdout.partition("NOTES:")[2]
        for told in ((), ("--values", str(values)), ("--set", "networkPolicy.enabled=false"))
    }
    everything = notes["--values", str(values)]
    for line in ("pg: uri,", "mq: uri,", "fernet: list,", "-m autopilot.rules_api bootstrap"):
        assert line in everything
    assert "https://hooks.acme.example" in everything
    assert "TRUSTED_PROXIES is empty" in notes[()]
    assert "TRUSTED_PROXIES is empty" not in everything
    assert "every pod of the cluster can reach" in notes["--set", "networkPolicy.enabled=false"]
