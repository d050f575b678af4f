"""S9.6: HMAC over the raw bytes."""

from __future__ import annotations

import hmac
from datetime import UTC, datetime

import pytest
from multidict import CIMultiDict

from autopilot.domain.webhook import providers
from autopilot.domain.webhook.signature import SignatureStatus, Signed, verify

GITHUB = providers.get("github")
SECRET = b"0123456789abcdef"
OTHER = b"fedcba9876543210"

TWO_BLANKS = b'{"key": "value",  "num": 1.0}'
OF_TWO_BLANKS = "36c7654c22707a4ef678af4258f1e2503d43c26ea6bb34850cc514eb1a38bd07"
VECTORS = [
    pytest.param(TWO_BLANKS, OF_TWO_BLANKS, id="WH3 raw bytes"),
    pytest.param(
        '{"msg":"café 😊"}'.encode(),
        "6f1b648e721a902bad0fb6e9be40c82ba18931321430f5e1ca11ce66b9a4f63a",
        id="WH4 bytes, not characters",
    ),
    pytest.param(
        b"payload=%7B%22action%22%3A%22opened%22%7D",
        "dfcbe315cc22e3977662508ce39703d298fa1dcfb520052cf83be76a8bbcf4a8",
        id="WH5 the form as it was sent",
    ),
]


def judge(signature: str | None, raw: bytes, *secrets: bytes, provider: str = "github") -> SignatureStatus:
    headers = CIMultiDict({"x-hub-signature-256": signature} if signature is not None else {})
    request = Signed(headers=headers, raw=raw, head={})
    return verify(providers.get(provider), secrets, request, datetime.fromtimestamp(0, UTC)).status


@pytest.mark.parametrize("provider", ["generic", "github"])
@pytest.mark.parametrize(("raw", "digest"), VECTORS)
def test_a_signature_over_the_raw_bytes_is_valid(provider: str, raw: bytes, digest: str) -> None:
    assert judge(f"sha256={digest}", raw, SECRET, provider=provider) is SignatureStatus.VALID
    assert judge(f"sha256={digest.upper()}", raw, SECRET, provider=provider) is SignatureStatus.VALID


def test_a_signature_over_reserialised_json_is_invalid() -> None:
    """WH3."""
    digest = hmac.digest(SECRET, b'{"key": "value", "num": 1.0}', "sha256").hex()
    assert digest.startswith("4703d159")
    assert judge(f"sha256={digest}", TWO_BLANKS, SECRET) is SignatureStatus.INVALID


@pytest.mark.parametrize(
    "signature",
    [
        "",
        "sha256=",
        OF_TWO_BLANKS,
        f"sha1={OF_TWO_BLANKS}",
        f"SHA256={OF_TWO_BLANKS}",
        f"sha256={OF_TWO_BLANKS[:-1]}",
        f"sha256={OF_TWO_BLANKS}0",
        f"sha256={OF_TWO_BLANKS}\n",
        f"sha256= {OF_TWO_BLANKS}",
        f"sha256={OF_TWO_BLANKS[:32]} {OF_TWO_BLANKS[32:]}",
        "sha256=" + "é" * 64,
        "sha256=" + "\udcff" * 64,
        "sha256=" + "٣" * 64,
        "sha256=" + "g" * 64,
        "sha256=" + "0" * 64,
        f"sha256={OF_TWO_BLANKS},sha256={OF_TWO_BLANKS}",
    ],
)
def test_whatever_is_wrong_or_malformed_is_invalid(signature: str) -> None:
    assert judge(signature, TWO_BLANKS, SECRET) is SignatureStatus.INVALID


def test_no_secret_asks_for_no_signature() -> None:
    assert judge(None, TWO_BLANKS) is SignatureStatus.NOT_REQUIRED
    assert judge("sha256=junk", TWO_BLANKS) is SignatureStatus.NOT_REQUIRED


def test_a_secret_without_a_signature_is_missing() -> None:
    assert judge(None, TWO_BLANKS, SECRET) is SignatureStatus.MISSING


def test_the_previous_secret_counts_while_it_is_given() -> None:
    """S9.13."""
    signature = f"sha256={OF_TWO_BLANKS}"
    assert judge(signature, TWO_BLANKS, OTHER, SECRET) is SignatureStatus.VALID
    assert judge(signature, TWO_BLANKS, OTHER) is SignatureStatus.INVALID
