"""Handles every run event once, over HTTP: AUTOPILOT_API_URL, AUTOPILOT_TOKEN and AUTOPILOT_WORKSPACE say where."""

import json
import os
import sqlite3
import time
import urllib.request

URL = os.environ["AUTOPILOT_API_URL"] + "/api/events?limit=500"
HEADERS = {"Authorization": "Bearer " + os.environ["AUTOPILOT_TOKEN"], "X-Workspace": os.environ["AUTOPILOT_WORKSPACE"]}

db = sqlite3.connect(os.environ.get("EVENTS_DB", "events.db"))
db.execute("CREATE TABLE IF NOT EXISTS handled (event_id TEXT PRIMARY KEY, event TEXT NOT NULL)")
db.execute("CREATE TABLE IF NOT EXISTS place (one INTEGER PRIMARY KEY CHECK (one = 1), cursor TEXT NOT NULL)")
while True:
    [place] = db.execute("SELECT cursor FROM place").fetchone() or [None]
    request = urllib.request.Request(URL + (f"&after={place}" if place else ""), headers=HEADERS)
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            page = json.load(answer)
    except (OSError, ValueError):  # away or restarting: nothing is lost, ask again
        page = {"items": [], "cursor": place, "reset": False}
    if page["reset"]:
        print("history was restored or removed: read the state anew", flush=True)
    with db:  # your work and the place in one transaction: both are kept, or neither
        for event in page["items"]:
            db.execute("INSERT OR IGNORE INTO handled VALUES (?, ?)", (event["event_id"], json.dumps(event)))
        if page["cursor"] is not None:
            db.execute("INSERT OR REPLACE INTO place VALUES (1, ?)", (page["cursor"],))
    time.sleep(0 if page["items"] else 1)
