"""`trigger-add`, `-list`, `-update`, `-delete` and `-rotate-url`: what fires a rule."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import click
import msgspec

from autopilot.cli.commands.autopilots import TRIGGER_COLUMNS, Trigger, trigger_rows
from autopilot.cli.commands.common import Decorator, all_of, calling, full_id_option, host_now, output_option
from autopilot.cli.commands.resources import print_items, read_all
from autopilot.cli.config import Connection, Settings
from autopilot.cli.lookup import PATH, resolve, resolve_under
from autopilot.cli.output import JSON, TABLE, print_json, print_table
from autopilot.cli.redact import redacted
from autopilot.cli.text import one_line
from autopilot.domain.errors import AutopilotError

if TYPE_CHECKING:
    from autopilot.cli.client import ApiClient

CATCH_UPS = ("latest", "none", "all")
_DAY_S = 86_400

_FIELDS: tuple[Decorator, ...] = (
    click.option("--cron", metavar="EXPR", help="Five fields, such as '0 9 * * MON-FRI'. See cron-preview."),
    click.option("--timezone", metavar="ZONE", help="An IANA name; a new trigger has UTC if none."),
    click.option("--label", metavar="TEXT", help="At most 100 characters."),
    click.option(
        "--catch-up", type=click.Choice(CATCH_UPS), help="What happens to occurrences that nobody could run."
    ),
    click.option(
        "--lateness",
        "lateness_s",
        type=click.IntRange(0),
        metavar="SECONDS",
        help="How late one may run still, with --catch-up latest.",
    ),
    click.option(
        "--provider",
        metavar="NAME",
        help="Who sends the webhooks: github, gitlab, stripe, ...; a new trigger has generic if none.",
    ),
    click.option(
        "--event-filter",
        "filters",
        multiple=True,
        metavar="EVENT[:ACTION,...]",
        help="Only these events, such as pull_request:opened,reopened. Repeatable; update replaces them all.",
    ),
    click.option(
        "--pace",
        "pace_per_min",
        type=click.IntRange(1, 6_000),
        metavar="N",
        help="Webhook runs a minute at most.",
    ),
    click.option(
        "--signing-secret-stdin",
        is_flag=True,
        help="Read the secret that webhooks are signed with from stdin (16 to 256 characters).",
    ),
)


_fields = all_of(_FIELDS)


@click.command("trigger-add")
@click.argument("autopilot_id", metavar="ID")
@click.option("--kind", type=click.Choice(("schedule", "webhook")), required=True)
@_fields
@click.option("--disabled", is_flag=True, help="Do not fire yet.")
@output_option(TABLE)
@click.pass_obj
def add_trigger(
    settings: Settings,
    /,
    autopilot_id: str,
    kind: str,
    signing_secret_stdin: bool,
    disabled: bool,
    output: str,
    **given: Any,
) -> None:
    """Add a schedule or a webhook to an autopilot.

    \b
    Examples:
      autopilot trigger-add 01a2 --kind schedule --cron "0 9 * * MON-FRI" --timezone Europe/Berlin
      autopilot trigger-add 01a2 --kind webhook --provider github --event-filter pull_request:opened \\
          --signing-secret-stdin < secret.txt
    """
    body = _body(given) | {"kind": kind}
    if disabled:
        body["enabled"] = False
    if signing_secret_stdin:
        body["signing_secret"] = _secret()

    async def add(api: ApiClient) -> bytes:
        path = f"{PATH}/{await resolve(api, autopilot_id)}"
        return await api.call("POST", f"{path}/triggers", body=body)

    _show(settings.as_person(), add, output)
    if kind == "webhook":
        click.echo("Its URL is a secret: `autopilot get ID --show-secrets` shows it.", err=True)


@click.command("trigger-list")
@click.argument("autopilot_id", metavar="ID")
@output_option(TABLE)
@full_id_option()
@click.pass_obj
def list_triggers(settings: Settings, autopilot_id: str, output: str, full_id: bool) -> None:
    """List the triggers of an autopilot."""

    async def read(api: ApiClient) -> tuple[list[msgspec.Raw], list[Trigger]]:
        items = await read_all(api, f"{PATH}/{await resolve(api, autopilot_id)}/triggers", whole=True)
        hidden = [redacted(bytes(item)) for item in items]
        return [msgspec.Raw(item) for item in hidden], [api.decode(item, Trigger) for item in hidden]

    raw, found = calling(settings.as_person(), read)
    print_items(
        output,
        raw,
        TRIGGER_COLUMNS,
        lambda: trigger_rows(found, host_now(), None, full_id=full_id),
        nothing="No triggers here.",
    )


@click.command("trigger-update")
@click.argument("autopilot_id", metavar="ID")
@click.argument("trigger_id", metavar="TRIGGER")
@click.option("--enabled/--disabled", default=None)
@_fields
@click.option("--clear-label", is_flag=True)
@click.option("--clear-event-filters", is_flag=True, help="Take every event.")
@click.option("--clear-pace", is_flag=True, help="Back to the default pace.")
@click.option("--clear-signing-secret", is_flag=True, help="Take webhooks without a signature.")
@click.option(
    "--grace",
    "grace_s",
    type=click.IntRange(0, 7 * _DAY_S),
    metavar="SECONDS",
    help="How long the secret before stays valid; a day if none, 0 ends it at once.",
)
@output_option(TABLE)
@click.pass_obj
def update_trigger(
    settings: Settings,
    /,
    autopilot_id: str,
    trigger_id: str,
    enabled: bool | None,
    signing_secret_stdin: bool,
    clear_label: bool,
    clear_event_filters: bool,
    clear_pace: bool,
    clear_signing_secret: bool,
    grace_s: int | None,
    output: str,
    **given: Any,
) -> None:
    """Change a trigger: only what is given changes.

    Whoever changes it answers for its later runs.

    \b
    Examples:
      autopilot trigger-update 01a2 01a3 --disabled
      autopilot trigger-update 01a2 01a3 --cron "30 6 * * *" --timezone UTC
      autopilot trigger-update 01a2 01a3 --signing-secret-stdin --grace 3600 < secret.txt
    """
    body = _body(given)
    cleared = {"label": clear_label, "event_filters": clear_event_filters, "pace_per_min": clear_pace}
    for name, clear in cleared.items():
        if clear and name in body:
            raise click.UsageError(f"Set or clear {name}, not both.")
    body |= dict.fromkeys((name for name, clear in cleared.items() if clear), None)
    if enabled is not None:
        body["enabled"] = enabled
    if signing_secret_stdin and clear_signing_secret:
        raise click.UsageError("Set or clear the signing secret, not both.")
    if grace_s is not None and not signing_secret_stdin:
        raise click.UsageError("--grace goes with --signing-secret-stdin.")
    if not (body or signing_secret_stdin or clear_signing_secret):
        raise click.UsageError("Nothing to change was given; see --help.")
    secret = {"secret": _secret(), "grace_s": grace_s} if signing_secret_stdin else None

    async def update(api: ApiClient) -> bytes:
        path = await _path(api, autopilot_id, trigger_id)
        answer = await api.call("PATCH", path, body=body) if body else b""
        try:
            if secret is not None:
                return await api.call("PUT", f"{path}/signing-secret", body=secret)
            if clear_signing_secret:
                return await api.call("DELETE", f"{path}/signing-secret")
        except AutopilotError as error:
            rest = " The rest has been changed." if body else ""
            raise click.ClickException(f"{one_line(error.message)}{rest}") from error
        return answer

    _show(settings.as_person(), update, output)


@click.command("trigger-delete")
@click.argument("autopilot_id", metavar="ID")
@click.argument("trigger_id", metavar="TRIGGER")
@click.pass_obj
def delete_trigger(settings: Settings, autopilot_id: str, trigger_id: str) -> None:
    """acts for real: delete a trigger.

    A webhook's URL is dead at once; nothing brings it back.
    """

    async def delete(api: ApiClient) -> str:
        path = await _path(api, autopilot_id, trigger_id)
        await api.call("DELETE", path)
        return path.rpartition("/")[2]

    deleted = calling(settings.as_person(), delete)
    click.echo(f"Deleted trigger {deleted}.", err=True)


@click.command("trigger-rotate-url")
@click.argument("autopilot_id", metavar="ID")
@click.argument("trigger_id", metavar="TRIGGER")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@output_option(TABLE)
@click.pass_obj
def rotate_url(settings: Settings, autopilot_id: str, trigger_id: str, yes: bool, output: str) -> None:
    """acts for real: give a webhook a new URL.

    The old one is dead at once: whoever still sends to it is refused.

    Asks first, unless --yes. `get ID --show-secrets` shows the new URL.
    """
    connection = settings.as_person()
    if not yes and not click.confirm("The URL in use is dead from now on. Rotate it?", err=True):
        raise click.ClickException("Nothing was changed.")

    async def rotate(api: ApiClient) -> bytes:
        return await api.call("POST", f"{await _path(api, autopilot_id, trigger_id)}/rotate-url")

    _show(connection, rotate, output)


async def _path(api: ApiClient, autopilot_id: str, trigger_id: str) -> str:
    triggers = f"{PATH}/{await resolve(api, autopilot_id)}/triggers"
    return f"{triggers}/{await resolve_under(api, triggers, trigger_id, 'trigger', paged=False)}"


def _body(given: dict[str, Any]) -> dict[str, Any]:
    """What was given, as the API names it."""
    body = {name: value for name, value in given.items() if name != "filters" and value is not None}
    if given["filters"]:
        body["event_filters"] = [_filter(text) for text in given["filters"]]
    return body


def _filter(text: str) -> dict[str, Any]:
    """`EVENT` or `EVENT:ACTION,ACTION`."""
    event, colon, actions = text.partition(":")
    listed = [action.strip() for action in actions.split(",") if action.strip()]
    if not event.strip() or (colon and not listed):
        raise click.UsageError(f"--event-filter must be EVENT or EVENT:ACTION,..., not {text!r}.")
    return {"event": event.strip()} | ({"actions": listed} if listed else {})


def _secret() -> str:
    """One line from stdin, which a terminal does not show; a secret is no argument, where others could read it."""
    stdin = getattr(sys.stdin, "buffer", None)  # None where stdin is closed
    if stdin is not None and stdin.isatty():
        typed: str = click.prompt("Signing secret", hide_input=True, err=True)
        return typed
    try:
        text = stdin.read(4_096).decode() if stdin is not None else ""
    except UnicodeDecodeError as error:
        raise click.UsageError("The secret on stdin is not UTF-8.") from error
    secret = text.strip("\r\n")
    if not secret:
        raise click.UsageError("--signing-secret-stdin: there is nothing on stdin.")
    if "\n" in secret:
        raise click.UsageError("--signing-secret-stdin: the secret must be one line.")
    return secret


def _show(connection: Connection, act: Callable[[ApiClient], Awaitable[bytes]], output: str) -> None:
    async def acted(api: ApiClient) -> tuple[bytes, Trigger]:
        answer = await act(api)
        api.decode(answer, Trigger)
        hidden = redacted(answer)
        return hidden, api.decode(hidden, Trigger)

    raw, trigger = calling(connection, acted)
    if output == JSON:
        print_json(raw)
    else:
        print_table(TRIGGER_COLUMNS, trigger_rows([trigger], host_now(), None, full_id=True))
