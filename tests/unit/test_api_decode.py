"""What does not fit is told from what is refused, and both are named by their field (S13.2)."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autopilot.domain.errors import InvalidValue
from autopilot.domain.permissions import Action
from autopilot.kit.http import Problem
from autopilot.rules_api.decode import fit, refusal
from autopilot.rules_api.endpoint import Call, get, post
from autopilot.rules_api.paging import decode_cursor, encode_cursor
from autopilot.rules_api.wire.common import Body, Name


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


class Row(Body, frozen=True, kw_only=True):
    event: Name
    actions: Annotated[list[Name], msgspec.Meta(max_length=2)] | None = None


class Everything(Body, frozen=True, kw_only=True):
    name: Name = "x"
    count: Annotated[int, msgspec.Meta(ge=1, le=5)] | msgspec.UnsetType | None = msgspec.UNSET
    colour: Colour | msgspec.UnsetType = msgspec.UNSET
    mode: Literal["fast", "slow"] = "fast"
    owner: UUID | None = None
    rows: Annotated[list[Row], msgspec.Meta(max_length=2)] = msgspec.field(default_factory=list)


def refused(raw: str) -> tuple[int, str, str]:
    with pytest.raises(msgspec.ValidationError) as caught:
        msgspec.json.decode(raw, type=Everything)
    error = refusal(caught.value, Everything)
    if isinstance(error, InvalidValue):
        return 422, error.field, error.message
    return error.status, str(error.facts["field"]), error.message


@pytest.mark.parametrize(
    ("raw", "status", "field"),
    [
        ('{"name": 1}', 400, "name"),
        ('{"owner": "me"}', 400, "owner"),
        ('{"count": 1.5}', 400, "count"),
        ('{"rows": {}}', 400, "rows"),
        ('{"rows": [{"actions": []}]}', 400, "rows[0].event"),
        ('{"rows": [{"event": "x", "acts": []}]}', 400, "rows[0].acts"),
        ('{"rows": [{"event": "x", "actions": [1]}]}', 400, "rows[0].actions[0]"),
        ('{"count": 0}', 422, "count"),
        ('{"count": 6}', 422, "count"),
        ('{"name": ""}', 422, "name"),
        ('{"name": "\\t"}', 422, "name"),
        ('{"colour": "green"}', 422, "colour"),
        ('{"mode": "idle"}', 422, "mode"),
        ('{"rows": [{"event": "x", "actions": ["a", "b", "c"]}]}', 422, "rows[0].actions"),
    ],
)
def test_a_wrong_shape_is_400_and_a_refused_value_422(raw: str, status: int, field: str) -> None:
    assert refused(raw)[:2] == (status, field)


def test_an_unknown_field_is_answered_with_the_nearest_one() -> None:
    assert refused('{"nmae": "x"}')[2].endswith("Did you mean name?")
    assert refused('{"rows": [{"evnt": "x"}]}')[2].endswith("Did you mean event?")
    assert "Did you mean" not in refused('{"zzzzzz": 1}')[2]


def test_a_choice_is_answered_with_all_choices_and_not_with_what_was_sent() -> None:
    """S9.12: what was sent may be a secret in the wrong place."""
    for raw, choices in (('{"colour": "apt_secret"}', "red, blue"), ('{"mode": "apt_secret"}', "fast, slow")):
        message = refused(raw)[2]
        assert choices in message
        assert "secret" not in message


def test_text_becomes_numbers_and_choices_where_a_query_says_so() -> None:
    assert fit({"count": "3", "colour": "red"}, Everything) == Everything(count=3, colour=Colour.RED)
    assert fit({"name": "null"}, Everything).name == "null"
    with pytest.raises(InvalidValue):
        fit({"count": "9"}, Everything)


@pytest.mark.parametrize(
    ("name", "refusal"), [("count", Problem), ("colour", InvalidValue), ("owner", Problem)]
)
def test_no_text_of_a_query_is_null(name: str, refusal: type[Exception]) -> None:
    for text in ("null", "NULL"):
        with pytest.raises(refusal):
            fit({name: text}, Everything)


@given(st.uuids())
def test_a_cursor_gives_back_its_id(last: UUID) -> None:
    assert decode_cursor(encode_cursor(last)) == last


@given(st.text(max_size=21) | st.sampled_from(["A" * 23, "=" * 22, "é" * 22, "A" * 21 + "B"]))
def test_any_other_text_is_no_cursor(text: str) -> None:
    with pytest.raises(Problem) as refused:
        decode_cursor(text)
    assert (refused.value.status, refused.value.code) == (400, "bad_cursor")


def test_a_handler_that_no_request_can_reach_is_refused_at_import() -> None:
    async def without_call(body: Row) -> None: ...

    async def with_stray(call: Call, other_id: UUID) -> None: ...

    with pytest.raises(TypeError, match="Call"):
        post("/x", without_call, right=Action.READ)
    with pytest.raises(TypeError, match="other_id"):
        get("/x/{some_id}", with_stray)
