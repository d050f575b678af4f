"""Bodies of webhooks as they are stored: compressed on this side, since that costs a Postgres more than the rest of an insert."""

from __future__ import annotations

from typing import Final

import asyncpg
import zstandard

_WORTH_BYTES: Final = 512
_LARGE_BYTES: Final = 32 * 1024
# As quick as lz4, for an eighth of what pglz takes. Of a large body each KiB less spares more than a higher level costs.
# The size is a column, so the frame need not repeat it.
_compress = zstandard.ZstdCompressor(level=-2, write_content_size=False).compress
_compress_well = zstandard.ZstdCompressor(level=1, write_content_size=False).compress
_decompress = zstandard.ZstdDecompressor().decompress


def pack(body: bytes) -> tuple[bytes, int | None]:
    """What to store of a body, and its `raw_size`: None where it is stored as it came."""
    if len(body) < _WORTH_BYTES:
        return body, None
    packed = _compress(body) if len(body) < _LARGE_BYTES else _compress_well(body)
    return (packed, len(body)) if len(packed) < len(body) else (body, None)


def unpack(stored: bytes, raw_size: int | None) -> bytes:
    """The body that `pack` was given, byte for byte."""
    return stored if raw_size is None else _decompress(stored, max_output_size=raw_size)


def body_of(row: asyncpg.Record) -> bytes | None:
    """The body of a row with `body` and `raw_size`; None where retention has taken it."""
    stored: bytes | None = row["body"]
    return stored if stored is None else unpack(stored, row["raw_size"])
