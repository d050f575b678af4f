"""What must hold of every object that the chart renders, whatever the values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.deploy.test_chart_schemas import SETS, name_of
from tests.support import charts
from tests.support.charts import Object, component_of, named, of_kind, pods

UNITS = {"": 1.0, "m": 0.001, "Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30}
every_set = pytest.mark.parametrize("values", SETS, ids=name_of)


def amount(quantity: object) -> float:
    text = str(quantity)
    digits = text.rstrip("KMGim")
    return float(digits) * UNITS[text.removeprefix(digits)]


def matches(labels: dict[str, str], selector: dict[str, str]) -> bool:
    return bool(selector) and selector.items() <= labels.items()


@every_set
def test_selectors_select_the_pods_of_their_own_component(values: Path | None) -> None:
    """A selector that is too wide takes another service's pods: Service, Deployment, budget, spread and policy alike."""
    objects = charts.rendered(values)
    labels = {name: pod["metadata"]["labels"] for name, pod in pods(objects)}
    seen = 0
    for found in objects:
        spec = found.get("spec", {})
        selectors = []
        if found["kind"] in {"Deployment", "StatefulSet", "PodDisruptionBudget"}:
            selectors.append(spec["selector"]["matchLabels"])
        if found["kind"] == "Service":
            selectors.append(spec["selector"])
        if found["kind"] == "NetworkPolicy":
            selectors.append(spec["podSelector"]["matchLabels"])
        for selector in selectors:
            chosen = [name for name, found_labels in labels.items() if matches(found_labels, selector)]
            assert [name.partition("/")[2].partition("-migration")[0] for name in chosen] == [
                found["metadata"]["name"].partition("-migration")[0]
            ]
            seen += 1
    for name, pod in pods(objects):
        for spread in pod["spec"].get("topologySpreadConstraints", []):
            selector = spread["labelSelector"]["matchLabels"]
            assert [other for other, found_labels in labels.items() if matches(found_labels, selector)] == [
                name
            ]
            seen += 1
    assert seen >= 8


@every_set
def test_pods_run_without_rights(values: Path | None) -> None:
    """The restricted profile of pod security, a root file system that is read-only, no token, no variables of Services."""
    for name, pod in pods(charts.rendered(values)):
        spec = pod["spec"]
        assert spec["automountServiceAccountToken"] is False, name
        assert spec["enableServiceLinks"] is False, name
        assert spec["securityContext"]["runAsNonRoot"] is True, name
        assert spec["securityContext"]["runAsUser"] > 0, name
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}, name
        assert not spec.keys() & {"hostNetwork", "hostPID", "hostIPC", "initContainers"}, name
        for container in spec["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "privileged": False,
                "capabilities": {"drop": ["ALL"]},
            }, name
            assert not any("hostPort" in port for port in container.get("ports", [])), name


@every_set
def test_every_pod_has_an_account_of_its_own_without_a_token(values: Path | None) -> None:
    objects = charts.rendered(values)
    used = [pod["spec"]["serviceAccountName"] for _name, pod in pods(objects)]
    accounts = {found["metadata"]["name"]: found for found in of_kind(objects, "ServiceAccount")}
    assert sorted(used) == sorted(accounts)
    assert all(found["automountServiceAccountToken"] is False for found in accounts.values())
    assert not of_kind(objects, "Role", "ClusterRole", "RoleBinding", "ClusterRoleBinding", "Secret")


@every_set
def test_every_mount_has_its_volume_and_every_volume_a_mount(values: Path | None) -> None:
    objects = charts.rendered(values)
    claims = {
        f"StatefulSet/{found['metadata']['name']}": [
            claim["metadata"]["name"] for claim in found["spec"]["volumeClaimTemplates"]
        ]
        for found in of_kind(objects, "StatefulSet")
    }
    for name, pod in pods(objects):
        volumes = [volume["name"] for volume in pod["spec"].get("volumes", [])] + claims.get(name, [])
        mounts = [m["name"] for c in pod["spec"]["containers"] for m in c.get("volumeMounts", [])]
        assert sorted(mounts) == sorted(volumes), name


@every_set
def test_requests_do_not_exceed_limits_and_memory_has_one(values: Path | None) -> None:
    for name, pod in pods(charts.rendered(values)):
        for container in pod["spec"]["containers"]:
            requests, limits = container["resources"]["requests"], container["resources"]["limits"]
            assert {"cpu", "memory"} <= requests.keys(), name
            assert "memory" in limits, name
            for kind, asked in requests.items():
                assert amount(asked) <= amount(limits.get(kind, "1000Gi")), f"{name}: {kind}"


@every_set
def test_services_ports_and_probes_name_ports_of_their_containers(values: Path | None) -> None:
    objects = charts.rendered(values)
    ports: dict[tuple[str, str], set[str]] = {}
    for _name, pod in pods(objects):
        labels = pod["metadata"]["labels"]
        (container,) = pod["spec"]["containers"]
        mine = {port["name"] for port in container.get("ports", [])}
        ports[labels["app.kubernetes.io/name"], labels.get("app.kubernetes.io/component", "")] = mine
        probes = [container[name] for name in container if name.endswith("Probe")]
        assert {probe["httpGet"]["port"] for probe in probes if "httpGet" in probe} <= mine
        assert all("command" in probe["exec"] for probe in probes if "exec" in probe)
    for found in of_kind(objects, "Service"):
        selector = found["spec"]["selector"]
        mine = ports[selector["app.kubernetes.io/name"], selector.get("app.kubernetes.io/component", "")]
        assert {port["targetPort"] for port in found["spec"]["ports"]} <= mine
    for found in of_kind(objects, "NetworkPolicy"):
        selector = found["spec"]["podSelector"]["matchLabels"]
        mine = ports[selector["app.kubernetes.io/name"], selector.get("app.kubernetes.io/component", "")]
        for rule in found["spec"].get("ingress", []):
            assert {port["port"] for port in rule["ports"]} <= mine
    for found in of_kind(objects, "Ingress"):
        (path,) = found["spec"]["rules"][0]["http"]["paths"]
        backend = path["backend"]["service"]
        service = named(objects, "Service", backend["name"])
        assert backend["port"]["name"] in {port["name"] for port in service["spec"]["ports"]}


@every_set
def test_scaling_has_one_owner(values: Path | None) -> None:
    """A Deployment that is scaled names no replicas, else each upgrade would undo the scaling."""
    objects = charts.rendered(values)
    scalers: dict[str, list[Object]] = {}
    for found in of_kind(objects, "HorizontalPodAutoscaler", "ScaledObject"):
        scalers.setdefault(found["spec"]["scaleTargetRef"]["name"], []).append(found)
    for found in of_kind(objects, "Deployment"):
        mine = scalers.pop(found["metadata"]["name"], [])
        assert len(mine) + ("replicas" in found["spec"]) == 1
    assert scalers == {}


@every_set
def test_names_are_short_and_nothing_appears_twice(values: Path | None) -> None:
    """Also for a release with a long name: a Service's name has 63 characters at most."""
    objects = charts.rendered(values, release="a-release-with-a-name-that-is-fifty-three-chars-long")
    names = [(found["kind"], found["metadata"]["name"]) for found in objects]
    assert len(names) == len(set(names))
    assert all(len(name) <= 63 for _kind, name in names)


@every_set
def test_a_pod_gets_the_time_that_it_needs_to_stop(values: Path | None) -> None:
    """S15: the pause before SIGTERM, the service's grace period, and something to spare."""
    objects = charts.rendered(values)
    for found in of_kind(objects, "Deployment"):
        spec = found["spec"]["template"]["spec"]
        settings = named(objects, "ConfigMap", found["metadata"]["name"])["data"]
        (container,) = spec["containers"]
        pause = 0
        if "lifecycle" in container:
            python, flag, program = container["lifecycle"]["preStop"]["exec"]["command"]
            assert (python, flag) == ("python", "-c")
            pause = int(program.removeprefix("import time; time.sleep(").removesuffix(")"))
        takes_requests = any(port["name"] == "http" for port in container["ports"])
        assert (pause > 0) <= takes_requests
        assert spec["terminationGracePeriodSeconds"] >= pause + float(settings["AUTOPILOT_GRACE_S"]) + 5


def test_services_that_take_requests_pause_before_they_stop() -> None:
    objects = charts.rendered(None)
    paused = [
        component_of(found)
        for found in of_kind(objects, "Deployment")
        if "lifecycle" in found["spec"]["template"]["spec"]["containers"][0]
    ]
    assert sorted(paused) == ["ingress", "rules-api"]
    assert {
        found["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
        for found in of_kind(objects, "Deployment")
    } == {35, 40}


DNS = ("namespaceSelector:kube-system+podSelector:kube-dns", 53)
PRIVATE = ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7")
POSTGRES = {(cidr, 5432) for cidr in PRIVATE}
NATS = {(cidr, 4222) for cidr in PRIVATE}
CONTROLLER = ("namespaceSelector:ingress-nginx", "http")
SCRAPER = ("namespaceSelector:monitoring+podSelector:prometheus", "health")


def peer(found: dict[str, Any]) -> str:
    if "ipBlock" in found:
        return str(found["ipBlock"]["cidr"])
    parts = [f"{kind}:{next(iter(found[kind]['matchLabels'].values()))}" for kind in sorted(found)]
    return "+".join(parts)


def allowed(rules: list[dict[str, Any]], side: str) -> set[tuple[str, object]]:
    """Each peer and port; a rule without peers means everybody, so none may be without."""
    assert all(rule[side] and rule["ports"] for rule in rules)
    return {(peer(one), port["port"]) for rule in rules for one in rule[side] for port in rule["ports"]}


@pytest.mark.parametrize(
    ("component", "incoming", "outgoing"),
    [
        ("ingress", {CONTROLLER, SCRAPER}, {DNS, *POSTGRES, *NATS}),
        ("rules-api", {CONTROLLER, SCRAPER}, {DNS, *POSTGRES, *NATS}),
        ("scheduler", {SCRAPER}, {DNS, *POSTGRES, *NATS}),
        ("dispatcher", {SCRAPER}, {DNS, *POSTGRES, *NATS}),
        ("migration", set(), {DNS, *POSTGRES}),
    ],
)
def test_each_service_speaks_to_those_it_has_to(
    component: str, incoming: set[tuple[str, object]], outgoing: set[tuple[str, object]]
) -> None:
    """Postgres and NATS only; from outside only ingress and rules-api; metrics only by the scraper."""
    spec = named(charts.rendered(None), "NetworkPolicy", f"autopilot-{component}")["spec"]
    assert spec["policyTypes"] == ["Ingress", "Egress"]
    assert allowed(spec.get("ingress", []), "from") == incoming
    assert allowed(spec["egress"], "to") == outgoing


def test_policies_follow_the_values() -> None:
    objects = charts.rendered(charts.VALUES / "everything.yaml")
    outgoing = {("10.1.2.3/32", 6432), ("namespaceSelector:messaging+podSelector:nats", 4222), DNS}
    for component, clients in (("ingress", set()), ("rules-api", {("namespaceSelector:runtimes", "http")})):
        spec = named(objects, "NetworkPolicy", f"autopilot-{component}")["spec"]
        assert allowed(spec["egress"], "to") == outgoing
        assert allowed(spec["ingress"], "from") == {CONTROLLER, SCRAPER, *clients}


def test_the_migration_reaches_the_database_behind_a_pooler() -> None:
    """Its own URL goes past the pooler, to another port or host than that of the services."""
    policy = named(charts.rendered(charts.VALUES / "everything.yaml"), "NetworkPolicy", "autopilot-migration")
    assert allowed(policy["spec"]["egress"], "to") == {DNS, ("10.1.2.4/32", 5432)}


def test_a_database_of_the_release_is_reached_by_the_release_alone() -> None:
    objects = charts.rendered(charts.VALUES / "trial.yaml")
    for name, port in (("postgresql", 5432), ("nats", 4222)):
        spec = named(objects, "NetworkPolicy", f"autopilot-{name}")["spec"]
        assert [
            one["podSelector"]["matchLabels"]["app.kubernetes.io/instance"]
            for one in spec["ingress"][0]["from"]
        ] == ["autopilot"]
        assert spec["policyTypes"] == ["Ingress", "Egress"]
        assert "egress" not in spec
        outgoing = named(objects, "NetworkPolicy", "autopilot-dispatcher")["spec"]["egress"]
        assert ("podSelector:" + name, port) in {
            (f"podSelector:{one['podSelector']['matchLabels']['app.kubernetes.io/name']}", port["port"])
            for rule in outgoing[1:]
            for one in rule["to"]
            for port in rule["ports"]
        }


def test_the_migration_comes_before_the_new_pods_or_with_a_name_of_its_own() -> None:
    """K83: a hook where the database is there before; elsewhere a Job, which cannot be changed, only be another one."""
    (hook,) = of_kind(charts.rendered(None), "Job")
    assert hook["metadata"]["annotations"]["helm.sh/hook"] == "pre-install,pre-upgrade"
    hooks = [found for found in charts.rendered(None) if "annotations" in found["metadata"]]
    weights = {found["kind"]: int(found["metadata"]["annotations"]["helm.sh/hook-weight"]) for found in hooks}
    assert weights["Job"] > max(weights["ServiceAccount"], weights["NetworkPolicy"])
    names = set()
    for arguments in ((), ("--set", "image.tag=v2"), ("--set", "migration.existingSecret=other")):
        (job,) = of_kind(charts.rendered(None, "--set", "migration.hook=false", *arguments), "Job")
        assert "annotations" not in job["metadata"]
        names.add(job["metadata"]["name"])
    assert len(names) == 3
    (trial,) = of_kind(charts.rendered(charts.VALUES / "trial.yaml"), "Job")
    assert "annotations" not in trial["metadata"]
