"""What the relay may publish at once: different runs, never two events of one (HAZARDS 18)."""

from __future__ import annotations

from datetime import UTC, datetime
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from autopilot.dispatcher.relay import by_run
from autopilot.domain.events import EventKind, RunEvent
from autopilot.domain.ids import AutopilotId, EventId, RunId, WorkspaceId
from autopilot.domain.states import RunStatus, Source


def event(seq: int, run: int) -> RunEvent:
    return RunEvent(
        event_id=EventId(UUID(int=seq)),
        epoch=1,
        seq=seq,
        kind=EventKind.STARTED,
        workspace_id=WorkspaceId(UUID(int=0)),
        autopilot_id=AutopilotId(UUID(int=0)),
        run_id=RunId(UUID(int=run)),
        source=Source.API,
        status=RunStatus.RUNNING,
        occurred_at=datetime(2026, 1, 1, tzinfo=UTC),
    )


@given(st.lists(st.integers(0, 5), max_size=60))
def test_each_run_has_its_events_in_order_and_none_is_left_out(runs: list[int]) -> None:
    waiting = [event(seq, run) for seq, run in enumerate(runs)]
    chains = by_run(waiting)
    assert sorted((one for chain in chains for one in chain), key=lambda one: one.seq) == waiting
    assert len(chains) == len(set(runs))
    for chain in chains:
        assert len({one.run_id for one in chain}) == 1
        assert [one.seq for one in chain] == sorted(one.seq for one in chain)
