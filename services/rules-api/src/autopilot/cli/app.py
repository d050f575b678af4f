"""The command tree and what all commands share: where the API is, which workspace, which profile."""

from __future__ import annotations

import os

import click
from click.core import ParameterSource
from click.shell_completion import get_completion_class

from autopilot.cli.commands import (
    autopilots,
    deliveries,
    events,
    explain,
    history,
    people,
    rules,
    runs,
    runtime,
    triggers,
    workers,
)
from autopilot.cli.config import API_URL, DEFAULT_API_URL, PROFILE, WORKSPACE, Settings

NAME = "autopilot"
_COMPLETE = "_AUTOPILOT_COMPLETE"


def _print_version(context: click.Context, _option: click.Parameter, wanted: bool) -> None:
    if wanted:
        from importlib import metadata  # slow to import, and of use here alone

        click.echo(f"{NAME} {metadata.version('autopilot-rules-api')}")
        context.exit()


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option(
    "--api-url",
    envvar=API_URL,
    show_envvar=True,
    metavar="URL",
    help=f"Where the API is. Default: {DEFAULT_API_URL}.",
)
@click.option(
    "--workspace",
    envvar=WORKSPACE,
    show_envvar=True,
    metavar="SLUG|ID",
    help="Needed by a token of several workspaces.",
)
@click.option(
    "--profile",
    envvar=PROFILE,
    show_envvar=True,
    metavar="NAME",
    help="Which profile of the configuration file. Default: the one it names, or `default`.",
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Show it and exit.",
)
@click.pass_context
def app(context: click.Context, api_url: str | None, workspace: str | None, profile: str | None) -> None:
    """Durable rules that hand work to agents: make them, follow their runs, learn why they did or did not run.

    What is not given as a flag comes from the environment, then from a profile of ~/.config/autopilot/config.toml; one
    named by --profile comes before the environment. A token is never a flag: AUTOPILOT_TOKEN holds it (AUTOPILOT_RUNTIME_TOKEN for `runtime run`), or the profile does.
    Exit codes: 0 done, 1 refused or failed (the reason is on stderr), 2 wrong usage.
    """
    typed = [
        name for name in context.params if context.get_parameter_source(name) is ParameterSource.COMMANDLINE
    ]
    named = "profile" in typed
    context.obj = Settings(
        api_url=api_url if "api_url" in typed or not named else None,
        workspace=workspace if "workspace" in typed or not named else None,
        profile=profile,
        profile_first=named,
        environ=os.environ,
    )


@click.command("completion")
@click.argument("shell", type=click.Choice(("bash", "zsh", "fish")))
def completion(shell: str) -> None:
    """Print what makes a shell complete this command.

    \b
    Examples:
      autopilot completion bash > ~/.local/share/bash-completion/completions/autopilot
      autopilot completion fish > ~/.config/fish/completions/autopilot.fish
    """
    found = get_completion_class(shell)
    assert found is not None
    click.echo(found(app, {}, NAME, _COMPLETE).source())


for _command in (
    autopilots.list_autopilots,
    autopilots.get_autopilot,
    rules.create_autopilot,
    rules.update_autopilot,
    rules.delete_autopilot,
    runs.trigger,
    runs.list_runs,
    explain.explain,
    triggers.add_trigger,
    triggers.list_triggers,
    triggers.update_trigger,
    triggers.delete_trigger,
    triggers.rotate_url,
    history.preview_cron,
    history.list_versions,
    deliveries.list_deliveries,
    deliveries.replay_delivery,
    people.add_collaborator,
    people.remove_collaborator,
    workers.agent,
    workers.squad,
    runtime.runtime,
    people.token,
    events.events,
    completion,
):
    app.add_command(_command)
