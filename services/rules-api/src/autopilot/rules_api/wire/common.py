"""The bases of bodies and queries, and the types of fields that many of them share (S13.8)."""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias

import msgspec


class Body(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A JSON body. Limits given with `Meta` are refused with 422, wrong types and unknown fields with 400."""


class Query(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The query string of a request."""


# One line that is not blank, without control characters; `$` alone would let a last line break pass.
LINE: Final = r"^[^\x00-\x1f\x7f-\x9f]*[^\s\x00-\x1f\x7f-\x9f][^\x00-\x1f\x7f-\x9f]*$(?!\n)"

Name: TypeAlias = Annotated[str, msgspec.Meta(min_length=1, max_length=100, pattern=LINE)]
Email: TypeAlias = Annotated[str, msgspec.Meta(max_length=254, pattern=r"^[^@\s]+@[^@\s]+$")]
Title: TypeAlias = Annotated[
    str, msgspec.Meta(min_length=1, max_length=200, pattern=r"\S", examples=["Nightly review"])
]
Runbook: TypeAlias = Annotated[
    str,
    msgspec.Meta(
        max_length=64 * 1024,
        description="What the agent is to do, at most 64 KiB of UTF-8",
        examples=["Read what changed today and say what matters."],
    ),
]
Template: TypeAlias = Annotated[
    str,
    msgspec.Meta(
        max_length=200, description="An issue's title; `{{date}}` is the day", examples=["Review of {{date}}"]
    ),
]
SeenVersion: TypeAlias = Annotated[
    int, msgspec.Meta(description="The version that the editor saw: 409 if another edit came first")
]
