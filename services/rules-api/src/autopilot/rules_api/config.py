"""What rules-api is told by its environment."""

from __future__ import annotations

from typing import Annotated

import msgspec

from autopilot.engine.secrets import Vault
from autopilot.kit.config import CommonConfig


class Config(CommonConfig, frozen=True, kw_only=True):
    """The settings of rules-api beside the common ones."""

    api_host: Annotated[str, msgspec.Meta(description="Where the REST API listens")] = "127.0.0.1"
    api_port: Annotated[
        int, msgspec.Meta(ge=0, le=65535, description="Its port; 0 takes a free one and logs it")
    ] = 8080
    ingress_url: Annotated[
        str | None, msgspec.Meta(description="Where senders reach ingress; empty: webhook URLs are not shown")
    ] = None

    def __post_init__(self) -> None:
        Vault.required(self.secret_keys)
