"""Configuration: every fault at once, secrets never shown (S15)."""

from __future__ import annotations

from typing import Annotated

import msgspec
import pytest

from autopilot.kit import config
from autopilot.kit.config import CommonConfig, ConfigError, Secret

NEEDED = {"AUTOPILOT_DATABASE_URL": "postgresql://u:hunter2@db/a"}


class Example(CommonConfig, frozen=True, kw_only=True):
    names: tuple[str, ...] = ()
    strict: bool = True
    limit: Annotated[int, msgspec.Meta(ge=1, le=10, description="How many")] = 5

    def __post_init__(self) -> None:
        if self.limit > self.db_pool_max:
            raise ValueError("AUTOPILOT_LIMIT is greater than AUTOPILOT_DB_POOL_MAX")


def faults_of(environ: dict[str, str]) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        config.load(Example, environ)
    return caught.value.faults


def test_values_are_read_by_their_types_and_defaults_stand() -> None:
    loaded = config.load(
        Example,
        NEEDED
        | {
            "AUTOPILOT_NAMES": "a, b,,c ",
            "AUTOPILOT_STRICT": "off",
            "AUTOPILOT_LIMIT": " 7 ",
            "AUTOPILOT_GRACE_S": "12",
            "AUTOPILOT_SECRET_KEYS": "new,old",
        },
    )
    assert loaded.names == ("a", "b", "c")
    assert loaded.strict is False
    assert (loaded.limit, loaded.grace_s, loaded.poll_interval_s) == (7, 12.0, 1.0)
    assert [key.reveal() for key in loaded.secret_keys] == ["new", "old"]
    assert loaded.database_url.reveal() == NEEDED["AUTOPILOT_DATABASE_URL"]


def test_an_empty_variable_counts_as_unset() -> None:
    assert config.load(Example, NEEDED | {"AUTOPILOT_NATS_URL": " ", "AUTOPILOT_LIMIT": ""}).nats_url is None
    assert faults_of({"AUTOPILOT_DATABASE_URL": ""})[0].startswith("AUTOPILOT_DATABASE_URL is missing")


def test_all_faults_are_reported_together_one_line_each() -> None:
    faults = faults_of(
        {
            "AUTOPILOT_HEALTH_PORT": "99999",
            "AUTOPILOT_GRACE_S": "soon",
            "AUTOPILOT_LOG_LEVEL": "loud",
            "AUTOPILOT_STRICT": "perhaps",
            "AUTOPILOT_LIMIT": "0",
        }
    )
    assert {fault.split(":")[0].split(" ")[0] for fault in faults} == {
        "AUTOPILOT_DATABASE_URL",
        "AUTOPILOT_HEALTH_PORT",
        "AUTOPILOT_GRACE_S",
        "AUTOPILOT_LOG_LEVEL",
        "AUTOPILOT_STRICT",
        "AUTOPILOT_LIMIT",
    }
    assert all("\n" not in fault for fault in faults)


def test_fields_that_contradict_each_other_are_a_fault() -> None:
    faults = faults_of(NEEDED | {"AUTOPILOT_LIMIT": "9", "AUTOPILOT_DB_POOL_MAX": "2"})
    assert faults == ["AUTOPILOT_LIMIT is greater than AUTOPILOT_DB_POOL_MAX"]


def test_a_secret_shows_itself_nowhere() -> None:
    loaded = config.load(Example, NEEDED | {"AUTOPILOT_NATS_URL": "nats://u:hunter2@bus"})
    shown = f"{loaded!r} {loaded.database_url} {loaded.database_url!r} {loaded.nats_url}"
    assert "hunter2" not in shown
    assert Secret("a") == Secret("a") != Secret("b")


@pytest.mark.parametrize("level", ["hunter2", "apt_hunter2"])
def test_the_value_of_a_refused_number_is_not_repeated(level: str) -> None:
    assert "hunter2" not in " ".join(faults_of(NEEDED | {"AUTOPILOT_LIMIT": level}))


def test_a_misspelt_key_is_a_hint_and_the_keys_of_other_services_are_not() -> None:
    environ = NEEDED | {"AUTOPILOT_LIMITS": "3", "AUTOPILOT_INGRESS_PORT": "80", "PATH": "/bin"}
    assert config.misspelt(Example, environ) == [
        "AUTOPILOT_LIMITS is not a setting here; did you mean AUTOPILOT_LIMIT?"
    ]
    assert config.load(Example, environ).limit == 5


def test_every_common_key_is_described() -> None:
    keys = {key.name: key for key in config.describe(Example)}
    assert all(keys[config.key_of(field.name)].doc for field in msgspec.structs.fields(CommonConfig))
    assert keys["AUTOPILOT_DATABASE_URL"].required
    assert keys["AUTOPILOT_SECRET_KEYS"].secret
    limit = keys["AUTOPILOT_LIMIT"]
    assert (limit.type, limit.default, limit.doc, limit.secret) == ("int", "5", "How many", False)
    assert keys["AUTOPILOT_LOG_LEVEL"].type == "debug|info|warning|error"
    assert keys["AUTOPILOT_NAMES"].default == ""
