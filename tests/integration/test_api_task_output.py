"""What tasks print, told piece by piece and read while they run (S11.7)."""

from __future__ import annotations

import pytest
from tests.support.api import Api
from tests.support.work import Shop, make_shop

from autopilot.domain.states import ExecutionMode
from autopilot.kit.ids import uuid7

ISSUE, BARE = ExecutionMode.CREATE_ISSUE, ExecutionMode.RUN_ONLY


@pytest.fixture
async def shop(api: Api) -> Shop:
    return await make_shop(api)


async def test_output_is_kept_in_order_once_and_within_bounds(shop: Shop) -> None:
    """S11.7: 1 MiB of each attempt, the newest; the same piece again, or one that comes late, changes nothing."""
    started = await shop.start(ISSUE)
    task = await shop.held(started)
    path = f"/api/tasks/{started.task_id}/output"

    async def shown(query: str = "") -> tuple[list[tuple[int, str]], int, bool]:
        body = (await shop.owner("GET", path + query)).body
        return [(p["place"], p["text"]) for p in body["pieces"]], body["next_place"], body["more"]

    assert await shown() == ([], 0, False)
    for place, text in ((0, "one\n"), (0, "one\n"), (4, "two\n"), (2, "late"), (100, "é")):
        assert (await shop.machine.call(task, "output", place=place, text=text))[0] == 200
    assert await shown() == ([(0, "one\n"), (4, "two\n"), (100, "é")], 101, False)
    assert await shown("?place=8") == ([(100, "é")], 101, False)
    assert await shown("?attempt=2") == ([], 0, False)
    page = 65_536
    for number in range(18):
        assert (await shop.machine.call(task, "output", place=page * (number + 1), text="x" * page))[0] == 200
    pieces, next_place, more = await shown()
    assert (len(pieces), more) == (8, True)
    assert [place for place, _ in (await shown(f"?place={next_place}"))[0]] == [
        page * n for n in range(11, 19)
    ]
    assert pieces[0][0] == page * 19 - 1024 * 1024  # what came before it is gone
    for wrong, status in (({"place": 0, "text": "é" * 40_000}, 422), ({"place": -1, "text": "x"}, 422)):
        assert (await shop.machine.call(task, "output", **wrong))[0] == status
    stolen = {**task, "lease_token": str(uuid7())}
    assert (await shop.machine.call(stolen, "output", place=page * 30, text="x"))[0] == 409
    assert (await shop.machine.call(task, "complete"))[0] == 200
    assert (await shop.machine.call(task, "output", place=page * 30, text="x"))[0] == 409


async def test_the_output_of_a_bare_run_is_for_those_who_may_see_its_payload(api: Api, shop: Shop) -> None:
    """S6.5: an issue is the public trail, a bare run is not; other workspaces see neither."""
    issue, bare = await shop.start(ISSUE), await shop.start(BARE)
    _, mia = await api.joined(shop.place, "mia")
    other = (await api.place("other")).owner
    for started, status in ((issue, 200), (bare, 403)):
        path = f"/api/tasks/{started.task_id}/output"
        assert (await shop.owner("GET", path)).status == 200
        assert (await mia("GET", path)).status == status
        assert (await other("GET", path)).status == 404
