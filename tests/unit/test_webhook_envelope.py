"""S9.4: the event's name and the envelope."""

from __future__ import annotations

import pytest
from multidict import CIMultiDict

from autopilot.domain.webhook import envelope, providers

GENERIC = providers.get("generic")
GITHUB = providers.get("github")


@pytest.mark.parametrize(
    ("provider", "headers", "body", "event"),
    [
        pytest.param(
            "github", {"x-github-event": "pull_request"}, {"action": "opened"}, "github.pull_request.opened"
        ),
        pytest.param("github", {"X-GitHub-Event": "push"}, {"ref": "x"}, "github.push"),
        pytest.param("github", {"X-GitHub-Event": "push"}, {"action": True}, "github.push", id="WH16"),
        pytest.param(
            "github", {"X-GitHub-Event": "push"}, {"event": "mine"}, "github.push", id="header first"
        ),
        pytest.param(
            "github", {"X-GitHub-Event": " ", "X-Event-Type": "t"}, {}, "t", id="a blank header is none"
        ),
        pytest.param("github", {}, {"action": "opened"}, "opened", id="without its header"),
        pytest.param(
            "generic", {"X-Event-Type": "t"}, {"event": "deploy.done"}, "deploy.done", id="body event wins"
        ),
        pytest.param(
            "generic", {"X-Event-Type": "T Raw"}, {"event": 1, "type": "b"}, "T Raw", id="raw header"
        ),
        pytest.param("generic", {"X-GitHub-Event": "issues"}, {"action": "closed"}, "github.issues.closed"),
        pytest.param("generic", {}, {"event": "", "type": "t", "action": "a"}, "t"),
        pytest.param("generic", {}, {"event": " ", "type": None, "action": "a"}, "a"),
        pytest.param(
            "generic", {}, {"action": True, "type": ["x"], "event": {}}, "webhook.received", id="WH16 all"
        ),
        pytest.param("generic", {}, [{"event": "x"}], "webhook.received", id="an array"),
        pytest.param("generic", {}, {"event": "a\0b"}, "a\ufffdb", id="WH6 a NUL in a name"),
        pytest.param("generic", {"X-Gitlab-Event": "Push Hook"}, {"action": "x"}, "gitlab.Push Hook"),
        pytest.param(
            "generic",
            {"X-GitHub-Event": "push", "X-Gitea-Event": "push"},
            {},
            "gitea.push",
            id="Gitea sends GitHub's headers too",
        ),
        pytest.param(
            "generic", {}, {"type": "invoice.paid", "id": "evt_1"}, "invoice.paid", id="no guessing"
        ),
        pytest.param(
            "gitlab",
            {"X-Gitlab-Event": "Pipeline Hook"},
            {"object_attributes": {"status": "failed"}},
            "gitlab.Pipeline Hook.failed",
        ),
        pytest.param(
            "gitlab", {"X-Gitlab-Event": "Job Hook"}, {"build_status": "failed"}, "gitlab.Job Hook.failed"
        ),
        pytest.param(
            "gitlab", {"X-Gitlab-Event": "Push Hook"}, {"object_attributes": [1]}, "gitlab.Push Hook"
        ),
        pytest.param(
            "slack", {}, {"type": "event_callback", "event": {"type": "app_mention"}}, "slack.app_mention"
        ),
        pytest.param(
            "slack",
            {},
            {"type": "event_callback", "event": {"type": "message", "subtype": "channel_join"}},
            "slack.message.channel_join",
        ),
        pytest.param("slack", {}, {"type": "block_actions"}, "slack.block_actions", id="slack interactivity"),
        pytest.param("slack", {"X-Event-Type": "t"}, {}, "t", id="slack without any name"),
        pytest.param("stripe", {}, {"type": ["x"], "action": "a"}, "a", id="WH16 stripe"),
        pytest.param("pagerduty", {}, {"event": "text"}, "text", id="no event of PagerDuty's"),
        pytest.param("standard-webhooks", {}, {"type": "user.created"}, "user.created"),
    ],
)
def test_the_first_place_that_names_the_event_counts(
    provider: str, headers: dict[str, str], body: object, event: str
) -> None:
    assert envelope.read_event(providers.get(provider), CIMultiDict(headers), body) == event


@pytest.mark.parametrize("provider", providers.PROVIDERS)
@pytest.mark.parametrize(
    "raw",
    [
        b'{"action":"opened","type":1,"x":[]}',
        b'{"type":"t","id":"i","event_id":"e","command":"/c","challenge":"c","build_status":"failed"}',
        b'{"event":{"type":"t","subtype":"s","event_type":"e.t","id":"i","event":{"type":"no"}},"action":"a"}',
        b'{"object_attributes":{"action":"open","status":"x"},"event":"e","eventPayload":{"action":"p"}}',
        b'{"eventPayload":"text","event":"e","webhookTimestamp":1614265330000,"id":12345678901234567890}',
        b"[1]",
    ],
)
def test_the_head_tells_the_same_as_the_value(provider: str, raw: bytes) -> None:
    """Whatever the table of providers looks at is in the head, which alone is read while a sender waits."""
    row, body = providers.get(provider), envelope.parse_body(raw, None)
    for headers in (CIMultiDict[str](), CIMultiDict(dict.fromkeys(row.event_headers, "pull_request"))):
        assert envelope.read_event(row, headers, body.head) == envelope.read_event(row, headers, body.value)
        assert providers.dedupe_key(row, headers, body.head) == providers.dedupe_key(row, headers, body.value)
    paths = (*row.event_fields, *row.action_fields, *row.delivery_fields)
    for path in paths:
        assert providers.text_at(body.head, path) == providers.text_at(body.value, path)


def test_a_name_of_255_characters_is_the_longest() -> None:
    """S3.4."""
    headers = CIMultiDict({"X-GitHub-Event": "e" * 240})
    assert len(envelope.read_event(GITHUB, headers, {"action": "a" * 7})) == 255
    with pytest.raises(envelope.BadBody, match="longer than 255") as refusal:
        envelope.read_event(GITHUB, headers, {"action": "a" * 8})
    assert refusal.value.field == "event"


def test_a_header_that_is_not_utf_8_is_refused() -> None:
    with pytest.raises(envelope.BadBody, match="X-GitHub-Event is not UTF-8"):
        envelope.read_event(GITHUB, CIMultiDict({"X-GitHub-Event": "push\udcff"}), {})


@pytest.mark.parametrize(
    ("provider", "body", "payload"),
    [
        pytest.param(GENERIC, {"event": "e", "eventPayload": [1]}, [1], id="taken as is"),
        pytest.param(GENERIC, {"event": "e", "eventPayload": None}, None, id="null is given"),
        pytest.param(GENERIC, {"event": "e", "x": 1}, {"event": "e", "x": 1}, id="not given"),
        pytest.param(
            GENERIC, {"event": 1, "eventPayload": 2}, {"event": 1, "eventPayload": 2}, id="no event"
        ),
        pytest.param(
            GITHUB, {"event": "e", "eventPayload": 1}, {"event": "e", "eventPayload": 1}, id="github"
        ),
        pytest.param(GENERIC, [1], [1], id="an array"),
    ],
)
def test_the_envelope_carries_the_events_own_payload(
    provider: providers.Provider, body: object, payload: object
) -> None:
    assert envelope.envelope("e", body, provider, "2026-03-08T09:00:00Z", "text/plain") == {
        "event": "e",
        "eventPayload": payload,
        "request": {"receivedAt": "2026-03-08T09:00:00Z", "contentType": "text/plain"},
    }


def test_only_the_providers_own_prefix_is_taken_off_a_name() -> None:
    acme = providers.Provider(name="acme", schemes=GITHUB.schemes, event_headers=("X-Acme",))
    assert envelope.bare_name(GITHUB, "github.push") == envelope.bare_name(GENERIC, "github.push") == "push"
    assert envelope.bare_name(acme, "github.push") == "github.push"
    assert envelope.bare_name(GITHUB, "github") == "github"


def test_a_ping_is_known_by_its_provider() -> None:
    """S9.8: `provider_ping`."""
    assert envelope.is_ping(GITHUB, "github.ping")
    assert envelope.is_ping(GENERIC, "github.ping")
    assert not envelope.is_ping(GITHUB, "github.push")
    assert not envelope.is_ping(GENERIC, "ping")
