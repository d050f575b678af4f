"""Logs: one JSON object a line on stderr, with ids bound by contextvars and with secrets masked (S9.12)."""

from __future__ import annotations

import json
import logging
import re
import sys
import traceback
from collections.abc import Mapping
from textwrap import indent
from typing import Any, TextIO

import structlog
from structlog.typing import EventDict, ExcInfo, FilteringBoundLogger, Processor, WrappedLogger

_MASK = "***"
_SECRET_NAME = re.compile(
    r"(^|[_-])(tokens?|secrets?|signature|authorization|password|cookie|body|payload)$", re.IGNORECASE
)
_TOKEN = re.compile(r"\b(awt_|ap[tsr]_)[A-Za-z0-9_-]{6,}|(/webhooks/autopilots/)[^\s/?\"'<>]+")
_USERINFO = re.compile(r"(://[^/\s:@]*):[^/\s@]*@")
_DEPTH = 5

bind = structlog.contextvars.bind_contextvars
"""`bind(request_id=…)` adds keys to every later line of this task and of the tasks that it starts."""

bound = structlog.contextvars.bound_contextvars
"""`with bound(run_id=…):` adds keys to every line logged inside, across awaits."""


def configure(service: str, level: str = "info", *, stream: TextIO | None = None) -> None:
    """Send structlog and the standard library's logging through one pipeline to `stream` (stderr)."""
    threshold = logging.getLevelNamesMapping()[level.upper()]
    target = stream or sys.stderr

    def name_service(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
        event["service"] = service
        return event

    first: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        name_service,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    last: list[Processor] = [structlog.processors.ExceptionRenderer(_failure), redact, _to_json]
    structlog.configure(
        processors=[*first, *last],
        wrapper_class=structlog.make_filtering_bound_logger(threshold),
        logger_factory=structlog.WriteLoggerFactory(file=target),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(target)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.add_logger_name, *first],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *last],
        )
    )
    logging.basicConfig(handlers=[handler], level=max(threshold, logging.INFO), force=True)


def get_logger(**bindings: Any) -> FilteringBoundLogger:
    """A logger whose calls are an event name and keys: `logger.info("run_admitted", run_id=run_id)`."""
    logger: FilteringBoundLogger = structlog.get_logger(**bindings)
    return logger


def redact(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Mask values by the name of their key, and tokens and passwords inside any string."""
    for key, value in event.items():
        event[key] = _clean(key, value, _DEPTH)
    return event


def redact_text(text: str) -> str:
    """The text with API and webhook tokens, what stands in a token's place, and the passwords of URLs masked."""
    return _USERINFO.sub(rf"\1:{_MASK}@", _TOKEN.sub(rf"\1\2{_MASK}", text))


def _clean(key: str, value: Any, depth: int) -> Any:
    if value is None or isinstance(value, bool | int | float):
        return value
    if _SECRET_NAME.search(key):
        return _MASK
    if isinstance(value, str):
        return redact_text(value)
    if depth == 0:
        return _MASK
    if isinstance(value, Mapping):
        return {str(name): _clean(str(name), inner, depth - 1) for name, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_clean("", inner, depth - 1) for inner in value]
    return redact_text(str(value))


def _failure(exc_info: ExcInfo) -> str:
    """The exception with what led to it, first cause first, each with its own traceback."""
    chain: list[BaseException] = []
    error: BaseException | None = exc_info[1]
    while error is not None and all(error is not seen for seen in chain):
        chain.append(error)
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return "\n\n".join(_one_failure(error) for error in reversed(chain))


def _one_failure(error: BaseException) -> str:
    text = "".join(traceback.format_tb(error.__traceback__)) + _kind_and_message(error)
    if isinstance(error, BaseExceptionGroup):
        inner = [indent(_failure((type(one), one, one.__traceback__)), "  ") for one in error.exceptions]
        text = "\n".join([text, *inner])
    return text


def _kind_and_message(error: BaseException) -> str:
    """A database error is told by its code and its place in the schema: its message quotes arguments and rows."""
    kind = f"{type(error).__module__}.{type(error).__qualname__}".removeprefix("builtins.")
    code = getattr(error, "sqlstate", None)
    if code is None:
        return f"{kind}: {error}"
    if code.startswith("42"):  # a fault of the statement itself, whose message names what is in it
        return f"{kind} [{code}]: {error.args[0]}"
    places = [getattr(error, name, None) for name in ("table_name", "column_name", "constraint_name")]
    return " ".join([f"{kind} [{code}]", *filter(None, places)])


def _to_json(_logger: WrappedLogger, _method: str, event: EventDict) -> str:
    # The standard encoder takes integers of any size and lone surrogates, which a payload may hold.
    return json.dumps(event)
