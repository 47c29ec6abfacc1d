"""An MCP server for the program that started this process, by standard input and output.

The main thread opens the data sets, which may take longer than a client waits, while another thread answers.
"""

import asyncio
import os
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from mcp.server.stdio import stdio_server

from ...storage.common.errors import UserError, reason_of
from ..search.search import Search
from .app import add_search, make_app, remove_kept
from .guard import Access
from .mcp_server import make_server

MAX_LINES = 16
"""Maximum number of messages that wait to be answered."""
READ_BYTES = 1 << 16


class InputLines:
    """The lines of standard input, read by a daemon thread, which does not keep an ending process alive."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start reading lines for an event loop. From now on, programs that this process starts get no input."""
        self._loop, self._lines = loop, asyncio.Queue[str | None](MAX_LINES)
        self._input = os.dup(0)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        threading.Thread(target=self._read, daemon=True).start()

    def __aiter__(self) -> "InputLines":
        return self

    async def __anext__(self) -> str:
        line = await self._lines.get()
        if line is None:
            raise StopAsyncIteration
        return line

    def _read(self) -> None:
        begun = bytearray()
        with suppress(RuntimeError):  # the loop has ended
            while part := os.read(self._input, READ_BYTES):
                *whole, rest = part.split(b"\n")
                for each in whole:
                    self._put((begun + each).decode(errors="replace"))
                    begun.clear()
                begun += rest
            self._put(None)

    def _put(self, line: str | None) -> None:
        asyncio.run_coroutine_threadsafe(self._lines.put(line), self._loop).result()


def serve_stdio(open_searches: Callable[[], Sequence[Search]]) -> None:
    """Answer the program that started this process until it closes the input.

    Args:
        open_searches: Opens a search for each data set. Calls of tools wait for it.

    Raises:
        UserError: The program does not read the answers any more.
    """
    access, loop, loaded = Access([]), asyncio.new_event_loop(), asyncio.Event()
    app = make_app([], access)
    server, lines = make_server(app, access, loaded), InputLines(loop)
    problems: list[str] = []

    async def answer() -> None:
        stdin: Any = lines  # an AsyncFile, of which only the lines are read
        async with stdio_server(stdin) as (received, sent):
            await server.run(received, sent, server.create_initialization_options())

    def run() -> None:
        try:
            loop.run_until_complete(answer())
        except Exception as error:
            problems.append(reason_of(error))

    answering = threading.Thread(target=run, daemon=True)
    answering.start()
    try:
        for search in open_searches():
            add_search(app, search)
        loop.call_soon_threadsafe(loaded.set)
        answering.join()
    finally:
        remove_kept(app)
    if problems:
        raise UserError(f"the client no longer reads the answers ({problems[0]})")
