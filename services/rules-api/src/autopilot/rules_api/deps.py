"""What every route works with."""

from __future__ import annotations

import msgspec
from aiohttp import web

from autopilot.bus.connection import Bus
from autopilot.engine.secrets import Vault
from autopilot.kit.clock import Clock
from autopilot.rules_api.config import Config
from autopilot.storage.database import Database


class Deps(msgspec.Struct, frozen=True, kw_only=True):
    """The resources of one process, made by `__main__` and by tests."""

    database: Database
    bus: Bus
    secrets: Vault
    clock: Clock
    config: Config


DEPS: web.AppKey[Deps] = web.AppKey("deps", Deps)
