"""The ingress application: one handler for every path, no route or middleware between it and the socket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing

from aiohttp import web

from autopilot.bus.connection import Bus
from autopilot.bus.subjects import wake_dispatch
from autopilot.engine.secrets import Vault
from autopilot.ingress.config import Config
from autopilot.ingress.hints import Hints
from autopilot.ingress.intake import Intake
from autopilot.ingress.limits import Callers, GoodTokens, SlidingMinute
from autopilot.ingress.lookup import Lookups
from autopilot.ingress.receive import MAX_BODY_BYTES, Receiver
from autopilot.kit.server import HANDLE
from autopilot.storage.database import Database

# What is held for the database outlives a connection that was lost without a word: it is given up, and another one tried.
COMMAND_S = 4.5
ACQUIRE_S = 2.0


@asynccontextmanager
async def receiving(config: Config, database: Database, bus: Bus) -> AsyncIterator[Receiver]:
    """A receiver; on leaving, what it has taken is written first."""
    now = asyncio.get_running_loop().time
    vault = Vault(config.secret_keys)
    with closing(Hints(bus)) as hints:
        debt = SlidingMinute(config.ingress_bad_per_min, now, tell=hints.tell_debt)
        good = GoodTokens(now, tell=hints.tell_good)
        hints.listen(debt, good)
        async with (
            Lookups(database, vault, hold_s=config.ingress_hold_s) as lookups,
            Intake(
                database, lookups, lambda: bus.wake(wake_dispatch), hold_s=config.ingress_hold_s
            ) as intake,
        ):
            yield Receiver(
                lookups,
                intake,
                callers=Callers(config.networks(), config.ingress_forwarded_header),
                requests=SlidingMinute(config.ingress_ip_per_min, now),
                debt=debt,
                good=good,
            )


def make_app(receiver: Receiver) -> web.Application:
    """The application around a receiver."""
    app = web.Application(client_max_size=MAX_BODY_BYTES)
    app[HANDLE] = receiver.handle
    return app


def make_database(config: Config) -> Database:
    """The pool as ingress needs it: a lock is waited for briefly, a silent server not beyond an answer's time."""
    return Database.configured(
        config,
        name="ingress",
        acquire_timeout_s=ACQUIRE_S,
        command_timeout_s=COMMAND_S,
        settings={"lock_timeout": "400", "statement_timeout": "4000"},
    )
