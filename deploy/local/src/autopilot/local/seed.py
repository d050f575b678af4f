"""The first workspace, agent and runtime of a local stack, made once and remembered with their tokens."""

from __future__ import annotations

from pathlib import Path

import msgspec

from autopilot.local.stack import Stack

WORKSPACE = "local"


class Seed(msgspec.Struct, frozen=True, kw_only=True):
    """What a person or a program needs to use the stack."""

    workspace: str
    token: str
    runtime_token: str


def ensure_seed(stack: Stack) -> Seed:
    """The seed of this stack's database: the remembered one, else a new one from the bootstrap command."""
    remembered = stack.folder / "seed.json"
    if remembered.exists():
        return msgspec.json.decode(remembered.read_bytes(), type=Seed)
    seed = _bootstrap(stack)
    write_private(remembered, msgspec.json.encode(seed).decode())
    return seed


def _bootstrap(stack: Stack) -> Seed:
    told = stack.run_module("autopilot.rules_api", "bootstrap", "--workspace", WORKSPACE, "--output", "json")
    return msgspec.json.decode(told, type=Seed)


def write_private(path: Path, text: str) -> None:
    """Write a file that only its owner can read, whole or not at all."""
    unfinished = path.with_name(f"{path.name}.part")
    unfinished.unlink(missing_ok=True)
    unfinished.touch(mode=0o600)
    unfinished.write_text(text)
    unfinished.replace(path)
