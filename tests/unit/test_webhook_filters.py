"""S9.9: event filters, as they are saved and as they judge."""

from __future__ import annotations

import pytest

from autopilot.domain.errors import InvalidValue
from autopilot.domain.webhook import providers
from autopilot.domain.webhook.body import parse_body
from autopilot.domain.webhook.filters import EventFilter, matches, parse_filters

GENERIC = providers.get("generic")
GITHUB = providers.get("github")
OPENED = "github.pull_request.opened"


@pytest.mark.parametrize(
    ("filters", "event", "value", "wanted"),
    [
        pytest.param([], OPENED, {}, True, id="none is all"),
        pytest.param(None, OPENED, {}, True, id="null is all"),
        pytest.param([{"event": "pull_request"}], OPENED, {}, True, id="up to the first dot"),
        pytest.param([{"event": "pull_request.opened"}], OPENED, {}, True, id="whole"),
        pytest.param([{"event": "github.pull_request"}], OPENED, {}, True, id="spelled with the prefix"),
        pytest.param([{"event": "Pull_Request"}], OPENED, {}, False, id="case matters"),
        pytest.param([{"event": "pull"}], OPENED, {}, False, id="no part of a name"),
        pytest.param([{"event": "github"}], OPENED, {}, False, id="the prefix is not the name"),
        pytest.param([{"event": "push"}, {"event": "pull_request"}], OPENED, {}, True, id="any row suffices"),
        pytest.param(
            [{"event": "pull_request", "actions": ["opened"]}], OPENED, {}, True, id="action suffix"
        ),
        pytest.param([{"event": "pull_request", "actions": ["closed"]}], OPENED, {"action": "opened"}, False),
        pytest.param([{"event": "pull_request", "actions": ["Opened"]}], OPENED, {}, False, id="actions too"),
        pytest.param([{"event": "pull_request", "actions": []}], OPENED, {}, True, id="no actions are any"),
        *(
            pytest.param(
                [{"event": "status", "actions": ["x"]}], "github.status", {field: "x"}, True, id=field
            )
            for field in ("action", "state", "conclusion", "status")
        ),
        pytest.param([{"event": "status", "actions": ["x"]}], "github.status", {"result": "x"}, False),
        pytest.param(
            [{"event": "push", "actions": ["True"]}], "github.push", {"action": True}, False, id="WH16"
        ),
        pytest.param([{"event": "push", "actions": ["x"]}], "github.push", ["x"], False, id="an array"),
        pytest.param([{"event": "push", "actions": [""]}], "github.push", {}, False, id="no suffix"),
        pytest.param("push", "github.push", {}, False, id="unreadable denies"),
        pytest.param({}, "github.push", {}, False, id="unreadable: an object"),
        pytest.param([{"event": "push"}, 1], "github.push", {}, False, id="unreadable: one bad row"),
    ],
)
def test_a_row_wants_an_event_by_name_and_action(
    filters: object, event: str, value: object, wanted: bool
) -> None:
    assert matches(filters, GITHUB, event, value) is wanted


@pytest.mark.parametrize(
    ("provider", "row", "event", "wanted"),
    [
        (
            "gitlab",
            {"event": "Merge Request Hook", "actions": ["open"]},
            "gitlab.Merge Request Hook.open",
            True,
        ),
        (
            "gitlab",
            {"event": "Merge Request Hook", "actions": ["merge"]},
            "gitlab.Merge Request Hook.open",
            False,
        ),
        ("bitbucket", {"event": "pullrequest:created"}, "bitbucket.pullrequest:created", True),
        ("bitbucket", {"event": "pullrequest"}, "bitbucket.pullrequest:created", False),
        ("stripe", {"event": "invoice.paid"}, "stripe.invoice.paid", True),
        ("stripe", {"event": "invoice", "actions": ["paid"]}, "stripe.invoice.paid", True),
        ("slack", {"event": "message", "actions": ["channel_join"]}, "slack.message.channel_join", True),
        ("linear", {"event": "Issue", "actions": ["create"]}, "linear.Issue.create", True),
        ("shopify", {"event": "orders/create"}, "shopify.orders/create", True),
        ("pagerduty", {"event": "incident", "actions": ["triggered"]}, "pagerduty.incident.triggered", True),
        ("standard-webhooks", {"event": "user", "actions": ["created"]}, "user.created", True),
        ("generic", {"event": "push"}, "gitea.push", True),
        ("stripe", {"event": "push"}, "github.push", False),
    ],
)
def test_a_row_names_an_event_as_its_provider_does(
    provider: str, row: object, event: str, wanted: bool
) -> None:
    """S9.5: the filters that docs/webhooks.md gives as examples."""
    assert matches([row], providers.get(provider), event, {}) is wanted


def test_a_filtered_action_stays_out() -> None:
    """WH16: `workflow_run.in_progress` is noise where `completed` is wanted."""
    rows = [EventFilter(event="workflow_run", actions=["completed"])]
    assert matches(rows, GITHUB, "github.workflow_run.completed", {})
    assert not matches(rows, GITHUB, "github.workflow_run.in_progress", {})


def test_a_generic_envelope_is_filtered_by_its_own_payload() -> None:
    rows = parse_filters([{"event": "deploy", "actions": ["failed"]}])
    inner = parse_body(b'{"event":"deploy","eventPayload":{"status":"failed"},"status":"ok"}', None)
    outer = parse_body(b'{"event":"deploy","eventPayload":"text","status":"failed"}', None)
    for value in (inner.value, inner.head):
        assert matches(rows, GENERIC, "deploy", value)
    for value in (outer.value, outer.head):
        assert not matches(rows, GENERIC, "deploy", value)


def test_a_generic_trigger_filters_a_known_sender_by_its_bare_name() -> None:
    assert matches([EventFilter(event="pull_request")], GENERIC, OPENED, {})
    assert not matches([EventFilter(event="pull_request")], GENERIC, "acme.pull_request", {})


def test_filters_are_read_as_they_are_sent() -> None:
    assert parse_filters(None) == []
    assert parse_filters([{"event": "Push Hook"}, {"event": "a", "actions": ["b", "c"]}]) == [
        EventFilter(event="Push Hook"),
        EventFilter(event="a", actions=["b", "c"]),
    ]
    limits = [{"event": "e" * 100, "actions": ["a" * 100] * 50}] * 50
    assert len(parse_filters(limits)) == 50


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("push", "must be a list"),
        ({"event": "push"}, "must be a list"),
        (["push"], "filter 1 must be an object"),
        ([{"event": "a"}, {}], "event of filter 2"),
        ([{"event": True}], "event of filter 1"),
        ([{"event": " "}], "event of filter 1"),
        ([{"event": "a\0"}], "control character"),
        ([{"event": "e" * 101}], "longer than 100"),
        ([{"event": "a", "action": "b"}], "unknown field 'action'"),
        ([{"event": "a", "actions": "b"}], "actions of filter 1 must be a list"),
        ([{"event": "a", "actions": [1]}], "action of filter 1"),
        ([{"event": "a", "actions": ["a" * 101]}], "longer than 100"),
        ([{"event": "a", "actions": ["b"] * 51}], "more than 50 actions"),
        ([{"event": "a"}] * 51, "at most 50"),
    ],
)
def test_a_wrong_filter_is_refused_by_its_row(value: object, reason: str) -> None:
    """S13.8."""
    with pytest.raises(InvalidValue, match=reason) as refusal:
        parse_filters(value)
    assert refusal.value.field == "event_filters"
