"""`agent`, `squad` and the list of runtimes: who does the work."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

import click
import msgspec

from autopilot.cli.commands.common import Decorator, calling, full_id_option, host_now, output_option
from autopilot.cli.commands.resources import (
    AGENTS,
    RUNTIMES,
    SQUADS,
    print_items,
    read_all,
    resolve_named,
    resolve_person,
    yes,
)
from autopilot.cli.config import Settings
from autopilot.cli.output import JSON, TABLE, print_json
from autopilot.cli.text import past, short_ids

if TYPE_CHECKING:
    from autopilot.cli.client import ApiClient

AGENT_COLUMNS = ("ID", "NAME", "VISIBILITY", "RUNTIME", "CAN_INVOKE", "ARCHIVED")
SQUAD_COLUMNS = ("ID", "NAME", "LEADER", "ARCHIVED")
RUNTIME_COLUMNS = ("ID", "NAME", "STATE", "SEEN", "TASKS", "DETAIL")


class Agent(msgspec.Struct, frozen=True, kw_only=True):
    """What a table shows of an agent."""

    id: str
    name: str
    visibility: str
    can_invoke: bool
    runtime_id: str | None = None
    archived_at: datetime | None = None


class Squad(msgspec.Struct, frozen=True, kw_only=True):
    """What a table shows of a squad."""

    id: str
    name: str
    leader_id: str | None = None
    archived_at: datetime | None = None


class Runtime(msgspec.Struct, frozen=True, kw_only=True):
    """What a table shows of a runtime."""

    id: str
    name: str
    state: str
    concurrency: int
    concurrency_limit: int | None = None
    seen_at: datetime | None = None
    detail: str | None = None
    repair_hint: str | None = None


def _archived_option() -> Decorator:
    return click.option("--archived", is_flag=True, help="Archived ones too.")


def _runtime_option() -> Decorator:
    return click.option("--runtime", metavar="NAME|ID", help="The machine that it works on.")


_VISIBILITY = click.Choice(("private", "workspace"))


@click.group("agent")
def agent() -> None:
    """Agents: who executes."""


@agent.command("list")
@_archived_option()
@output_option(TABLE)
@full_id_option()
@click.pass_obj
def list_agents(settings: Settings, archived: bool, output: str, full_id: bool) -> None:
    """List the agents that you may invoke."""
    _list(settings, AGENTS, Agent, AGENT_COLUMNS, _agent_row, output, full_id, archived=archived)


@agent.command("get")
@click.argument("name", metavar="NAME|ID")
@output_option(JSON)
@click.pass_obj
def get_agent(settings: Settings, name: str, output: str) -> None:
    """Show one agent."""
    _get(settings, AGENTS, name, "agent", Agent, AGENT_COLUMNS, _agent_row, output)


@agent.command("create")
@click.argument("name")
@_runtime_option()
@click.option("--visibility", type=_VISIBILITY, default="private", show_default=True)
@output_option(TABLE)
@click.pass_obj
def create_agent(settings: Settings, name: str, runtime: str | None, visibility: str, output: str) -> None:
    """Make an agent of your own; it works as soon as it has a runtime."""

    async def create(api: ApiClient) -> bytes:
        body: dict[str, Any] = {"name": name, "visibility": visibility}
        if runtime is not None:
            body["runtime_id"] = await resolve_named(api, RUNTIMES, runtime, "runtime")
        return await api.call("POST", AGENTS, body=body)

    _act(settings, create, Agent, AGENT_COLUMNS, _agent_row, output)


@agent.command("update")
@click.argument("name", metavar="NAME|ID")
@click.option("--name", "new_name", metavar="NAME")
@_runtime_option()
@click.option("--unbind", is_flag=True, help="Take its runtime away: the active autopilots of it are paused.")
@click.option("--visibility", type=_VISIBILITY)
@output_option(TABLE)
@click.pass_obj
def update_agent(
    settings: Settings,
    name: str,
    new_name: str | None,
    runtime: str | None,
    unbind: bool,
    visibility: str | None,
    output: str,
) -> None:
    """Change an agent: only what is given changes."""
    if unbind and runtime is not None:
        raise click.UsageError("Give --runtime or --unbind, not both.")
    body: dict[str, Any] = {"name": new_name, "visibility": visibility}
    body = {field: value for field, value in body.items() if value is not None}
    if not (body or unbind or runtime is not None):
        raise click.UsageError("Nothing to change was given; see --help.")

    async def update(api: ApiClient) -> bytes:
        sent = dict(body)
        if unbind:
            sent["runtime_id"] = None
        elif runtime is not None:
            sent["runtime_id"] = await resolve_named(api, RUNTIMES, runtime, "runtime")
        return await api.call(
            "PATCH", f"{AGENTS}/{await resolve_named(api, AGENTS, name, 'agent')}", body=sent
        )

    _act(settings, update, Agent, AGENT_COLUMNS, _agent_row, output)


@agent.command("archive")
@click.argument("name", metavar="NAME|ID")
@click.pass_obj
def archive_agent(settings: Settings, name: str) -> None:
    """acts for real: retire an agent. The active autopilots that depend on it are paused."""
    _end(settings, AGENTS, name, "agent", "Archived")


@agent.command("share")
@click.argument("name", metavar="NAME|ID")
@click.argument("person", metavar="EMAIL|ID")
@click.option("--remove", is_flag=True, help="Take it back.")
@click.pass_obj
def share_agent(settings: Settings, name: str, person: str, remove: bool) -> None:
    """Let a member invoke a private agent of yours."""

    async def share(api: ApiClient) -> None:
        path = f"{AGENTS}/{await resolve_named(api, AGENTS, name, 'agent')}/shares"
        user_id = await resolve_person(api, person)
        if remove:
            await api.call("DELETE", f"{path}/{user_id}")
        else:
            await api.call("POST", path, body={"user_id": user_id})

    calling(settings.as_person(), share)
    click.echo(f"{'No longer shared' if remove else 'Shared'} with {person}.", err=True)


@click.group("squad")
def squad() -> None:
    """Squads: work is given to them, their leaders execute."""


@squad.command("list")
@_archived_option()
@output_option(TABLE)
@full_id_option()
@click.pass_obj
def list_squads(settings: Settings, archived: bool, output: str, full_id: bool) -> None:
    """List the squads."""
    _list(settings, SQUADS, Squad, SQUAD_COLUMNS, _squad_row, output, full_id, archived=archived)


@squad.command("get")
@click.argument("name", metavar="NAME|ID")
@output_option(JSON)
@click.pass_obj
def get_squad(settings: Settings, name: str, output: str) -> None:
    """Show one squad with its leader."""
    _get(settings, SQUADS, name, "squad", Squad, SQUAD_COLUMNS, _squad_row, output)


@squad.command("create")
@click.argument("name")
@click.option("--leader", required=True, metavar="NAME|ID", help="The agent that executes for it.")
@output_option(TABLE)
@click.pass_obj
def create_squad(settings: Settings, name: str, leader: str, output: str) -> None:
    """Make a squad."""

    async def create(api: ApiClient) -> bytes:
        body = {"name": name, "leader_id": await resolve_named(api, AGENTS, leader, "agent")}
        return await api.call("POST", SQUADS, body=body)

    _act(settings, create, Squad, SQUAD_COLUMNS, _squad_row, output)


@squad.command("update")
@click.argument("name", metavar="NAME|ID")
@click.option("--name", "new_name", metavar="NAME")
@click.option("--leader", metavar="NAME|ID", help="Another agent to execute for it.")
@output_option(TABLE)
@click.pass_obj
def update_squad(
    settings: Settings, name: str, new_name: str | None, leader: str | None, output: str
) -> None:
    """Change a squad: only what is given changes."""
    if new_name is None and leader is None:
        raise click.UsageError("Nothing to change was given; see --help.")

    async def update(api: ApiClient) -> bytes:
        body = {"name": new_name} if new_name is not None else {}
        if leader is not None:
            body["leader_id"] = await resolve_named(api, AGENTS, leader, "agent")
        return await api.call(
            "PATCH", f"{SQUADS}/{await resolve_named(api, SQUADS, name, 'squad')}", body=body
        )

    _act(settings, update, Squad, SQUAD_COLUMNS, _squad_row, output)


@squad.command("archive")
@click.argument("name", metavar="NAME|ID")
@click.pass_obj
def archive_squad(settings: Settings, name: str) -> None:
    """acts for real: retire a squad. Its autopilots are handed to its leader."""
    _end(settings, SQUADS, name, "squad", "Archived")


@click.command("list")
@output_option(TABLE)
@full_id_option()
@click.pass_obj
def list_runtimes(settings: Settings, output: str, full_id: bool) -> None:
    """List the machines that work for this workspace, and whether they are heard."""
    _list(settings, RUNTIMES, Runtime, RUNTIME_COLUMNS, _runtime_row, output, full_id)


@click.command("get")
@click.argument("name", metavar="NAME|ID")
@output_option(JSON)
@click.pass_obj
def get_runtime(settings: Settings, name: str, output: str) -> None:
    """Show one runtime."""
    _get(settings, RUNTIMES, name, "runtime", Runtime, RUNTIME_COLUMNS, _runtime_row, output)


@click.command("delete")
@click.argument("name", metavar="NAME|ID")
@click.pass_obj
def delete_runtime(settings: Settings, name: str) -> None:
    """acts for real: delete a runtime. Its agents are unbound, and the active autopilots of those are paused."""

    _end(settings, RUNTIMES, name, "runtime", "Deleted")


def _agent_row(agent: Any, shown_id: str, now: datetime) -> tuple[str, ...]:
    return (
        shown_id,
        agent.name,
        agent.visibility,
        agent.runtime_id or "-",
        yes(agent.can_invoke),
        past(agent.archived_at, now, None),
    )


def _squad_row(squad: Any, shown_id: str, now: datetime) -> tuple[str, ...]:
    return shown_id, squad.name, squad.leader_id or "-", past(squad.archived_at, now, None)


def _runtime_row(runtime: Any, shown_id: str, now: datetime) -> tuple[str, ...]:
    limit = runtime.concurrency_limit
    tasks = min(runtime.concurrency, limit) if limit is not None else runtime.concurrency
    detail = ": ".join(part for part in (runtime.detail, runtime.repair_hint) if part)
    return shown_id, runtime.name, runtime.state, past(runtime.seen_at, now, None), str(tasks), detail or "-"


def _list(
    settings: Settings,
    path: str,
    kind: Any,
    columns: tuple[str, ...],
    row: Any,
    output: str,
    full_id: bool,
    *,
    archived: bool = False,
) -> None:
    async def read(api: ApiClient) -> tuple[list[msgspec.Raw], list[Any]]:
        items = await read_all(api, path, {"archived": "true"} if archived else None)
        return items, [api.decode(bytes(item), kind) for item in items]

    raw, found = calling(settings.as_person(), read)
    ids = [thing.id for thing in found]
    shown = ids if full_id else short_ids(ids)
    print_items(
        output,
        raw,
        columns,
        lambda: [row(thing, one, host_now()) for thing, one in zip(found, shown, strict=True)],
        nothing="None here.",
    )


def _get(
    settings: Settings,
    path: str,
    name: str,
    what: str,
    kind: Any,
    columns: tuple[str, ...],
    row: Any,
    output: str,
) -> None:
    async def read(api: ApiClient) -> bytes:
        found = await resolve_named(api, path, name, what)
        return await api.call("GET", f"{path}/{found}")

    _act(settings, read, kind, columns, row, output)


def _act(settings: Settings, act: Any, kind: Any, columns: tuple[str, ...], row: Any, output: str) -> None:
    async def acted(api: ApiClient) -> tuple[bytes, Any]:
        answer = await act(api)
        return answer, api.decode(answer, kind)

    raw, thing = calling(settings.as_person(), acted)
    if output == JSON:
        print_json(raw)
        return
    print_items(output, [msgspec.Raw(raw)], columns, lambda: [row(thing, thing.id, host_now())], nothing="")


def _end(settings: Settings, path: str, name: str, what: str, done: str) -> None:
    async def end(api: ApiClient) -> str:
        found = await resolve_named(api, path, name, what)
        await api.call("DELETE", f"{path}/{found}")
        return found

    click.echo(f"{done} {what} {calling(settings.as_person(), end)}.", err=True)
