"""An S3 server in a process of its own on loopback (moto's), which fails as told."""

import contextlib
import io
import json
import os
import random
import re
import socket
import struct
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import asdict, dataclass

import pytest
from s3fs import S3FileSystem
from werkzeug.wsgi import get_input_stream

FAULTS, SEEN = "/-/faults", "/-/seen"


@dataclass(frozen=True, kw_only=True)
class Fault:
    """What goes wrong with some of the requests."""

    what: str
    """The code of an error answer, such as ``SlowDown``; or ``reset`` (the connection), ``half`` (the connection, after
    half of the answer), ``slow``, ``hang``, ``trickle`` (the answer, a byte now and then), or ``damage`` (a wrong byte
    is stored, whatever the client's checksum says)."""
    status: int = 503
    """Status of an error answer."""
    methods: str = "GET HEAD PUT POST DELETE"
    path: str = ""
    """Regular expression that the path with its query must contain."""
    share: float = 1.0
    """Share of these requests that it happens to."""
    seconds: float = 0.2
    """How long ``slow`` takes."""


ROUGH = (
    Fault(what="SlowDown", status=503, share=0.06),
    Fault(what="InternalError", status=500, share=0.06),
    Fault(what="reset", share=0.06),
    Fault(what="half", methods="GET", share=0.06),
    Fault(what="slow", share=0.1),
)
"""What a client must bear without a word."""


class S3Server:
    """A running server."""

    def __init__(self, url: str) -> None:
        self.url = url

    def fail(self, *faults: Fault) -> None:
        """Let these things go wrong from now on, instead of earlier ones."""
        self._request(FAULTS, json.dumps([asdict(fault) for fault in faults]).encode(), "POST")

    def seen(self) -> list[str]:
        """All requests so far: method and path."""
        return json.loads(self._request(SEEN))

    def make_bucket(self, name: str) -> None:
        self._request(f"/{name}", b"", "PUT")

    def delete_bucket(self, name: str) -> None:
        """Delete a bucket with all that is in it."""
        for key in self.keys(name):
            self._request(f"/{name}/{key}", method="DELETE")
        self._request(f"/{name}", method="DELETE")

    def keys(self, bucket: str) -> list[str]:
        return re.findall("<Key>(.*?)</Key>", self._request(f"/{bucket}?list-type=2").decode())

    def _request(self, path: str, data: bytes | None = None, method: str = "GET") -> bytes:
        headers = {"Authorization": "AWS4-HMAC-SHA256 Credential=test/20260101/us-east-1/s3/aws4_request", "Own": "1"}
        request = urllib.request.Request(self.url + path, data, headers, method=method)
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.read()


@contextlib.contextmanager
def running_server() -> Iterator[S3Server]:
    """A server without buckets, until the block ends."""
    command = [sys.executable, "-m", "helpers.s3_server"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, **pipes, text=True) as process:
        try:
            assert process.stdout is not None
            yield S3Server(f"http://127.0.0.1:{int(process.stdout.readline())}")
        finally:
            process.kill()


def use_server(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let clients of this process find a server through the environment."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    S3FileSystem.clear_instance_cache()


class _Failing:
    """moto's application behind one that fails."""

    def __init__(self, application) -> None:
        self._application, self._random = application, random.Random(0)
        self._faults: list[Fault] = []
        self._seen: list[str] = []

    def __call__(self, environ, start_response):
        method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"]
        if path == FAULTS:
            self._faults = [Fault(**fault) for fault in json.loads(get_input_stream(environ).read())]
            return _answer(start_response, 200, b"")
        if path == SEEN:
            return _answer(start_response, 200, json.dumps(self._seen).encode())
        if "HTTP_OWN" in environ:
            return self._application(environ, start_response)
        full = f"{path}?{environ['QUERY_STRING']}"
        self._seen.append(f"{method} {full}")
        for fault in self._faults:
            if method in fault.methods and re.search(fault.path, full) and self._random.random() < fault.share:
                return self._failed(fault, environ, start_response)
        return self._application(environ, start_response)

    def _failed(self, fault, environ, start_response):
        if fault.what == "hang":
            while fault in self._faults:
                time.sleep(0.05)
            return _reset(environ)
        if fault.what == "trickle":
            return self._trickling(fault, environ, start_response)
        if fault.what == "slow":
            time.sleep(fault.seconds)
            return self._application(environ, start_response)
        if fault.what == "damage":
            content = bytearray(get_input_stream(environ).read())
            content[len(content) // 2] ^= 1
            kept = {name: value for name, value in environ.items() if "CHECKSUM" not in name}
            return self._application({**kept, "wsgi.input": io.BytesIO(content)}, start_response)
        if fault.what == "reset":
            return _reset(environ)
        if fault.what == "half":
            return _half(environ, self._application(environ, start_response))
        get_input_stream(environ).read()
        body = f"<Error><Code>{fault.what}</Code><Message>{fault.what} as told</Message></Error>".encode()
        return _answer(start_response, fault.status, body if environ["REQUEST_METHOD"] != "HEAD" else b"")

    def _trickling(self, fault, environ, start_response):
        for byte in b"".join(self._application(environ, start_response)):
            if fault not in self._faults:
                break
            yield bytes([byte])
            time.sleep(0.1)


def _answer(start_response, status, body):
    start_response(f"{status} -", [("Content-Type", "application/xml"), ("Content-Length", str(len(body)))])
    return [body]


def _half(environ, parts):
    content = b"".join(parts)
    yield content[: len(content) // 2]
    yield from _reset(environ)


def _reset(environ):
    connection = environ["werkzeug.socket"]
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.shutdown(socket.SHUT_RDWR)
    connection.close()
    raise ConnectionResetError


def _serve() -> None:
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from moto.server import MotoRequestHandler
    from werkzeug.serving import make_server

    application = _Failing(DomainDispatcherApplication(create_backend_app))
    server = make_server("127.0.0.1", 0, application, threaded=True, request_handler=MotoRequestHandler)
    print(server.server_port, flush=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sys.stdin.read()  # until the process that started this one is gone


if __name__ == "__main__":
    _serve()
