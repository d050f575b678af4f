"""Publishing run events to the JetStream stream, at least once (S12.1)."""

from __future__ import annotations

import json
from uuid import UUID

import msgspec
import nats.errors
import nats.js.errors
from nats.aio.client import Client
from nats.js import JetStreamContext
from nats.js.api import DiscardPolicy, RetentionPolicy, StorageType, StreamConfig

from autopilot.bus.connection import Bus
from autopilot.bus.errors import BusRefused, BusUnavailable
from autopilot.bus.subjects import EVENT_STREAM, EVENT_SUBJECTS

_DAY_S = 86_400.0
_NAME_IN_USE = 10058


class PubAck(msgspec.Struct, frozen=True, kw_only=True):
    """The stream holds the event. `duplicate`: it held this event id already."""

    stream_seq: int
    duplicate: bool


class StreamLimits(msgspec.Struct, frozen=True, kw_only=True):
    """How much the stream keeps. When it is full it refuses what is new: Postgres still has everything."""

    max_age_s: float = 7 * _DAY_S
    max_bytes: int = 256 * 1024 * 1024
    dedupe_window_s: float = 120.0
    replicas: int = 1


class EventPublisher:
    """Publishes to the event stream and makes the stream when it is missing."""

    def __init__(self, bus: Bus, *, limits: StreamLimits | None = None, timeout_s: float = 2.0) -> None:
        self._bus = bus
        self._limits = limits or StreamLimits()
        self._timeout_s = timeout_s
        self._ready_on: Client | None = None

    async def ensure_stream(self) -> None:
        """Create the stream, or bring an older one to this configuration; may be repeated. Raises BusUnavailable."""
        client = self._live_client()
        stream = client.jetstream(timeout=self._timeout_s)
        config = self._config()
        try:
            try:
                await stream.add_stream(config)
            except nats.js.errors.BadRequestError as error:
                if error.err_code != _NAME_IN_USE:
                    raise
                await stream.update_stream(config)
        except (TimeoutError, nats.errors.Error, OSError) as error:
            raise BusUnavailable(f"the event stream cannot be made: {_say(error)}") from error
        self._ready_on = client

    async def publish(self, subject: str, payload: bytes, event_id: UUID) -> PubAck:
        """Store one event; the id makes a repeat within two minutes a duplicate.

        BusUnavailable means "not known to be stored": publish it again later under the same id. BusRefused means
        never: the message itself is too large or its subject is not one.
        """
        if self._ready_on is not self._live_client():
            await self.ensure_stream()
        stream: JetStreamContext = self._live_client().jetstream(timeout=self._timeout_s)
        try:
            ack = await stream.publish(
                subject, payload, stream=EVENT_STREAM, headers={"Nats-Msg-Id": str(event_id)}
            )
        except (nats.errors.MaxPayloadError, nats.errors.BadSubjectError) as error:
            raise BusRefused(f"the event cannot be published: {_say(error)}") from error
        except (TimeoutError, nats.errors.Error, OSError, json.JSONDecodeError) as error:
            self._ready_on = None
            raise BusUnavailable(f"the event was not confirmed: {_say(error)}") from error
        return PubAck(stream_seq=ack.seq, duplicate=bool(ack.duplicate))

    def _live_client(self) -> Client:
        client = self._bus.client
        if client is None:
            raise BusUnavailable(f"NATS is {self._bus.state}")
        return client

    def _config(self) -> StreamConfig:
        limits = self._limits
        return StreamConfig(
            name=EVENT_STREAM,
            subjects=[EVENT_SUBJECTS],
            retention=RetentionPolicy.LIMITS,
            storage=StorageType.FILE,
            discard=DiscardPolicy.NEW,
            max_age=limits.max_age_s,
            max_bytes=limits.max_bytes,
            duplicate_window=limits.dedupe_window_s,
            num_replicas=limits.replicas,
        )


def _say(error: Exception) -> str:
    return str(error) or type(error).__name__
