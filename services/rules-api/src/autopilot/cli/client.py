"""The HTTP client of every command: one session, the caller's token, and errors as sentences."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import AsyncGenerator, Mapping
from types import TracebackType
from typing import Any, Self, TypeVar

import aiohttp
import msgspec

from autopilot.cli.config import Connection
from autopilot.cli.errors import ApiProblem, ApiUnavailable, ApiUnreachable, NotUnderstood

T = TypeVar("T")

_CONNECT_S = 5.0
_NO_CONTENT = 204
_VERSION = re.compile(r"\d{1,9}(\.\d{1,9}){0,3}")
# What an API of another version may refuse because it does not know it, or knows it no more.
_OF_ANOTHER_VERSION = (400, 404, 405)


class _ProblemDocument(msgspec.Struct):
    title: str
    code: str | None = None
    detail: str | None = None
    field: str | None = None


class ApiClient:
    """Calls with one token; enter it before use. Redirects are refused: they would carry the token elsewhere."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._session: aiohttp.ClientSession | None = None
        self._server = ""

    async def __aenter__(self) -> Self:
        headers = {
            "Authorization": f"Bearer {self._connection.token.reveal()}",
            "Accept": "application/json",
            "User-Agent": "autopilot-cli",
        }
        if self._connection.workspace is not None:
            headers["X-Workspace"] = self._connection.workspace
        self._session = aiohttp.ClientSession(headers=headers, cookie_jar=aiohttp.DummyCookieJar())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()

    async def call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: object = msgspec.UNSET,
        headers: Mapping[str, str] | None = None,
        timeout_s: float = 20.0,
    ) -> bytes:
        """The body of a 2xx answer. Raises ApiProblem, ApiUnavailable, ApiUnreachable or NotUnderstood."""
        assert self._session is not None, "the client has not been entered"
        sent = dict(headers or {})
        data: bytes | None = None
        if body is not msgspec.UNSET:
            data = msgspec.json.encode(body)
            sent["Content-Type"] = "application/json"
        try:
            async with self._session.request(
                method,
                self._connection.api_url + path,
                params=query,
                data=data,
                headers=sent,
                allow_redirects=False,
                timeout=aiohttp.ClientTimeout(total=timeout_s, sock_connect=_CONNECT_S),
            ) as response:
                answer = await response.read()
                status, kind = response.status, response.content_type
                self._server = response.headers.get("Server", "")
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise ApiUnreachable(
                f"Cannot reach the API at {self._connection.api_url}: {_why(error)}."
            ) from error
        if not 200 <= status < 300:
            raise self._refusal(status, kind, answer)
        if status != _NO_CONTENT and kind != "application/json":
            raise self._stranger(status, kind)
        return answer

    async def lines(
        self, path: str, *, headers: Mapping[str, str] | None = None, silent_s: float
    ) -> AsyncGenerator[bytes, None]:
        """The lines of an event stream until the server ends it; it is lost after `silent_s` without any.

        Close it when you leave it early. Raises what `call` raises.
        """
        assert self._session is not None, "the client has not been entered"
        sent = {"Accept": "text/event-stream", **(headers or {})}
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S, sock_read=silent_s)
        try:
            async with self._session.get(
                self._connection.api_url + path, headers=sent, allow_redirects=False, timeout=timeout
            ) as response:
                if response.status != 200 or response.content_type != "text/event-stream":
                    raise self._refusal(response.status, response.content_type, await response.read())
                while line := await response.content.readline():
                    yield line
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise ApiUnreachable(
                f"Cannot reach the API at {self._connection.api_url}: {_why(error)}."
            ) from error

    def decode(self, answer: bytes, wanted: type[T]) -> T:
        """The answer as the type that this version of the command expects; NotUnderstood if it is another."""
        try:
            return msgspec.json.decode(answer, type=wanted)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise NotUnderstood(
                f"The answer of {self._connection.api_url} is not understood ({error})."
                f"{older_of(self._server) or ' The command and the API differ in version.'}"
            ) from error

    def _refusal(self, status: int, kind: str, answer: bytes) -> Exception:
        try:
            told = msgspec.json.decode(answer, type=_ProblemDocument)
        except msgspec.DecodeError:
            if status in (429, 502, 503, 504):  # a proxy in front of the API speaks for it
                return ApiUnavailable(
                    status=status, title=f"HTTP {status}", code=None, detail="try again later", field=None
                )
            return self._stranger(status, kind)
        raised = ApiUnavailable if status == 429 or status >= 500 else ApiProblem
        detail = told.detail
        if status == 401:
            detail = (
                f"{detail or 'the token is not accepted'} Check AUTOPILOT_TOKEN, or the token of the profile."
            )
        if status in _OF_ANOTHER_VERSION:
            detail = f"{detail or ''}{older_of(self._server)}".strip() or None
        return raised(status=status, title=told.title, code=told.code, detail=detail, field=told.field)

    def _stranger(self, status: int, kind: str) -> NotUnderstood:
        """A proxy's page, say: nothing is known to have been done."""
        return NotUnderstood(
            f"What answers at {self._connection.api_url} (HTTP {status}, {kind}) is not Autopilot's API,"
            " or one of another version."
        )


def older_of(server: str) -> str:
    """Which of command and API is old, as a sentence behind a blank; nothing if neither is, or the API does not say."""
    from importlib import metadata  # slow to import, and of use here alone

    product, _, theirs = server.partition("/")
    ours = metadata.version("autopilot-rules-api")
    comparable = _VERSION.fullmatch(ours) and _VERSION.fullmatch(theirs)
    if product != "autopilot" or not comparable or theirs == ours:
        return ""
    older = "command" if _numbers(ours) < _numbers(theirs) else "API"
    return f" The command is version {ours} and the API {theirs}: update the {older}."


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def _why(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "it did not answer in time"
    cause: Any = getattr(error, "os_error", error)
    number = getattr(cause, "errno", None)
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return "its name cannot be resolved"
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return "its certificate is not trusted"
    if isinstance(number, int) and number in errno.errorcode:
        return os.strerror(number).lower()
    if isinstance(error, aiohttp.ServerDisconnectedError):
        return "it closed the connection"
    return f"the connection failed ({type(error).__name__})"
