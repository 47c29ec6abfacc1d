"""A real server of an application, with the limits of the page's."""

import contextlib
import socket
import threading
from collections.abc import Iterator
from typing import Literal

import uvicorn
from starlette.types import ASGIApp
from vlalign.train.page.serve import IDLE_SECONDS, MAX_CONNECTIONS, Connection


@contextlib.contextmanager
def serving(app: ASGIApp, lifespan: Literal["on", "off"] = "off") -> Iterator[int]:
    """Serve an application as the page is served; yield the port."""
    listening = socket.create_server(("127.0.0.1", 0), backlog=MAX_CONNECTIONS)
    config = uvicorn.Config(
        app,
        http=Connection,
        limit_concurrency=MAX_CONNECTIONS + 1,
        timeout_keep_alive=IDLE_SECONDS,
        lifespan=lifespan,
        log_level="critical",
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        yield listening.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join(20)
        listening.close()
