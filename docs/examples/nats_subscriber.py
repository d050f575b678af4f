"""Handles run events from NATS at once, each once: NATS_URL and WORKSPACE_ID say where. Needs nats-py."""

import asyncio
import json
import os
import sqlite3

import nats

db = sqlite3.connect(os.environ.get("EVENTS_DB", "events.db"))
db.execute("CREATE TABLE IF NOT EXISTS handled (event_id TEXT PRIMARY KEY, event TEXT NOT NULL)")


async def follow(stream: nats.js.JetStreamContext) -> None:
    subject = f"autopilot.events.{os.environ['WORKSPACE_ID']}.>"
    reader = await stream.pull_subscribe(subject, "example", stream="AUTOPILOT_EVENTS")
    while True:
        for message in await reader.fetch(50, timeout=5):
            with db:  # your work and the mark that it is done in one transaction, and only then the ack
                event_id = json.loads(message.data)["event_id"]
                db.execute("INSERT OR IGNORE INTO handled VALUES (?, ?)", (event_id, message.data.decode()))
            await message.ack()


async def main() -> None:
    while True:  # a new client when nothing came for 5 s or something broke: none stays silent for good
        try:
            async with await nats.connect(os.environ["NATS_URL"], allow_reconnect=False) as client:
                await follow(client.jetstream())
        except (nats.errors.Error, OSError):
            await asyncio.sleep(0.5)


asyncio.run(main())
