"""rules-api on a loop of its own in a thread, for clients that block."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TypeVar

from tests.support.api import Api, running_api

R = TypeVar("R")


class ApiThread:
    """The running application, and a way to do something with it on its own loop."""

    def __init__(self, api: Api, loop: asyncio.AbstractEventLoop) -> None:
        self.api = api
        self.base = api.base
        self._loop = loop

    def do(self, use: Callable[[Api], Awaitable[R]]) -> R:
        """Run a coroutine beside the server and wait for its result."""

        async def run() -> R:
            return await use(self.api)

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(timeout=40)


@contextmanager
def api_in_thread(postgres_url: str) -> Iterator[ApiThread]:
    """Serve until the block ends; what goes wrong at the start is raised here."""
    started: Future[ApiThread] = Future()
    done = threading.Event()

    async def serve() -> None:
        try:
            async with running_api(postgres_url) as api:
                started.set_result(ApiThread(api, asyncio.get_running_loop()))
                await asyncio.to_thread(done.wait)
        except BaseException as error:
            if not started.done():
                started.set_exception(error)
            raise

    thread = threading.Thread(target=lambda: asyncio.run(serve()), name="rules-api")
    thread.start()
    try:
        yield started.result(timeout=40)
    finally:
        done.set()
        thread.join()
