"""Connections that ask for nothing: others are answered all the same, and each is closed in time."""

import contextlib
import socket
import threading
import time
import urllib.request

import pytest
import uvicorn
from vlalign.train.page import connections
from vlalign.train.page.connections import MOST_CONNECTIONS, Connection
from vlalign.train.page.guard import Access, Guard
from vlalign.train.page.serve import IDLE_SECONDS

HALF = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n"


async def app(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"yes"})


@pytest.fixture
def port(monkeypatch):
    monkeypatch.setattr(connections, "REQUEST_SECONDS", 1.0)
    listening = socket.create_server(("127.0.0.1", 0), backlog=MOST_CONNECTIONS)
    config = uvicorn.Config(
        Guard(app, Access(["127.0.0.1"])),
        http=Connection,
        limit_concurrency=MOST_CONNECTIONS + 1,
        timeout_keep_alive=IDLE_SECONDS,
        lifespan="off",
        log_level="critical",
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    yield listening.getsockname()[1]
    server.should_exit = True
    thread.join(20)
    listening.close()


def ask(port: int) -> bytes:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=5) as answer:
        return answer.read()


def half_requests(port: int, number: int, of_them: contextlib.ExitStack, source: str = "127.0.0.1") -> list:
    opened = []
    for _ in range(number):
        opened.append(of_them.enter_context(socket.create_connection(("127.0.0.1", port), 5, (source, 0))))
        opened[-1].sendall(HALF)
    return opened


def is_closed(connection: socket.socket, seconds: float) -> bool:
    connection.settimeout(seconds)
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True
    except TimeoutError:
        return False


def test_many_half_requests_silence_nobody(port):
    with contextlib.ExitStack() as stack:
        half_requests(port, MOST_CONNECTIONS + 50, stack)
        assert [ask(port) for _ in range(3)] == [b"yes"] * 3


def test_a_half_request_is_closed_and_a_whole_one_is_answered_first(port):
    with contextlib.ExitStack() as stack:
        slow, *_ = half_requests(port, 1, stack)
        whole, *_ = half_requests(port, 1, stack)
        time.sleep(0.3)
        whole.sendall(b"\r\n")
        assert whole.recv(12) == b"HTTP/1.1 200"
        assert is_closed(slow, 5)
        whole.settimeout(5)
        while b"yes" not in whole.recv(4096):
            pass
        whole.sendall(HALF)  # a second request on the same connection
        assert is_closed(whole, 5)


def test_the_place_is_taken_from_the_address_that_has_most(port):
    with contextlib.ExitStack() as stack:
        [one] = half_requests(port, 1, stack, "127.0.0.2")
        most = half_requests(port, MOST_CONNECTIONS + 5, stack)
        assert is_closed(most[0], 5) and not is_closed(one, 0.2)
