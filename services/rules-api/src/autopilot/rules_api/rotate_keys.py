"""`python -m autopilot.rules_api rotate-keys`: everything that is kept encrypted, anew under the first key (HAZARDS 27).

It may run while the services do, and again: what an edit changes meanwhile is the edit's. A key may be dropped from
AUTOPILOT_SECRET_KEYS once this ends with 0.
"""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Final

import msgspec

from autopilot.domain.errors import AutopilotError
from autopilot.domain.ids import TriggerId
from autopilot.engine.secrets import SecretUnreadable, Vault
from autopilot.kit import config as configuration
from autopilot.kit.config import CommonConfig
from autopilot.storage.database import Database
from autopilot.storage.trigger_secrets import Secrets, list_secrets, replace_secrets

_PAGE: Final = 500
_COLUMNS: Final = ("token_enc", "secret_enc", "previous_secret_enc")


class Rotated(msgspec.Struct, kw_only=True):
    """How many triggers hold secrets, had them written anew, were edited meanwhile, and have one that no key opens."""

    seen: int = 0
    rewritten: int = 0
    overtaken: int = 0
    unreadable: list[TriggerId] = []


async def rotate(database: Database, vault: Vault) -> Rotated:
    """One pass over all triggers, a page at a time; each row is a statement of its own, so nobody waits for it."""
    total = Rotated()
    after: TriggerId | None = None
    while True:
        async with database.connection() as conn:
            page = await list_secrets(conn, after, limit=_PAGE)
            for secrets in page:
                total.seen += 1
                try:
                    renewed = _renewed(vault, secrets)
                except SecretUnreadable:
                    total.unreadable.append(secrets.id)
                    continue
                if renewed is None:
                    continue
                if await replace_secrets(conn, secrets, renewed):
                    total.rewritten += 1
                else:
                    total.overtaken += 1
        if len(page) < _PAGE:
            return total
        after = page[-1].id


def _renewed(vault: Vault, secrets: Secrets) -> Secrets | None:
    """The secrets under the first key; None where all of them are already."""
    changes: dict[str, bytes] = {}
    for column in _COLUMNS:
        encrypted: bytes | None = getattr(secrets, column)
        renewed = vault.renewed(encrypted) if encrypted is not None else None
        if renewed is not None:
            changes[column] = renewed
    return msgspec.structs.replace(secrets, **changes) if changes else None


def main(arguments: list[str]) -> int:
    """Say what was done; 1 if something is left to do or cannot be read, 2 if nothing could be tried."""
    if arguments:
        sys.stderr.write("rotate-keys: takes no arguments; the keys are AUTOPILOT_SECRET_KEYS\n")
        return 2
    try:
        config = configuration.load(CommonConfig, os.environ)
        vault = Vault.required(config.secret_keys)
        done = asyncio.run(_run(config, vault))
    except AutopilotError as error:
        sys.stderr.write(f"rotate-keys: {error}\n")
        return 2
    sys.stdout.write(
        f"{done.seen} triggers with secrets: {done.rewritten} written anew, {done.overtaken} edited meanwhile\n"
    )
    for trigger_id in done.unreadable:
        sys.stderr.write(f"rotate-keys: no key opens a secret of trigger {trigger_id}\n")
    if done.overtaken:
        sys.stderr.write("rotate-keys: run it again for those that were edited meanwhile\n")
    return 1 if done.unreadable or done.overtaken else 0


async def _run(config: CommonConfig, vault: Vault) -> Rotated:
    async with Database(config.database_url.reveal(), name="rotate-keys", max_size=1) as database:
        return await rotate(database, vault)
