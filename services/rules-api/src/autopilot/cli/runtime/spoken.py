"""What a command prints, on its way to the task's output: as text, in pieces, and no more than a little at a time."""

from __future__ import annotations

import codecs

PIECE_CHARACTERS = 16 * 1024
# What one look can take: a flood between two looks leaves its end, and a gap before it.
WAITING_CHARACTERS = 4 * PIECE_CHARACTERS

_decoder = codecs.getincrementaldecoder("utf-8")


class Spoken:
    """Both streams in the order in which they came. Places count characters from the beginning, lost ones included."""

    def __init__(self) -> None:
        self._decoders = {1: _decoder("replace"), 2: _decoder("replace")}
        self._waiting = ""
        self._place = 0
        self._offered: tuple[int, str] | None = None

    def take(self, descriptor: int, data: bytes) -> None:
        # No character is longer than four bytes: more than so many need not be decoded to be thrown away.
        over = len(data) - 4 * WAITING_CHARACTERS
        if over > 0:
            self._place += over
            data = data[over:]
        text = self._decoders[descriptor].decode(data).replace("\0", "")
        self._waiting += text
        lost = len(self._waiting) - WAITING_CHARACTERS
        if lost > 0:
            self._place += lost
            self._waiting = self._waiting[lost:]

    def next_piece(self) -> tuple[int, str] | None:
        """The first piece that waits, with its place; the very same again until it is `told`, for it may have arrived."""
        if self._offered is None and self._waiting:
            self._offered = self._place, self._waiting[:PIECE_CHARACTERS]
        return self._offered

    def told(self, place: int, text: str) -> None:
        """A piece has arrived; what of it waits still is let go."""
        self._offered = None
        passed = place + len(text) - self._place
        if passed > 0:
            self._place += passed
            self._waiting = self._waiting[passed:]
