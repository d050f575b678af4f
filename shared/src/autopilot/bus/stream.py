"""The JetStream stream of run events: created when it is missing, brought to the settings when they differ (S12.1)."""

from __future__ import annotations

from typing import Any, Final

import msgspec
import nats.errors
from nats.aio.client import Client

from autopilot.bus.errors import BusUnavailable
from autopilot.bus.subjects import EVENT_STREAM, EVENT_SUBJECTS
from autopilot.kit import log

_logger = log.get_logger()

_DAY_S: Final = 86_400.0
_NANOS: Final = 1_000_000_000
_NOT_FOUND: Final = 10059
_NAME_IN_USE: Final = 10058


class StreamLimits(msgspec.Struct, frozen=True, kw_only=True):
    """How much the stream keeps. When it is full it refuses what is new: Postgres still has everything."""

    max_age_s: float = 7 * _DAY_S
    max_bytes: int = 256 * 1024 * 1024
    replicas: int = 1
    dedupe_window_s: float = 120.0


class ApiRefusal(BusUnavailable):
    """JetStream answered, and did not do it."""

    def __init__(self, error: dict[str, Any]) -> None:
        self.err_code = error.get("err_code", 0)
        super().__init__(f"{error.get('description', 'refused')} ({self.err_code})")


async def bring_up(client: Client, limits: StreamLimits, timeout_s: float) -> None:
    """Make the stream, or change of an existing one what differs; may be repeated, also by several at once.

    What an operator set beside our settings (placement, compression, a description) stays. A change that the server
    refuses, such as more replicas than there are servers, is logged, and the stream is used as it is. Raises
    BusUnavailable, or the client's errors, when there is no stream afterwards.
    """
    held = await _find(client, timeout_s)
    if held is None:
        try:
            await _ask(client, "CREATE", _changeable(limits) | _FIXED, timeout_s)
            _logger.info("event_stream_created", stream=EVENT_STREAM)
            return
        except ApiRefusal as refusal:  # another process was quicker, with other settings
            held = await _find(client, timeout_s) if refusal.err_code == _NAME_IN_USE else None
            if held is None:
                raise
    wanted = _changeable(limits)
    changes = {name: value for name, value in wanted.items() if held.get(name) != value}
    if not changes:
        return
    try:
        await _ask(client, "UPDATE", held | changes, timeout_s)
        _logger.info("event_stream_updated", changed=sorted(changes))
    except ApiRefusal as refusal:
        _logger.warning("event_stream_not_updated", wanted=sorted(changes), reason=str(refusal))


_FIXED: Final = {"name": EVENT_STREAM, "retention": "limits", "storage": "file"}


def _changeable(limits: StreamLimits) -> dict[str, Any]:
    return {
        "subjects": [EVENT_SUBJECTS],
        "discard": "new",
        "max_age": int(limits.max_age_s * _NANOS),
        "max_bytes": limits.max_bytes,
        "num_replicas": limits.replicas,
        "duplicate_window": int(min(limits.dedupe_window_s, limits.max_age_s) * _NANOS),
    }


async def _find(client: Client, timeout_s: float) -> dict[str, Any] | None:
    """The configuration of the stream, whole as the server tells it; None if there is no stream."""
    try:
        told = await _ask(client, "INFO", None, timeout_s)
    except ApiRefusal as refusal:
        if refusal.err_code == _NOT_FOUND:
            return None
        raise
    config: dict[str, Any] = told["config"]
    return config


async def _ask(client: Client, act: str, config: dict[str, Any] | None, timeout_s: float) -> dict[str, Any]:
    # Asked in JSON: the client library's own types would drop the settings that they do not know.
    body = b"" if config is None else msgspec.json.encode(config)
    try:
        reply = await client.request(f"$JS.API.STREAM.{act}.{EVENT_STREAM}", body, timeout=timeout_s)
    except nats.errors.NoRespondersError as error:
        raise BusUnavailable("JetStream is not enabled here, or has no leader yet") from error
    told: dict[str, Any] = msgspec.json.decode(reply.data)
    if "error" in told:
        raise ApiRefusal(told["error"])
    return told
