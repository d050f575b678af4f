"""Logs are JSON lines and let no secret through, whatever writes them (S9.12)."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from autopilot.kit import log

TOKEN = "awt_" + "x" * 43


class Lines:
    def __init__(self) -> None:
        self.stream = io.StringIO()

    def all(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.stream.getvalue().splitlines()]

    def last(self) -> dict[str, Any]:
        return self.all()[-1]


@pytest.fixture
def lines() -> Iterator[Lines]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    before = structlog.get_config()
    lines = Lines()
    log.configure("test", "info", stream=lines.stream)
    structlog.configure(cache_logger_on_first_use=False)
    yield lines
    structlog.configure(**before)
    root.handlers[:] = handlers
    root.setLevel(level)


def test_a_line_is_one_json_object_with_the_service_and_the_bound_ids(lines: Lines) -> None:
    with log.bound(run_id="r1"):
        log.get_logger().info("run_admitted", attempts=2)
    log.get_logger().info("after")
    first, second = lines.all()
    assert (first["event"], first["service"], first["run_id"], first["attempts"], first["level"]) == (
        "run_admitted",
        "test",
        "r1",
        2,
        "info",
    )
    assert "run_id" not in second


def test_what_stands_in_a_token_s_place_is_masked_whatever_it_looks_like(lines: Lines) -> None:
    """S9.12: a token that was pasted wrongly is nearly one; the loop's debug mode shows answers with their path."""
    answer = "<Response OK POST /api/webhooks/autopilots/wt_nearly-a-token >"
    logging.getLogger("asyncio").warning("Executing <Task result=(%s, False)> took 0.2 seconds", answer)
    assert lines.last()["event"] == (
        "Executing <Task result=(<Response OK POST /api/webhooks/autopilots/*** >, False)> took 0.2 seconds"
    )


def test_the_standard_library_s_logging_goes_the_same_way(lines: Lines) -> None:
    logging.getLogger("aiohttp.server").error("failed at /api/webhooks/autopilots/%s", TOKEN)
    assert lines.last()["logger"] == "aiohttp.server"
    assert lines.last()["event"] == "failed at /api/webhooks/autopilots/***"
    assert len(lines.all()) == 1


def test_lines_below_the_level_are_not_written(lines: Lines) -> None:
    log.get_logger().debug("quiet")
    logging.getLogger("asyncio").debug("quiet")
    assert lines.all() == []


@pytest.mark.parametrize(
    "key",
    ["token", "webhook_token", "secret", "signing_secret", "signature", "Authorization", "body", "payload"],
)
def test_a_key_that_names_a_secret_is_masked_at_any_depth(lines: Lines, key: str) -> None:
    log.get_logger().info("e", **{key: "hunter2"}, inner=[{"a": {key: "hunter2"}}])
    assert "hunter2" not in lines.stream.getvalue()


@pytest.mark.parametrize("key", ["token_id", "body_bytes", "tokens_seen"])
def test_a_key_that_only_resembles_one_is_shown(lines: Lines, key: str) -> None:
    log.get_logger().info("e", **{key: "shown"})
    assert lines.last()[key] == "shown"


def test_tokens_and_url_passwords_are_masked_inside_any_text(lines: Lines) -> None:
    def fail() -> None:
        raise ValueError(f"no {TOKEN} at postgresql://me:hunter2@db:5432/a?x=1")

    try:
        fail()
    except ValueError:
        log.get_logger().exception(f"odd {TOKEN}", note=["apt_abcdefgh123"])
    text = lines.stream.getvalue()
    assert "xxxx" not in text
    assert "hunter2" not in text
    assert "abcdefgh" not in text
    assert "postgresql://me:***@db:5432/a?x=1" in lines.last()["exception"]


class DriverError(Exception):
    """As the driver makes them: a code, a place in the schema, and a message that quotes what was sent."""

    sqlstate = "22P02"
    table_name = "autopilot_run"
    constraint_name = None


class BadStatement(DriverError):
    sqlstate = "42703"


def fail(with_error: Exception) -> None:
    try:
        raise with_error
    except DriverError as error:
        raise RuntimeError("the write failed") from error


def test_what_a_database_error_quotes_is_not_logged(lines: Lines) -> None:
    """S9.12: neither by the error itself nor by one that was raised from it, nor inside a group."""
    quoting = DriverError("invalid input for query argument $4: 'hunter2'")
    with pytest.raises(RuntimeError) as caught:
        fail(quoting)
    for error in (quoting, caught.value, ExceptionGroup("two", [quoting])):
        log.get_logger().error("odd", exc_info=error)
    assert "hunter2" not in lines.stream.getvalue()
    alone, chained, grouped = [line["exception"] for line in lines.all()]
    for text in (alone, chained, grouped):
        assert "DriverError [22P02] autopilot_run" in text
    assert chained.endswith("RuntimeError: the write failed")
    assert chained.count("in fail") == 2


def test_a_faulty_statement_is_told_in_words(lines: Lines) -> None:
    log.get_logger().error("odd", exc_info=BadStatement("column r.nmae does not exist"))
    assert lines.last()["exception"].endswith("BadStatement [42703]: column r.nmae does not exist")


def test_any_value_can_be_logged(lines: Lines) -> None:
    log.get_logger().info("e", big=10**40, odd="\ud800", nothing=None, thing=object(), size=float("1.5"))
    assert lines.last()["big"] == 10**40
