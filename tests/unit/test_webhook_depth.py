"""How deep a body is nested is told exactly, by whichever short cut (S9.3)."""

from __future__ import annotations

import json
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autopilot.domain.webhook import body
from autopilot.domain.webhook.body import BadBody, parse_body

TEXT = st.text('[]{}"\\\\nx', max_size=6)
VALUES = st.recursive(
    st.integers(0, 9) | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=40,
)


def depth(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + max(map(depth, value.values()), default=0)
    if isinstance(value, list):
        return 1 + max(map(depth, value), default=0)
    return 0


@pytest.mark.parametrize(
    "shrunk", [{"_PEELS": 16}, {"_LARGE_BYTES": 0}, {"_LARGE_BYTES": 0, "_MANY_ESCAPES": 0}, {"_PEELS": 0}]
)
@settings(max_examples=40)
@given(value=st.lists(VALUES, min_size=1), limit=st.integers(1, 8))
def test_nesting_is_counted_as_python_counts_it(shrunk: dict[str, int], value: Any, limit: int) -> None:
    with ExitStack() as shrinking:
        for name, size in shrunk.items():
            shrinking.enter_context(patch.object(body, name, size))
        assert body._depth_over(json.dumps(value).encode(), limit) == (depth(value) > limit)


@pytest.mark.parametrize("filling", ['"[[[{{{"', '"]}"', '"\\\\"', '"\\""', '[[],{}],{"a":[]}'])
def test_a_large_body_is_judged_by_its_deepest_place(filling: str) -> None:
    rest = ",".join([filling] * 3000)
    inside = "[" * 97 + "{}" + "]" * 97
    deep, deeper = f"[{rest},{inside},{rest}]", f"[{rest},[[{inside}]],{rest}]"
    assert parse_body(deep.encode(), None).head == {}
    with pytest.raises(BadBody, match="nested more than 100"):
        parse_body(deeper.encode(), None)
