"""How the relay cuts events into windows (HAZARDS 18)."""

from __future__ import annotations

from datetime import UTC, datetime
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from autopilot.dispatcher.relay import windows
from autopilot.domain.events import EventKind, RunEvent
from autopilot.domain.ids import AutopilotId, EventId, RunId, WorkspaceId
from autopilot.domain.states import RunStatus, Source


def event(seq: int, run: int) -> RunEvent:
    return RunEvent(
        event_id=EventId(UUID(int=seq)),
        seq=seq,
        kind=EventKind.STARTED,
        workspace_id=WorkspaceId(UUID(int=0)),
        autopilot_id=AutopilotId(UUID(int=0)),
        run_id=RunId(UUID(int=run)),
        source=Source.API,
        status=RunStatus.RUNNING,
        occurred_at=datetime(2026, 1, 1, tzinfo=UTC),
    )


@given(st.lists(st.integers(0, 5), max_size=60), st.integers(1, 8))
def test_windows_keep_order_hold_each_run_once_and_are_never_larger_than_asked(
    runs: list[int], size: int
) -> None:
    waiting = [event(seq, run) for seq, run in enumerate(runs)]
    cut = windows(waiting, size)
    assert [one for window in cut for one in window] == waiting
    for window in cut:
        assert 1 <= len(window) <= size
        assert len({one.run_id for one in window}) == len(window)


def test_events_of_different_runs_share_a_window() -> None:
    assert [len(window) for window in windows([event(seq, seq) for seq in range(10)], 4)] == [4, 4, 2]
