"""Secrets at rest: webhook tokens and signing secrets, encrypted with keys that can be rotated (S9.1, S9.13)."""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from contextlib import suppress
from hashlib import sha256

from cryptography.fernet import Fernet, InvalidToken, MultiFernet

from autopilot.domain.errors import InfrastructureError
from autopilot.kit.config import ConfigError, Secret, key_of

# Fixed on purpose: a fingerprint must outlive every key and stay equal for equal secrets.
_FINGERPRINT_CONTEXT = b"autopilot secret fingerprint v1"


class SecretUnreadable(InfrastructureError):
    """A stored secret cannot be decrypted with the keys this process was given."""


class SecretKeysMissing(InfrastructureError):
    """AUTOPILOT_SECRET_KEYS is empty, so that no secret can be stored or read."""


class Vault:
    """Encrypts with the first key, decrypts with all. Raises ConfigError, naming the position, for what is no key."""

    def __init__(self, keys: Sequence[Secret]) -> None:
        fernets: list[Fernet] = []
        faults: list[str] = []
        for position, key in enumerate(keys, start=1):
            try:
                fernets.append(Fernet(key.reveal()))
            except ValueError:
                faults.append(
                    f"{key_of('secret_keys')}: key {position} is not 32 bytes as URL-safe base64 (a Fernet key)"
                )
        if faults:
            raise ConfigError(faults)
        self._fernet = MultiFernet(fernets) if fernets else None
        self._first = fernets[0] if fernets else None

    @classmethod
    def required(cls, keys: Sequence[Secret]) -> Vault:
        """A vault for a service that cannot do without: ConfigError also for no key at all."""
        if not keys:
            raise ConfigError(
                [
                    f"{key_of('secret_keys')} is missing (make a key with `python -m autopilot.rules_api new-key`)"
                ]
            )
        return cls(keys)

    def encrypt(self, secret: str) -> bytes:
        return self._ready().encrypt(secret.encode())

    def decrypt(self, encrypted: bytes) -> str:
        """The secret; SecretUnreadable (never a wrong credential) when no key fits."""
        try:
            return self._ready().decrypt(encrypted).decode()
        except InvalidToken as error:
            raise SecretUnreadable from error

    def renewed(self, encrypted: bytes) -> bytes | None:
        """The same secret under the first key; None if that is how it is kept already."""
        ready = self._ready()
        assert self._first is not None
        with suppress(InvalidToken):
            self._first.decrypt(encrypted)
            return None
        try:
            return ready.rotate(encrypted)
        except InvalidToken as error:
            raise SecretUnreadable from error

    def _ready(self) -> MultiFernet:
        if self._fernet is None:
            raise SecretKeysMissing
        return self._fernet


def new_key() -> str:
    """A fresh key for AUTOPILOT_SECRET_KEYS."""
    return Fernet.generate_key().decode()


def fingerprint(secret: str | bytes) -> str:
    """What tells one secret from another in a rule version: the same under any key, useless to whoever reads it."""
    text = secret.encode() if isinstance(secret, str) else secret
    return hmac.new(_FINGERPRINT_CONTEXT, text, sha256).hexdigest()[:16]
