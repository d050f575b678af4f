"""What every command does the same way: call the API as the person who typed, and end with one clear line."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any, TypeVar

import click

from autopilot.cli.client import ApiClient
from autopilot.cli.config import Connection
from autopilot.cli.output import JSON, TABLE
from autopilot.cli.text import one_line
from autopilot.domain.errors import AutopilotError
from autopilot.kit.clock import SystemClock

T = TypeVar("T")
Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


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


def calling(connection: Connection, work: Callable[[ApiClient], Awaitable[T]]) -> T:
    """Do `work` with a client; its errors become one line on stderr and exit code 1."""

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


def host_now() -> datetime:
    """The host's time, which relative times are told against."""
    return SystemClock().now()
