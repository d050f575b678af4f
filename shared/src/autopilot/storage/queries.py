"""Named queries: `sql/<aggregate>.sql` holds `-- name: verb_noun` sections, each explained in a comment line."""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib import resources

_NAME = re.compile(r"^-- name: (\w+)[ \t]*$", re.MULTILINE)


class Queries(dict[str, str]):
    """The queries of one file by name."""

    def __missing__(self, name: str) -> str:
        raise KeyError(f"no query named {name}; there are {', '.join(self)}")


def load(aggregate: str) -> Queries:
    """Read `sql/<aggregate>.sql`; a name that stands twice is refused."""
    text = resources.files("autopilot.storage").joinpath("sql", f"{aggregate}.sql").read_text("utf-8")
    parts = _NAME.split(text)
    found = Queries()
    for name, body in zip(parts[1::2], parts[2::2], strict=True):
        if name in found:
            raise ValueError(f"{aggregate}.sql names {name} twice")
        found[name] = body.strip().rstrip(";")
    return found


def aggregates() -> list[str]:
    """The names of all query files."""
    folder = resources.files("autopilot.storage").joinpath("sql")
    return sorted(
        entry.name.removesuffix(".sql") for entry in folder.iterdir() if entry.name.endswith(".sql")
    )


def columns(rows: Sequence[object], names: Sequence[str]) -> list[list[object]]:
    """An array for each attribute, for `unnest`; one without any value is empty, which unnest fills with nulls for nothing."""
    arrays = [[getattr(row, name) for row in rows] for name in names]
    return [[] if values.count(None) == len(values) else values for values in arrays]
