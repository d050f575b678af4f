"""`python -m autopilot.dispatcher`: turns admitted runs into issues and tasks and relays run events."""

from __future__ import annotations

import sys
from collections.abc import Callable

from autopilot.bus import subjects
from autopilot.bus.connection import Bus
from autopilot.bus.events import EventPublisher
from autopilot.bus.stream import StreamLimits
from autopilot.dispatcher.admissions import Admissions
from autopilot.dispatcher.config import DispatcherConfig
from autopilot.dispatcher.flush import flushing
from autopilot.dispatcher.pacing import Flood
from autopilot.dispatcher.relay import Relay, Sequencer
from autopilot.dispatcher.upkeep import Upkeep
from autopilot.dispatcher.worker import Worker
from autopilot.kit.lifecycle import Service, run_service
from autopilot.kit.loop import Loop, wake_one
from autopilot.storage.database import Database
from autopilot.storage.schema_version import require_ready

SWEEP_EVERY_S = 15.0
MEASURE_EVERY_S = 5.0
# Other services end runs without a word to this one, so the outbox is looked at more often than the queue.
SEQUENCE_EVERY_S = 0.25
# Events of runs that start or end one by one are numbered and published together.
GATHER_S = 0.04
# A stuck neighbour costs a batch half a second before it is split; all timeouts together stay below the lease.
# Its few statements are large, and their plans fit batches of any size: planning each anew for the first calls of every
# connection would be what a run waits for. A claim must go through the queue in the order of its index and stop in time: a
# plan that was made while the queue was empty would rather gather all of it first.
SESSION = {
    "lock_timeout": "500",
    "statement_timeout": "10000",
    "plan_cache_mode": "force_generic_plan",
    "enable_bitmapscan": "off",
}


async def build(service: Service, config: DispatcherConfig) -> None:
    """Put the dispatcher together."""
    database = await service.resource(
        Database.configured(
            config,
            name="dispatcher",
            max_size=max(config.db_pool_max, config.dispatch_concurrency + 3),
            settings=SESSION,
        )
    )
    bus = await service.resource(Bus(config.nats_url, name="dispatcher"))
    service.health.check("database", lambda: require_ready(database))
    service.health.degraded("nats", lambda: None if bus.state == "connected" else bus.state)
    poll_s = config.poll_interval_s

    limits = StreamLimits(
        max_age_s=config.event_stream_max_age_s,
        max_bytes=config.event_stream_max_bytes,
        replicas=config.event_stream_replicas,
    )
    publisher = EventPublisher(bus, limits=limits)
    service.health.degraded("event_stream", lambda: publisher.trouble)
    relay = Relay(
        database,
        publisher,
        connected=lambda: bus.client is not None,
        batch=config.event_batch_size,
    )
    relaying = service.loop(Loop("relay", relay.step, poll_s=poll_s))
    bus.on_connect(relaying.retry_now)
    bus.on_connect(relaying.wake)
    sequencer = Sequencer(database, batch=config.event_batch_size, tell=relaying.wake)
    sequencing = service.loop(
        Loop("sequencer", sequencer.step, poll_s=min(poll_s, SEQUENCE_EVERY_S), rest_s=GATHER_S)
    )

    await service.resource(flushing(sequencer, relay))  # entered first of what works, so left last

    flood = Flood(database, config)
    flood.wake = service.loop(Loop("pacing", flood.step, poll_s=poll_s)).wake
    wake = await _dispatching(
        service, config, lambda: Worker(database, bus, config, tell=sequencing.wake, flood=flood)
    )

    # Without a wake-up: deliveries are kept undecided only where something is broken, and a poll is soon enough.
    admissions = await service.resource(Admissions(database, config, wake=wake))
    service.loop(Loop("admissions", admissions.step, poll_s=poll_s))
    upkeep = Upkeep(database, wake=wake)
    service.loop(Loop("deferred", upkeep.move_due, poll_s=poll_s))
    service.loop(Loop("parked", upkeep.sweep_parked, poll_s=SWEEP_EVERY_S))
    service.loop(Loop("measure", upkeep.measure, poll_s=MEASURE_EVERY_S))

    def heard(_subject: str) -> None:
        wake()
        sequencing.wake()

    bus.on_wake(subjects.wake_dispatch, heard)


async def _dispatching(
    service: Service, config: DispatcherConfig, make: Callable[[], Worker]
) -> Callable[[], None]:
    """Run the dispatch loops; what to call when the queue has got entries."""
    loops: list[Loop] = []

    def share() -> None:
        wake_one(loops, patience_s=0)

    for number in range(config.dispatch_concurrency):
        worker = await service.resource(make())
        worker.more = share
        loops.append(service.loop(Loop(f"dispatch-{number}", worker.step, poll_s=config.poll_interval_s)))
    return lambda: wake_one(loops)


if __name__ == "__main__":
    sys.exit(run_service("dispatcher", DispatcherConfig, build))
