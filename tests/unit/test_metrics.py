"""Metrics are listed where operators look, and their labels stay few (S15)."""

from __future__ import annotations

import re

import pytest
from tests.support.metric_catalogue import PAGE, Metric, declared, table

from autopilot.kit import metrics

# Prometheus gives these to what it scrapes, and would rename ours.
TARGET_LABELS = {"job", "instance", "service", "namespace", "pod", "container", "endpoint"}
ROWS = {
    "autopilot",
    "trigger",
    "run",
    "delivery",
    "workspace",
    "token",
    "user",
    "agent",
    "runtime",
    "task",
    "issue",
}
UNITS = {"seconds", "bytes", "total", "info"}


def test_every_metric_is_in_the_documentation() -> None:
    assert table() in PAGE.read_text(), "python -m tests.support.metric_catalogue writes the table"


@pytest.mark.parametrize("metric", declared(), ids=lambda metric: metric.name)
def test_a_metric_follows_the_conventions_and_has_no_label_of_unbounded_values(metric: Metric) -> None:
    assert re.fullmatch(r"autopilot_[a-z][a-z_]*[a-z]", metric.name)
    assert metric.name.endswith("_total") == (metric.kind == "counter")
    assert not {word for word in metric.name.split("_")[:-1] if word in UNITS}, "the unit stands last"
    assert not re.search(r"_(ms|milliseconds|minutes|kb|mb|percent|count|sum|bucket)(_total)?$", metric.name)
    labels = set(metric.labels)
    assert not labels & (TARGET_LABELS | ROWS | {"le"})
    assert not {label for label in labels if label == "id" or label.endswith("_id")}
    assert metric.what[0].isupper() or metric.what[0].isdigit()
    assert not metric.what.endswith(".")


def test_a_series_says_no_time_of_its_birth() -> None:
    """One that does has a sibling for each label set, which nobody reads."""
    metrics.counter("test_births_total", "Births").inc()
    text = metrics.render().decode()
    assert "autopilot_test_births_total 1.0" in text
    assert "autopilot_test_births_created" not in text
