"""Pictures that are sent to the page as examples: what is taken, kept and refused."""

import contextlib
import errno
import io
import re
import socket
import stat
import time
import urllib.request
from pathlib import Path

import numpy as np
import pytest
from helpers.page_server import serving
from PIL import Image
from starlette.testclient import TestClient
from vlalign.storage.common.temporary_folder import LOCK_NAME
from vlalign.train.page import app as page_app
from vlalign.train.page import concurrency, example_pictures
from vlalign.train.page.app import make_app
from vlalign.train.page.guard import UPLOADS, Access
from vlalign.train.page.library import NotFound

HERE, PNG = "http://127.0.0.1:8377", {"Content-Type": "image/png"}
SIZE = UPLOADS["/api/pictures"].max_bytes
NO_IMAGE = "this image cannot be used: not a JPEG, PNG, WebP or AVIF image; convert it to one"
HEAD = b"POST /api/pictures HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: image/png\r\nContent-Length: 5000\r\n\r\n"


def picture(number: int, kind: str = "PNG", size: tuple[int, int] = (900, 600)) -> bytes:
    """Return an image file of one colour."""
    content = io.BytesIO()
    Image.new("RGB", size, (number * 40 % 256, number * 7 % 256, 90)).save(content, kind)
    return content.getvalue()


@pytest.fixture
def client() -> TestClient:
    with TestClient(make_app([], Access(["127.0.0.1"])), base_url=HERE) as client:
        yield client


def folder_of(client: TestClient) -> Path:
    return Path(client.app.state.pictures._path)


def stored(client: TestClient) -> set[str]:
    """The ids of the images in the folder, which also has a lock."""
    return {path.stem for path in folder_of(client).iterdir()} - {LOCK_NAME}


def sent(client: TestClient, content: bytes, **headers: str) -> str:
    answer = client.post("/api/pictures", content=content, headers=PNG | headers)
    assert answer.status_code == 200, answer.text
    return answer.json()["picture"]


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "AVIF"])
def test_a_picture_is_kept_and_shown_small(client, kind):
    content = picture(3, kind)
    name = sent(client, content, **{"Content-Type": f"image/{kind.lower()}"})
    assert client.app.state.pictures.path(name).read_bytes() == content
    shown = client.get("/media/example", params={"picture": name})
    assert (shown.status_code, shown.headers["content-type"]) == (200, "image/jpeg")
    small = Image.open(io.BytesIO(shown.content))
    assert small.format == "JPEG" and small.size == (640, 427)
    assert np.abs(np.asarray(small).mean((0, 1)) - (120, 21, 90)).max() < 4
    assert sent(client, content) == name, "the same again"


def test_pictures_lie_in_a_private_folder_that_is_removed(client):
    sent(client, picture(1))
    folder = folder_of(client)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700 and len(stored(client)) == 1
    client.__exit__(None, None, None)
    assert not folder.exists()
    client.__enter__()


def test_the_picture_that_was_used_longest_ago_makes_room(client, monkeypatch):
    monkeypatch.setattr(example_pictures, "MAX_PICTURES", 2)
    first, second = (sent(client, picture(number)) for number in (1, 2))
    assert client.get("/media/example", params={"picture": first}).status_code == 200
    third = sent(client, picture(3))
    assert stored(client) == {first, third}
    gone = client.get("/media/example", params={"picture": second})
    assert gone.status_code == 404 and "again" in gone.json()["detail"]
    with pytest.raises(NotFound):
        client.app.state.pictures.path(second)


@pytest.mark.parametrize("name", ["../../etc/passwd", "\0", "a" * 32, "x" * 5000, ""])
def test_other_names_are_no_pictures(client, name):
    assert client.get("/media/example", params={"picture": name}).status_code in (404, 422)


@pytest.mark.parametrize(
    "content, problem",
    [
        (b"", "the request is empty; send .* JPEG, .*"),
        (b"no image", NO_IMAGE),
        (b"<svg/>", NO_IMAGE),
        (b"GIF89a" + bytes(99), NO_IMAGE),
        (picture(1)[:300], "this image cannot be used: the image is damaged or cut off; .*again"),
        (picture(1, "JPEG")[:900], "this image cannot be used: the image is damaged or cut off; .*again"),
        (picture(1, "BMP"), NO_IMAGE),
    ],
    ids=["empty", "text", "svg", "gif", "cut", "cut JPEG", "bmp"],
)
def test_what_is_no_image_is_refused_and_not_kept(client, content, problem):
    answer = client.post("/api/pictures", content=content, headers=PNG)
    assert answer.status_code == 422 and re.fullmatch(problem, answer.json()["detail"])
    assert str(folder_of(client)) not in answer.text and not stored(client)


def test_an_image_with_too_many_pixels_is_refused(client):
    bomb = io.BytesIO()
    Image.new("1", (20_000, 20_000)).save(bomb, "PNG")
    answer = client.post("/api/pictures", content=bomb.getvalue(), headers=PNG)
    assert answer.status_code == 422 and "pixels" in answer.json()["detail"]


def test_too_much_is_refused_while_it_arrives(client):
    num_read = 0

    def parts():
        nonlocal num_read
        for _ in range(3000):
            num_read += 1
            yield bytes(10_000)

    stated = client.post("/api/pictures", content=bytes(SIZE + 1), headers=PNG)
    unstated = client.post("/api/pictures", content=parts(), headers=PNG)
    for answer in (stated, unstated):
        assert answer.status_code == 413 and "10 MB" in answer.json()["detail"]
    assert not stored(client)


@pytest.mark.parametrize(
    "headers, status",
    [
        ({"Origin": "http://127.0.0.1:9999"}, 403),
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Content-Type": "text/plain"}, 415),
        ({"Content-Type": "multipart/form-data; boundary=x"}, 415),
        ({"Content-Type": "application/x-www-form-urlencoded"}, 415),
        ({"Host": "evil.example"}, 421),
        ({"Origin": HERE, "Sec-Fetch-Site": "same-origin"}, 200),
        ({"Content-Type": "application/octet-stream"}, 200),
    ],
)
def test_pages_of_other_sites_send_nothing(client, headers, status):
    assert client.post("/api/pictures", content=picture(1), headers=PNG | headers).status_code == status
    assert len(stored(client)) == (status == 200)


def test_a_picture_needs_the_token_and_other_addresses_take_nothing():
    client = TestClient(make_app([], Access(["127.0.0.1"], "sesame")), base_url=HERE)
    assert client.post("/api/pictures", content=picture(1), headers=PNG).status_code == 401
    given = {"Authorization": "Bearer sesame"}
    assert client.post("/api/pictures", content=picture(1), headers=PNG | given).status_code == 200
    for path in ("/", "/api/search", "/api/pictures/", "/media/example"):
        assert client.post(path, content=picture(1), headers=PNG | given).status_code in (405, 413)
    for method in ("GET", "PUT", "OPTIONS", "DELETE"):
        answer = client.request(method, "/api/pictures", headers=given)
        assert answer.status_code == 405
        assert not {name for name in answer.headers if name.startswith("access-control-")}
    assert client.get("/media/example", params={"picture": "a"}).status_code == 401


def test_a_picture_that_does_not_arrive_is_given_up(monkeypatch):
    monkeypatch.setattr(page_app, "UPLOAD_SECONDS", 1.0)
    app = make_app([], Access(["127.0.0.1"]))
    with serving(app) as port, socket.create_connection(("127.0.0.1", port), 10) as slow:
        slow.sendall(HEAD + b"x")
        time.sleep(0.3)
        slow.sendall(b"y")
        assert slow.recv(12) == b"HTTP/1.1 408"


def test_a_slow_picture_lets_others_of_its_address_pass(monkeypatch):
    monkeypatch.setattr(concurrency, "WAIT_SECONDS", 3.0)
    app = make_app([], Access(["127.0.0.1"]))
    with serving(app) as port, socket.create_connection(("127.0.0.1", port), 10) as slow:
        slow.sendall(HEAD + b"xy")
        time.sleep(0.3)
        for number in range(2):
            asked = urllib.request.Request(f"http://127.0.0.1:{port}/api/pictures", picture(number), PNG)
            with urllib.request.urlopen(asked, timeout=10) as answer:
                assert answer.status == 200


def test_too_many_pictures_at_once_are_refused(monkeypatch):
    monkeypatch.setattr(page_app, "MAX_UPLOADS", 2)
    app = make_app([], Access(["127.0.0.1"]))
    with serving(app) as port, contextlib.ExitStack() as stack:
        for address in ("127.0.0.1", "127.0.0.2", "127.0.0.3"):  # two of one address arrive at once, others wait
            last = stack.enter_context(socket.create_connection(("127.0.0.1", port), 10, (address, 0)))
            last.sendall(HEAD)
            time.sleep(0.5)
        assert last.recv(12) == b"HTTP/1.1 503"


def test_what_is_said_names_no_file(client):
    name = sent(client, picture(1))
    path = client.app.state.pictures.path(name)
    shown = client.app.state.pictures.without_paths(f"features small: {path} cannot be encoded")
    assert shown == "features small: the image cannot be encoded"
    twice = client.app.state.pictures.without_paths(f"{path}: not readable ([Errno 2] No such file: '{path}')")
    assert twice == "the image: not readable ([Errno 2] No such file: 'the image')"
    assert client.app.state.pictures.without_paths("no path") == "no path"


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), RuntimeError("unexpected")])
def test_a_picture_that_cannot_be_kept_leaves_no_file(client, monkeypatch, error):
    first = sent(client, picture(1))

    def write_half(path: Path, content: bytes) -> None:
        with path.open("wb") as file:
            file.write(content[:100])
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", write_half)
        if isinstance(error, OSError):
            answer = client.post("/api/pictures", content=picture(2), headers=PNG)
            assert answer.status_code == 422 and "No space left" in answer.json()["detail"]
            assert str(folder_of(client)) not in answer.text
        else:
            with pytest.raises(RuntimeError):
                client.post("/api/pictures", content=picture(2), headers=PNG)
    assert stored(client) == {first}
    sent(client, picture(2))
