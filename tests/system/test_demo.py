"""`make demo`, with a schedule that really waits for its minute."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(300)


async def test_the_demo_ends_with_every_check_held_and_leaves_nothing(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "autopilot.local", "demo", "--folder", str(tmp_path / "local"),
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    said, _ = await process.communicate()
    text = said.decode()
    assert process.returncode == 0, text
    assert "FAILED" not in text
    for source in ("webhook", "manual", "schedule"):
        assert f"{source}, completed" in text
    for outcome in ("200 accepted", "200 duplicate", "401 rejected", "All "):
        assert outcome in text
    assert not (tmp_path / "local" / "demo").exists()
