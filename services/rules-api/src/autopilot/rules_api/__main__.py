"""Start rules-api; `bootstrap` makes a workspace, its owner and their tokens, `new-key` a key, `rotate-keys` uses it."""

from __future__ import annotations

import sys

from autopilot.bus.connection import Bus
from autopilot.engine.secrets import Vault, new_key
from autopilot.kit.clock import SystemClock
from autopilot.kit.lifecycle import Service, run_service
from autopilot.rules_api import bootstrap, rotate_keys
from autopilot.rules_api.app import make_app
from autopilot.rules_api.config import Config
from autopilot.rules_api.deps import Deps
from autopilot.storage.database import Database
from autopilot.storage.schema_version import require_ready


async def build(service: Service, config: Config) -> None:
    database = await service.resource(Database.configured(config, name="rules-api"))
    bus = await service.resource(Bus(config.nats_url, name="rules-api"))
    service.health.check("database", lambda: require_ready(database))
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
    if arguments[:1] == ["rotate-keys"]:
        return rotate_keys.main(arguments[1:])
    if arguments == ["new-key"]:
        print(new_key())
        return 0
    return run_service("rules-api", Config, build)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
