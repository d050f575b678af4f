"""`python -m autopilot.kit.probe`: asks the health server of its own container, for images that bring no other client."""

from __future__ import annotations

import http.client
import os
import sys
from collections.abc import Mapping

_TIMEOUT_S = 3.0
# A server that listens everywhere is asked where it surely is.
_LOOPBACK = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}  # noqa: S104 - compared, not bound


def probe(path: str, environ: Mapping[str, str]) -> str | None:
    """None when the health server named by the environment answers `path` with 200, else why not."""
    host = environ.get("AUTOPILOT_HEALTH_HOST", "").strip()
    port = environ.get("AUTOPILOT_HEALTH_PORT", "").strip()
    if not port.isdecimal():
        return "AUTOPILOT_HEALTH_PORT is not set to a port"
    try:
        connection = http.client.HTTPConnection(_LOOPBACK.get(host, host), int(port), timeout=_TIMEOUT_S)
        try:
            connection.request("GET", path)
            status = connection.getresponse().status
        finally:
            connection.close()
    except (OSError, http.client.HTTPException) as error:
        return f"{path}: {type(error).__name__}: {error}"
    return None if status == 200 else f"{path} answered {status}"


def main(arguments: list[str]) -> int:
    """0 when well, 1 with a line on stderr when not; the path is the argument, else /livez."""
    fault = probe(arguments[0] if arguments else "/livez", os.environ)
    if fault is not None:
        sys.stderr.write(f"{fault}\n")
    return 0 if fault is None else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
