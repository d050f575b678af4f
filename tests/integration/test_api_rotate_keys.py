"""Another key for what is kept encrypted, while everything runs (S9.1, HAZARDS 27)."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.support import rules as world
from tests.support.dispatching import execute, fetch

from autopilot.domain.ids import TriggerId
from autopilot.engine import triggers
from autopilot.engine.secrets import SecretUnreadable, Vault, new_key
from autopilot.kit.config import Secret
from autopilot.rules_api import rotate_keys
from autopilot.rules_api.rotate_keys import rotate
from autopilot.storage import trigger_secrets
from autopilot.storage.database import Conn, Database

OLD, NEW = Secret(new_key()), Secret(new_key())
BEFORE, BOTH, AFTER = Vault([OLD]), Vault([NEW, OLD]), Vault([NEW])
FIRST, SECOND = "the first secret", "the second secret"


@pytest.fixture
async def database(postgres_url: str) -> AsyncIterator[Database]:
    async with Database(postgres_url, name="test") as opened:
        yield opened


@pytest.fixture
async def setting(database: Database) -> world.Setting:
    return await world.make_setting(database)


async def hook(database: Database, setting: world.Setting, vault: Vault = BEFORE) -> TriggerId:
    """A webhook with a secret and the one before, all under the vault's first key."""
    made = await world.make_autopilot(database, setting)
    trigger = (await world.make_webhook_trigger(database, setting, made.id)).trigger

    async def fill(conn: Conn) -> None:
        await conn.execute(
            "UPDATE autopilot_trigger SET token_enc = $2 WHERE id = $1",
            trigger.id,
            vault.encrypt("awt_token"),
        )
        for secret in (FIRST, SECOND):
            await triggers.set_signing_secret(
                conn, vault, setting.workspace_id, made.id, trigger.id, setting.owner_id, secret
            )

    await database.transact(fill)
    return trigger.id


async def opened(database: Database, trigger_id: TriggerId, vault: Vault) -> tuple[str, ...]:
    (row,) = await fetch(
        database,
        "SELECT token_enc, secret_enc, previous_secret_enc FROM autopilot_trigger WHERE id = $1",
        trigger_id,
    )
    return tuple(vault.decrypt(value) for value in row)


async def test_every_secret_is_written_anew_and_only_then_is_the_old_key_needless(
    database: Database, setting: world.Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rotate_keys, "_PAGE", 2)
    found = [await hook(database, setting) for _ in range(3)]
    before = await fetch(database, "SELECT id, rev, secret_fingerprint FROM autopilot_trigger ORDER BY id")
    done = await rotate(database, BOTH)
    assert (done.seen, done.rewritten, done.overtaken, done.unreadable) == (3, 3, 0, [])
    for trigger_id in found:
        assert await opened(database, trigger_id, AFTER) == ("awt_token", SECOND, FIRST)
        with pytest.raises(SecretUnreadable):
            await opened(database, trigger_id, BEFORE)
    # No edit: nothing is published, nobody's If-Match fails, and fingerprints outlive the key.
    assert before == await fetch(
        database, "SELECT id, rev, secret_fingerprint FROM autopilot_trigger ORDER BY id"
    )
    again = await rotate(database, BOTH)
    assert (again.seen, again.rewritten) == (3, 0)


async def test_a_secret_that_is_set_meanwhile_is_not_overwritten_by_the_one_before(
    database: Database, setting: world.Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A read, another secret set, and only then the write."""
    trigger_id = await hook(database, setting)
    replace = trigger_secrets.replace_secrets

    async def late(conn: Conn, *secrets: Any) -> bool:
        await execute(
            database,
            "UPDATE autopilot_trigger SET secret_enc = $2 WHERE id = $1",
            trigger_id,
            BEFORE.encrypt("a newer secret"),
        )
        return await replace(conn, *secrets)

    monkeypatch.setattr(rotate_keys, "replace_secrets", late)
    assert (await rotate(database, BOTH)).overtaken == 1
    monkeypatch.undo()
    assert await opened(database, trigger_id, BOTH) == ("awt_token", "a newer secret", FIRST)
    assert (await rotate(database, BOTH)).rewritten == 1
    assert await opened(database, trigger_id, AFTER) == ("awt_token", "a newer secret", FIRST)


async def test_what_no_key_opens_is_named_and_left_and_the_rest_goes_on(
    database: Database, setting: world.Setting
) -> None:
    lost = await hook(database, setting, Vault([Secret(new_key())]))
    kept = await hook(database, setting)
    done = await rotate(database, BOTH)
    assert (done.unreadable, done.rewritten) == ([lost], 1)
    assert await opened(database, kept, AFTER) == ("awt_token", SECOND, FIRST)


async def test_the_command_says_what_it_did_and_nothing_of_a_secret(
    postgres_url: str, database: Database, setting: world.Setting
) -> None:
    await hook(database, setting)
    keys = ",".join(key.reveal() for key in (NEW, OLD))
    code, out, err = await run(postgres_url, keys)
    assert (code, err) == (0, "")
    assert out == "1 triggers with secrets: 1 written anew, 0 edited meanwhile\n"
    code, out, err = await run(postgres_url, OLD.reveal())
    assert code == 1
    assert "no key opens a secret of trigger" in err
    code, _, err = await run(postgres_url, "")
    assert (code, "AUTOPILOT_SECRET_KEYS is missing" in err) == (2, True)


async def run(postgres_url: str, keys: str) -> tuple[int, str, str]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "autopilot.rules_api", "rotate-keys"),
        env={**os.environ, "AUTOPILOT_DATABASE_URL": postgres_url, "AUTOPILOT_SECRET_KEYS": keys},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    return process.returncode or 0, out.decode(), err.decode()


STEPS = [Vault([OLD]), Vault([OLD, NEW]), Vault([NEW, OLD])]


@pytest.mark.parametrize("step", range(len(STEPS) - 1))
def test_processes_at_neighbouring_steps_of_a_rotation_open_what_each_other_writes(step: int) -> None:
    """A rolling restart has both at work, so the new key is known everywhere before anybody writes with it."""
    before, after = STEPS[step], STEPS[step + 1]
    assert after.decrypt(before.encrypt("a secret")) == "a secret"
    assert before.decrypt(after.encrypt("a secret")) == "a secret"


def test_a_step_that_is_left_out_leaves_processes_that_cannot_open_what_others_write() -> None:
    with pytest.raises(SecretUnreadable):
        STEPS[0].decrypt(STEPS[2].encrypt("a secret"))
