"""`list` and `get`: the rules of a workspace."""

from __future__ import annotations

from datetime import datetime, tzinfo
from typing import TYPE_CHECKING

import click
import msgspec

from autopilot.cli.commands.common import calling, full_id_option, host_now, output_option
from autopilot.cli.config import Settings
from autopilot.cli.lookup import ARCHIVED, PATH, Listed, listed, read_autopilots, resolve
from autopilot.cli.output import JSON, TABLE, print_fields, print_json, print_table, warn
from autopilot.cli.redact import redacted
from autopilot.cli.text import coming, past, short_ids

if TYPE_CHECKING:
    from autopilot.cli.client import ApiClient

LIST_COLUMNS = ("ID", "TITLE", "STATUS", "MODE", "TRIGGERS", "NEXT_RUN", "LAST_RUN")
TRIGGER_COLUMNS = ("TRIGGER", "KIND", "ENABLED", "LABEL", "WHEN", "NEXT_RUN", "LAST_FIRED", "WEBHOOK")
_FIELDS = (
    "id",
    "title",
    "status",
    "pause_reason",
    "execution_mode",
    "assignee_type",
    "assignee_id",
    "project_id",
    "overlap_policy",
    "issue_title_template",
    "rule_version",
    "can_write",
    "can_manage_access",
    "description",
)


class Trigger(msgspec.Struct, frozen=True, kw_only=True):
    """What a table shows of a trigger, once it is redacted."""

    id: str
    kind: str
    enabled: bool
    label: str | None = None
    cron: str | None = None
    timezone: str | None = None
    next_run_at: datetime | None = None
    schedule_error: str | None = None
    last_fired_at: datetime | None = None
    provider: str | None = None
    has_signing_secret: bool = False
    webhook_token_hint: str | None = None


class Detail(Listed, frozen=True, kw_only=True):
    """What `get` shows to people."""

    description: str
    created_at: datetime
    rule_version: int
    overlap_policy: str
    assignee_type: str | None = None
    assignee_id: str | None = None
    project_id: str | None = None
    issue_title_template: str | None = None
    can_write: bool = False
    can_manage_access: bool = False
    triggers: list[Trigger]


@click.command("list")
@click.option(
    "--status",
    type=click.Choice(["active", "paused", ARCHIVED]),
    help="Archived ones show only if asked for.",
)
@output_option(TABLE)
@full_id_option()
@click.pass_obj
def list_autopilots(settings: Settings, status: str | None, output: str, full_id: bool) -> None:
    """List the autopilots of the workspace, newest first."""

    async def read(api: ApiClient) -> tuple[list[msgspec.Raw], list[Listed]]:
        items = await read_autopilots(api, status)
        return items, listed(api, items)

    raw, found = calling(settings.as_person(), read)
    if output == JSON:
        print_json(msgspec.json.encode(raw))
    elif not found:
        click.echo("No autopilots here." if status is None else f"No {status} autopilots here.", err=True)
    else:
        print_table(LIST_COLUMNS, list_rows(found, host_now(), None, full_id=full_id))


@click.command("get")
@click.argument("autopilot_id", metavar="ID")
@output_option(JSON)
@click.option(
    "--show-secrets", is_flag=True, help="With webhook tokens and URLs, which let anyone fire the rule."
)
@click.pass_obj
def get_autopilot(settings: Settings, autopilot_id: str, output: str, show_secrets: bool) -> None:
    """Show one autopilot with its triggers. ID may be a unique beginning.

    Webhook tokens, paths and URLs are hidden: has_webhook_token and webhook_token_hint tell of them.
    """
    if show_secrets and output != JSON:
        raise click.UsageError("--show-secrets requires --output json.")

    async def read(api: ApiClient) -> tuple[bytes, Detail]:
        answer = await api.call("GET", f"{PATH}/{await resolve(api, autopilot_id)}")
        api.decode(answer, Detail)
        hidden = redacted(answer)
        return answer if show_secrets else hidden, api.decode(hidden, Detail)

    raw, found = calling(settings.as_person(), read)
    if show_secrets:
        warn(
            "--show-secrets shows live webhook credentials; keep them out of logs, chats and shared screens."
        )
    if output == JSON:
        print_json(raw)
    else:
        print_detail(found)


def list_rows(
    found: list[Listed], now: datetime, zone: tzinfo | None, *, full_id: bool = False
) -> list[tuple[str, ...]]:
    """The rows of `list`; a zone of None is the viewer's own."""
    ids = [item.id for item in found]
    shown = ids if full_id else short_ids(ids)
    return [
        (
            shown_id,
            item.title,
            f"{item.status} ({item.pause_reason})" if item.pause_reason else item.status,
            item.execution_mode,
            ", ".join(item.trigger_kinds) or "-",
            coming(item.next_run_at, now, zone),
            f"{past(item.last_run_at, now, zone)} {item.last_run_status or ''}".rstrip(),
        )
        for shown_id, item in zip(shown, found, strict=True)
    ]


def trigger_rows(
    triggers: list[Trigger], now: datetime, zone: tzinfo | None, *, full_id: bool = False
) -> list[tuple[str, ...]]:
    """The rows for the triggers of an autopilot."""
    ids = [trigger.id for trigger in triggers]
    shown = ids if full_id else short_ids(ids)
    return [
        (
            shown_id,
            trigger.kind,
            "yes" if trigger.enabled else "no",
            trigger.label or "-",
            f"{trigger.cron} {trigger.timezone or 'UTC'}" if trigger.cron else "-",
            trigger.schedule_error or coming(trigger.next_run_at, now, zone),
            past(trigger.last_fired_at, now, zone),
            _webhook(trigger),
        )
        for shown_id, trigger in zip(shown, triggers, strict=True)
    ]


def print_detail(autopilot: Detail) -> None:
    now = host_now()
    fields = [(name, _told(getattr(autopilot, name))) for name in _FIELDS]
    fields.append(("created_at", past(autopilot.created_at, now, None)))
    fields.append(("last_run_at", past(autopilot.last_run_at, now, None)))
    print_fields(fields)
    if autopilot.triggers:
        click.echo()
        print_table(TRIGGER_COLUMNS, trigger_rows(autopilot.triggers, now, None))


def _webhook(trigger: Trigger) -> str:
    if trigger.kind != "webhook":
        return "-"
    signed = "signed" if trigger.has_signing_secret else "unsigned"
    hint = f", token …{trigger.webhook_token_hint}" if trigger.webhook_token_hint else ""
    return f"{trigger.provider or 'generic'}, {signed}{hint}"


def _told(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "-" if value is None else str(value)
