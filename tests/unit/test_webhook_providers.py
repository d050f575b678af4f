"""S9.5, S9.7: the table of providers, and the key that tells a repeat."""

from __future__ import annotations

import pytest
from multidict import CIMultiDict

from autopilot.domain.errors import InvalidValue
from autopilot.domain.webhook import providers
from autopilot.domain.webhook.body import BadBody

GENERIC = providers.get("generic")
GITHUB = providers.get("github")


def test_the_table_is_keyed_by_the_rows_own_names() -> None:
    assert all(name == row.name for name, row in providers.PROVIDERS.items())
    assert {*providers.PROVIDERS} == {
        *(
            "generic",
            "github",
            "gitlab",
            "gitea",
            "bitbucket",
            "stripe",
            "slack",
            "linear",
            "shopify",
            "sentry",
        ),
        *("pagerduty", "standard-webhooks"),
    }


@pytest.mark.parametrize(("alias", "name"), [("forgejo", "gitea"), ("svix", "standard-webhooks")])
def test_a_provider_answers_to_its_other_name(alias: str, name: str) -> None:
    assert providers.get(alias).name == name


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("githb", "did you mean github"),
        ("GitHub", "did you mean github"),
        ("", "generic, github"),
        ("Forgejo", "did you mean forgejo"),
        ("zzz", "generic"),
    ],
)
def test_an_unknown_provider_is_refused_with_the_nearest_name(name: str, advice: str) -> None:
    with pytest.raises(InvalidValue, match=advice) as refusal:
        providers.get(name)
    assert refusal.value.field == "provider"


@pytest.mark.parametrize(
    ("provider", "headers", "key"),
    [
        pytest.param(GITHUB, {"x-github-delivery": " d1 "}, ("d1", "delivery_id"), id="trimmed"),
        pytest.param(GITHUB, {"X-GitHub-Delivery": "d", "Idempotency-Key": "k"}, ("d", "delivery_id")),
        pytest.param(GITHUB, {"X-GitHub-Delivery": " ", "Idempotency-Key": "k"}, ("k", "idempotency_key")),
        pytest.param(GENERIC, {"idempotency-key": "k" * 255}, ("k" * 255, "idempotency_key")),
        pytest.param(GENERIC, {"Idempotency-Key": "\t "}, None, id="blank is none"),
        pytest.param(GENERIC, {}, None, id="WH17: no guess from the body"),
    ],
)
def test_the_delivery_id_comes_before_the_idempotency_key(
    provider: providers.Provider, headers: dict[str, str], key: tuple[str, str] | None
) -> None:
    assert providers.dedupe_key(provider, CIMultiDict(headers), {}) == key


@pytest.mark.parametrize("key", ["k" * 256, "k\udcff"])
def test_a_key_that_cannot_be_kept_is_refused(key: str) -> None:
    with pytest.raises(BadBody) as refusal:
        providers.dedupe_key(GENERIC, CIMultiDict({"Idempotency-Key": key}), {})
    assert refusal.value.field == "Idempotency-Key"


@pytest.mark.parametrize(
    ("provider", "body", "key"),
    [
        ("stripe", {"id": "evt_1"}, ("evt_1", "delivery_id")),
        ("slack", {"event_id": "Ev1", "id": "x"}, ("Ev1", "delivery_id")),
        ("pagerduty", {"event": {"id": "01"}, "id": "x"}, ("01", "delivery_id")),
        ("stripe", {"id": "a\0b"}, ("a\ufffdb", "delivery_id")),
        ("stripe", {"id": 7}, ("k", "idempotency_key")),
        ("pagerduty", {"event": "text", "id": "x"}, ("k", "idempotency_key")),
        ("pagerduty", [1], ("k", "idempotency_key")),
        ("generic", {"id": "evt_1"}, ("k", "idempotency_key")),
    ],
)
def test_an_id_inside_the_signed_body_comes_before_the_idempotency_key(
    provider: str, body: object, key: tuple[str, str]
) -> None:
    """WH9: whoever replays a request cannot give it another id."""
    headers = CIMultiDict({"Idempotency-Key": "k"})
    assert providers.dedupe_key(providers.get(provider), headers, body) == key


def test_an_id_in_the_body_that_cannot_be_kept_is_refused_by_its_path() -> None:
    with pytest.raises(BadBody) as refusal:
        providers.dedupe_key(providers.get("pagerduty"), CIMultiDict(), {"event": {"id": "i" * 256}})
    assert refusal.value.field == "event.id"
