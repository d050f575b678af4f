"""What tests of explain share: a question, and the facts of its answer."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from tests.support.api import Client

from autopilot.domain.ids import AutopilotId


async def explained(client: Client, rule: AutopilotId, **asked: Any) -> dict[str, Any]:
    """The whole answer to a question that can be asked."""
    given = "&".join(
        f"{name}={value.strftime('%Y-%m-%dT%H:%M:%SZ') if isinstance(value, datetime) else value}"
        for name, value in asked.items()
    )
    answer = await client("GET", f"/api/autopilots/{rule}/explain?{given}")
    assert answer.status == 200, answer.body
    body: dict[str, Any] = answer.body
    return body


def check(answer: dict[str, Any], code: str) -> dict[str, Any]:
    """The check of the first finding with this code."""
    found: dict[str, Any] = next(one for one in answer["findings"][0]["checks"] if one["code"] == code)
    return found


def codes(answer: dict[str, Any]) -> list[str]:
    """The codes of the first finding's checks, in order."""
    return [one["code"] for one in answer["findings"][0]["checks"]]


def fact(answer: dict[str, Any], name: str) -> Any:
    """A fact of the check that is the answer."""
    return check(answer, answer["verdict"])["facts"][name]
