"""What a migration may do while the release before works on its tables: add; the rest waits for a `_post_` one (S15)."""

from __future__ import annotations

import re
from importlib import resources

import pytest

# A post migration belongs to a release whose predecessor no longer uses what it takes away.
ONLY_IN_POST = {
    r"\bdrop\s+(table|column|type|view)\b": "takes away what the release before uses",
    r"\brename\b": "takes a name away that the release before uses",
    r"\balter\s+(column\s+)?\w+\s+(set\s+data\s+)?type\b": "rewrites the table under a lock, and changes what is read",
    r"\bset\s+not\s+null\b": "refuses rows that the release before writes",
    r"\badd\s+column\s+(if\s+not\s+exists\s+)?\w+\s(?![^,]*\bdefault\b)[^,]*\bnot\s+null\b": "refuses rows that the release before writes",
}
NEVER = {
    r"\badd\s+constraint\b(?![^;]*\bnot\s+valid\b)(?![^;]*\busing\s+index\b)": "reads the whole table under a lock: NOT VALID first",
    r"\block\s+table\b": "holds everybody up",
    r"\btruncate\b": "loses history",
}
COMMENT = re.compile(r"--[^\n]*|/\*.*?\*/", re.DOTALL)


def faults(name: str, body: str) -> list[str]:
    """Why a migration of that file name may not run beside the release before."""
    text = COMMENT.sub(" ", body).lower()
    rules = NEVER if "_post_" in name else NEVER | ONLY_IN_POST
    return [
        why for pattern, why in rules.items() if any(re.search(pattern, each) for each in text.split(";"))
    ]


def test_no_migration_disturbs_the_release_before() -> None:
    """The first makes everything, and has nobody before it."""
    folder = resources.files("autopilot.storage").joinpath("migrations")
    bodies = {path.name: path.read_text("utf-8") for path in folder.iterdir() if path.name.endswith(".sql")}
    assert "0001_initial.sql" in bodies
    assert not {
        name: found for name, body in bodies.items() if name > "0002" and (found := faults(name, body))
    }


@pytest.mark.parametrize(
    "statement",
    [
        "ALTER TABLE autopilot ADD COLUMN colour text",
        "ALTER TABLE autopilot ADD COLUMN colour text NOT NULL DEFAULT 'red'",
        "ALTER TABLE autopilot ADD COLUMN colour text DEFAULT 'red' NOT NULL",
        "ALTER TABLE autopilot ADD CONSTRAINT short CHECK (length(colour) < 9) NOT VALID",
        "CREATE TABLE colour (name text PRIMARY KEY)",
        "-- DROP TABLE autopilot\nCREATE INDEX by_colour ON autopilot (colour)",
    ],
)
def test_what_adds_is_allowed(statement: str) -> None:
    assert faults("0002_colour.sql", statement) == []


@pytest.mark.parametrize(
    ("statement", "allowed_after"),
    [
        ("ALTER TABLE autopilot DROP COLUMN title", True),
        ("DROP TABLE inbox_item", True),
        ("ALTER TABLE autopilot RENAME COLUMN title TO name", True),
        ("ALTER TABLE autopilot ALTER COLUMN title TYPE varchar(9)", True),
        ("ALTER TABLE autopilot ALTER title SET DATA TYPE varchar(9)", True),
        ("ALTER TABLE autopilot ALTER COLUMN title SET NOT NULL", True),
        ("ALTER TABLE autopilot ADD COLUMN colour text NOT NULL", True),
        ("ALTER TABLE autopilot ADD CONSTRAINT short CHECK (length(title) < 9)", False),
        ("LOCK TABLE autopilot", False),
        ("TRUNCATE run_event", False),
    ],
)  # fmt: skip
def test_what_takes_away_waits_for_the_release_after(statement: str, allowed_after: bool) -> None:
    assert len(faults("0002_colour.sql", statement)) == 1
    assert (faults("0003_post_colour.sql", statement) == []) is allowed_after
