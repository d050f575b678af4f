"""A service that does nothing but answer /readyz, or die, for tests of what starts and watches services."""

from __future__ import annotations

import http.server
import os
import sys
from http import HTTPStatus


class _Health(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        faults = os.environ.get("STAND_IN_FAULTS", "{}")
        self.send_response(HTTPStatus.OK if faults == "{}" else HTTPStatus.SERVICE_UNAVAILABLE)
        self.end_headers()
        self.wfile.write(f'{{"faults": {faults}}}'.encode())

    def log_message(self, *_: object) -> None:
        """Stay silent."""


if __name__ == "__main__":
    if words := os.environ.get("STAND_IN_DIES"):
        sys.exit(words)
    http.server.HTTPServer(("127.0.0.1", int(os.environ["AUTOPILOT_HEALTH_PORT"])), _Health).serve_forever()
