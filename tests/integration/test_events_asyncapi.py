"""docs/asyncapi.json says what events really look like: both ways, on events that a database made (S12.2)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema_rs
import msgspec
import pytest
from tests.support import coherent_world

from autopilot.bus.subjects import event_subject
from autopilot.domain.events import EventKind, RunEvent
from autopilot.domain.states import ReasonCode, RunStatus, Source
from autopilot.rules_api.wire.events import Position
from autopilot.storage import events
from autopilot.storage.database import Database

DOCUMENT: dict[str, Any] = json.loads(
    (Path(__file__).parents[2] / "docs" / "asyncapi.json").read_text(encoding="utf-8")
)
SCHEMAS = DOCUMENT["components"]["schemas"]
MESSAGES = {EventKind.STARTED: "runStarted", EventKind.DONE: "runDone"}


def validator(message: str) -> jsonschema_rs.Validator:
    """Of the payload that a message of the document has."""
    [pointer] = DOCUMENT["components"]["messages"][message]["payload"].values()
    return jsonschema_rs.Draft7Validator(
        {"$ref": pointer, "components": {"schemas": SCHEMAS}}, validate_formats=True
    )


async def told(url: str) -> list[RunEvent]:
    """The events of a world with runs of every source and end."""
    ids = await coherent_world.build(url)
    async with Database(url, name="test") as database:
        async with database.connection() as conn:
            await conn.execute(
                "UPDATE autopilot_run SET status = 'completed', completed_at = now() WHERE id = $1",
                ids["first"],
            )
            await events.open_heads(conn, 1000)
        await database.transact(lambda conn: events.sequence(conn, 1000))
        async with database.connection() as conn:
            workspaces = await conn.fetch("SELECT workspace_id FROM event_head")
            return [
                event
                for row in workspaces
                for event in await events.read_after(conn, row["workspace_id"], 0, 1000)
            ]


async def test_every_event_of_a_database_is_as_the_document_says(postgres_url: str) -> None:
    found = await told(postgres_url)
    for event in found:
        validator(MESSAGES[event.kind]).validate(json.loads(msgspec.json.encode(event)))
    shown = {name for event in found for name in json.loads(msgspec.json.encode(event))}
    assert shown == set(RunEvent.__struct_fields__), "each field was there at least once"
    assert {event.status for event in found} == set(RunStatus) - {RunStatus.PENDING}
    assert {event.kind for event in found} == set(EventKind)

    started = next(json.loads(msgspec.json.encode(e)) for e in found if e.kind is EventKind.STARTED)
    for wrong in (
        {"status": "completed"},
        {"kind": "run.done"},
        {"seq": 0},
        {"run_id": "x"},
        {"secret": "x"},
    ):
        assert not validator("runStarted").is_valid(started | wrong), wrong
    refused = next(json.loads(msgspec.json.encode(e)) for e in found if e.status is RunStatus.SKIPPED)
    del refused["reason_code"]
    assert not validator("runDone").is_valid(refused)


def test_the_document_has_the_fields_and_words_of_the_code() -> None:
    run_event = SCHEMAS["RunEvent"]
    assert list(run_event["properties"]) == list(RunEvent.__struct_fields__)
    optional = {field.name for field in msgspec.structs.fields(RunEvent) if not field.required}
    assert set(run_event["required"]) == set(RunEvent.__struct_fields__) - optional
    words = {name: set(shape["enum"]) for name, shape in run_event["properties"].items() if "enum" in shape}
    of_deliveries = {ReasonCode.MISSING_SIGNATURE, ReasonCode.INVALID_SIGNATURE}
    assert words == {
        "kind": set(EventKind),
        "source": set(Source),
        "status": set(RunStatus) - {RunStatus.PENDING},
        "reason_code": set(ReasonCode) - of_deliveries,
    }
    for kind, message in MESSAGES.items():
        assert DOCUMENT["components"]["messages"][message]["name"] == kind
    subjects = {channel["address"] for channel in DOCUMENT["channels"].values() if "parameters" in channel}
    assert subjects == {event_subject("{workspaceId}", kind.value) for kind in EventKind}  # type: ignore[arg-type]
    validator("reset").validate({"cursor": str(Position(epoch=1_796_000_000_000, seq=3))})


def references(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        if "$ref" in node:
            yield node["$ref"]
        for child in node.values():
            yield from references(child)
    elif isinstance(node, list):
        for child in node:
            yield from references(child)


def test_the_document_is_whole() -> None:
    """AsyncAPI 3: what it needs is there, every reference leads somewhere, an operation's messages are its channel's."""
    assert DOCUMENT["asyncapi"] == "3.0.0"
    assert {"title", "version"} <= DOCUMENT["info"].keys()
    for pointer in references(DOCUMENT):
        node: Any = DOCUMENT
        for step in pointer.removeprefix("#/").split("/"):
            assert step in node, pointer
            node = node[step]
    for channel in DOCUMENT["channels"].values():
        in_address = {part.strip("{}") for part in channel["address"].split(".") if part.startswith("{")}
        assert set(channel.get("parameters", {})) == in_address
    for operation in DOCUMENT["operations"].values():
        assert operation["action"] == "send"
        for message in operation["messages"]:
            assert message["$ref"].startswith(operation["channel"]["$ref"] + "/messages/")


@pytest.mark.parametrize("name", ["subscriber.py", "nats_subscriber.py"])
def test_an_example_is_short_enough_to_be_read(name: str) -> None:
    text = (Path(__file__).parents[2] / "docs" / "examples" / name).read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 34
