"""Concurrent edits: the version an editor saw, from `If-Match` or the body (S13.2)."""

from __future__ import annotations

import re

from aiohttp import hdrs
from msgspec import UNSET, UnsetType

from autopilot.domain.errors import Conflict
from autopilot.rules_api.endpoint import Call
from autopilot.rules_api.problems import malformed

_TAG = re.compile(r'(?:W/)?"?([0-9]{1,18})"?')


def expected_version(call: Call, version: int | UnsetType = UNSET) -> int | None:
    """The version that must still stand; None if the editor does not care. 400 for a tag that is none of ours."""
    given = None if isinstance(version, UnsetType) else version
    header = call.request.headers.get(hdrs.IF_MATCH, "*").strip()
    if header == "*":
        return given
    tag = _TAG.fullmatch(header)
    if tag is None:
        raise malformed("If-Match is not a version of this resource.", "If-Match")
    if given is not None and given != int(tag[1]):
        raise Conflict(
            "If-Match and `version` name different versions: one is not the present one.",
            code="edit_conflict",
        )
    return int(tag[1])
