"""Where the API is and who calls it: flags first, then the environment, then a profile of the configuration file."""

from __future__ import annotations

import difflib
import re
import stat
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
import msgspec
from yarl import URL

from autopilot.kit.config import Secret

API_URL = "AUTOPILOT_API_URL"
TOKEN = "AUTOPILOT_TOKEN"  # noqa: S105 - the name of a variable
WORKSPACE = "AUTOPILOT_WORKSPACE"
RUNTIME_TOKEN = "AUTOPILOT_RUNTIME_TOKEN"  # noqa: S105 - the name of a variable
PROFILE = "AUTOPILOT_PROFILE"
CONFIG_HOME = "XDG_CONFIG_HOME"
DEFAULT_API_URL = "http://127.0.0.1:8080"
DEFAULT_PROFILE = "default"

_PRINTABLE = re.compile(r"[\x21-\x7e]+")


class Connection(msgspec.Struct, frozen=True, kw_only=True):
    """One caller of one API; `workspace` is sent as X-Workspace if given."""

    api_url: str
    token: Secret
    workspace: str | None


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """What the configuration file says under one name."""

    api_url: str | None = None
    workspace: str | None = None
    token: str | None = None
    runtime_token: str | None = None


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked for on the command line, and the environment for the rest.

    `profile_first`: the profile was named by its flag, so that its server gets no token of the environment beside its own.
    """

    api_url: str | None
    workspace: str | None
    profile: str | None = None
    profile_first: bool = False
    environ: Mapping[str, str]

    def as_person(self) -> Connection:
        """The caller of everyday commands."""
        profile = self._profile()
        return Connection(
            api_url=checked_url(self.api_url or profile.api_url or DEFAULT_API_URL),
            token=self._token(TOKEN, profile.token, "token"),
            workspace=_workspace(self.workspace or profile.workspace),
        )

    def as_runtime(self) -> Connection:
        """The caller of the runtime protocol, whose token knows its workspace."""
        profile = self._profile()
        return Connection(
            api_url=checked_url(self.api_url or profile.api_url or DEFAULT_API_URL),
            token=self._token(RUNTIME_TOKEN, profile.runtime_token, "runtime_token"),
            workspace=None,
        )

    def _profile(self) -> Profile:
        return read_profile(config_path(self.environ), self.profile)

    def _token(self, name: str, kept: str | None, setting: str) -> Secret:
        places = [self.environ.get(name, "").strip(), (kept or "").strip()]
        token = next(filter(None, reversed(places) if self.profile_first else places), None)
        if token is None:
            raise click.UsageError(
                f"There is no token to call with: set {name}, or `{setting}` in a profile of the configuration file."
            )
        if not _PRINTABLE.fullmatch(token):
            raise click.UsageError(f"{name} or `{setting}` holds characters that no token has.")
        return Secret(token)


def config_path(environ: Mapping[str, str]) -> Path | None:
    """`autopilot/config.toml` in XDG_CONFIG_HOME or ~/.config; None without a home."""
    given = environ.get(CONFIG_HOME, "").strip()
    if given.startswith("/"):
        return Path(given) / "autopilot" / "config.toml"
    home = environ.get("HOME", "").strip()
    return Path(home) / ".config" / "autopilot" / "config.toml" if home else None


def read_profile(path: Path | None, name: str | None) -> Profile:
    """The named profile of the file, by default the one the file names, or `default`. UsageError says what is wrong."""
    document = _read(path)
    if document is None:
        if name is not None:
            raise click.UsageError(f"There is no profile {name!r}: {path or 'the file'} does not exist.")
        return Profile()
    assert path is not None
    _refuse_unknown(document, ("profile", "profiles"), str(path))
    profiles = document.get("profiles", {})
    chosen = name if name is not None else document.get("profile", DEFAULT_PROFILE)
    if not isinstance(profiles, dict) or not isinstance(chosen, str):
        raise click.UsageError(
            f"{path}: `profile` is a name, and `[profiles.NAME]` a table for each; one of them is not."
        )
    if chosen not in profiles:
        if name is None and "profile" not in document:
            return Profile()
        known = ", ".join(sorted(profiles)) or "none"
        raise click.UsageError(f"{path} has no profile {chosen!r}; there are: {known}.")
    table = profiles[chosen]
    if not isinstance(table, dict):
        raise click.UsageError(f"{path}: [profiles.{chosen}] is not a table.")
    _refuse_unknown(table, Profile.__struct_fields__, f"{path}, profile {chosen}")
    try:
        profile = msgspec.convert(table, Profile)
    except msgspec.ValidationError as error:
        raise click.UsageError(f"{path}, profile {chosen}: every value is a text in quotes.") from error
    if (profile.token or profile.runtime_token) and path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        click.echo(f"Warning: others can read the tokens in {path}; run chmod 600 on it.", err=True)
    return profile


def _read(path: Path | None) -> dict[str, Any] | None:
    if path is None:
        return None
    try:
        return tomllib.loads(path.read_text("utf-8-sig"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise click.UsageError(f"{path} cannot be read ({type(error).__name__}).") from error
    except tomllib.TOMLDecodeError as error:
        raise click.UsageError(f"{path} is no TOML: {error}.") from error


def _refuse_unknown(table: Mapping[str, object], known: tuple[str, ...], where: str) -> None:
    for name in table:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f" Did you mean {near[0]}?" if near else f" There are: {', '.join(known)}."
            raise click.UsageError(f"{where}: there is no setting {name!r}.{hint}")


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


def _workspace(given: str | None) -> str | None:
    workspace = (given or "").strip()
    if workspace and not _PRINTABLE.fullmatch(workspace):
        raise click.UsageError(f"The workspace must be a slug or an id ({WORKSPACE} or --workspace).")
    return workspace or None
