"""What every command does the same way: call the API as the person who typed, and end with one clear line."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

import click

from autopilot.cli.config import Connection
from autopilot.cli.errors import ApiUnavailable, ApiUnreachable
from autopilot.cli.output import JSON, TABLE
from autopilot.cli.text import one_line
from autopilot.domain.errors import AutopilotError
from autopilot.kit.clock import SystemClock

if TYPE_CHECKING:
    from autopilot.cli.client import ApiClient

T = TypeVar("T")
Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

_ATTEMPTS = 3
_PAUSE_S = 0.5


def output_option(default: str) -> Decorator:
    return click.option(
        "--output",
        type=click.Choice([TABLE, JSON]),
        default=default,
        show_default=True,
        help="For people or programs.",
    )


def full_id_option() -> Decorator:
    return click.option("--full-id", is_flag=True, help="Show whole ids in the table instead of prefixes.")


def all_of(options: Sequence[Decorator]) -> Decorator:
    """Several options as one decorator, in the order in which help shows them."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def calling(connection: Connection, work: Callable[[ApiClient], Awaitable[T]]) -> T:
    """Do `work` with a client; its errors become one line on stderr and exit code 1."""

    # The HTTP client is slow to import: --help and wrong usage do without it.
    from autopilot.cli.client import ApiClient

    async def call() -> T:
        async with ApiClient(connection) as api:
            return await work(api)

    return finishing(call)


def finishing(work: Callable[[], Awaitable[T]]) -> T:
    """Run to the end; an error of ours becomes one line on stderr and exit code 1."""

    async def run() -> T:
        return await work()

    try:
        return asyncio.run(run())
    except AutopilotError as error:
        raise click.ClickException(one_line(error.message)) from error


async def ask_once(
    api: ApiClient,
    path: str,
    key: str,
    *,
    made: str,
    query: Mapping[str, str] | None = None,
    timeout_s: float = 20.0,
) -> bytes:
    """POST until there is an answer, under one key, so that it is done once; ApiUnreachable says how to ask again.

    `made` is what the request makes, such as `a run`.
    """
    clock = SystemClock()
    headers = {"Idempotency-Key": key}
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            return await api.call("POST", path, query=query, body={}, headers=headers, timeout_s=timeout_s)
        except (ApiUnreachable, ApiUnavailable) as error:
            if attempt == _ATTEMPTS:
                raise ApiUnreachable(
                    f"{error.message} Whether {made} was made is not known;"
                    f" repeat with --idempotency-key {key} to ask again without making a second one."
                ) from error
            await clock.sleep(_PAUSE_S * attempt)
    raise AssertionError("the last attempt returns or raises")


def host_now() -> datetime:
    """The host's time, which relative times are told against."""
    return SystemClock().now()
