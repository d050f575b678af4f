"""The three ways in which a run begins, each played to its end."""

from __future__ import annotations

import hashlib
import hmac
import secrets
import sys
import time
from collections.abc import Mapping
from datetime import datetime
from importlib import resources
from typing import Any

from autopilot.kit.clock import SystemClock
from autopilot.local.demo.report import Report, say
from autopilot.local.rest import Reply, Rest, send

RUN_TIMEOUT_S = 30.0
NEXT_MINUTE_TIMEOUT_S = 75.0
POLL_S = 0.1
STEPS = ("planned_at", "received_at", "admitted_at", "dispatched_at", "claimed_at", "finished_at")
READ = "Read #482, “Stop searching for a tide in a locked basin” by ines-marchand"  # what the agent says then
UNREAD = "Done, after reading the"
FINAL = ("completed", "failed", "skipped")


class Scenes:
    """One stack with one agent to work for its autopilots; what happens is told to the report."""

    def __init__(self, rest: Rest, ingress_url: str, agent_id: str, report: Report) -> None:
        self._rest = rest
        self._ingress_url = ingress_url
        self._agent_id = agent_id
        self._report = report

    def every_minute(self) -> str:
        """The rule of the third scene, made first: its minute passes while the others play."""
        autopilot_id = self._autopilot(
            "Look at the harbour cameras", "run_only", "Say whether the light is on."
        )
        self._trigger(autopilot_id, kind="schedule", cron="* * * * *", timezone="Europe/Amsterdam")
        return autopilot_id

    def webhook(self) -> None:
        report = self._report
        report.scene(1, "A signed GitHub webhook becomes an issue that an agent works on")
        secret = secrets.token_hex(20)
        autopilot_id = self._autopilot(
            "Review pull requests", "create_issue", "Read the change and say what it does.",
            issue_title_template="Review of {{date}}",
        )  # fmt: skip
        trigger = self._trigger(
            autopilot_id, kind="webhook", provider="github", signing_secret=secret,
            event_filters=[{"event": "pull_request", "actions": ["opened", "synchronize"]}],
        )  # fmt: skip
        body = resources.files("autopilot.local.demo").joinpath("pull_request.json").read_bytes()
        signed = _github_headers(secret, body)
        first = self._deliver(trigger, body, signed)
        report.line(f"POST pull_request, {len(body)} bytes, signed", _told(first))
        again = self._deliver(trigger, body, signed)
        report.line("the same again, same X-GitHub-Delivery", _told(again))
        forged = self._deliver(trigger, body, _github_headers("a guess", body))
        report.line("a new delivery, signed with another secret", _told(forged))
        report.check("a signed webhook is accepted", _told(first), "200 accepted")
        report.check("sent again it is a duplicate", _told(again), "200 duplicate")
        same = [(reply.body.get("delivery_id"), reply.body.get("run_id")) for reply in (first, again)]
        report.check("… of the same delivery and run", same[1], same[0])
        report.check("a wrong signature is rejected", _told(forged), "401 rejected")
        if first.body.get("run_id") is None:
            return
        run = self._finished(autopilot_id, first.body["run_id"])
        self._check_issue(run, "webhook", READ)
        report.check("the three requests made one run", len(self._runs(autopilot_id)), 1)

    def by_hand(self) -> None:
        report = self._report
        report.scene(2, "A person starts a run by hand")
        autopilot_id = self._autopilot("Write the release notes", "create_issue", "Sum up what has changed.")
        started = self._rest.post(f"/api/autopilots/{autopilot_id}/trigger?wait=5", None)
        report.line("POST …/trigger", started["status"])
        run = self._finished(autopilot_id, started["id"])
        self._check_issue(run, "manual", UNREAD)

    def scheduled(self, autopilot_id: str) -> None:
        report = self._report
        report.scene(3, "A schedule runs a task every minute, without an issue")
        run = self._next_run(autopilot_id)
        if run is None:
            report.check("the schedule fires within its minute", seen=False)
            return
        run = self._finished(autopilot_id, run["id"])
        self._tell(run)
        report.line("result", _first_line(run.get("result")))
        report.check("schedule: the run is completed", run["status"], "completed")
        result = run["result"] or ""
        report.check("schedule: its result is the command's answer", result[: len(UNREAD)], UNREAD)
        report.check("schedule: it has no issue", run["issue_id"], None)
        planned = datetime.fromisoformat(run["planned_at"])
        report.check(
            "schedule: it is planned for a full minute", (planned.second, planned.microsecond), (0, 0)
        )
        same = [other for other in self._runs(autopilot_id) if other["planned_at"] == run["planned_at"]]
        report.check("schedule: its minute has one run", len(same), 1)

    def _check_issue(self, run: dict[str, Any], source: str, beginning: str) -> None:
        """The run is completed, its issue in review, and the comment is what the command printed."""
        report = self._report
        self._tell(run)
        report.check(f"{source}: the run is completed", run["status"], "completed")
        if run.get("issue_id") is None:
            report.check(f"{source}: the run has an issue", seen=False)
            return
        issue = self._rest.get(f"/api/issues/{run['issue_id']}")
        comments = self._rest.get(f"/api/issues/{run['issue_id']}/comments")["items"]
        told = comments[-1]["body"] if comments else ""
        report.line(f"issue {issue['key']} “{issue['title']}”", issue["status"])
        say(f"   {_first_line(told)}")
        report.check(f"{source}: its issue is in review", issue["status"], "in_review")
        report.check(f"{source}: the command's answer is the comment", told[: len(beginning)], beginning)
        report.check(f"{source}: … from a process that was told its run", run["id"] in told)

    def _tell(self, run: dict[str, Any]) -> None:
        steps = [(name.removesuffix("_at"), run["timeline"][name]) for name in STEPS]
        self._report.timeline(run, steps)

    def _finished(self, autopilot_id: str, run_id: str) -> dict[str, Any]:
        """The run when it has ended, or as it is when the time is over."""
        deadline = time.monotonic() + RUN_TIMEOUT_S
        while True:
            run: dict[str, Any] = self._rest.get(f"/api/autopilots/{autopilot_id}/runs/{run_id}")
            if run["status"] in FINAL or time.monotonic() > deadline:
                return run
            time.sleep(POLL_S)

    def _next_run(self, autopilot_id: str) -> dict[str, Any] | None:
        """The first run of the schedule; a terminal sees the seconds go by."""
        deadline = time.monotonic() + NEXT_MINUTE_TIMEOUT_S
        live = sys.stdout.isatty()
        while time.monotonic() < deadline:
            if runs := self._runs(autopilot_id):
                if live:
                    print("\r" + " " * 40, end="\r", flush=True)
                return runs[-1]
            if live:
                left = 60 - SystemClock().now().second
                print(f"\r   the next minute begins in {left:2d} s ", end="", flush=True)
            time.sleep(POLL_S)
        return None

    def _runs(self, autopilot_id: str) -> list[dict[str, Any]]:
        runs: list[dict[str, Any]] = self._rest.get(f"/api/autopilots/{autopilot_id}/runs")["items"]
        return runs

    def _autopilot(self, title: str, mode: str, runbook: str, **fields: object) -> str:
        body = {"title": title, "description": runbook, "execution_mode": mode, "assignee_id": self._agent_id}
        return str(self._rest.post("/api/autopilots", body | fields)["id"])

    def _trigger(self, autopilot_id: str, **fields: object) -> dict[str, Any]:
        made: dict[str, Any] = self._rest.post(f"/api/autopilots/{autopilot_id}/triggers", fields)
        return made

    def _deliver(self, trigger: Mapping[str, Any], body: bytes, headers: Mapping[str, str]) -> Reply:
        return send(self._ingress_url, "POST", trigger["webhook_path"], body, headers)


def _github_headers(secret: str, body: bytes) -> dict[str, str]:
    """As GitHub sends a new delivery."""
    return {
        "Content-Type": "application/json",
        "User-Agent": "GitHub-Hookshot/demo",
        "X-GitHub-Event": "pull_request",
        "X-GitHub-Delivery": secrets.token_hex(16),
        "X-Hub-Signature-256": "sha256=" + hmac.new(secret.encode(), body, hashlib.sha256).hexdigest(),
    }


def _told(reply: Reply) -> str:
    return f"{reply.status} {reply.body.get('status') if isinstance(reply.body, dict) else reply.body}"


def _first_line(text: str | None) -> str:
    return (text or "").partition("\n")[0]
