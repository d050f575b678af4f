"""What the fields of a rule may hold (S13.8, S9.16)."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest

from autopilot.domain import rule_fields
from autopilot.domain.errors import InvalidValue


def secret(text: str) -> str:
    return rule_fields.checked_secret(text, "secret")


@pytest.mark.parametrize(
    ("check", "value", "kept"),
    [
        (rule_fields.checked_title, " Review ", "Review"),
        (rule_fields.checked_title, "é" * 200, "é" * 200),
        (rule_fields.checked_label, "  ", None),
        (rule_fields.checked_label, None, None),
        (rule_fields.checked_label, "x" * 100, "x" * 100),
        (rule_fields.checked_runbook, "", ""),
        (rule_fields.checked_runbook, "x" * 65_536, "x" * 65_536),
        (rule_fields.checked_template, " ", None),
        (rule_fields.checked_template, "On {{ date }}", "On {{ date }}"),
        (secret, "s" * 16, "s" * 16),
        (secret, "s" * 256, "s" * 256),
        (rule_fields.checked_grace, 0, timedelta(0)),
        (rule_fields.checked_grace, 604_800, timedelta(days=7)),
        (rule_fields.checked_pace, None, None),
        (rule_fields.checked_pace, 6_000, 6_000),
    ],
)
def test_what_fits_is_kept(check: Callable[[object], object], value: object, kept: object) -> None:
    assert check(value) == kept


@pytest.mark.parametrize(
    ("check", "value", "field"),
    [
        (rule_fields.checked_title, " ", "title"),
        (rule_fields.checked_title, "x" * 201, "title"),
        (rule_fields.checked_title, "a\0b", "title"),
        (rule_fields.checked_title, "a\ud800b", "title"),
        (rule_fields.checked_label, "x" * 101, "label"),
        (rule_fields.checked_runbook, "é" * 32_769, "description"),
        (rule_fields.checked_runbook, "a\0b", "description"),
        (rule_fields.checked_runbook, "a\ud800b", "description"),
        (rule_fields.checked_template, "{{}}", "issue_title_template"),
        (rule_fields.checked_template, "{{trigger_id}}", "issue_title_template"),
        (rule_fields.checked_template, "a\ud800b", "issue_title_template"),
        (secret, "s" * 15, "secret"),
        (secret, "s" * 257, "secret"),
        (secret, "s" * 16 + "\n", "secret"),
        (rule_fields.checked_grace, -1, "grace_s"),
        (rule_fields.checked_grace, 604_801, "grace_s"),
        (rule_fields.checked_pace, 0, "pace_per_min"),
        (rule_fields.checked_pace, 6_001, "pace_per_min"),
    ],
)
def test_what_does_not_fit_is_refused_by_its_field(
    check: Callable[[object], object], value: object, field: str
) -> None:
    with pytest.raises(InvalidValue) as refused:
        check(value)
    assert refused.value.field == field
