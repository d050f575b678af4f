"""Start rules-api; with `bootstrap`, make a workspace, its owner and their tokens instead."""

from __future__ import annotations

import sys

from autopilot.bus.connection import Bus
from autopilot.engine.secrets import Vault
from autopilot.kit.clock import SystemClock
from autopilot.kit.lifecycle import Service, run_service
from autopilot.rules_api import bootstrap
from autopilot.rules_api.app import make_app
from autopilot.rules_api.config import Config
from autopilot.rules_api.deps import Deps
from autopilot.storage.database import Database


async def build(service: Service, config: Config) -> None:
    database = await service.resource(
        Database(config.database_url.reveal(), name="rules-api", max_size=config.db_pool_max)
    )
    bus = await service.resource(Bus(config.nats_url, name="rules-api"))
    service.health.check("database", database.ping)
    service.health.degraded("nats", lambda: None if bus.state == "connected" else bus.state)
    deps = Deps(
        database=database,
        bus=bus,
        secrets=Vault(config.secret_keys),
        clock=SystemClock(),
        config=config,
    )
    service.http(make_app(deps), config.api_host, config.api_port)


def main(arguments: list[str]) -> int:
    if arguments[:1] == ["bootstrap"]:
        return bootstrap.main(arguments[1:])
    return run_service("rules-api", Config, build)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
