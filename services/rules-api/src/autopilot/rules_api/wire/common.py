"""The bases of bodies and queries, and the types of fields that many of them share (S13.8)."""

from __future__ import annotations

from typing import Annotated, TypeAlias

import msgspec


class Body(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A JSON body. Limits given with `Meta` are refused with 422, wrong types and unknown fields with 400."""


class Query(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The query string of a request."""


Name: TypeAlias = Annotated[str, msgspec.Meta(min_length=1, max_length=100, pattern=r"\S")]
Email: TypeAlias = Annotated[str, msgspec.Meta(max_length=254, pattern=r"^[^@\s]+@[^@\s]+$")]
