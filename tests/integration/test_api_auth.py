"""Who gets in: tokens, kinds and workspaces (S6.6, S6.8, S13)."""

from __future__ import annotations

import pytest
from tests.support.api import Api, running_api

from autopilot.domain.permissions import Role, TokenKind


@pytest.mark.parametrize(
    "authorization",
    [
        None,
        "Bearer",
        "Bearer nonsense",
        "Basic YTpi",
        "Bearer apt_unknown",
        "Bearer awt_unknown",
        "Bearer apt_é",
    ],
)
async def test_no_good_token_is_401_and_says_how_to_send_one(api: Api, authorization: str | None) -> None:
    """S6.8."""
    headers = {"Authorization": authorization} if authorization else {}
    answer = await api.client(None)("GET", "/api/tokens", headers=headers)
    assert answer.problem() == (401, "unauthorized", None)
    assert answer.headers["WWW-Authenticate"] == "Bearer"
    assert answer.headers["Content-Type"] == "application/problem+json"


async def test_an_expired_and_a_revoked_token_are_401(api: Api) -> None:
    """S6.8."""
    acme = await api.place()
    expired = api.client(await api.token(TokenKind.PERSONAL, acme.owner_id, days=-1))
    assert (await expired("GET", "/api/tokens")).status == 401

    made = await acme.owner("POST", "/api/tokens", {"name": "laptop"})
    assert made.headers["Cache-Control"] == "no-store"
    laptop = api.client(made.body["token"])
    assert (await laptop("GET", "/api/tokens")).status == 200
    assert (await acme.owner("DELETE", f"/api/tokens/{made.body['id']}")).status == 204
    assert (await laptop("GET", "/api/tokens")).problem() == (401, "unauthorized", None)


async def test_a_token_is_kept_as_a_hash_only(api: Api) -> None:
    acme = await api.place()
    secret = (await acme.owner("POST", "/api/tokens", {"name": "laptop"})).body["token"]
    async with api.database.connection() as conn:
        rows = await conn.fetch("SELECT t::text AS whole FROM api_token t")
    assert rows
    assert not [row for row in rows if secret[4:] in row["whole"]]
    listed = await acme.owner("GET", "/api/tokens")
    assert secret not in str(listed.body)


@pytest.mark.parametrize("kind", [TokenKind.SERVICE, TokenKind.RUNTIME])
async def test_the_wrong_kind_of_token_is_403(api: Api, kind: TokenKind) -> None:
    """S6.8."""
    acme = await api.place()
    program = await api.program(acme, kind)
    answer = await program("POST", "/api/tokens", {"name": "x"})
    assert answer.problem() == (403, "wrong_token_kind", None)


async def test_programs_tokens_are_made_by_owners_and_admins_only(api: Api) -> None:
    """S6.8, S13.6."""
    acme = await api.place()
    _, admin = await api.joined(acme, "ada", Role.ADMIN)
    _, member = await api.joined(acme, "mia")
    for kind, prefix in (("service", "aps_"), ("runtime", "apr_")):
        refused = await member("POST", "/api/tokens", {"name": "ci", "kind": kind})
        assert refused.problem() == (403, "forbidden", None)
        made = await admin("POST", "/api/tokens", {"name": "ci", "kind": kind})
        assert made.status == 201
        assert made.body["token"].startswith(prefix)
        assert made.body["workspace_id"] == str(acme.id)
        assert made.body["user_id"] is None
        assert (await member("DELETE", f"/api/tokens/{made.body['id']}")).status == 403
        assert (await acme.owner("DELETE", f"/api/tokens/{made.body['id']}")).status == 204
    assert [t["kind"] for t in (await member("GET", "/api/tokens")).body["items"]] == ["personal"]
    assert {t["kind"] for t in (await admin("GET", "/api/tokens")).body["items"]} == {
        "personal",
        "service",
        "runtime",
    }


async def test_tokens_of_others_do_not_exist(api: Api) -> None:
    """S6.6, S6.8: not even for an owner, and not across workspaces."""
    acme, other = await api.place(), await api.place("other")
    _, mia = await api.joined(acme, "mia")
    personal = (await mia("POST", "/api/tokens", {"name": "mine"})).body["id"]
    service = (await acme.owner("POST", "/api/tokens", {"name": "ci", "kind": "service"})).body["id"]
    assert (await acme.owner("DELETE", f"/api/tokens/{personal}")).status == 404
    assert (await other.owner("DELETE", f"/api/tokens/{service}")).status == 404
    nowhere = api.client(acme.owner.token)
    assert (await nowhere("DELETE", f"/api/tokens/{service}")).status == 404
    async with api.database.connection() as conn:
        assert not await conn.fetchval("SELECT count(*) FROM api_token WHERE revoked_at IS NOT NULL")


async def test_a_bound_token_makes_and_sees_bound_tokens_only(api: Api) -> None:
    acme = await api.place()
    secret = await api.token(TokenKind.PERSONAL, acme.owner_id, acme.id)
    bound = api.client(secret)
    made = await bound("POST", "/api/tokens", {"name": "narrow"})
    assert made.body["workspace_id"] == str(acme.id)
    assert {t["workspace_id"] for t in (await bound("GET", "/api/tokens")).body["items"]} == {str(acme.id)}


async def test_a_personal_token_lives_90_days_and_at_most_365(api: Api) -> None:
    """S13.8."""
    acme = await api.place()
    await acme.owner("POST", "/api/tokens", {"name": "default"})
    refused = await acme.owner("POST", "/api/tokens", {"name": "long", "expires_in_days": 366})
    assert refused.problem() == (422, "invalid_value", "expires_in_days")
    async with api.database.connection() as conn:
        days = await conn.fetchval("SELECT expires_at - created_at FROM api_token WHERE name = 'default'")
        assert days.days == 90
        assert not await conn.fetchval("SELECT count(*) FROM api_token WHERE name = 'long'")


async def test_without_the_database_a_caller_is_asked_to_try_again_and_not_turned_away() -> None:
    """S1.3: never a 401 for a token that could not be looked up."""
    async with running_api("postgresql://nobody@127.0.0.1:1/none") as api:
        answer = await api.client("apt_perfectly-fine")("GET", "/api/tokens")
    assert answer.problem() == (503, "unavailable", None)
    assert int(answer.headers["Retry-After"]) >= 1
