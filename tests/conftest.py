"""Fixtures that tests of every kind may use."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator

import hypothesis
import pytest
from tests.support import postgres

from autopilot.local import ports

# The same examples each time, however slow the machine: what is found by chance should be found by who looks for it, with
# `--hypothesis-profile=default`, and not by who has changed something else.
hypothesis.settings.register_profile(
    "repeatable", derandomize=True, deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("repeatable")

_server_session = pytest.StashKey[postgres.ServerSession]()


def pytest_configure(config: pytest.Config) -> None:
    # A shell starts what runs in its background with Ctrl-C ignored, and every process that a test starts would inherit that.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # Workers choose ports from shares of their own: what one has chosen and not bound yet looks free to the other.
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    ports.FREE_COUNT //= workers
    ports.FREE_FROM += ports.FREE_COUNT * int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    # In the process that controls the session only: an xdist worker finds the folder in its environment.
    if "PYTEST_XDIST_WORKER" not in os.environ:
        config.stash[_server_session] = postgres.ServerSession()


def pytest_collection_finish(session: pytest.Session) -> None:
    # Before the first test that needs it, whose own time it would take: on a busy machine it is most of a minute.
    needs = any("postgres_template" in getattr(item, "fixturenames", ()) for item in session.items)
    if needs and not session.config.option.collectonly:
        asyncio.run(postgres.ensure_template(postgres.admin_url()))


def pytest_unconfigure(config: pytest.Config) -> None:
    if session := config.stash.get(_server_session, None):
        session.close()


@pytest.fixture(scope="session")
def postgres_admin_url() -> str:
    """An administrator's URL of the session's server; tests make their databases there, never tables."""
    return postgres.admin_url()


@pytest.fixture
async def empty_postgres_url(postgres_admin_url: str) -> AsyncIterator[str]:
    """A fresh database without any tables, for tests of the migrations themselves."""
    async with postgres.cloned_database(postgres_admin_url, None) as url:
        yield url


@pytest.fixture(scope="session")
def postgres_template(postgres_admin_url: str) -> str:
    """The name of the migrated database that tests are cloned from."""
    return asyncio.run(postgres.ensure_template(postgres_admin_url))


@pytest.fixture
async def postgres_url(postgres_admin_url: str, postgres_template: str) -> AsyncIterator[str]:
    """A fresh, migrated database of this test's own."""
    async with postgres.cloned_database(postgres_admin_url, postgres_template) as url:
        yield url
