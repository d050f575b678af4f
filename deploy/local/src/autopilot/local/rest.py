"""The REST API and the webhook door as the local stack itself uses them: plain blocking calls to the loopback."""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from autopilot.local.errors import LocalError

TIMEOUT_S = 30.0


@dataclass(frozen=True)
class Reply:
    """A status with its decoded JSON body, None for none."""

    status: int
    body: Any


@dataclass(frozen=True, kw_only=True)
class Rest:
    """Calls with one token in one workspace; a runtime's token needs no workspace."""

    url: str
    token: str
    workspace: str | None = None

    def call(self, method: str, path: str, body: Any = None) -> Reply:
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
        if self.workspace is not None:
            headers["X-Workspace"] = self.workspace
        raw = b"" if body is None else json.dumps(body).encode()
        return send(self.url, method, path, raw, headers)

    def get(self, path: str) -> Any:
        return self._must("GET", path, None)

    def post(self, path: str, body: Any) -> Any:
        """The body of a call that has to succeed; LocalError says what was refused."""
        return self._must("POST", path, body)

    def _must(self, method: str, path: str, body: Any) -> Any:
        reply = self.call(method, path, body)
        if reply.status >= 300:
            said = reply.body.get("detail") if isinstance(reply.body, dict) else None
            raise LocalError(f"{method} {path} was answered {reply.status}: {said or reply.body}")
        return reply.body


def send(url: str, method: str, path: str, body: bytes, headers: Mapping[str, str]) -> Reply:
    """One request on a connection of its own, past any proxy; LocalError when there is no HTTP answer."""
    place = urlsplit(url)
    connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=TIMEOUT_S)
    try:
        connection.request(method, path, body=body or None, headers=dict(headers))
        response = connection.getresponse()
        raw = response.read()
        return Reply(response.status, json.loads(raw) if raw else None)
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise LocalError(f"{method} {url}{path} got no answer: {error}") from error
    finally:
        connection.close()
