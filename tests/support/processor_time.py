"""How long code takes by the processor's own count."""

from __future__ import annotations

import time
from collections.abc import Callable


def fastest(step: Callable[[], object]) -> float:
    """Processor seconds of the fastest of some tries: what else the machine does is no fault of ours."""

    def once() -> float:
        started = time.process_time()
        step()
        return time.process_time() - started

    return min(once() for _ in range(5))
