"""Connections that ask for nothing: others are answered all the same, and each is closed in time."""

import contextlib
import socket
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from types import SimpleNamespace

import numpy as np
import pytest
from fastapi import Depends, FastAPI
from helpers.page_server import serving
from starlette.responses import JSONResponse
from vlalign.train.page import serve as page_serve
from vlalign.train.page.app import make_app
from vlalign.train.page.concurrency import MAX_WAITING, AddressQueue, Busy
from vlalign.train.page.guard import Access, Guard
from vlalign.train.page.serve import MAX_CONNECTIONS
from vlalign.train.search.query_checks import check_time

HALF = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n"


async def app(scope, receive, send):
    if scope["path"] == "/endless":
        while (await receive())["type"] != "http.disconnect":
            pass
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"yes"})


@pytest.fixture
def port(monkeypatch):
    monkeypatch.setattr(page_serve, "REQUEST_SECONDS", 1.0)
    with serving(Guard(app, Access(["127.0.0.1"]))) as port:
        yield port


def ask(port: int) -> bytes:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=5) as answer:
        return answer.read()


def half_requests(
    port: int, number: int, of_them: contextlib.ExitStack, source: str = "127.0.0.1", sent: bytes = HALF
) -> list:
    opened = []
    for _ in range(number):
        opened.append(of_them.enter_context(socket.create_connection(("127.0.0.1", port), 5, (source, 0))))
        opened[-1].sendall(sent)
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
        half_requests(port, MAX_CONNECTIONS + 50, stack)
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
        most = half_requests(port, MAX_CONNECTIONS + 5, stack)
        assert is_closed(most[0], 5) and not is_closed(one, 0.2)


def test_an_address_with_all_connections_answering_silences_no_other(port):
    endless = HALF.replace(b"/", b"/endless", 1) + b"\r\n"
    with contextlib.ExitStack() as stack:
        most = half_requests(port, MAX_CONNECTIONS + 5, stack, sent=endless)
        time.sleep(0.3)
        for _ in range(3):
            [other] = half_requests(port, 1, stack, "127.0.0.2", HALF + b"\r\n")
            other.settimeout(5)
            assert other.recv(12) == b"HTTP/1.1 200"
        assert 1 <= sum(is_closed(one, 0.01) for one in most) <= 5 + 3, "only as many as were needed"


@pytest.mark.parametrize(
    "sent, status",
    [
        (HALF + b"X: " + b"y" * 200_000, b"400"),
        (HALF + b"".join(b"X%d: y\r\n" % n for n in range(20_000)), b"400"),
        (b"GET /" + b"y" * 200_000, b"400"),
        (b"GET /?" + b"y" * 20_000 + b" HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", b"414"),
        (HALF + b"Content-Length: 99999999999\r\n\r\n", b"413"),
        (HALF + b"Transfer-Encoding: chunked\r\n\r\nffffffff\r\n", b"413"),
        (HALF + b"Content-Length: 5\r\nExpect: 100-continue\r\n\r\n", b"413"),
    ],
    ids=["header", "many headers", "path", "query", "body", "chunks", "expect"],
)
def test_large_headers_and_bodies_are_refused_and_the_connection_closed(port, sent, status):
    with contextlib.ExitStack() as stack:
        connection = stack.enter_context(socket.create_connection(("127.0.0.1", port), 5))
        with contextlib.suppress(ConnectionError):  # closed before all was sent
            connection.sendall(sent)
        answer = b""
        with contextlib.suppress(ConnectionError):
            while part := connection.recv(1 << 16):
                answer += part
                with contextlib.suppress(ConnectionError):
                    connection.sendall(b"z" * 1000)  # goes on sending
        assert answer[9:12] in (status, b"")
        assert ask(port) == b"yes"


def test_an_address_waits_for_its_own_requests_only():
    app, queue, entered, go_on = FastAPI(), AddressQueue("searches"), [], threading.Event()

    @app.exception_handler(Busy)
    async def busy(_, error: Exception) -> JSONResponse:
        return JSONResponse(str(error), 503)

    @app.get("/", dependencies=[Depends(queue)])
    def search(wait: bool = True) -> str:
        entered.append(wait)
        assert not wait or go_on.wait(30)
        return "found"

    whole = HALF + b"\r\n"
    with serving(app) as port, contextlib.ExitStack() as stack:
        many = half_requests(port, 5 + MAX_WAITING, stack, sent=whole)
        while not entered or queue._num_waiting.total() < MAX_WAITING - 1:  # until all have come
            time.sleep(0.01)
        time.sleep(0.3)
        many += half_requests(port, 1, stack, sent=whole)
        [refused] = half_requests(port, 1, stack, sent=whole)
        [other] = half_requests(port, 1, stack, "127.0.0.2", whole.replace(b"/", b"/?wait=0", 1))
        assert refused.recv(12) == b"HTTP/1.1 503"
        assert other.recv(12) == b"HTTP/1.1 200"
        assert entered == [True, False], "no more than one of an address occupies a thread"
        go_on.set()
        assert Counter(connection.recv(12) for connection in many)[b"HTTP/1.1 200"] == 1 + MAX_WAITING


class SlowSearch:
    """Stands for a search with a slow encoder, which looks at the clock as the real one does."""

    def __init__(self) -> None:
        self.begun, self.ended, self.asked = threading.Semaphore(0), threading.Semaphore(0), []
        dataset = SimpleNamespace(name="mine")
        self.encoder, self.id_of = SimpleNamespace(dataset=dataset, encode_text=self.encode_text), str

    def encode_text(self, text: str) -> None:
        self.asked.append(text)
        self.begun.release()
        try:
            deadline = time.monotonic() + (15 if text == "slow" else 0)
            while time.monotonic() < deadline:
                check_time()
                time.sleep(0.02)
        finally:
            self.ended.release()


@pytest.fixture
def slow(monkeypatch) -> Iterator[tuple[SlowSearch, int]]:
    """Serve a page whose curves are made slowly; return the search and the port."""
    search = SlowSearch()
    curve = SimpleNamespace(start_seconds=np.zeros(1), end_seconds=np.ones(1), scores=np.ones(1))
    search.score_curve = lambda query, _: search.encode_text(query) or curve
    app = make_app([], Access(["127.0.0.1"]))
    app.state.datasets["mine"] = SimpleNamespace(search=search)
    with serving(app) as port:
        yield search, port


def ask_for_curve(port: int, query: str, of_them: contextlib.ExitStack, source: str = "127.0.0.1") -> socket.socket:
    request = HALF.replace(b"/", f"/api/score_curve?video_id=v&q={query}".encode(), 1) + b"\r\n"
    [connection] = half_requests(port, 1, of_them, source, request)
    connection.settimeout(10)
    return connection


def test_a_search_that_nobody_waits_for_ends(slow):
    search, port = slow
    with contextlib.ExitStack() as stack:
        aborted = ask_for_curve(port, "slow", stack)
        assert search.begun.acquire(timeout=60)
        aborted.close()
        assert search.ended.acquire(timeout=10), "it ends at its next look at the clock"
        assert ask_for_curve(port, "quick", stack).recv(12) == b"HTTP/1.1 200"


@pytest.mark.parametrize("source", ["127.0.0.1", "127.0.0.2"])
def test_a_request_that_was_aborted_while_it_waited_is_not_answered(slow, source):
    """It waits behind one of its own address, or of another one, whose search computes."""
    search, port = slow
    with contextlib.ExitStack() as stack:
        first = ask_for_curve(port, "slow", stack, "127.0.0.1")
        assert search.begun.acquire(timeout=60)
        waiting = ask_for_curve(port, "aborted", stack, source)
        time.sleep(0.5)
        waiting.close()
        time.sleep(0.5)
        first.close()
        assert ask_for_curve(port, "quick", stack, source).recv(12) == b"HTTP/1.1 200"
        assert search.asked == ["slow", "quick"]
