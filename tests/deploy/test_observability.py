"""Alerts, their first steps, the dashboard and the metrics themselves say what the code says (S15)."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from tests.support.metric_catalogue import declared, names_in

ROOT = Path(__file__).parents[2]
RULES = ROOT / "deploy" / "prometheus" / "alerts.yml"
SCRAPING = ROOT / "deploy" / "prometheus" / "prometheus.yml"
CASES = ROOT / "tests" / "deploy" / "alerts.test.yml"
DASHBOARD = ROOT / "deploy" / "grafana" / "autopilot.json"
RUNBOOK = ROOT / "docs" / "operations.md"
SOURCES = "".join(
    path.read_text() for part in ("shared", "services") for path in (ROOT / part).rglob("src/**/*.py")
)
# Of the process, by the client library.
PROCESS = {"process_start_time_seconds", "process_cpu_seconds_total", "process_resident_memory_bytes"}


def alerts() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


def panels() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(DASHBOARD.read_text())["panels"]
    return [panel for panel in found if panel["type"] != "row"]


def queries() -> Iterator[tuple[str, str]]:
    """Every query with the place where it stands."""
    for alert in alerts():
        yield alert["alert"], alert["expr"]
    for panel in panels():
        for target in panel["targets"]:
            yield f"{panel['title']} {target['refId']}", target["expr"]


def promtool(*arguments: str, given: str | None = None) -> str:
    """What promtool says; a test without it is skipped, one that it refuses fails."""
    unpacked = ROOT / ".tools" / "promtool" / "promtool"
    program = str(unpacked) if unpacked.exists() else shutil.which("promtool")
    if program is None:
        pytest.skip("there is no promtool: no wheel has it, and Debian's package cannot be had here")
    done = subprocess.run(
        [program, *arguments], input=given, capture_output=True, text=True, check=False, timeout=90
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.parametrize(("place", "query"), list(queries()))
def test_a_query_names_metrics_and_labels_that_exist(place: str, query: str) -> None:
    by_series = {series: metric for metric in declared() for series in metric.series}
    names = names_in(query)
    assert names <= by_series.keys(), f"{place} asks for what nobody tells"
    assert set(re.findall(r"\bprocess_\w+", query)) <= PROCESS
    labels = {"service", "namespace", "le"}.union(*(by_series[name].labels for name in names))
    asked = set(re.findall(r"(\w+)\s*(?:=~|!=|!~|=)\s*\"", query))
    asked |= {
        label for group in re.findall(r"\b(?:by|on) \(([^)]*)\)", query) for label in re.split(r",\s*", group)
    }
    assert asked <= labels, f"{place} asks for labels that nobody gives"


def test_the_dashboard_shows_every_metric() -> None:
    shown = set().union(*(names_in(target["expr"]) for panel in panels() for target in panel["targets"]))
    assert [metric.name for metric in declared() if not metric.series & shown] == []


@pytest.mark.parametrize("alert", alerts(), ids=lambda alert: alert["alert"])
def test_an_alert_says_how_urgent_it_is_and_links_to_its_first_three_steps(alert: dict[str, Any]) -> None:
    assert alert["labels"]["severity"] in ("critical", "warning")
    page, _, anchor = alert["annotations"]["runbook_url"].partition("#")
    assert (ROOT / page, anchor) == (RUNBOOK, alert["alert"].lower())
    section = RUNBOOK.read_text().partition(f"\n### {alert['alert']}\n")[2].partition("\n#")[0]
    assert re.findall(r"^(\d)\. \S", section, re.MULTILINE) == ["1", "2", "3"]


def test_first_steps_name_metrics_logs_and_settings_that_exist() -> None:
    section = RUNBOOK.read_text().partition("\n## Alerts\n")[2].partition("\n## ")[0]
    series = {name for metric in declared() for name in (metric.name, *metric.series)}
    told = set(re.findall(r"`([a-zA-Z_]+)[`{]", section)) - PROCESS
    assert {name for name in told if name.startswith("autopilot_")} <= series
    known = SOURCES + (ROOT / "deploy" / "env.example").read_text()
    postgres = {"pg_stat_activity", "pg_locks", "xact_start", "query_start", "max_connections"}
    words = {word for word in told if "_" in word and not word.startswith("autopilot_")} - postgres
    assert {word for word in words if word not in known} == set()


def test_every_alert_is_tried_silent_and_firing() -> None:
    tried: dict[str, set[bool]] = {}
    for case in yaml.safe_load(CASES.read_text())["tests"]:
        for look in case["promql_expr_test"]:
            [name] = re.findall(r'alertname="(\w+)"', look["expr"])
            tried.setdefault(name, set()).add(bool(look["exp_samples"]))
    assert tried == {alert["alert"]: {True, False} for alert in alerts()}


def test_alerts_are_silent_while_all_is_well_and_fire_in_time() -> None:
    assert "SUCCESS" in promtool("test", "rules", str(CASES))


def test_rules_and_scraping_are_well_formed() -> None:
    assert f"{len(alerts())} rules found" in promtool("check", "config", str(SCRAPING))


def test_queries_of_the_dashboard_can_be_read_by_prometheus(tmp_path: Path) -> None:
    variables = {"$__rate_interval": "5m", "$namespace": "a"}
    recorded = []
    for number, (place, query) in enumerate(queries()):
        for name, value in variables.items():
            query = query.replace(name, value)
        recorded.append({"record": f"query:{number}", "expr": query, "labels": {"place": place}})
    rules = tmp_path / "rules.yml"
    rules.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": recorded}]}))
    promtool("check", "rules", str(rules))


def test_promtool_finds_nothing_to_say_of_names_and_units() -> None:
    """A sample of each metric as it is scraped, linted."""
    registry = CollectorRegistry()
    for metric in declared():
        kind = {"counter": Counter, "gauge": Gauge, "histogram": Histogram}[metric.kind]
        made = kind(metric.name, metric.what, metric.labels, registry=registry)
        if metric.labels:
            made.labels(*("x" for _ in metric.labels))
    assert promtool("check", "metrics", given=generate_latest(registry).decode()).strip() == ""
