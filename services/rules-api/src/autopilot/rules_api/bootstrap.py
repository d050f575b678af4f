"""`python -m autopilot.rules_api bootstrap`: a workspace, a member and their first tokens, for whoever runs the system.

It speaks to the database directly (AUTOPILOT_DATABASE_URL), since nobody has a token yet. Workspace, person and
membership are made once; the tokens are new each time.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys

import msgspec

from autopilot.domain.errors import AutopilotError
from autopilot.domain.ids import TokenId, UserId, WorkspaceId
from autopilot.domain.permissions import Role, TokenKind
from autopilot.kit import config as configuration
from autopilot.kit.config import CommonConfig
from autopilot.kit.ids import new_api_token, uuid7
from autopilot.rules_api import decode
from autopilot.rules_api.auth import PREFIXES, checked_slug
from autopilot.rules_api.wire.workspaces import MemberAdd, WorkspaceCreate
from autopilot.storage import members, tokens, workspaces
from autopilot.storage.database import Conn, Database

_DAYS = {TokenKind.PERSONAL: 90, TokenKind.RUNTIME: 365}


class Bootstrapped(msgspec.Struct, frozen=True, kw_only=True):
    """What was made or found; the only time that the tokens are shown."""

    workspace: str
    workspace_id: WorkspaceId
    user_id: UserId
    token: str
    runtime_token: str


async def bootstrap(
    database: Database, workspace: WorkspaceCreate, member: MemberAdd, role: Role | None
) -> Bootstrapped:
    """Idempotent but for the tokens; one who is a member already keeps their role.

    `role` None: the owner of a workspace that is new, a plain member of one that was there.
    """

    async def make(conn: Conn) -> Bootstrapped:
        user = await members.ensure_user(conn, user_id=UserId(uuid7()), email=member.email, name=member.name)
        found = await workspaces.find_workspace_by_slug(conn, workspace.slug)
        usual = Role.MEMBER if found is not None else Role.OWNER
        if found is None:
            found = await workspaces.insert_workspace(
                conn,
                workspace_id=WorkspaceId(uuid7()),
                slug=checked_slug(workspace.slug),
                name=workspace.name,
                issue_prefix=workspace.issue_prefix,
            )
        await members.ensure_member(conn, found.id, user.id, role or usual)
        return Bootstrapped(
            workspace=found.slug,
            workspace_id=found.id,
            user_id=user.id,
            token=await _new_token(conn, TokenKind.PERSONAL, user.id, None),
            runtime_token=await _new_token(conn, TokenKind.RUNTIME, user.id, found.id),
        )

    return await database.transact(make)


async def _new_token(conn: Conn, kind: TokenKind, user_id: UserId, workspace_id: WorkspaceId | None) -> str:
    secret = new_api_token(PREFIXES[kind])
    await tokens.insert_token(
        conn,
        token_id=TokenId(uuid7()),
        kind=kind,
        name="bootstrap",
        secret=secret,
        user_id=user_id if kind is TokenKind.PERSONAL else None,
        workspace_id=workspace_id,
        created_by=user_id,
        days=_DAYS[kind],
    )
    return secret


def main(arguments: list[str]) -> int:
    """Print what was made on stdout (`--json` for programs); 2 with a sentence on stderr if it is refused."""
    parser = argparse.ArgumentParser(
        prog="python -m autopilot.rules_api bootstrap", description=__doc__, allow_abbrev=False
    )
    parser.add_argument("--workspace", required=True, metavar="SLUG")
    parser.add_argument("--name", required=True, help="of the workspace, if it is new")
    parser.add_argument("--email", required=True, help="of the person who becomes a member")
    parser.add_argument(
        "--role",
        choices=[role.value for role in Role],
        help="default: owner of a new workspace, member of one that was there",
    )
    parser.add_argument(
        "--issue-prefix", default="AUT", help="of a new workspace: issues are AUT-1, AUT-2, …"
    )
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(arguments)
    try:
        config = configuration.load(CommonConfig, os.environ)
        workspace = decode.fit(
            {"slug": given.workspace, "name": given.name, "issue_prefix": given.issue_prefix}, WorkspaceCreate
        )
        member = decode.fit({"email": given.email}, MemberAdd)
        role = Role(given.role) if given.role is not None else None
        made = asyncio.run(_run(config, workspace, member, role))
    except AutopilotError as error:
        sys.stderr.write(f"bootstrap: {error}\n")
        return 2
    if given.json:
        sys.stdout.write(msgspec.json.encode(made).decode() + "\n")
    else:
        sys.stdout.writelines(f"{name:14} {value}\n" for name, value in msgspec.structs.asdict(made).items())
    return 0


async def _run(
    config: CommonConfig, workspace: WorkspaceCreate, member: MemberAdd, role: Role | None
) -> Bootstrapped:
    async with Database(config.database_url.reveal(), name="bootstrap", max_size=1) as database:
        return await bootstrap(database, workspace, member, role)
