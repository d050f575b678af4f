"""Where the API is and who calls it: from flags and the environment; secrets from the environment only."""

from __future__ import annotations

import re
from collections.abc import Mapping

import click
import msgspec
from yarl import URL

from autopilot.kit.config import Secret

API_URL = "AUTOPILOT_API_URL"
TOKEN = "AUTOPILOT_TOKEN"  # noqa: S105 - the name of a variable
WORKSPACE = "AUTOPILOT_WORKSPACE"
RUNTIME_TOKEN = "AUTOPILOT_RUNTIME_TOKEN"  # noqa: S105 - the name of a variable
DEFAULT_API_URL = "http://127.0.0.1:8080"

_PRINTABLE = re.compile(r"[\x21-\x7e]+")


class Connection(msgspec.Struct, frozen=True, kw_only=True):
    """One caller of one API; `workspace` is sent as X-Workspace if given."""

    api_url: str
    token: Secret
    workspace: str | None


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked for on the command line, and the environment for the rest."""

    api_url: str
    workspace: str | None
    environ: Mapping[str, str]

    def as_person(self) -> Connection:
        """The caller of everyday commands."""
        return Connection(
            api_url=checked_url(self.api_url),
            token=_token(self.environ, TOKEN),
            workspace=_workspace(self.workspace),
        )

    def as_runtime(self) -> Connection:
        """The caller of the runtime protocol, whose token knows its workspace."""
        return Connection(
            api_url=checked_url(self.api_url), token=_token(self.environ, RUNTIME_TOKEN), workspace=None
        )


def checked_url(given: str) -> str:
    """The base URL without a slash at its end; UsageError unless it is a plain http or https URL."""
    try:
        url = URL(given.strip())
    except ValueError as error:
        raise click.UsageError(f"The API's address is no URL ({API_URL} or --api-url).") from error
    if url.scheme not in ("http", "https") or not url.host:
        raise click.UsageError(
            f"The API's address must begin with http:// or https:// ({API_URL} or --api-url)."
        )
    if url.user is not None or url.password is not None or url.query_string or url.fragment:
        raise click.UsageError(
            f"The API's address takes no user, password, query or fragment ({API_URL} or --api-url)."
        )
    return str(url).rstrip("/")


def _token(environ: Mapping[str, str], name: str) -> Secret:
    token = environ.get(name, "").strip()
    if not token:
        raise click.UsageError(f"{name} is not set: it holds the token to call with.")
    if not _PRINTABLE.fullmatch(token):
        raise click.UsageError(f"{name} holds characters that no token has.")
    return Secret(token)


def _workspace(given: str | None) -> str | None:
    workspace = (given or "").strip()
    if workspace and not _PRINTABLE.fullmatch(workspace):
        raise click.UsageError(f"The workspace must be a slug or an id ({WORKSPACE} or --workspace).")
    return workspace or None
