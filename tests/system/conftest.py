"""Stacks that the tests of a module share: starting one takes seconds, and scenarios do not disturb each other."""

from __future__ import annotations

from collections.abc import AsyncIterator, Generator

import pytest
import pytest_asyncio
from tests.support.postgres import cloned_database
from tests.support.system import System, running_system, show_logs


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Function) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A test that fails on a shared stack shows what the services said."""
    report = yield
    show_logs(report, item.funcargs.get("system"))
    return report


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=[True, False], ids=["nats", "no-nats"])
async def system(
    request: pytest.FixtureRequest, postgres_admin_url: str, postgres_template: str
) -> AsyncIterator[System]:
    """The four services, once with NATS up and once with NATS never started (S1.2)."""
    async with (
        cloned_database(postgres_admin_url, postgres_template) as url,
        running_system(nats=request.param, database_url=url) as running,
    ):
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def agent(system: System) -> AsyncIterator[str]:
    """An agent whose runtime works as a process and answers with the size of its prompt."""
    async with system.working_runtime("worker") as agent_id:
        yield agent_id
