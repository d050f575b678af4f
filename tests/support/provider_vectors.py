"""Signed requests whose signatures were not made by the code under test: the providers' own, or openssl's."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from autopilot.domain.webhook import providers

SIGNED_AT = 1614265330
KEY = "0123456789abcdef"
STANDARD_SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"

_EVERYBODY = "It's a Secret to Everybody"
_STANDARD_SIGNATURE = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
_OPENED = "7a759d7f250254a7b0052f938f9f7f7b6b01be4a2484911adc582428df9a4521"
_MERGE_REQUEST = b'{"object_kind":"merge_request","object_attributes":{"action":"open","iid":7}}'
_COMMAND = (
    b"token=xyzz0WbapA4vBCDEFasx0q6G&team_id=T1DC2JH3J&team_domain=testteamnow&channel_id=G8PSS9T3V&channel_name=foobar"
    b"&user_id=U2CERLKJA&user_name=roadrunner&command=%2Fwebhook-collect&text=&response_url=https%3A%2F%2Fhooks.slack.com"
    b"%2Fcommands%2FT1DC2JH3J%2F397700885554%2F96rGlfmibIGlgcZRskXaIFfN&trigger_id=398738663015.47445629121"
    b".803a0bc887a14d10d2c447fce8b6703c"
)


class Vector(msgspec.Struct, frozen=True, kw_only=True):
    """A request as its provider sends it; `source` says where its scheme, and if `published` its signature, comes from.

    `event` and `key` are what is to be read of it, None where the published body is no JSON.
    """

    provider: str
    secret: str
    signature: Mapping[str, str]
    body: bytes
    source: str
    headers: Mapping[str, str] = {}
    published: bool = False
    signed_at: int = SIGNED_AT
    content_type: str = "application/json"
    event: str | None = None
    key: str | None = None

    @property
    def timed(self) -> bool:
        """Whether the signature covers a time, by which it ages."""
        return any(
            scheme.header in self.signature
            and (scheme.timestamp_header or scheme.timestamp_prefix or scheme.timestamp_field)
            for scheme in providers.get(self.provider).schemes
        )


VECTORS = (
    Vector(
        provider="generic",
        secret=KEY,
        signature={"X-Hub-Signature-256": f"sha256={_OPENED}"},
        body=b'{"action":"opened","number":1}',
        headers={"Idempotency-Key": "k-1"},
        source="https://www.w3.org/TR/websub/#authenticated-content-distribution",
        event="opened",
        key="k-1",
    ),
    Vector(
        provider="github",
        secret=_EVERYBODY,
        signature={
            "X-Hub-Signature-256": "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"
        },
        body=b"Hello, World!",
        source="https://docs.github.com/en/webhooks/using-webhooks/validating-webhook-deliveries",
        published=True,
    ),
    Vector(
        provider="github",
        secret=KEY,
        signature={"X-Hub-Signature-256": f"sha256={_OPENED}"},
        body=b'{"action":"opened","number":1}',
        headers={"X-GitHub-Event": "pull_request", "X-GitHub-Delivery": "72d3162e"},
        source="https://docs.github.com/en/webhooks/webhook-events-and-payloads#delivery-headers",
        event="github.pull_request.opened",
        key="72d3162e",
    ),
    Vector(
        provider="gitlab",
        secret="a secret token of ours",
        signature={"X-Gitlab-Token": "a secret token of ours"},
        body=_MERGE_REQUEST,
        headers={"X-Gitlab-Event": "Merge Request Hook", "Idempotency-Key": "f5e5f430"},
        source="https://docs.gitlab.com/user/project/integrations/webhooks/",
        event="gitlab.Merge Request Hook.open",
        key="f5e5f430",
    ),
    Vector(
        provider="gitlab",
        secret=STANDARD_SECRET,
        signature={"webhook-signature": "v1,pZMNa4kWv3KinuUeyTYz0S4eiaJfUM/B8P4qdGvQFk0="},
        body=_MERGE_REQUEST,
        headers={
            "X-Gitlab-Event": "Merge Request Hook",
            "webhook-id": "msg_1",
            "webhook-timestamp": str(SIGNED_AT),
        },
        source="https://gitlab.com/gitlab-org/gitlab/-/merge_requests/230944",
        event="gitlab.Merge Request Hook.open",
        key="msg_1",
    ),
    Vector(
        provider="gitea",
        secret=KEY,
        signature={"X-Gitea-Signature": _OPENED},
        body=b'{"action":"opened","number":1}',
        headers={
            "X-Gitea-Event": "pull_request",
            "X-Gitea-Delivery": "f6266f16",
            "X-GitHub-Event": "pull_request",
        },
        source="https://docs.gitea.com/usage/webhooks",
        event="gitea.pull_request.opened",
        key="f6266f16",
    ),
    Vector(
        provider="gitea",
        secret=KEY,
        signature={"X-Forgejo-Signature": _OPENED},
        body=b'{"action":"opened","number":1}',
        headers={"X-Forgejo-Event": "issues", "X-Forgejo-Delivery": "f6266f16"},
        source="https://forgejo.org/docs/latest/user/webhooks/",
        event="gitea.issues.opened",
        key="f6266f16",
    ),
    Vector(
        provider="bitbucket",
        secret=_EVERYBODY,
        signature={
            "X-Hub-Signature": "sha256=a4771c39fbe90f317c7824e83ddef3caae9cb3d976c214ace1f2937e133263c9"
        },
        body=b"Hello World!",
        source="https://support.atlassian.com/bitbucket-cloud/docs/manage-webhooks/",
        published=True,
    ),
    Vector(
        provider="bitbucket",
        secret=KEY,
        signature={"X-Hub-Signature": f"sha256={_OPENED}"},
        body=b'{"action":"opened","number":1}',
        headers={"X-Event-Key": "pullrequest:created", "X-Request-UUID": "r-1"},
        source="https://support.atlassian.com/bitbucket-cloud/docs/event-payloads/",
        event="bitbucket.pullrequest:created",
        key="r-1",
    ),
    Vector(
        provider="stripe",
        secret=KEY,
        signature={
            "Stripe-Signature": f"t={SIGNED_AT},v1=75ee4d3d31ccce68ba8112eb2a80ed00a59f597707e98e805a43a2bdbe5e0fa7"
        },
        body=b'{"id":"evt_1","object":"event","type":"invoice.paid"}',
        source="https://docs.stripe.com/webhooks?verify=verify-manually",
        event="stripe.invoice.paid",
        key="evt_1",
    ),
    Vector(
        provider="slack",
        secret="8f742231b10e8888abcd99yyyzzz85a5",
        signature={
            "X-Slack-Signature": "v0=a2114d57b48eac39b9ad189dd8316235a7b4a8d21a10bd27519666489c69b503"
        },
        body=_COMMAND,
        headers={"X-Slack-Request-Timestamp": "1531420618"},
        content_type="application/x-www-form-urlencoded",
        source="https://docs.slack.dev/authentication/verifying-requests-from-slack",
        published=True,
        signed_at=1531420618,
        event="slack./webhook-collect",
    ),
    Vector(
        provider="linear",
        secret=KEY,
        signature={"Linear-Signature": "783d0b7f7213e7c46e788a963525466cf8182ee2460dac2a49c9197c2c2519ae"},
        body=b'{"action":"create","type":"Issue","data":{"id":"i1"},"webhookTimestamp":1614265330000}',
        headers={"Linear-Event": "Issue", "Linear-Delivery": "234d1a4e"},
        source="https://linear.app/developers/webhooks",
        event="linear.Issue.create",
        key="234d1a4e",
    ),
    Vector(
        provider="shopify",
        secret=KEY,
        signature={"X-Shopify-Hmac-Sha256": "HFTb53c5JTPlcZHhLXYLvhPMC3CyhJkpHTKNmf3Enbw="},
        body=b'{"id":820982911946154508,"currency":"USD"}',
        headers={"X-Shopify-Topic": "orders/create", "X-Shopify-Webhook-Id": "b54557e4"},
        source="https://shopify.dev/docs/apps/build/webhooks/subscribe/https",
        event="shopify.orders/create",
        key="b54557e4",
    ),
    Vector(
        provider="sentry",
        secret=KEY,
        signature={
            "Sentry-Hook-Signature": "2e02b2163f473076d301c488e24eb6326247bdaabfcfae15ff31b411ccc0d8d8"
        },
        body=b'{"action":"created","installation":{"uuid":"u"},"data":{},"actor":{"type":"application","id":"sentry"}}',
        headers={"Sentry-Hook-Resource": "issue", "Request-ID": "req-1", "Sentry-Hook-Timestamp": "1"},
        source="https://docs.sentry.io/organization/integrations/integration-platform/webhooks/",
        event="sentry.issue.created",
        key="req-1",
    ),
    Vector(
        provider="sentry",
        secret=KEY,
        signature={
            "Sentry-App-Signature": "2e02b2163f473076d301c488e24eb6326247bdaabfcfae15ff31b411ccc0d8d8"
        },
        body=b'{"action":"created","installation":{"uuid":"u"},"data":{},"actor":{"type":"application","id":"sentry"}}',
        headers={"Sentry-Hook-Resource": "external_issue", "Request-ID": "req-2"},
        source="https://docs.sentry.io/organization/integrations/integration-platform/webhooks/",
        event="sentry.external_issue.created",
        key="req-2",
    ),
    Vector(
        provider="pagerduty",
        secret=KEY,
        signature={
            "X-PagerDuty-Signature": f"v1={'0' * 64},v1=ed58d2618c732a819ecef9f9ed8f627589a0c3e1c00dedec793c9ba98345aedb"
        },
        body=b'{"event":{"id":"01D","event_type":"incident.triggered","resource_type":"incident","data":{"id":"P1"}}}',
        source="https://docs.pagerduty.com/developer/verifying-webhook-signatures",
        event="pagerduty.incident.triggered",
        key="01D",
    ),
    Vector(
        provider="standard-webhooks",
        secret=STANDARD_SECRET,
        signature={"webhook-signature": _STANDARD_SIGNATURE},
        body=b'{"test": 2432232314}',
        headers={"webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek", "webhook-timestamp": str(SIGNED_AT)},
        source="https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md",
        published=True,
        event="webhook.received",
        key="msg_p5jXN8AQM9LWM0D4loKWxJek",
    ),
    Vector(
        provider="standard-webhooks",
        secret=STANDARD_SECRET,
        signature={"svix-signature": _STANDARD_SIGNATURE},
        body=b'{"test": 2432232314}',
        headers={"svix-id": "msg_p5jXN8AQM9LWM0D4loKWxJek", "svix-timestamp": str(SIGNED_AT)},
        source="https://docs.svix.com/receiving/verifying-payloads/how-manual",
        published=True,
        event="webhook.received",
        key="msg_p5jXN8AQM9LWM0D4loKWxJek",
    ),
)

PUBLISHED = frozenset({"github", "bitbucket", "slack", "standard-webhooks"})
"""The providers whose documentation has a signature to check against; the others show the algorithm only."""
