"""Configuration from the environment: one frozen struct per service, all faults reported together (S15)."""

from __future__ import annotations

import difflib
import types
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec

from autopilot.domain.errors import AutopilotError

PREFIX = "AUTOPILOT_"
_YES = {"1", "true", "yes", "on"}
_NO = {"0", "false", "no", "off"}

C = TypeVar("C", bound=msgspec.Struct)


class ConfigError(AutopilotError):
    """The configuration is refused. `faults` holds one line for each fault."""

    def __init__(self, faults: list[str]) -> None:
        self.faults = faults
        super().__init__("; ".join(faults))


class Secret:
    """A string that does not show itself; `reveal()` gives it."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        return self._value

    def __repr__(self) -> str:
        return "Secret(***)"

    def __str__(self) -> str:
        return "***"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._value == self._value

    def __hash__(self) -> int:
        return hash(self._value)


class CommonConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What every service is told."""

    database_url: Annotated[Secret, msgspec.Meta(description="Postgres, as a postgresql:// URL")]
    nats_url: Annotated[
        Secret | None,
        msgspec.Meta(
            description="NATS, as a nats:// URL, or several with commas; empty: work by polling alone"
        ),
    ] = None
    secret_keys: Annotated[
        tuple[Secret, ...],
        msgspec.Meta(
            description="Fernet keys, comma separated; the first encrypts, all decrypt; ingress and rules-api need one"
        ),
    ] = ()
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], msgspec.Meta(description="The least severe line logged")
    ] = "info"
    health_host: Annotated[str, msgspec.Meta(description="Where /livez, /readyz and /metrics listen")] = (
        "127.0.0.1"
    )
    health_port: Annotated[
        int, msgspec.Meta(ge=0, le=65535, description="Their port; 0 takes a free one and logs it")
    ] = 0
    poll_interval_s: Annotated[
        float, msgspec.Meta(gt=0, le=60, description="How long a loop waits at most without a wake-up")
    ] = 1.0
    grace_s: Annotated[
        float, msgspec.Meta(ge=0, le=600, description="How long a shutdown may take after SIGTERM")
    ] = 30.0
    db_pool_max: Annotated[int, msgspec.Meta(ge=1, le=1000, description="Database connections at most")] = 8
    db_pooler: Annotated[
        bool,
        msgspec.Meta(
            description="Whether the database is reached through a transaction-mode pooler (pgbouncer)"
        ),
    ] = False


class KeyDoc(msgspec.Struct, frozen=True, kw_only=True):
    """One key of a configuration, as its documentation shows it."""

    name: str
    type: str
    required: bool
    default: str
    doc: str
    secret: bool


def load(struct: type[C], environ: Mapping[str, str]) -> C:
    """Read `struct` from `AUTOPILOT_*` variables; an empty one counts as unset. ConfigError names every fault."""
    values: dict[str, Any] = {}
    faults: list[str] = []
    hints = get_type_hints(struct, include_extras=True)
    for field in msgspec.structs.fields(struct):
        key = key_of(field.name)
        raw = environ.get(key, "").strip()
        if not raw:
            if field.required:
                faults.append(f"{key} is missing ({_doc_of(hints[field.name]) or 'required'})")
            continue
        try:
            values[field.name] = _parse(raw, hints[field.name])
        except msgspec.ValidationError as error:
            faults.append(f"{key}: {error}")
    if not faults:
        try:
            return struct(**values)
        except (ValueError, AutopilotError) as error:  # a struct's __post_init__ compares its fields
            faults.append(str(error))
    raise ConfigError(faults)


def misspelt(struct: type[msgspec.Struct], environ: Mapping[str, str]) -> list[str]:
    """A line for each unknown key that looks like one of ours; others are left to the services that share the file."""
    known = [key_of(field.name) for field in msgspec.structs.fields(struct)]
    lines = []
    for key in sorted(environ):
        if key.startswith(PREFIX) and key not in known:
            near = difflib.get_close_matches(key, known, n=1, cutoff=0.9)
            if near:
                lines.append(f"{key} is not a setting here; did you mean {near[0]}?")
    return lines


def describe(struct: type[msgspec.Struct]) -> list[KeyDoc]:
    """Every key that `load` reads for `struct`, in order."""
    hints = get_type_hints(struct, include_extras=True)
    return [_describe_field(field, hints[field.name]) for field in msgspec.structs.fields(struct)]


def key_of(field_name: str) -> str:
    """The variable that a field is read from."""
    return PREFIX + field_name.upper()


def _describe_field(field: msgspec.structs.FieldInfo, hint: Any) -> KeyDoc:
    bare = _strip(hint)
    default = "" if field.default in (None, (), msgspec.NODEFAULT) else str(field.default)
    secret = bare is Secret or get_args(bare)[:1] == (Secret,)
    return KeyDoc(
        name=key_of(field.name),
        type=_type_name(bare),
        required=field.required,
        default=default,
        doc=_doc_of(hint),
        secret=secret,
    )


def _parse(raw: str, hint: Any) -> Any:
    bare = _strip(hint)
    value: Any = raw
    if bare in (int, float):
        try:
            value = bare(raw)
        except ValueError:
            raise msgspec.ValidationError(f"Expected a {'whole ' if bare is int else ''}number") from None
    elif get_origin(bare) in (list, tuple):
        value = [part.strip() for part in raw.split(",") if part.strip()]
    elif bare is bool:
        lowered = raw.lower()
        if lowered not in _YES | _NO:
            raise msgspec.ValidationError("Expected yes or no")
        value = lowered in _YES
    return msgspec.convert(value, hint, strict=False, dec_hook=_decode)


def _decode(wanted: type, value: Any) -> Any:
    if wanted is Secret:
        return Secret(value)
    raise NotImplementedError(f"a setting cannot have the type {wanted!r}")


def _strip(hint: Any) -> Any:
    """The type without Annotated and without `| None`."""
    if get_origin(hint) is Annotated:
        hint = get_args(hint)[0]
    if get_origin(hint) in (Union, types.UnionType):
        rest = [part for part in get_args(hint) if part is not type(None)]
        if len(rest) == 1:
            return _strip(rest[0])
    return hint


def _doc_of(hint: Any) -> str:
    if get_origin(hint) is not Annotated:
        return ""
    descriptions = [meta.description for meta in hint.__metadata__ if isinstance(meta, msgspec.Meta)]
    return next((text for text in descriptions if text), "")


def _type_name(bare: Any) -> str:
    origin, arguments = get_origin(bare), get_args(bare)
    if origin is Literal:
        return "|".join(str(argument) for argument in arguments)
    if origin in (list, tuple):
        return f"list of {_type_name(_strip(arguments[0]))}"
    return str(getattr(bare, "__name__", bare)).lower()
