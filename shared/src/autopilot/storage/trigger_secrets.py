"""What triggers keep encrypted, for whoever changes the key."""

from __future__ import annotations

import msgspec

from autopilot.domain.ids import TriggerId
from autopilot.storage import queries
from autopilot.storage.database import Conn

SQL = queries.load("trigger_secrets")


class Secrets(msgspec.Struct, frozen=True, kw_only=True):
    """The encrypted columns of one trigger."""

    id: TriggerId
    token_enc: bytes | None
    secret_enc: bytes | None
    previous_secret_enc: bytes | None


async def list_secrets(conn: Conn, after: TriggerId | None, *, limit: int) -> list[Secrets]:
    """Triggers with secrets, in id order after one of them, deleted ones too."""
    return [Secrets(**row) for row in await conn.fetch(SQL["list_secrets"], after, limit)]


async def replace_secrets(conn: Conn, before: Secrets, after: Secrets) -> bool:
    """Write the secrets anew; False where somebody else has changed them since."""
    found = await conn.fetchval(
        SQL["replace_secrets"],
        before.id,
        before.token_enc,
        before.secret_enc,
        before.previous_secret_enc,
        after.token_enc,
        after.secret_enc,
        after.previous_secret_enc,
    )
    return found is not None
