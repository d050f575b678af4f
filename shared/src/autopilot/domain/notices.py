"""What people are told of a rule in their inbox, and in which words (S7.14, S11.5)."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from autopilot.domain.states import PauseReason


class NoticeKind(StrEnum):
    """The kinds of inbox items that are about a rule itself."""

    AUTOPILOT_PAUSED = "autopilot_paused"
    AUTOPILOT_FAILING = "autopilot_failing"
    AUTOPILOT_SKIPPING = "autopilot_skipping"
    AUTOPILOT_RECOVERED = "autopilot_recovered"
    AUTOPILOT_HANDED_OVER = "autopilot_handed_over"


PAUSE_CAUSES: Final[dict[PauseReason, str]] = {
    PauseReason.AGENT_RUNTIME_REQUIRED: "its agent has no runtime",
    PauseReason.TARGET_UNAVAILABLE: "its assignee is gone",
    PauseReason.OWNER_LEFT: "its creator left the workspace",
    PauseReason.TOO_MANY_FAILURES: "too many of its runs failed",
}
HANDED_OVER_TEXT: Final = "was handed to the leader of its squad: the squad was archived"


def notice_title(title: str, text: str) -> str:
    """The line that an inbox shows."""
    return f"“{title}” {text}"


def paused_text(cause: str) -> str:
    """What follows the rule's title when the system paused it."""
    return f"was paused by the system: {cause}"
