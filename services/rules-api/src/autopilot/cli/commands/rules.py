"""`create`, `update` and `delete`: making a rule, changing it, archiving it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import click

from autopilot.cli.commands.autopilots import Detail, print_detail
from autopilot.cli.commands.common import Decorator, all_of, calling, output_option
from autopilot.cli.commands.resources import AGENTS, PROJECTS, SQUADS, resolve_named, resolve_person
from autopilot.cli.config import Settings
from autopilot.cli.lookup import PATH, resolve
from autopilot.cli.output import JSON, TABLE, print_json
from autopilot.cli.redact import redacted

if TYPE_CHECKING:
    from autopilot.cli.client import ApiClient

MODES = ("create_issue", "run_only")
OVERLAPS = ("allow", "skip", "queue_one")

_FIELDS: tuple[Decorator, ...] = (
    click.option("--title", metavar="TEXT", help="At most 200 characters."),
    click.option(
        "--description", metavar="TEXT", help="The runbook: what the agent is to do, at most 64 KiB."
    ),
    click.option(
        "--description-file",
        type=click.File("r"),
        metavar="FILE",
        help="The runbook from a file; - is stdin.",
    ),
    click.option(
        "--mode", type=click.Choice(MODES), help="An issue with a task, or a bare task whose result is kept."
    ),
    click.option("--agent", metavar="NAME|ID", help="The agent that does it."),
    click.option("--squad", metavar="NAME|ID", help="The squad whose leader does it."),
    click.option("--project", metavar="NAME|ID", help="The project of its issues."),
    click.option(
        "--issue-title-template", metavar="TEXT", help="The title of its issues; {{date}} is the day."
    ),
    click.option(
        "--overlap", type=click.Choice(OVERLAPS), help="What a schedule does while a run is in flight."
    ),
    click.option(
        "--subscriber",
        "subscribers",
        multiple=True,
        metavar="EMAIL|ID",
        help="A member who is told of its issues. Repeatable; update replaces the list.",
    ),
)


_fields = all_of(_FIELDS)


@click.command("create")
@_fields
@click.option("--status", type=click.Choice(("active", "paused")), default="active", show_default=True)
@output_option(TABLE)
@click.pass_obj
def create_autopilot(settings: Settings, /, status: str, output: str, **given: Any) -> None:
    """Make an autopilot. Needs --title, --description, --mode, and --agent or --squad.

    \b
    Examples:
      autopilot create --title "Nightly review" --description "Read what changed today." \\
          --mode create_issue --agent reviewer
      autopilot create --title Digest --description-file runbook.md --mode run_only --squad docs
    """
    given["description"] = _runbook(given)
    missing = [f"--{name}" for name in ("title", "description", "mode") if given[name] is None]
    if given["agent"] is None and given["squad"] is None:
        missing.append("--agent or --squad")
    if missing:
        raise click.UsageError(f"Missing: {', '.join(missing)}.")

    async def create(api: ApiClient) -> bytes:
        body = await _body(api, given) | {"status": status}
        return await api.call("POST", PATH, body=body)

    _show(settings, create, output)


@click.command("update")
@click.argument("autopilot_id", metavar="ID")
@_fields
@click.option(
    "--status", type=click.Choice(("active", "paused", "archived")), help="Active resumes or restores it."
)
@click.option("--creator", metavar="EMAIL|ID", help="Hand the autopilot over to another member.")
@click.option("--clear-project", is_flag=True)
@click.option("--clear-issue-title-template", is_flag=True)
@click.option("--clear-subscribers", is_flag=True)
@output_option(TABLE)
@click.pass_obj
def update_autopilot(
    settings: Settings,
    /,
    autopilot_id: str,
    status: str | None,
    creator: str | None,
    clear_project: bool,
    clear_issue_title_template: bool,
    clear_subscribers: bool,
    output: str,
    **given: Any,
) -> None:
    """Change an autopilot: only what is given changes.

    Whoever changes its substance answers for its later runs.

    \b
    Examples:
      autopilot update 01a2 --status paused
      autopilot update 01a2 --agent reviewer --overlap skip
    """
    given["description"] = _runbook(given)
    cleared: dict[str, tuple[bool, object, object]] = {
        "project_id": (clear_project, given["project"], None),
        "issue_title_template": (clear_issue_title_template, given["issue_title_template"], None),
        "subscribers": (clear_subscribers, given["subscribers"] or None, []),
    }
    for name, (clear, value, _) in cleared.items():
        if clear and value is not None:
            raise click.UsageError(f"Set or clear {name.removesuffix('_id')}, not both.")

    async def update(api: ApiClient) -> bytes:
        body = await _body(api, given)
        body |= {name: empty for name, (clear, _, empty) in cleared.items() if clear}
        if status is not None:
            body["status"] = status
        if creator is not None:
            body["creator_id"] = await resolve_person(api, creator)
        if not body:
            raise click.UsageError("Nothing to change was given; see --help.")
        return await api.call("PATCH", f"{PATH}/{await resolve(api, autopilot_id)}", body=body)

    _show(settings, update, output)


@click.command("delete")
@click.argument("autopilot_id", metavar="ID")
@click.pass_obj
def delete_autopilot(settings: Settings, autopilot_id: str) -> None:
    """acts for real: archive an autopilot.

    Nothing fires it any more. Its history stays, its pending runs and live tasks go on, and `update ID --status active` restores it.
    """

    async def delete(api: ApiClient) -> str:
        found = await resolve(api, autopilot_id)
        await api.call("DELETE", f"{PATH}/{found}")
        return found

    click.echo(f"Archived autopilot {calling(settings.as_person(), delete)}.", err=True)


def _runbook(given: dict[str, Any]) -> str | None:
    """The text or the file, not both."""
    file = given.pop("description_file")
    if file is None:
        text: str | None = given["description"]
        return text
    if given["description"] is not None:
        raise click.UsageError("Give --description or --description-file, not both.")
    try:
        read: str = file.read()
    except UnicodeDecodeError as error:
        raise click.UsageError("The file of --description-file is not UTF-8.") from error
    return read


async def _body(api: ApiClient, given: dict[str, Any]) -> dict[str, Any]:
    """What was given, as the API names it, with names looked up."""
    if given["agent"] is not None and given["squad"] is not None:
        raise click.UsageError("Give --agent or --squad, not both.")
    body: dict[str, Any] = {
        "title": given["title"],
        "description": given["description"],
        "execution_mode": given["mode"],
        "issue_title_template": given["issue_title_template"],
        "overlap_policy": given["overlap"],
    }
    for kind, path in (("agent", AGENTS), ("squad", SQUADS)):
        if given[kind] is not None:
            body |= {"assignee_type": kind, "assignee_id": await resolve_named(api, path, given[kind], kind)}
    if given["project"] is not None:
        body["project_id"] = await resolve_named(api, PROJECTS, given["project"], "project")
    if given["subscribers"]:
        body["subscribers"] = [await resolve_person(api, person) for person in given["subscribers"]]
    return {name: value for name, value in body.items() if value is not None}


def _show(settings: Settings, act: Callable[[ApiClient], Awaitable[bytes]], output: str) -> None:
    async def acted(api: ApiClient) -> tuple[bytes, Detail]:
        answer = await act(api)
        api.decode(answer, Detail)
        hidden = redacted(answer)
        return hidden, api.decode(hidden, Detail)

    raw, found = calling(settings.as_person(), acted)
    if output == JSON:
        print_json(raw)
    else:
        print_detail(found)
