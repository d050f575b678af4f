"""Publishing run events to the JetStream stream, at least once (S12.1)."""

from __future__ import annotations

import json
from typing import Final
from uuid import UUID

import msgspec
import nats.errors
import nats.js.errors
from nats.aio.client import Client
from nats.js import JetStreamContext

from autopilot.bus.connection import Bus
from autopilot.bus.errors import BusRefused, BusUnavailable
from autopilot.bus.stream import StreamLimits, bring_up
from autopilot.bus.subjects import EVENT_STREAM

_MESSAGE_TOO_LARGE: Final = 10054


class PubAck(msgspec.Struct, frozen=True, kw_only=True):
    """The stream holds the event. `duplicate`: it held this event id already."""

    stream_seq: int
    duplicate: bool


class EventPublisher:
    """Publishes to the event stream, once `ensure_stream` has looked after it on the connection of the moment."""

    def __init__(self, bus: Bus, *, limits: StreamLimits | None = None, timeout_s: float = 2.0) -> None:
        self._bus = bus
        self._limits = limits or StreamLimits()
        self._timeout_s = timeout_s
        self._ready: tuple[Client, JetStreamContext] | None = None
        self.trouble: str | None = None
        """Why events do not reach the stream at this moment, in words; None: they do, or none was tried."""

    async def ensure_stream(self) -> None:
        """Create the stream or bring it to the limits, once a connection and after each failure. BusUnavailable."""
        client = self._live_client()
        if self._ready is not None and self._ready[0] is client:
            return
        try:
            await bring_up(client, self._limits, self._timeout_s)
        except (TimeoutError, nats.errors.Error, OSError, msgspec.DecodeError, BusUnavailable) as error:
            raise self._unavailable("the event stream cannot be made", error) from error
        self._ready = client, client.jetstream(timeout=self._timeout_s)
        self.trouble = None

    async def publish(self, subject: str, payload: bytes, event_id: UUID) -> PubAck:
        """Store one event; the id makes a repeat within two minutes a duplicate.

        BusUnavailable means "not known to be stored": publish it again later under the same id, after
        `ensure_stream`. BusRefused means never: the message itself is too large or its subject is not one.
        """
        client = self._live_client()
        if self._ready is None or self._ready[0] is not client:
            raise BusUnavailable("the event stream has not been looked after on this connection")
        try:
            ack = await self._ready[1].publish(
                subject, payload, stream=EVENT_STREAM, headers={"Nats-Msg-Id": str(event_id)}
            )
        except (nats.errors.MaxPayloadError, nats.errors.BadSubjectError) as error:
            raise BusRefused(f"the event cannot be published: {_say(error)}") from error
        except (TimeoutError, nats.errors.Error, OSError, json.JSONDecodeError) as error:
            if isinstance(error, nats.js.errors.APIError) and error.err_code == _MESSAGE_TOO_LARGE:
                raise BusRefused(f"the event cannot be published: {_say(error)}") from error
            self._ready = None
            raise self._unavailable("the event was not confirmed", error) from error
        return PubAck(stream_seq=ack.seq, duplicate=bool(ack.duplicate))

    def _live_client(self) -> Client:
        client = self._bus.client
        if client is None:
            raise BusUnavailable(f"NATS is {self._bus.state}")
        return client

    def _unavailable(self, what: str, error: Exception) -> BusUnavailable:
        self.trouble = f"{what}: {_say(error)}"
        return BusUnavailable(self.trouble)


def _say(error: Exception) -> str:
    return str(error) or type(error).__name__
