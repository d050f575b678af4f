"""Metrics: one registry per process, scraped as text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    GCCollector,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)

PREFIX = "autopilot_"
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
COUNTS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)

_disable: Callable[[], None] = disable_created_metrics  # it comes without types
_disable()  # half of all series would say when the process began
registry = CollectorRegistry()
ProcessCollector(registry=registry)
PlatformCollector(registry=registry)
GCCollector(registry=registry)

M = TypeVar("M", Counter, Gauge, Histogram)
_known: dict[str, Counter | Gauge | Histogram] = {}


def counter(name: str, doc: str, labels: Sequence[str] = ()) -> Counter:
    """The counter `autopilot_<name>`; asking twice gives the same one. Bind labels once where calls are many."""
    return _remember(name, Counter, lambda: Counter(PREFIX + name, doc, labels, registry=registry))


def gauge(name: str, doc: str, labels: Sequence[str] = ()) -> Gauge:
    """The gauge `autopilot_<name>`."""
    return _remember(name, Gauge, lambda: Gauge(PREFIX + name, doc, labels, registry=registry))


def histogram(
    name: str, doc: str, labels: Sequence[str] = (), *, buckets: Sequence[float] = SECONDS
) -> Histogram:
    """The histogram `autopilot_<name>`, of seconds unless `buckets` says otherwise."""
    return _remember(
        name, Histogram, lambda: Histogram(PREFIX + name, doc, labels, buckets=buckets, registry=registry)
    )


def _remember(name: str, kind: type[M], make: Callable[[], M]) -> M:
    known = _known.get(name)
    if known is None:
        known = _known[name] = make()
    if not isinstance(known, kind):
        raise TypeError(f"the metric {name} is a {type(known).__name__} already")
    return known


def render() -> bytes:
    """All metrics of this process in the Prometheus text format."""
    return generate_latest(registry)
