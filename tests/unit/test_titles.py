"""S3.3: issue titles."""

from __future__ import annotations

from datetime import UTC, date, datetime

import pytest

from autopilot.domain.errors import InvalidValue
from autopilot.domain.titles import check_template, render_title, title_date

DAY = date(2026, 3, 8)


@pytest.mark.parametrize(
    "template", ["plain", "Report {{date}}", "{{ date }} {{date}}", "{ date } }} {{", "x" * 200]
)
def test_a_template_of_dates_is_accepted(template: str) -> None:
    check_template(template)


@pytest.mark.parametrize(
    ("template", "named"),
    [
        ("Report {{branch}}", r"\{\{branch\}\}"),
        ("{{date}} {{ trigger_id }}", r"\{\{ trigger_id \}\}"),
        ("{{}}", r"\{\{\}\}"),
        ("{{  }}", r"\{\{  \}\}"),
        ("{{Date}}", r"\{\{Date\}\}"),
        ("{{date()}}", r"\{\{date\(\)\}\}"),
        ("{{{date}}}", r"\{\{\{date\}\}"),
        ("{{ {{date}} }}", r"\{\{ \{\{date\}\}"),
        ("a\nb", "line break"),
        ("x" * 201, "longer than 200"),
        ("{{date}}" * 21, "longer than 200"),
    ],
)
def test_any_other_token_is_refused_by_name(template: str, named: str) -> None:
    """UI5."""
    with pytest.raises(InvalidValue, match=named) as refusal:
        check_template(template)
    assert refusal.value.field == "issue_title_template"


@pytest.mark.parametrize(
    ("template", "title"),
    [
        ("Report {{date}}: {{ date }}", "Report 2026-03-08: 2026-03-08"),
        ("plain", "plain"),
        (None, "My {{date}} rule"),
        ("", "My {{date}} rule"),
    ],
)
def test_the_template_is_filled_in_and_a_title_is_not(template: str | None, title: str) -> None:
    assert render_title(template, "My {{date}} rule", on=DAY) == title


PLANNED = datetime(2026, 3, 8, 1, 30, tzinfo=UTC)
RECEIVED = datetime(2026, 3, 9, 1, 30, tzinfo=UTC)
ADMITTED = datetime(2026, 3, 10, 1, 30, tzinfo=UTC)


@pytest.mark.parametrize(
    ("source", "tz_name", "day"),
    [
        ("schedule", None, date(2026, 3, 8)),
        ("schedule", "America/New_York", date(2026, 3, 7)),
        ("webhook", None, date(2026, 3, 9)),
        ("webhook", "America/New_York", date(2026, 3, 8)),
        ("manual", None, date(2026, 3, 10)),
        ("api", None, date(2026, 3, 10)),
    ],
)
def test_the_day_is_the_runs_own_in_the_triggers_zone(source: str, tz_name: str | None, day: date) -> None:
    assert title_date(source, tz_name, PLANNED, RECEIVED, ADMITTED) == day
