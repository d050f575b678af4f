"""The environment of a task's command: the machine's, without anything of ours, and with the facts of the task."""

from __future__ import annotations

from collections.abc import Mapping

from autopilot.cli.config import API_URL
from autopilot.cli.runtime.protocol import Task
from autopilot.kit.config import PREFIX


def environment_for(task: Task, environ: Mapping[str, str]) -> dict[str, str]:
    """Every `AUTOPILOT_*` variable but the API's address is left out: tokens, keys and database URLs are among them."""
    kept = {name: value for name, value in environ.items() if not name.startswith(PREFIX) or name == API_URL}
    facts = {
        "TASK_ID": task.id,
        "RUN_ID": task.run_id,
        "ISSUE_ID": task.issue_id,
        "ISSUE_KEY": task.issue_key,
        "AUTOPILOT_ID": task.autopilot_id,
        "WORKSPACE_ID": task.workspace_id,
        "AGENT": task.agent_name,
        "AGENT_ID": task.agent_id,
        "SOURCE": task.source,
        "PLANNED_AT": task.planned_at,
        "ATTEMPT": str(task.attempt),
        "MAX_ATTEMPTS": str(task.max_attempts),
        "TIMEOUT_S": f"{task.timeout_s:g}",
    }
    told = {PREFIX + name: value.replace("\0", "") for name, value in facts.items() if value is not None}
    return kept | told
