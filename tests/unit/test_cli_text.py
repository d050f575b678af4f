"""Relative times with their zone, tables and texts that are safe to show (S14)."""

from __future__ import annotations

import json
import re
import sys
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import msgspec
import pytest

from autopilot.cli.commands.autopilots import LIST_COLUMNS, list_rows
from autopilot.cli.commands.runs import RUN_COLUMNS, Run, run_rows
from autopilot.cli.lookup import Listed
from autopilot.cli.output import print_json, print_table
from autopilot.cli.redact import redacted
from autopilot.cli.text import clock_time, coming, one_line, past, safe_json, short_ids

NOW = datetime(2026, 3, 14, 12, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (59, "59s"),
        (60, "1m"),
        (3_599, "59m"),
        (3_600, "1h"),
        (86_399, "23h"),
        (86_400, "1d"),
        (900_000, "10d"),
    ],
)
def test_a_time_ago_is_told_in_its_largest_unit(seconds: int, text: str) -> None:
    assert past(NOW - timedelta(seconds=seconds), NOW, UTC).startswith(f"{text} ago (")


def test_a_time_of_today_has_no_date_and_every_time_has_its_zone() -> None:
    assert past(NOW - timedelta(minutes=5), NOW, UTC) == "5m ago (11:55 UTC)"
    assert past(NOW - timedelta(days=1), NOW, UTC) == "1d ago (2026-03-13 12:00 UTC)"
    assert coming(NOW + timedelta(hours=2), NOW, ZoneInfo("Europe/Berlin")) == "in 2h (15:00 CET)"


def test_the_viewers_day_decides_what_today_is() -> None:
    late = datetime(2026, 3, 14, 23, 30, tzinfo=UTC)
    assert clock_time(late, NOW, ZoneInfo("Asia/Tokyo")) == "2026-03-15 08:30 JST"


def test_a_zone_without_a_name_shows_its_offset() -> None:
    assert clock_time(NOW, NOW, ZoneInfo("America/Sao_Paulo")) == "09:00 UTC-03"


def test_a_next_run_that_has_passed_is_due_and_not_ago() -> None:
    assert coming(NOW - timedelta(minutes=53), NOW, UTC) == "due (11:07 UTC)"


def test_ids_are_cut_no_shorter_than_they_differ() -> None:
    assert short_ids(["0195a1b2-c3d4-7000", "0195ffff-c3d4-7000"]) == ["0195a1b2", "0195ffff"]
    assert short_ids(["0195a1b2-c3d4-7000", "0195a1b2-c3d5-7000"]) == ["0195a1b2-c3d4", "0195a1b2-c3d5"]
    assert short_ids(["0195a1b2-c3d4-7000"] * 2) == ["0195a1b2"] * 2


def test_what_a_terminal_would_obey_is_not_printed() -> None:
    assert one_line("a\x1b[2Jb\nc\u202ed\x9be") == "a\ufffd[2Jb c\ufffdd\ufffde"


def test_json_escapes_what_a_terminal_would_obey_and_stays_the_same_json() -> None:
    text = json.dumps({"title": "a\x9b2J\u202eb 日本"}, ensure_ascii=False)
    shown = safe_json(text)
    assert "\x9b" not in shown
    assert "\u202e" not in shown
    assert "日本" in shown
    assert json.loads(shown) == json.loads(text)


def listed(**fields: object) -> Listed:
    given = {
        "id": "0195a1b2-0000-7000-8000-000000000001",
        "title": "Nightly triage",
        "status": "active",
        "execution_mode": "create_issue",
    }
    return msgspec.convert(given | fields, Listed)


def test_the_list_is_a_table_with_aligned_columns(capsys: pytest.CaptureFixture[str]) -> None:
    rows = list_rows(
        [
            listed(trigger_kinds=["schedule", "webhook"], next_run_at=NOW + timedelta(hours=21)),
            listed(
                id="0195a1b2-1111-7000-8000-000000000002",
                title="Answer [bold]issues[/bold]",
                status="paused",
                pause_reason="agent_runtime_required",
                execution_mode="run_only",
                last_run_at=NOW - timedelta(minutes=7),
                last_run_status="failed",
            ),
        ],
        NOW,
        UTC,
    )
    print_table(LIST_COLUMNS, rows)
    assert capsys.readouterr().out.splitlines() == [
        "ID             TITLE                       STATUS                           MODE          TRIGGERS           NEXT_RUN                       LAST_RUN",
        "0195a1b2-0000  Nightly triage              active                           create_issue  schedule, webhook  in 21h (2026-03-15 09:00 UTC)  -",
        "0195a1b2-1111  Answer [bold]issues[/bold]  paused (agent_runtime_required)  run_only      -                  -                              7m ago (11:53 UTC) failed",
    ]


def test_runs_tell_why_they_were_skipped_on_one_uncut_line(capsys: pytest.CaptureFixture[str]) -> None:
    reason = "The runtime is offline\nat dispatch time. " + "x" * 300
    run = Run(
        id="0195a1b2-0000-7000-8000-000000000001",
        status="skipped",
        source="schedule",
        created_at=NOW - timedelta(hours=1),
        completed_at=NOW - timedelta(minutes=59),
        reason_code="runtime_offline",
        failure_reason=reason,
    )
    done = Run(
        id="0195a1b3-0000-7000-8000-000000000001",
        status="completed",
        source="webhook",
        created_at=NOW,
        issue_key="AUT-7",
    )
    print_table(RUN_COLUMNS, run_rows([run, done], NOW, UTC))
    assert capsys.readouterr().out.splitlines() == [
        "ID        STATUS     SOURCE    CREATED             TOOK  ISSUE  REASON",
        "0195a1b2  skipped    schedule  1h ago (11:00 UTC)  1m    -      runtime_offline: The runtime is offline at dispatch time. "
        + "x" * 300,
        "0195a1b3  completed  webhook   0s ago (12:00 UTC)  -     AUT-7  -",
    ]


@pytest.mark.parametrize("columns", [150, 90, 20])
def test_a_narrow_terminal_shortens_titles_and_loses_no_column(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("TERM", "xterm")
    one = listed(title="A title of more than sixteen characters, " * 3, trigger_kinds=["schedule"])
    print_table(LIST_COLUMNS, list_rows([one], NOW, UTC))
    header, line = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out).splitlines()
    assert header.split() == list(LIST_COLUMNS)
    assert line.startswith("0195a1b2  A title of more")
    assert "…  active  create_issue  schedule  -" in line
    assert len(line) == max(columns, 78)


def test_json_keeps_numbers_as_they_came(capsys: pytest.CaptureFixture[str]) -> None:
    print_json(b'{"n":123456789012345678901234567890,"f":1.10}')
    assert capsys.readouterr().out == '{\n  "n": 123456789012345678901234567890,\n  "f": 1.10\n}\n'


def test_get_hides_what_lets_anyone_fire_the_rule() -> None:
    """S6.5, S14: nulls, a flag and the last four characters."""
    hook = {
        "kind": "webhook",
        "webhook_token": "awt_0123456789",
        "webhook_path": "/api/x/awt_0123456789",
        "webhook_url": "https://h/x/awt_0123456789",
    }
    unseen = {"kind": "webhook", "webhook_token": None, "webhook_path": None, "webhook_url": None}
    clock = {"kind": "schedule", "webhook_token": None, "webhook_path": None, "webhook_url": None}
    shown = redacted(json.dumps({"id": "a", "triggers": [hook, unseen, clock]}).encode())
    assert b"0123456789" not in shown
    nothing = {"webhook_token": None, "webhook_path": None, "webhook_url": None}
    assert json.loads(shown) == {
        "id": "a",
        "triggers": [
            {"kind": "webhook", **nothing, "has_webhook_token": True, "webhook_token_hint": "6789"},
            {"kind": "webhook", **nothing, "has_webhook_token": True, "webhook_token_hint": None},
            {"kind": "schedule", **nothing, "has_webhook_token": False, "webhook_token_hint": None},
        ],
    }
