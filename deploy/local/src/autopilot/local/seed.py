"""The first workspace, agent and runtime of a local stack, made once and remembered with their tokens."""

from __future__ import annotations

from pathlib import Path

import msgspec

from autopilot.local.rest import Rest
from autopilot.local.stack import Stack

WORKSPACE = "local"
NAME = "Local"
EMAIL = "you@example.com"
RUNTIME = "local"
AGENT = "local"


class Seed(msgspec.Struct, frozen=True, kw_only=True):
    """What a person or a program needs to use the stack."""

    workspace: str
    token: str
    runtime_token: str
    agent_id: str = ""


def ensure_seed(stack: Stack) -> Seed:
    """The seed of this stack's database: the remembered one if that database knows it, else a new one."""
    path = stack.folder / "seed.json"
    remembered = read_seed(path)
    if remembered is not None and _is_known(stack.api_url, remembered):
        return remembered
    made = bootstrap(stack)
    seed = msgspec.structs.replace(made, agent_id=_agent_of(stack.api_url, made))
    write_private(path, msgspec.json.encode(seed).decode())
    return seed


def bootstrap(stack: Stack) -> Seed:
    """New tokens for the local workspace, which is made if this database has none."""
    told = stack.run_module(
        "autopilot.rules_api", "bootstrap", "--workspace", WORKSPACE, "--name", NAME, "--email", EMAIL, "--json"
    )  # fmt: skip
    return msgspec.json.decode(told, type=Seed)


def make_runtime(api_url: str, runtime_token: str, name: str) -> str:
    """A runtime of this name, offline until a program runs it; its id."""
    runtime = Rest(url=api_url, token=runtime_token)
    runtime_id: str = runtime.post("/api/runtime/register", {"name": name})["runtime_id"]
    runtime.post("/api/runtime/bye", {"runtime_id": runtime_id})
    return runtime_id


def read_seed(path: Path) -> Seed | None:
    """The seed that was remembered there, if there is one."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Seed)
    except (FileNotFoundError, msgspec.DecodeError):
        return None


def _is_known(api_url: str, seed: Seed) -> bool:
    """Whether the stack's database takes both tokens: it may be another one than last time, or they have expired."""
    personal = Rest(url=api_url, token=seed.token, workspace=seed.workspace).call("GET", "/api/agents")
    runtime = Rest(url=api_url, token=seed.runtime_token).call("GET", "/api/agents")
    return personal.status == 200 and runtime.status == 403  # 403: known, but for the runtime protocol only


def _agent_of(api_url: str, seed: Seed) -> str:
    """The id of the local agent, which is made and bound to the local runtime if it is not there."""
    rest = Rest(url=api_url, token=seed.token, workspace=seed.workspace)
    for agent in rest.get("/api/agents?limit=100")["items"]:
        if agent["name"] == AGENT:
            return str(agent["id"])
    runtime_id = make_runtime(api_url, seed.runtime_token, RUNTIME)
    body = {"name": AGENT, "visibility": "workspace", "runtime_id": runtime_id}
    made = rest.call("POST", "/api/agents", body)
    return str(made.body["id"]) if made.status == 201 else ""  # it is archived, or far down a long list


def write_private(path: Path, text: str) -> None:
    """Write a file that only its owner can read, whole or not at all."""
    unfinished = path.with_name(f"{path.name}.part")
    unfinished.unlink(missing_ok=True)
    unfinished.touch(mode=0o600)
    unfinished.write_text(text)
    unfinished.replace(path)
