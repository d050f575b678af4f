"""The metrics that the code declares, read from its text; run as a program it writes the table of docs/metrics.md."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "metrics.md"
KINDS = ("counter", "gauge", "histogram")
SUFFIXES = {"counter": ("",), "gauge": ("",), "histogram": ("_bucket", "_sum", "_count")}
HEAD = "| metric | kind | labels | told by | what |\n|---|---|---|---|---|\n"
_PLACES = {"kit": "every service", "bus": "every service", "storage": "every service"}


class Metric(msgspec.Struct, frozen=True, order=True):
    """One metric as a call of `autopilot.kit.metrics` declares it."""

    name: str
    kind: str
    labels: tuple[str, ...]
    told_by: str
    what: str

    @property
    def series(self) -> set[str]:
        """The names under which it is scraped."""
        return {self.name + suffix for suffix in SUFFIXES[self.kind]}

    @property
    def row(self) -> str:
        labels = ", ".join(f"`{label}`" for label in self.labels) or "–"
        return f"| `{self.name}` | {self.kind} | {labels} | {self.told_by} | {self.what} |\n"


@functools.cache
def declared() -> tuple[Metric, ...]:
    """Every metric of the services, by name."""
    folders = [ROOT / "shared/src", *sorted((ROOT / "services").glob("*/src"))]
    paths = [path for folder in folders for path in folder.rglob("*.py")]
    return tuple(sorted(metric for path in paths for metric in _declared_in(path)))


def table() -> str:
    """The table of docs/metrics.md."""
    return HEAD + "".join(metric.row for metric in declared())


def names_in(query: str) -> set[str]:
    """The names of our series in a query."""
    return set(re.findall(r"\bautopilot_\w+", query))


def _declared_in(path: Path) -> Iterator[Metric]:
    text = path.read_text()
    if "metrics." not in text:
        return
    for node in ast.walk(ast.parse(text)):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and isinstance(node.func.value, ast.Name)
            and node.func.value.id == "metrics"
            and node.func.attr in KINDS
        ):
            name, what, labels = (*map(ast.literal_eval, node.args), ())[:3]
            package = path.relative_to(ROOT).parts[path.relative_to(ROOT).parts.index("autopilot") + 1]
            told_by = _PLACES.get(package, package.replace("_", "-"))
            yield Metric("autopilot_" + name, node.func.attr, tuple(labels), told_by, what)


if __name__ == "__main__":
    before, _, rest = PAGE.read_text().partition(HEAD)
    after = "".join(line for line in rest.splitlines(keepends=True) if not line.startswith("|"))
    PAGE.write_text(before + table() + after)
