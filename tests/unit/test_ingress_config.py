"""What ingress refuses to be told (S15)."""

from __future__ import annotations

from ipaddress import ip_network

import pytest
from tests.support.rules import SECRET_KEY

from autopilot.ingress.config import Config
from autopilot.kit.config import ConfigError, load

BASE = {"AUTOPILOT_DATABASE_URL": "postgresql://db/x", "AUTOPILOT_SECRET_KEYS": SECRET_KEY}


def test_proxies_are_read_as_networks() -> None:
    config = load(Config, BASE | {"AUTOPILOT_INGRESS_TRUSTED_PROXIES": "10.1.2.3/8, ::1"})
    assert config.networks() == (ip_network("10.0.0.0/8"), ip_network("::1/128"))


def test_the_limits_default_to_what_is_promised() -> None:
    """S9.2."""
    config = load(Config, BASE)
    assert (config.ingress_ip_per_min, config.ingress_bad_per_min) == (600, 30)
    assert (config.ingress_host, config.ingress_port) == ("127.0.0.1", 8081)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("AUTOPILOT_INGRESS_TRUSTED_PROXIES", "10.0.0.0/8, my-proxy"),
        ("AUTOPILOT_INGRESS_IP_PER_MIN", "-1"),
        ("AUTOPILOT_INGRESS_BAD_PER_MIN", "many"),
        ("AUTOPILOT_INGRESS_PORT", "70000"),
        ("AUTOPILOT_INGRESS_FORWARDED_HEADER", "X-Real-IP"),
    ],
)
def test_what_cannot_be_meant_is_refused_by_name(key: str, value: str) -> None:
    with pytest.raises(ConfigError, match=key):
        load(Config, BASE | {key: value})
