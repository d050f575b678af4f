"""Query files: every query has a name and a reason, is used, and exists where it is used."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import autopilot.storage
from autopilot.storage import queries

ENUMERATED = {"invariants"}  # run as a whole, not by name


def _modules() -> list[Path]:
    return sorted(path for root in autopilot.storage.__path__ for path in Path(root).glob("*.py"))


def _uses(module: Path) -> Iterator[tuple[str, str]]:
    """(aggregate, query) for each `NAME = queries.load("aggregate")` and `NAME["query"]` of a module."""
    tree = ast.parse(module.read_text("utf-8"))
    loaded: dict[str, str] = {}
    for node in ast.walk(tree):
        match node:
            case ast.Assign(
                targets=[ast.Name(id=name)],
                value=ast.Call(
                    func=ast.Attribute(attr="load") | ast.Name(id="load"),
                    args=[ast.Constant(value=str(aggregate))],
                ),
            ):
                loaded[name] = aggregate
    for node in ast.walk(tree):
        match node:
            case ast.Subscript(value=ast.Name(id=name), slice=ast.Constant(value=str(query))) if (
                name in loaded
            ):
                yield loaded[name], query


def _used() -> set[tuple[str, str]]:
    return {use for module in _modules() for use in _uses(module)}


def _written() -> set[tuple[str, str]]:
    return {(aggregate, name) for aggregate in queries.aggregates() for name in queries.load(aggregate)}


def test_every_query_that_is_used_exists() -> None:
    assert _used() <= _written()


def test_every_query_that_exists_is_used() -> None:
    assert {query for query in _written() - _used() if query[0] not in ENUMERATED} == set()


def test_the_scan_finds_uses() -> None:
    assert _used()


@pytest.mark.parametrize("aggregate", queries.aggregates())
def test_every_query_is_explained_in_a_comment_line(aggregate: str) -> None:
    unexplained = [name for name, sql in queries.load(aggregate).items() if not sql.startswith("-- ")]
    assert not unexplained


@pytest.mark.parametrize("aggregate", queries.aggregates())
def test_no_query_selects_a_star(aggregate: str) -> None:
    """Columns are listed, so that a new column changes no query's answer while two releases run."""
    outermost = [
        name for name, sql in queries.load(aggregate).items() if "RETURNING *" in sql or "SELECT t.*" in sql
    ]
    assert not outermost


def test_an_unknown_query_is_refused_with_the_names_there_are() -> None:
    with pytest.raises(KeyError, match=r"no query named nothing; there are .*pending_has_one_entry"):
        queries.load("invariants")["nothing"]


def test_a_name_that_stands_twice_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sql").mkdir()
    (tmp_path / "sql" / "twice.sql").write_text(
        "-- name: a\n-- A.\nSELECT 1;\n-- name: a\n-- A.\nSELECT 2;\n"
    )
    monkeypatch.setattr("importlib.resources.files", lambda package: tmp_path)
    with pytest.raises(ValueError, match=r"twice\.sql names a twice"):
        queries.load("twice")


def test_a_query_keeps_its_comment_and_loses_its_semicolon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sql").mkdir()
    (tmp_path / "sql" / "two.sql").write_text(
        "-- About both.\n\n-- name: a\n-- A.\nSELECT 1;\n\n-- name: b\n-- B.\nSELECT 2;\n"
    )
    monkeypatch.setattr("importlib.resources.files", lambda package: tmp_path)
    assert queries.aggregates() == ["two"]
    assert queries.load("two") == {"a": "-- A.\nSELECT 1", "b": "-- B.\nSELECT 2"}
