"""Start ingress."""

from __future__ import annotations

import sys

from autopilot.bus.connection import Bus
from autopilot.ingress.app import make_app, make_database, receiving
from autopilot.ingress.config import Config
from autopilot.kit.connections import SocketLimits
from autopilot.kit.lifecycle import Service, run_service
from autopilot.storage.schema_version import require_ready


async def build(service: Service, config: Config) -> None:
    database = await service.resource(make_database(config))
    bus = await service.resource(Bus(config.nats_url, name="ingress"))
    service.health.check("database", lambda: require_ready(database))
    service.health.degraded("nats", lambda: None if bus.state == "connected" else bus.state)
    receiver = await service.resource(receiving(config, database, bus))
    limits = SocketLimits(connections=config.ingress_connections)
    service.http(make_app(receiver), config.ingress_host, config.ingress_port, limits=limits)


def main() -> int:
    return run_service("ingress", Config, build)


if __name__ == "__main__":
    sys.exit(main())
