"""The probe that images bring for their HEALTHCHECK."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from autopilot.kit import probe


class _Health(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/livez" else 503)
        self.end_headers()

    def log_message(self, *_arguments: object) -> None:
        pass


@pytest.fixture
def port() -> Iterator[int]:
    with HTTPServer(("127.0.0.1", 0), _Health) as server:
        serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        serving.start()
        yield server.server_address[1]
        server.shutdown()
        serving.join()


@pytest.mark.parametrize("host", ["0.0.0.0", "127.0.0.1", ""])
def test_a_server_that_listens_everywhere_is_asked_here(
    host: str, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S15: 0 while it lives, 1 for any other answer."""
    monkeypatch.setenv("AUTOPILOT_HEALTH_HOST", host)
    monkeypatch.setenv("AUTOPILOT_HEALTH_PORT", str(port))
    assert probe.main([]) == 0
    assert probe.main(["/livez"]) == 0
    assert probe.main(["/readyz"]) == 1


def test_what_cannot_be_asked_is_a_fault_and_not_a_crash() -> None:
    assert probe.probe("/livez", {}) == "AUTOPILOT_HEALTH_PORT is not set to a port"
    refused = probe.probe("/livez", {"AUTOPILOT_HEALTH_PORT": "1"})
    assert refused is not None
    assert "ConnectionRefusedError" in refused
