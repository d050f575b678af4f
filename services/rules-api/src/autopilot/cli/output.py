"""What a command prints: aligned tables for people, JSON for programs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Literal

import click
import msgspec

from autopilot.cli.text import one_line, safe_json

if TYPE_CHECKING:
    from rich.text import Text

TABLE = "table"
JSON = "json"

_GAP = 2
_LEAST_WIDTH = 16
# What people wrote, and what becomes of it on a narrow terminal.
_LOOSE: Final[dict[str, Literal["ellipsis", "fold"]]] = {"TITLE": "ellipsis", "REASON": "fold"}
_STYLES = {
    "active": "green",
    "completed": "green",
    "running": "cyan",
    "issue_created": "cyan",
    "dispatched": "green",
    "paused": "yellow",
    "skipped": "yellow",
    "ignored": "yellow",
    "rejected": "red",
    "failed": "red",
}


def print_json(raw: bytes) -> None:
    """JSON as it came, indented; numbers of any size and precision stay as they are."""
    click.echo(safe_json(msgspec.json.format(raw, indent=2).decode()))


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table without rules. On a terminal what people wrote gives way to its width; in a pipe nothing is cut."""
    from rich.console import Console
    from rich.table import Table

    cells = [[_cell(value) for value in row] for row in rows]
    widths = [max([len(name), *(row[at].cell_len for row in cells)]) for at, name in enumerate(columns)]
    gaps = _GAP * (len(columns) - 1)
    console = Console(file=sys.stdout, highlight=False, emoji=False, markup=False)
    if sys.stdout.isatty():
        beyond = sum(widths) + gaps - console.width
        for at, name in enumerate(columns):
            if name in _LOOSE and beyond > 0:
                widths[at] = max(_LEAST_WIDTH, widths[at] - beyond)
    # Never narrower than its columns: a terminal that is too small wraps the lines, and loses nothing.
    console.width = sum(widths) + gaps
    table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold")
    for name, width in zip(columns, widths, strict=True):
        table.add_column(name, width=width, no_wrap=name != "REASON", overflow=_LOOSE.get(name, "fold"))
    for row in cells:
        table.add_row(*row)
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
    from rich.text import Text

    shown = one_line(value)
    return Text(shown, style=_STYLES.get(shown.partition(" ")[0], ""))
