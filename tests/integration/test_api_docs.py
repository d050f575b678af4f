"""The document, its page, and what stands beside the routes: methods and paths that there are not (S13)."""

from __future__ import annotations

import aiohttp
import msgspec
import pytest
from tests.support.api import Api

from autopilot.rules_api.app import ROUTES
from autopilot.rules_api.openapi import document
from autopilot.rules_api.problems import Code


async def test_anybody_reads_the_document_and_a_page_that_runs_nothing(api: Api) -> None:
    served = await api.client(None)("GET", "/openapi.json")
    assert (served.status, served.headers["Content-Type"]) == (200, "application/json")
    assert served.body == msgspec.json.decode(msgspec.json.encode(document(ROUTES)))
    async with aiohttp.ClientSession() as session, session.get(f"{api.base}/docs") as page:
        text = await page.text()
    assert (page.status, page.content_type) == (200, "text/html")
    assert "/api/autopilots/{autopilot_id}/trigger" in text
    assert "<script" not in text
    policy = page.headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert "unsafe" not in policy
    assert page.headers["X-Content-Type-Options"] == "nosniff"


@pytest.mark.parametrize("method", ["TRACE", "PUT", "QUERY"])
async def test_a_method_that_a_path_has_not_is_405_with_those_it_has(api: Api, method: str) -> None:
    place = await api.place()
    async with aiohttp.ClientSession() as session:
        headers = {"Authorization": f"Bearer {place.owner.token}", "X-Workspace": "acme"}
        async with session.request(method, f"{api.base}/api/autopilots", headers=headers) as answer:
            assert answer.status == 405
            assert sorted(answer.headers["Allow"].split(",")) == ["GET", "HEAD", "POST"]


async def test_a_path_that_there_is_not_is_a_problem_too(api: Api) -> None:
    for path in ("/", "/api", "/api/nothing", "/api/autopilots/", "/api/autopilots/x/y/z", "/docs/../etc"):
        answer = await api.client(None)("GET", path)
        assert answer.problem() == (404, "not_found", None), path
        assert answer.headers["Content-Type"] == "application/problem+json"


async def test_an_expectation_that_is_not_met_is_told_by_a_listed_code(api: Api) -> None:
    place = await api.place()
    answer = await place.owner("POST", "/api/projects", {"name": "x"}, headers={"Expect": "a miracle"})
    assert answer.problem() == (Code.EXPECTATION_FAILED.status, Code.EXPECTATION_FAILED, None)
