"""What every part of a walk has at hand: the snapshot it reads, the rule, who asks, and names."""

from __future__ import annotations

from datetime import datetime

from autopilot.domain.ids import AgentId, UserId
from autopilot.rules_api.explain.checks import when
from autopilot.storage import explain
from autopilot.storage.autopilots import Autopilot
from autopilot.storage.database import Conn
from autopilot.storage.explain import Version


class Look:
    """One walk over one snapshot of the database. `viewer` is the person who asks; None for a program's token."""

    def __init__(self, conn: Conn, rule: Autopilot, *, viewer: UserId | None, now: datetime) -> None:
        self.conn = conn
        self.rule = rule
        self.viewer = viewer
        self.now = now
        self._names: dict[UserId, str] = {}
        self._versions: dict[datetime, Version | None] = {}
        self._numbered: dict[int, Version | None] = {}

    async def name(self, user_id: UserId | None) -> str:
        """A person by name; those who left are said to have left."""
        if user_id is None:
            return "the system"
        if user_id not in self._names:
            found = (await explain.list_people(self.conn, self.rule.workspace_id, [user_id])).get(user_id)
            gone = " (who has left the workspace)" if found is not None and not found.present else ""
            self._names[user_id] = f"{found.name}{gone}" if found is not None else "an unknown person"
        return self._names[user_id]

    async def agent(self, agent_id: AgentId | None) -> str:
        """An agent by name, for those who may invoke it; nobody else learns that it exists (S4.2)."""
        if agent_id is None:
            return "its agent"
        name = await explain.find_agent_name(self.conn, self.rule.workspace_id, agent_id, self.viewer)
        return f"the agent {name}" if name is not None else "its agent"

    async def version_at(self, at: datetime) -> Version | None:
        """The version in force at an instant, which every trigger asks for at the same one."""
        if at not in self._versions:
            self._versions[at] = await explain.find_version_at(self.conn, self.rule.id, at)
        return self._versions[at]

    async def numbered(self, version: int) -> Version | None:
        """A version by its number: whole rules are large, and many runs are of the same one."""
        if version not in self._numbered:
            self._numbered[version] = await explain.find_version(self.conn, self.rule.id, version)
        return self._numbered[version]

    async def version(self, version: Version) -> str:
        """A version in words: its number, what it changed, by whom and when."""
        editor = version.edited_by if version.edited_by is not None else version.published_by
        return (
            f"version {version.version} ({version.change}, by {await self.name(editor)},"
            f" {when(version.published_at)})"
        )
