"""`runs` and `trigger`: what the rules did, and doing it now."""

from __future__ import annotations

from datetime import datetime, tzinfo
from typing import TYPE_CHECKING

import click
import msgspec

from autopilot.cli.commands.common import ask_once, calling, full_id_option, host_now, output_option
from autopilot.cli.config import Settings
from autopilot.cli.lookup import PATH, resolve
from autopilot.cli.output import JSON, TABLE, print_json, print_table
from autopilot.cli.text import lasted, one_line, past, short_ids
from autopilot.domain.states import RunStatus
from autopilot.kit.ids import uuid7

if TYPE_CHECKING:
    from autopilot.cli.client import ApiClient

RUN_COLUMNS = ("ID", "STATUS", "SOURCE", "CREATED", "TOOK", "ISSUE", "REASON")
REFUSED = frozenset({RunStatus.SKIPPED, RunStatus.FAILED})


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """What a table shows of a run."""

    id: str
    status: str
    source: str
    created_at: datetime
    completed_at: datetime | None = None
    issue_id: str | None = None
    issue_key: str | None = None
    reason_code: str | None = None
    failure_reason: str | None = None

    @property
    def reason(self) -> str:
        """Why it was skipped or failed, as code and words; empty if it was not."""
        return ": ".join(part for part in (self.reason_code, self.failure_reason) if part)


class _Page(msgspec.Struct):
    items: list[msgspec.Raw]


@click.command("runs")
@click.argument("autopilot_id", metavar="ID")
@click.option("--limit", type=click.IntRange(1, 100), default=20, show_default=True)
@click.option("--offset", type=click.IntRange(0, 10_000), default=0, show_default=True)
@output_option(TABLE)
@full_id_option()
@click.pass_obj
def list_runs(
    settings: Settings, autopilot_id: str, limit: int, offset: int, output: str, full_id: bool
) -> None:
    """List the runs of an autopilot, newest first, with why they were skipped or failed."""

    async def read(api: ApiClient) -> tuple[list[msgspec.Raw], list[Run]]:
        path = f"{PATH}/{await resolve(api, autopilot_id)}/runs"
        query = {"limit": str(limit)} | ({"offset": str(offset)} if offset else {})
        items = api.decode(await api.call("GET", path, query=query), _Page).items
        return items, [api.decode(bytes(item), Run) for item in items]

    raw, found = calling(settings.as_person(), read)
    if output == JSON:
        print_json(msgspec.json.encode(raw))
    elif not found:
        click.echo("No runs here." if offset == 0 else "No more runs.", err=True)
    else:
        print_table(RUN_COLUMNS, run_rows(found, host_now(), None, full_id=full_id))


@click.command("trigger")
@click.argument("autopilot_id", metavar="ID")
@click.option(
    "--idempotency-key",
    metavar="KEY",
    help="Repeating a call with the same key gives the same run. Default: a new one.",
)
@click.option(
    "--wait",
    "wait_s",
    type=click.FloatRange(0, 10),
    default=1,
    show_default=True,
    metavar="SECONDS",
    help="How long to wait for the run to start, at most 10.",
)
@output_option(TABLE)
@click.pass_obj
def trigger(
    settings: Settings, autopilot_id: str, idempotency_key: str | None, wait_s: float, output: str
) -> None:
    """acts for real: run an autopilot now, as yourself.

    Its agent does the work, with all its effects; there is no dry run. Exits with 0 if the run is pending,
    issue_created, running or completed, and with 1 and the reason if it is skipped or failed.
    """
    key = str(uuid7()) if idempotency_key is None else idempotency_key

    async def run_now(api: ApiClient) -> tuple[bytes, Run]:
        path = f"{PATH}/{await resolve(api, autopilot_id)}/trigger"
        answer = await ask_once(
            api, path, key, made="a run", query={"wait": f"{wait_s:g}"}, timeout_s=wait_s + 20
        )
        return answer, api.decode(answer, Run)

    raw, run = calling(settings.as_person(), run_now)
    if output == JSON:
        print_json(raw)
    else:
        print_table(RUN_COLUMNS, run_rows([run], host_now(), None, full_id=True))
    if run.status in REFUSED:
        raise click.ClickException(f"The run is {run.status}: {one_line(run.reason)}")


def run_rows(
    found: list[Run], now: datetime, zone: tzinfo | None, *, full_id: bool = False
) -> list[tuple[str, ...]]:
    """The rows of `runs`; a zone of None is the viewer's own."""
    ids = [run.id for run in found]
    shown = ids if full_id else short_ids(ids)
    return [
        (
            shown_id,
            run.status,
            run.source,
            past(run.created_at, now, zone),
            lasted(run.created_at, run.completed_at),
            run.issue_key or run.issue_id or "-",
            run.reason or "-",
        )
        for shown_id, run in zip(shown, found, strict=True)
    ]
