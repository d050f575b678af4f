"""`explain`: why an autopilot did, or did not, run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
import msgspec

from autopilot.cli.commands.common import calling, output_option
from autopilot.cli.config import Settings
from autopilot.cli.lookup import PATH, resolve, resolve_under
from autopilot.cli.output import JSON, TABLE, print_fields, print_json, print_table
from autopilot.cli.text import one_line

if TYPE_CHECKING:
    from autopilot.cli.client import ApiClient

COLUMNS = ("OUTCOME", "SUBJECT", "CODE", "REASON")


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that was looked at."""

    outcome: str
    subject: str
    code: str
    text: str


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing explained."""

    about: str
    id: str | None
    verdict: str
    summary: str
    next_step: str | None
    checks: list[Check]


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """The answer."""

    verdict: str
    summary: str
    next_step: str | None
    findings: list[Finding]


@click.command("explain")
@click.argument("autopilot_id", metavar="ID")
@click.option("--at", metavar="TIME", help="A minute, such as 2026-01-31T09:00:00Z.")
@click.option("--trigger", "trigger_id", metavar="ID", help="Only this trigger, now or at that time.")
@click.option("--delivery", "delivery_id", metavar="ID", help="A webhook delivery.")
@click.option("--run", "run_id", metavar="ID", help="A run.")
@output_option(TABLE)
@click.pass_obj
def explain(
    settings: Settings,
    autopilot_id: str,
    at: str | None,
    trigger_id: str | None,
    delivery_id: str | None,
    run_id: str | None,
    output: str,
) -> None:
    """Say why an autopilot did, or did not, run.

    It names the first thing that stopped it or has it wait, with facts and the next step.
    Without options it says what would stop the next run. Ids may be shortened to a unique beginning.

    \b
    Examples:
      autopilot explain 01a2 --at 2026-01-31T09:00:00Z
      autopilot explain 01a2 --run 01a3
    """

    async def ask(api: ApiClient) -> tuple[bytes, Explanation]:
        path = f"{PATH}/{await resolve(api, autopilot_id)}"
        query = {"at": at} if at is not None else {}
        if trigger_id is not None:
            query["trigger_id"] = await resolve_under(
                api, f"{path}/triggers", trigger_id, "trigger", paged=False
            )
        if delivery_id is not None:
            query["delivery_id"] = await resolve_under(api, f"{path}/deliveries", delivery_id, "delivery")
        if run_id is not None:
            query["run_id"] = await resolve_under(api, f"{path}/runs", run_id, "run")
        answer = await api.call("GET", f"{path}/explain", query=query)
        return answer, api.decode(answer, Explanation)

    raw, found = calling(settings.as_person(), ask)
    if output == JSON:
        print_json(raw)
        return
    _print_answer(found.verdict, found.summary, found.next_step)
    for finding in found.findings:
        click.echo()
        click.echo(one_line(f"{finding.about} {finding.id or ''}"))
        rows = [(check.outcome, check.subject, check.code, check.text) for check in finding.checks]
        print_table(COLUMNS, rows)


def _print_answer(verdict: str, summary: str, next_step: str | None) -> None:
    print_fields([("verdict", verdict), ("why", summary), ("next step", next_step or "-")])
