"""Triggers that bring far more than their pace allows: their runs get their times in large pages, while others pass (S10.3)."""

from __future__ import annotations

from collections.abc import Callable, Collection

from autopilot.dispatcher.config import DispatcherConfig
from autopilot.domain.ids import TriggerId
from autopilot.kit import log, metrics
from autopilot.storage import pending
from autopilot.storage.database import Database

PAGE = 5000
# What is passed over is not looked through to its end.
LOOK_AHEAD = 100_000
# More would make the lists that every claim carries long; the others are found out when these are done.
MAX_NOISY = 100

_logger = log.get_logger()
paced = metrics.counter("dispatch_paced_total", "Webhook runs put back until their trigger's pace lets them")


class Flood:
    """The noisy triggers that the loops of a process know of, and the loop's work on them.

    A claim that mostly meets runs beyond their trigger's pace notes the triggers here; from then on claims pass over
    their runs, and `step` gives these their times page by page, until there are none left without. `wake` is called
    when a trigger was noted.
    """

    def __init__(self, database: Database, config: DispatcherConfig) -> None:
        self._database = database
        self._config = config
        self._noisy: set[TriggerId] = set()
        self._cursor = 0
        self.wake: Callable[[], None] = lambda: None

    @property
    def noisy(self) -> Collection[TriggerId]:
        """The triggers whose runs claims pass over."""
        return self._noisy

    def note(self, triggers: Collection[TriggerId]) -> None:
        """These have brought far more than their pace allows."""
        new = set(triggers) - self._noisy
        if not new or len(self._noisy) >= MAX_NOISY:
            return
        self._noisy |= new
        self._cursor = 0
        _logger.info("triggers_beyond_pace", triggers=[str(each) for each in new])
        self.wake()

    async def step(self) -> bool:
        """Give times to one page; whether there may be more."""
        if not self._noisy:
            return False
        triggers, start = list(self._noisy), self._cursor
        async with self._database.connection() as conn:
            end = await pending.look_ahead(conn, start, LOOK_AHEAD)
            page = await pending.give_times(
                conn,
                triggers,
                limit=PAGE,
                pace_per_min=self._config.dispatch_pace_per_min,
                start=start,
                end=end,
            )
        paced.inc(page.deferred)
        if page.next_seq is None and end == pending.END_OF_QUEUE:
            self._noisy.difference_update(triggers)
            return False
        self._cursor = end if page.next_seq is None else page.next_seq
        return True
