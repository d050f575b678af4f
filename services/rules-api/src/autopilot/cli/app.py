"""The command tree and what all commands share: where the API is and which workspace."""

from __future__ import annotations

import os

import click

from autopilot.cli.commands import autopilots, deliveries, events, explain, runs, runtime
from autopilot.cli.config import API_URL, DEFAULT_API_URL, WORKSPACE, Settings


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option(
    "--api-url", envvar=API_URL, default=DEFAULT_API_URL, show_default=True, show_envvar=True, metavar="URL"
)
@click.option(
    "--workspace",
    envvar=WORKSPACE,
    show_envvar=True,
    metavar="SLUG|ID",
    help="Needed by a token of several workspaces.",
)
@click.pass_context
def app(context: click.Context, api_url: str, workspace: str | None) -> None:
    """Durable rules that hand work to agents: see them, follow their runs, run them, execute their tasks.

    Secrets come from the environment only: AUTOPILOT_TOKEN for everything but `runtime run`, which reads
    AUTOPILOT_RUNTIME_TOKEN. Exit codes: 0 done, 1 refused or failed (the reason is on stderr), 2 wrong usage.
    """
    context.obj = Settings(api_url=api_url, workspace=workspace, environ=os.environ)


app.add_command(autopilots.list_autopilots)
app.add_command(autopilots.get_autopilot)
app.add_command(runs.list_runs)
app.add_command(runs.trigger)
app.add_command(explain.explain)
app.add_command(deliveries.list_deliveries)
app.add_command(deliveries.replay_delivery)
app.add_command(events.events)
app.add_command(runtime.runtime)
