"""From a token to everything that a request is judged by, many tokens in one statement (S9.2)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Sequence
from types import TracebackType
from typing import Self

import msgspec

from autopilot.domain.admission import Actor, Decision, admit
from autopilot.domain.errors import AutopilotError, InfrastructureError, InvalidValue
from autopilot.domain.ids import TriggerId
from autopilot.domain.states import Source
from autopilot.domain.webhook import providers
from autopilot.domain.webhook.filters import parse_filters
from autopilot.domain.webhook.providers import Provider
from autopilot.engine.secrets import Vault
from autopilot.kit import log, metrics, points
from autopilot.kit.batch import Coalescer
from autopilot.kit.faults import place_of
from autopilot.storage.database import Conn, Database
from autopilot.storage.errors import DatabaseUnavailable, SchemaBehind, translated
from autopilot.storage.webhook_targets import Target, find_targets, find_triggers

PATIENCE_S = 0.02
_MAX_DECRYPTED = 10_000
_WEBHOOK = Actor(source=Source.WEBHOOK)

_logger = log.get_logger()
_unusable = metrics.counter(
    "ingress_unusable_triggers_total", "Look-ups of triggers that cannot be judged here"
)

_undecided = metrics.counter(
    "ingress_undecided_total",
    "Steps of admission that failed, so that deliveries are kept undecided",
    ["step"],
)


class TriggerUnusable(InfrastructureError):
    """This process cannot judge the trigger's webhooks: its secret or its provider is unknown here (never a 401)."""


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """A trigger ready to judge requests by: its provider, its filters, its secrets in the clear, what admission says.

    `decision` is None where admission could not be decided: the delivery is then kept for the dispatcher (S9.10).
    """

    target: Target
    provider: Provider
    filters: object
    secrets: tuple[bytes, ...]
    decision: Decision | None

    def __repr__(self) -> str:
        return f"Found({self.target.trigger_id})"


class Lookups:
    """Finds what stands behind token hashes; concurrent requests share statements, equal tokens share the answer."""

    def __init__(self, database: Database, vault: Vault, *, hold_s: float = 5.0) -> None:
        self._database = database
        self._vault = vault
        self._decrypted: OrderedDict[tuple[TriggerId, int, bytes], bytes] = OrderedDict()
        self._coalescer: Coalescer[bytes, Found | None] = Coalescer(
            self._find, name="webhook_lookups", max_items=1000, hold_s=hold_s, patience_s=PATIENCE_S
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        await self._coalescer.close()

    async def find(self, token_hash: bytes) -> Found | None:
        """None for a token that leads nowhere. Raises an InfrastructureError when it cannot be known (S4.5)."""
        return await self._coalescer.submit(token_hash)

    async def find_all(self, conn: Conn, token_hashes: Collection[bytes]) -> dict[bytes, Found | Exception]:
        """Those of the tokens that lead somewhere, in one statement; an exception for what cannot be judged here."""
        targets = await _targets(conn, list(token_hashes))
        return {token_hash: self._prepare(target) for token_hash, target in targets.items()}

    async def _find(self, hashes: list[bytes]) -> Sequence[Found | Exception | None]:
        await points.hit("ingress.before_lookup")
        async with self._database.connection() as conn:
            found = await self.find_all(conn, set(hashes))
        return [found.get(token_hash) for token_hash in hashes]

    def _prepare(self, target: Target) -> Found | Exception:
        try:
            provider = providers.get(target.provider)
            encrypted = (target.secret_enc, target.previous_secret_enc)
            secrets = tuple(self._decrypt(target, secret) for secret in encrypted if secret is not None)
        except AutopilotError as error:
            return _note_unusable(target, error)
        return Found(
            target=target,
            provider=provider,
            filters=_read_filters(target.event_filters),
            secrets=secrets,
            decision=_decision(target),
        )

    def _decrypt(self, target: Target, encrypted: bytes) -> bytes:
        key = (target.trigger_id, target.trigger_rev, encrypted)
        secret = self._decrypted.get(key)
        if secret is None:
            secret = self._decrypted[key] = self._vault.decrypt(encrypted).encode()
            if len(self._decrypted) > _MAX_DECRYPTED:
                self._decrypted.popitem(last=False)
        return secret


async def _targets(conn: Conn, hashes: list[bytes]) -> dict[bytes, Target]:
    """With the facts of admission, or without them where they, and they alone, cannot be read (S9.10)."""
    try:
        with translated():
            await points.hit("ingress.before_facts")
            return await find_targets(conn, hashes)
    except (DatabaseUnavailable, SchemaBehind):
        raise
    except Exception as error:  # noqa: BLE001 - isolation of admission: what it cannot read must not lose an event
        note_undecided("facts", error)
    return await find_triggers(conn, hashes)


def note_undecided(step: str, error: Exception) -> None:
    """Admission failed at a step; its webhooks are kept as they are, for the dispatcher to decide on."""
    _undecided.labels(step).inc()
    _logger.warning("admission_undecided", step=step, where=place_of(error))


def _decision(target: Target) -> Decision | None:
    if target.snapshot is None:
        return None
    try:
        points.hit_sync("ingress.admit")
        return admit(target.snapshot, _WEBHOOK, target.read_at)
    except Exception as error:  # noqa: BLE001 - isolation of one rule: its event is kept all the same
        note_undecided("admit", error)
        return None


def _read_filters(stored: object) -> object:
    try:
        return parse_filters(stored)
    except InvalidValue:
        return stored  # what cannot be read matches nothing


def _note_unusable(target: Target, error: AutopilotError) -> TriggerUnusable:
    _unusable.inc()
    _logger.error("trigger_unusable", trigger_id=target.trigger_id, error=type(error).__name__)
    unusable = TriggerUnusable()
    unusable.__cause__ = error
    return unusable
