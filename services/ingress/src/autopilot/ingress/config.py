"""What ingress is told by its environment."""

from __future__ import annotations

from ipaddress import ip_network
from typing import Annotated

import msgspec

from autopilot.domain.errors import InvalidValue
from autopilot.engine.secrets import Vault
from autopilot.ingress.limits import ForwardedHeader, Network
from autopilot.kit.config import CommonConfig, key_of


class Config(CommonConfig, frozen=True, kw_only=True):
    """The settings of ingress beside the common ones."""

    ingress_host: Annotated[str, msgspec.Meta(description="Where webhooks are taken")] = "127.0.0.1"
    ingress_port: Annotated[
        int, msgspec.Meta(ge=0, le=65535, description="Its port; 0 takes a free one and logs it")
    ] = 8081
    ingress_ip_per_min: Annotated[
        int,
        msgspec.Meta(ge=0, le=1_000_000, description="Requests an address may make a minute; 0: any number"),
    ] = 600
    ingress_bad_per_min: Annotated[
        int,
        msgspec.Meta(
            ge=0,
            le=1_000_000,
            description="Unknown tokens and wrong signatures of an address a minute; 0: any number",
        ),
    ] = 30
    ingress_trusted_proxies: Annotated[
        tuple[str, ...],
        msgspec.Meta(
            description="Addresses or CIDR ranges whose forwarded header is believed, comma separated"
        ),
    ] = ()
    ingress_forwarded_header: Annotated[
        ForwardedHeader,
        msgspec.Meta(description="The header in which trusted proxies name the caller; the other is ignored"),
    ] = "X-Forwarded-For"
    ingress_hold_s: Annotated[
        float, msgspec.Meta(ge=0, le=8, description="How long a request waits for the database at most")
    ] = 5.0
    ingress_connections: Annotated[
        int, msgspec.Meta(ge=1, le=1_000_000, description="Connections that may be open at once")
    ] = 4096

    def __post_init__(self) -> None:
        self.networks()
        Vault.required(self.secret_keys)

    def networks(self) -> tuple[Network, ...]:
        """The trusted proxies as networks; InvalidValue names the one that is none."""
        return tuple(_network(text) for text in self.ingress_trusted_proxies)


def _network(text: str) -> Network:
    try:
        return ip_network(text, strict=False)
    except ValueError as error:
        key = key_of("ingress_trusted_proxies")
        raise InvalidValue(key, f"{key}: {text!r} is neither an address nor a CIDR range") from error
