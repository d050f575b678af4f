"""The environment of a task's command: what is on the list of the machine's, and the facts of the task (S11.4)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from autopilot.cli.config import API_URL
from autopilot.cli.runtime.protocol import Task
from autopilot.kit.config import PREFIX

# What programs need to find each other, their user's files and language; nothing that holds a secret by custom.
USUAL = (
    *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "LC_*", "TZ", "TERM", "TMPDIR"),
    *("SSL_CERT_FILE", "SSL_CERT_DIR", "XDG_*", API_URL),
)


def environment_for(task: Task, environ: Mapping[str, str], allowed: Sequence[str] = ()) -> dict[str, str]:
    """The usual variables, those that `allowed` names (`*` for any end), and the facts.

    A variable of ours is passed on only by its whole name: tokens, keys and database URLs are among them.
    """
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
        "RUNTIME_DIR": str(Path.cwd()),
    }
    told = {PREFIX + name: value.replace("\0", "") for name, value in facts.items() if value is not None}
    return machine_environment(environ, allowed) | told


def machine_environment(environ: Mapping[str, str], allowed: Sequence[str] = ()) -> dict[str, str]:
    """What of the machine's variables is passed on."""
    return {name: value for name, value in environ.items() if _is_listed(name, allowed)}


def _is_listed(name: str, allowed: Sequence[str]) -> bool:
    if name in USUAL or name in allowed:
        return True
    return not name.startswith(PREFIX) and any(fnmatchcase(name, listed) for listed in (*USUAL, *allowed))
