"""Secrets at rest: keys that rotate, fingerprints that do not (S9.13, HAZARDS 27)."""

from __future__ import annotations

import pytest

from autopilot.engine.secrets import SecretKeysMissing, SecretUnreadable, Vault, fingerprint, new_key
from autopilot.kit.config import ConfigError, Secret

OLD, NEW = Secret(new_key()), Secret(new_key())


def test_the_first_key_encrypts_and_every_key_decrypts() -> None:
    before = Vault([OLD]).encrypt("whsec_hush")
    during = Vault([NEW, OLD])
    after = during.encrypt("whsec_hush")
    assert during.decrypt(before) == Vault([NEW]).decrypt(after) == "whsec_hush"
    with pytest.raises(SecretUnreadable):
        Vault([OLD]).decrypt(after)


def test_an_unreadable_secret_is_trouble_of_ours_and_never_a_wrong_credential() -> None:
    with pytest.raises(SecretUnreadable) as caught:
        Vault([NEW]).decrypt(Vault([OLD]).encrypt("whsec_hush"))
    assert caught.value.infrastructure
    assert "whsec_hush" not in str(caught.value)


def test_a_process_without_keys_starts_and_refuses_only_what_needs_them() -> None:
    with pytest.raises(SecretKeysMissing):
        Vault([]).encrypt("whsec_hush")


def test_what_is_no_key_is_named_by_its_position_and_not_shown() -> None:
    with pytest.raises(ConfigError) as caught:
        Vault([NEW, Secret("swordfish")])
    assert "AUTOPILOT_SECRET_KEYS: key 2" in caught.value.faults[0]
    assert "swordfish" not in str(caught.value)


def test_a_fingerprint_is_the_same_under_any_key_and_differs_between_secrets() -> None:
    assert fingerprint("one secret") == fingerprint(b"one secret") == "3bce4a021990f07b"
    assert fingerprint("another") != fingerprint("one secret")
