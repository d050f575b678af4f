"""Whether a webhook was signed with one of the trigger's secrets (S9.6)."""

from __future__ import annotations

import hmac
import re
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Final

from autopilot.domain.webhook.providers import HmacHex, Provider

_HEX_SHA256: Final = re.compile(r"[0-9a-fA-F]{64}")


class SignatureStatus(StrEnum):
    """What the signature of a delivery proved."""

    NOT_REQUIRED = "not_required"
    VALID = "valid"
    INVALID = "invalid"
    MISSING = "missing"


def verify(
    provider: Provider, secrets: Sequence[bytes], headers: Mapping[str, str], raw: bytes
) -> SignatureStatus:
    """Judge the signature over the raw bytes; during a rotation `secrets` holds the new and the previous one.

    `headers` looks names up without regard to case. Whatever is malformed is invalid; every secret is tried in
    constant time, so the answer's delay says nothing about which one fitted.
    """
    if not secrets:
        return SignatureStatus.NOT_REQUIRED
    given = headers.get(provider.signature.header)
    if given is None:
        return SignatureStatus.MISSING
    digest = _digest(provider.signature, given)
    if digest is None:
        return SignatureStatus.INVALID
    matches = [hmac.compare_digest(hmac.digest(secret, raw, "sha256"), digest) for secret in secrets]
    return SignatureStatus.VALID if any(matches) else SignatureStatus.INVALID


def _digest(scheme: HmacHex, given: str) -> bytes | None:
    value = given.removeprefix(scheme.prefix)
    if not given.startswith(scheme.prefix) or not _HEX_SHA256.fullmatch(value):
        return None
    return bytes.fromhex(value)
