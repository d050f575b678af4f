"""What a command prints: aligned tables for people, JSON for programs."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click
import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from autopilot.cli.text import one_line, safe_json

TABLE = "table"
JSON = "json"

# A pipe has no width to fit in: whatever reads it gets every character.
_PIPE_WIDTH = 100_000
_STYLES = {
    "active": "green",
    "completed": "green",
    "running": "cyan",
    "issue_created": "cyan",
    "paused": "yellow",
    "skipped": "yellow",
    "failed": "red",
}


def print_json(raw: bytes) -> None:
    """JSON as it came, indented; numbers of any size and precision stay as they are."""
    click.echo(safe_json(msgspec.json.format(raw, indent=2).decode()))


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table without rules; on a terminal it fits the width, in a pipe nothing is cut."""
    console = _console()
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for name in columns:
        # Only what people wrote gives way on a narrow terminal.
        table.add_column(name, no_wrap=name != "REASON", overflow="ellipsis" if name == "TITLE" else "fold")
    for row in rows:
        table.add_row(*(_cell(value) for value in row))
    with console.capture() as captured:
        console.print(table)
    lines = captured.get().splitlines()
    click.echo("\n".join(lines if console.is_terminal else [line.rstrip() for line in lines]))


def print_fields(fields: Sequence[tuple[str, str]]) -> None:
    """Names and values, one a line."""
    width = max(len(name) for name, _ in fields)
    for name, value in fields:
        click.echo(f"{name + ':':<{width + 1}} {one_line(value)}")


def warn(sentence: str) -> None:
    click.echo(f"Warning: {sentence}", err=True)


def _cell(value: str) -> Text:
    shown = one_line(value)
    return Text(shown, style=_STYLES.get(shown.partition(" ")[0], ""))


def _console() -> Console:
    terminal = sys.stdout.isatty()
    return Console(
        file=sys.stdout, width=None if terminal else _PIPE_WIDTH, highlight=False, emoji=False, markup=False
    )
