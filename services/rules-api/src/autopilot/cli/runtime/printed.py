"""What a command prints: kept within bounds, and cut to what the API takes (S11.7)."""

from __future__ import annotations

import re

from autopilot.cli.runtime.spoken import Spoken

OUTPUT_LIMIT = 1024 * 1024
RESULT_LIMIT = 64 * 1024
ERROR_CHARACTERS = 4_000
PROGRESS_CHARACTERS = 2_000

# The latest line is looked for in the end of what came last, whatever the rest is.
_LINE_WINDOW = 4 * PROGRESS_CHARACTERS
_UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f]")


class Tail:
    """The last bytes of a stream, at most `limit` of them, and how many there were in all."""

    def __init__(self, limit: int = OUTPUT_LIMIT) -> None:
        self._limit = limit
        self._kept = bytearray()
        self.total = 0

    def add(self, data: bytes) -> None:
        self.total += len(data)
        self._kept += data[-self._limit :]
        # Twice the limit before anything moves: each byte is copied once, not at every chunk.
        if len(self._kept) >= 2 * self._limit:
            del self._kept[: -self._limit]

    def end(self, count: int) -> bytes:
        """The last `count` bytes that are kept."""
        return bytes(self._kept[-min(count, self._limit) :])


class Printed:
    """Both streams of one command."""

    def __init__(self) -> None:
        self.stdout = Tail()
        self.stderr = Tail()
        self.spoken = Spoken()
        self._latest: Tail | None = None

    def take(self, descriptor: int, data: bytes) -> None:
        stream = self.stdout if descriptor == 1 else self.stderr
        stream.add(data)
        self.spoken.take(descriptor, data)
        self._latest = stream

    def result(self) -> str:
        """The end of stdout, at most 64 KiB with the mark that says how much was cut."""
        total = self.stdout.total
        text = _text(self.stdout.end(RESULT_LIMIT))
        if total <= RESULT_LIMIT and len(text.encode()) <= RESULT_LIMIT:
            return text
        mark = f"[The first part of {total} bytes of output is cut.]\n"
        return mark + _last_bytes(text, RESULT_LIMIT - len(mark))

    def error(self, headline: str) -> str:
        """The headline and the end of stderr, or of stdout if there is nothing on stderr."""
        stream = self.stderr if self.stderr.total else self.stdout
        said = _text(stream.end(4 * ERROR_CHARACTERS))
        room = ERROR_CHARACTERS - len(headline) - 1
        return f"{headline}\n{said[-room:]}" if said else headline

    def latest_line(self) -> str | None:
        """The last line that is not blank, of whichever stream spoke last."""
        if self._latest is None:
            return None
        lines = _text(self._latest.end(_LINE_WINDOW)).splitlines()
        line = next((line.strip() for line in reversed(lines) if line.strip()), None)
        return None if line is None else _UNSEEN.sub("", line)[:PROGRESS_CHARACTERS]


def _text(data: bytes) -> str:
    """Readable text: what is no UTF-8 is marked, and NUL, which no text of the API may hold, is left out."""
    return data.decode(errors="replace").replace("\0", "").rstrip()


def _last_bytes(text: str, count: int) -> str:
    """The end of the text that fits into so many bytes, without a broken character."""
    return text.encode()[-count:].decode(errors="ignore")
