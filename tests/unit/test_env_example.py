"""`deploy/env.example` says what the services' configurations say, key by key (S15)."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from autopilot.dispatcher.config import DispatcherConfig
from autopilot.engine.secrets import new_key
from autopilot.ingress.config import Config as IngressConfig
from autopilot.kit.config import CommonConfig, ConfigError, KeyDoc, describe, load
from autopilot.rules_api.config import Config as RulesApiConfig
from autopilot.scheduler.config import SchedulerConfig

EXAMPLE = Path(__file__).parents[2] / "deploy" / "env.example"
SERVICES: dict[str, type[CommonConfig]] = {
    "ingress": IngressConfig,
    "scheduler": SchedulerConfig,
    "dispatcher": DispatcherConfig,
    "rules-api": RulesApiConfig,
}


def entry_of(key: KeyDoc) -> str:
    """A key as the example shows it: what it is for, of which type, and its default, commented out."""
    words = {"str": "text", "int": "whole number", "float": "number", "list of str": "texts"}
    notes = [words.get(key.type, key.type), *["required"] * key.required]
    return f"# {key.doc} ({', '.join(notes)})\n#{key.name}={key.default}\n"


def section_of(title: str, struct: type[msgspec.Struct], *, without: type[msgspec.Struct] | None) -> str:
    known = {key.name for key in describe(without)} if without is not None else set()
    entries = [entry_of(key) for key in describe(struct) if key.name not in known]
    return f"# ---- {title} ----\n\n" + "\n".join(entries)


def sections() -> dict[str, str]:
    common = {"every service": section_of("every service", CommonConfig, without=None)}
    return common | {
        name: section_of(name, struct, without=CommonConfig) for name, struct in SERVICES.items()
    }


@pytest.mark.parametrize("title", sections())
def test_the_example_shows_each_key_as_the_code_has_it(title: str) -> None:
    """S15: a key that is new, gone, renamed, or has another default or another text, fails here."""
    expected = sections()[title]
    shown = {part.partition(" ----")[0]: part for part in EXAMPLE.read_text().split("# ---- ")[1:]}
    assert "# ---- " + shown.get(title, "").rstrip("\n") == expected.rstrip("\n")


def test_the_example_has_no_section_of_its_own() -> None:
    titles = [part.partition(" ----")[0] for part in EXAMPLE.read_text().split("# ---- ")[1:]]
    assert titles == list(sections())


@pytest.mark.parametrize("name", SERVICES)
def test_the_defaults_that_are_shown_are_those_that_are_used(name: str) -> None:
    """S15: setting every shown default changes nothing."""
    shown: dict[str, str] = {}
    for line in EXAMPLE.read_text().splitlines():
        if line.startswith("#AUTOPILOT_"):
            key, _, value = line.removeprefix("#").partition("=")
            shown[key] = value
    needed = {
        "AUTOPILOT_DATABASE_URL": "postgresql://localhost/autopilot",
        "AUTOPILOT_SECRET_KEYS": new_key(),
    }
    assert load(SERVICES[name], shown | needed) == load(SERVICES[name], needed)


@pytest.mark.parametrize(
    ("name", "wants"), [("ingress", True), ("rules-api", True), ("scheduler", False), ("dispatcher", False)]
)
@pytest.mark.parametrize("keys", ["", "no-key"])
def test_services_that_keep_secrets_refuse_to_start_without_a_good_key(
    name: str, wants: bool, keys: str
) -> None:
    """S15: at start, with everything else that is wrong, and not as a 503 at the first webhook."""
    given = {"AUTOPILOT_DATABASE_URL": "postgresql://localhost/autopilot", "AUTOPILOT_SECRET_KEYS": keys}
    if wants:
        with pytest.raises(ConfigError, match="AUTOPILOT_SECRET_KEYS"):
            load(SERVICES[name], given)
    else:
        assert load(SERVICES[name], given).database_url.reveal()
