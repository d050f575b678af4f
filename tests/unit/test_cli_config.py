"""What the command is told, and refuses before it calls anybody (S14)."""

from __future__ import annotations

import click
import pytest

from autopilot.cli.config import Settings, checked_url

GIVEN = {"AUTOPILOT_TOKEN": " apt_secret ", "AUTOPILOT_RUNTIME_TOKEN": "apr_secret"}


def test_the_token_comes_from_the_environment_and_does_not_show_itself() -> None:
    connection = Settings(api_url="http://x/", workspace="acme", environ=GIVEN).as_person()
    assert (connection.api_url, connection.workspace) == ("http://x", "acme")
    assert connection.token.reveal() == "apt_secret"
    assert "apt_secret" not in repr(connection)


def test_a_runtime_uses_its_own_token_and_names_no_workspace() -> None:
    connection = Settings(api_url="http://x", workspace="acme", environ=GIVEN).as_runtime()
    assert connection.token.reveal() == "apr_secret"
    assert connection.workspace is None


@pytest.mark.parametrize("token", ["", "  ", "apt_se cret", "apt_\nX-Other: 1", "apt_é"])
def test_a_missing_or_impossible_token_is_wrong_usage_and_is_not_repeated(token: str) -> None:
    settings = Settings(api_url="http://x", workspace=None, environ={"AUTOPILOT_TOKEN": token})
    with pytest.raises(click.UsageError, match="AUTOPILOT_TOKEN") as refused:
        settings.as_person()
    assert "apt_" not in str(refused.value)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "localhost:8080",
        "ftp://x",
        "http://",
        "http://me:pw@x",
        "http://x?a=1",
        "http://x:99999",
        "http://x#a",
    ],
)
def test_an_address_that_is_no_plain_http_url_is_wrong_usage(url: str) -> None:
    with pytest.raises(click.UsageError, match="AUTOPILOT_API_URL"):
        checked_url(url)


def test_a_workspace_cannot_smuggle_a_header() -> None:
    with pytest.raises(click.UsageError, match="AUTOPILOT_WORKSPACE"):
        Settings(api_url="http://x", workspace="a\r\nX: 1", environ=GIVEN).as_person()
