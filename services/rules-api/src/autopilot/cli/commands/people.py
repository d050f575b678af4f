"""`collaborator-add`, `collaborator-remove` and `token`: who may write a rule, and what programs and people call with."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import TYPE_CHECKING

import click
import msgspec

from autopilot.cli.commands.common import calling, full_id_option, host_now, output_option
from autopilot.cli.commands.resources import TOKENS, print_items, read_all, resolve_person
from autopilot.cli.config import Settings
from autopilot.cli.lookup import PATH, resolve, resolve_under
from autopilot.cli.output import JSON, TABLE, print_json, print_table, warn
from autopilot.cli.text import coming, one_line, past, short_ids

if TYPE_CHECKING:
    from autopilot.cli.client import ApiClient

COLLABORATOR_COLUMNS = ("NAME", "ID", "SINCE")
TOKEN_COLUMNS = ("ID", "KIND", "NAME", "HINT", "CREATED", "EXPIRES", "REVOKED")


class Collaborator(msgspec.Struct, frozen=True, kw_only=True):
    """Who may write a rule beside its creator and the admins."""

    user_id: str
    name: str
    created_at: datetime


class _Collaborators(msgspec.Struct):
    collaborators: list[Collaborator]


class Token(msgspec.Struct, frozen=True, kw_only=True):
    """What a table shows of a token."""

    id: str
    kind: str
    name: str
    hint: str
    created_at: datetime
    expires_at: datetime
    revoked_at: datetime | None = None


class NewToken(Token, frozen=True, kw_only=True):
    """A token with its secret, which is shown once."""

    token: str


@click.command("collaborator-add")
@click.argument("autopilot_id", metavar="ID")
@click.argument("person", metavar="EMAIL|ID")
@output_option(TABLE)
@click.pass_obj
def add_collaborator(settings: Settings, autopilot_id: str, person: str, output: str) -> None:
    """Let a member write an autopilot. Whoever edits it answers for its later runs."""

    async def add(api: ApiClient) -> bytes:
        path = f"{PATH}/{await resolve(api, autopilot_id)}/collaborators"
        return await api.call("POST", path, body={"user_id": await resolve_person(api, person)})

    _show_collaborators(settings, add, output)


@click.command("collaborator-remove")
@click.argument("autopilot_id", metavar="ID")
@click.argument("person", metavar="EMAIL|ID")
@output_option(TABLE)
@click.pass_obj
def remove_collaborator(settings: Settings, autopilot_id: str, person: str, output: str) -> None:
    """Take back what collaborator-add gave."""

    async def remove(api: ApiClient) -> bytes:
        path = f"{PATH}/{await resolve(api, autopilot_id)}/collaborators"
        return await api.call("DELETE", f"{path}/{await resolve_person(api, person)}")

    _show_collaborators(settings, remove, output)


def _show_collaborators(
    settings: Settings, act: Callable[[ApiClient], Awaitable[bytes]], output: str
) -> None:
    async def acted(api: ApiClient) -> tuple[bytes, list[Collaborator]]:
        answer = await act(api)
        return answer, api.decode(answer, _Collaborators).collaborators

    raw, found = calling(settings.as_person(), acted)
    if output == JSON:
        print_json(raw)
    elif not found:
        click.echo("No collaborators.", err=True)
    else:
        now = host_now()
        print_table(
            COLLABORATOR_COLUMNS, [(one.name, one.user_id, past(one.created_at, now, None)) for one in found]
        )


@click.group("token")
def token() -> None:
    """Tokens of people, programs and machines."""


@token.command("list")
@output_option(TABLE)
@full_id_option()
@click.pass_obj
def list_tokens(settings: Settings, output: str, full_id: bool) -> None:
    """List the tokens that you may see, newest first, without their secrets."""

    async def read(api: ApiClient) -> tuple[list[msgspec.Raw], list[Token]]:
        items = await read_all(api, TOKENS)
        return items, [api.decode(bytes(item), Token) for item in items]

    raw, found = calling(settings.as_person(), read)
    print_items(
        output,
        raw,
        TOKEN_COLUMNS,
        lambda: token_rows(found, host_now(), full_id=full_id),
        nothing="No tokens here.",
    )


def token_rows(found: list[Token], now: datetime, *, full_id: bool = False) -> list[tuple[str, ...]]:
    """The rows of `token list`."""
    ids = [one.id for one in found]
    return [
        (
            shown_id,
            one.kind,
            one.name,
            one.hint,
            past(one.created_at, now, None),
            coming(one.expires_at, now, None),
            past(one.revoked_at, now, None),
        )
        for shown_id, one in zip(ids if full_id else short_ids(ids), found, strict=True)
    ]


@token.command("create")
@click.argument("name")
@click.option(
    "--kind",
    type=click.Choice(("personal", "service", "runtime")),
    default="personal",
    show_default=True,
    help="For yourself, for a program (it may only run rules), or for machines that work.",
)
@click.option(
    "--days",
    type=click.IntRange(1, 365),
    metavar="N",
    help="How long it lives; 90 for a personal one, 365 for others.",
)
@output_option(TABLE)
@click.pass_obj
def create_token(settings: Settings, name: str, kind: str, days: int | None, output: str) -> None:
    """Make a token and print its secret, once: it is the only line on stdout, unless --output json."""
    body = {"name": name, "kind": kind} | ({"expires_in_days": days} if days is not None else {})

    async def create(api: ApiClient) -> tuple[bytes, NewToken]:
        answer = await api.call("POST", TOKENS, body=body)
        return answer, api.decode(answer, NewToken)

    raw, made = calling(settings.as_person(), create)
    warn("the secret is shown this once; keep it out of logs, chats and shared screens.")
    if output == JSON:
        print_json(raw)
    else:
        click.echo(one_line(made.token))


@token.command("revoke")
@click.argument("token_id", metavar="ID")
@click.pass_obj
def revoke_token(settings: Settings, token_id: str) -> None:
    """acts for real: end a token.

    Whatever calls with it is refused at once; nothing brings it back.
    """

    async def revoke(api: ApiClient) -> str:
        found = await resolve_under(api, TOKENS, token_id, "token")
        await api.call("DELETE", f"{TOKENS}/{found}")
        return found

    click.echo(f"Revoked token {calling(settings.as_person(), revoke)}.", err=True)
