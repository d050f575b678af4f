"""What many integration tests begin with."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from tests.support.api import Api, Place, running_api


@pytest.fixture
async def api(postgres_url: str) -> AsyncIterator[Api]:
    async with running_api(postgres_url) as running:
        yield running


@pytest.fixture
async def acme(api: Api) -> Place:
    return await api.place()
