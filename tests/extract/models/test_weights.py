"""Published weights: where they come from, what is taken for them, downloads from a real server that does what servers
do."""

import hashlib
import http.server
import io
import json
import os
import re
import socket
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from helpers.disks import without_locks
from vlalign.extract import load_extractor
from vlalign.extract.models import weights
from vlalign.extract.models.s3d import S3D
from vlalign.extract.models.weights import PublishedFile, published_weights
from vlalign.storage.common.errors import UserError
from vlalign.storage.profiles import PROFILES, WITHOUT_NETWORK

REGISTRY = weights.PUBLISHED  # tests see another one: see conftest
NAME = "resnext101.pth"
NAME_THERE = {"clip-vit-base-patch32.bin": "pytorch_model.bin"}


def checkpoint_bytes(seed: int = 0, num_values: int = 700_000) -> bytes:
    file = io.BytesIO()
    torch.save({"w": torch.randn(num_values, generator=torch.Generator().manual_seed(seed))}, file)
    return file.getvalue()


CONTENT = checkpoint_bytes()
"""Nearly three blocks of a download."""


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@dataclass
class Server:
    """One file, over HTTP on the loopback."""

    content: bytes = CONTENT
    knows_ranges: bool = True
    cuts: list[int] = field(default_factory=list)
    """After how many bytes each of the first answers ends."""
    silent_after: int | None = None
    ranges_asked: list[str | None] = field(default_factory=list)
    url: str = ""

    def answer(self, handler: http.server.BaseHTTPRequestHandler) -> None:
        asked = handler.headers["Range"]
        self.ranges_asked.append(asked)
        first = int(re.fullmatch(r"bytes=(\d+)-", asked)[1]) if asked and self.knows_ranges else 0
        if first >= len(self.content):
            handler.send_error(416)
            return
        handler.send_response(206 if first else 200)
        if first:
            handler.send_header("Content-Range", f"bytes {first}-{len(self.content) - 1}/{len(self.content)}")
        handler.send_header("Content-Length", str(len(self.content) - first))
        handler.end_headers()
        if self.silent_after is not None:
            handler.wfile.write(self.content[: self.silent_after])
            handler.wfile.flush()
            time.sleep(3)
            return
        cut = self.cuts.pop(0) if self.cuts else len(self.content)
        handler.wfile.write(self.content[first:][:cut])


@pytest.fixture
def serve(monkeypatch):
    """Starts a ``Server``; a second call starts another one."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    running = []

    def start(server: Server) -> Server:
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                server.answer(self)

            def log_message(self, *_):
                pass

        listening = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        running.append(listening)
        server.url = f"http://127.0.0.1:{listening.server_port}/{NAME}"
        return server

    yield start
    for listening in running:
        listening.shutdown()
        listening.server_close()


@pytest.fixture
def cache() -> Path:
    return Path(os.environ["VLALIGN_CACHE"]) / "weights"


def register(*sources: str, **about) -> None:
    weights.PUBLISHED[NAME] = PublishedFile(sources, page="https://example.org/authors", **about)


def names_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()} - {".lock"}


def pins(cache: Path) -> dict[str, str]:
    return json.loads((cache / "sha256.json").read_text())


def refusal() -> str:
    with pytest.raises(UserError) as refused:
        published_weights(NAME)
    assert "\n" not in str(refused.value)
    return str(refused.value)


def test_every_profile_has_weights_with_a_page_or_no_network():
    assert {profile.weights for name, profile in PROFILES.items() if name not in WITHOUT_NETWORK} == set(REGISTRY)
    for name, published in REGISTRY.items():
        assert published.page.startswith("https://"), name
        assert all(
            url.startswith("https://") and url.endswith(f"/{NAME_THERE.get(name, name)}") for url in published.sources
        ), name
    assert REGISTRY["resnet152-394f9c45.pth"].sha256.startswith("394f9c45")
    assert all(re.fullmatch("[0-9a-f]{64}", each.sha256) for each in REGISTRY.values() if each.sha256)
    assert REGISTRY["r3d152_K_200ep.pth"].sources == ()


def test_a_download_lands_in_the_cache_whole_and_pinned(serve, cache, capsys):
    server = serve(Server())
    register(server.url, size_bytes=len(CONTENT), sha256=sha256(CONTENT))
    assert published_weights(NAME) == cache / NAME
    assert f"{NAME}: " in capsys.readouterr().err
    assert (cache / NAME).read_bytes() == CONTENT
    assert names_in(cache) == {NAME, "sha256.json"} and pins(cache) == {NAME: sha256(CONTENT)}
    assert published_weights(NAME) == cache / NAME
    assert server.ranges_asked == [None], "the second time, nothing is asked for"


def test_a_cache_on_a_file_system_without_locks_is_used(serve, cache, monkeypatch):
    without_locks(monkeypatch)
    register(serve(Server()).url)
    assert published_weights(NAME).read_bytes() == CONTENT


@pytest.mark.parametrize("knows_ranges", [True, False], ids=["ranges", "no ranges"])
def test_an_interrupted_download_is_resumed(serve, cache, capsys, knows_ranges):
    server = serve(Server(knows_ranges=knows_ranges, cuts=[1_500_000, 1_200_000 if knows_ranges else 1_600_000]))
    register(server.url)
    published_weights(NAME)
    assert (cache / NAME).read_bytes() == CONTENT
    assert server.ranges_asked == [None, "bytes=1500000-", "bytes=2700000-" if knows_ranges else "bytes=1600000-"]
    assert re.search(rf"{NAME}: .*1,500,000 ", capsys.readouterr().err)


def test_a_partial_download_is_kept_for_the_next_call(serve, cache):
    """The server is gone after half of it, and back later."""
    server = serve(Server(cuts=[1_500_000, 0]))
    register(server.url)
    complaint = refusal()
    assert f" 1,500,000 of {len(CONTENT):,} " in complaint and "https://example.org/authors" in complaint
    assert names_in(cache) == {f".{NAME}.partial"}
    published_weights(NAME)
    assert (cache / NAME).read_bytes() == CONTENT and names_in(cache) == {NAME, "sha256.json"}
    assert server.ranges_asked == [None, "bytes=1500000-", "bytes=1500000-"]


def test_a_server_that_always_ends_early_is_given_up(serve, cache):
    server = serve(Server(knows_ranges=False, cuts=[1000] * 10))
    register(server.url)
    assert f" 1,000 of {len(CONTENT):,} " in refusal()
    assert len(server.ranges_asked) == 2


def test_a_partial_file_longer_than_the_download_is_discarded(serve, cache):
    server = serve(Server())
    register(server.url)
    cache.mkdir(parents=True)
    (cache / f".{NAME}.partial").write_bytes(bytes(len(CONTENT) + 5))
    published_weights(NAME)
    assert (cache / NAME).read_bytes() == CONTENT
    assert server.ranges_asked == [f"bytes={len(CONTENT) + 5}-", None]


@pytest.mark.parametrize(
    "about, complaint",
    [
        ({"sha256": "0123abcd"}, f"{sha256(CONTENT)} .*0123abcd;"),
        ({"size_bytes": 5}, f" {len(CONTENT):,} .* 5;"),
    ],
    ids=["hash", "size"],
)
def test_another_file_than_the_published_one_is_removed_again(serve, cache, about, complaint):
    server = serve(Server())
    register(server.url, **about)
    assert re.search(f"{server.url}: .*{complaint}", refusal())
    assert names_in(cache) == set()


def test_a_web_page_in_place_of_the_file_is_not_taken_for_it(serve, cache):
    server = serve(Server(content=b"<!DOCTYPE html><title>Log in</title>"))
    register(server.url)
    assert server.url in refusal()
    assert names_in(cache) == set()


def test_the_next_source_is_asked_where_one_fails(serve, cache):
    other, right = serve(Server(content=checkpoint_bytes(1))), serve(Server())
    register("http://127.0.0.1:9/gone", other.url, right.url, sha256=sha256(CONTENT))
    published_weights(NAME)
    assert (cache / NAME).read_bytes() == CONTENT
    assert len(other.ranges_asked) == len(right.ranges_asked) == 1


def test_a_server_that_stops_sending_times_out(serve, cache, monkeypatch):
    monkeypatch.setattr(weights, "SILENCE_SECONDS", 0.2)
    server = serve(Server(silent_after=100_000))
    register(server.url)
    started = time.monotonic()
    assert "timed out" in refusal()
    assert time.monotonic() - started < 15


def test_a_server_that_never_answers_times_out(cache, monkeypatch):
    monkeypatch.setattr(weights, "SILENCE_SECONDS", 0.2)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        register(f"http://127.0.0.1:{deaf.getsockname()[1]}/{NAME}")
        assert "timed out" in refusal()


def test_two_callers_download_the_same_file_once(serve, cache):
    server = serve(Server())
    register(server.url)
    threads = [threading.Thread(target=published_weights, args=(NAME,)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (cache / NAME).read_bytes() == CONTENT and server.ranges_asked == [None]


def test_offline_says_in_one_line_which_file_to_put_where(cache):
    with pytest.raises(UserError) as refused:
        load_extractor("s3d")
    for part in (
        "s3d_howto100m.pth",
        str(cache),
        "http://127.0.0.1:9/",
        "--weights FILE",
        "hf:/FOLDER",
    ):
        assert part in str(refused.value)


def test_the_error_of_a_failed_download_names_the_page_to_get_the_file(cache):
    weights.PUBLISHED["r3d152_K_200ep.pth"] = REGISTRY["r3d152_K_200ep.pth"]
    with pytest.raises(UserError) as refused:
        load_extractor("i3d_resnet152")
    for part in (
        "r3d152_K_200ep.pth",
        str(cache),
        "https://drive.google.com/drive/folders/",
        "--weights FILE",
    ):
        assert part in str(refused.value)


def test_a_file_placed_by_hand_is_used_and_its_hash_pinned(cache):
    model = S3D()
    cache.mkdir(parents=True)
    path = cache / "s3d_howto100m.pth"
    torch.save(model.state_dict(), path)
    extractor = load_extractor("s3d")
    assert (extractor.weights.name, extractor.weights.sha256) == ("s3d_howto100m.pth", sha256(path.read_bytes()))
    assert pins(cache) == {"s3d_howto100m.pth": extractor.weights.sha256}
    torch.testing.assert_close(extractor.network.fc.weight, model.fc.weight.detach(), rtol=0, atol=0)


@pytest.mark.parametrize("is_stated", [True, False])
def test_a_file_without_a_published_hash_is_noted_once(cache, capsys, is_stated):
    register(**({"sha256": sha256(CONTENT)} if is_stated else {}))
    cache.mkdir(parents=True)
    (cache / NAME).write_bytes(CONTENT)
    published_weights(NAME)
    said = capsys.readouterr().err
    assert said.count("\n") == (not is_stated)
    assert is_stated or (NAME in said and sha256(CONTENT) in said)
    published_weights(NAME)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("fits", [True, False])
def test_digits_in_a_name_are_compared_with_the_hash(cache, capsys, monkeypatch, fits):
    digits = sha256(CONTENT)[:8] if fits else "0123abcd"
    name = f"net-{digits}.pth"
    monkeypatch.setitem(weights.PUBLISHED, name, PublishedFile(()))
    cache.mkdir(parents=True)
    (cache / name).write_bytes(CONTENT)
    published_weights(name)
    assert f"({'as' if fits else 'NOT as'} the {digits} in its name suggests)" in capsys.readouterr().err


def test_the_table_of_the_weights_says_what_each_is_checked_against():
    page = (Path(__file__).resolve().parents[3] / "docs" / "extraction.md").read_text()
    rows = dict(re.findall(r"^\| `([\w.-]+)` \| (the (?:published|first)[^|]*) \|$", page, re.MULTILINE))
    assert rows.keys() == REGISTRY.keys()
    for name, published in REGISTRY.items():
        assert ("published SHA-256" in rows[name], "published size" in rows[name], "you put" in rows[name]) == (
            bool(published.sha256),
            published.size_bytes is not None,
            not published.sources,
        ), name


def test_another_file_of_the_same_name_is_refused_with_both_hashes(serve, cache):
    register()
    cache.mkdir(parents=True)
    (cache / NAME).write_bytes(CONTENT)
    published_weights(NAME)
    other = checkpoint_bytes(1)
    (cache / NAME).write_bytes(other)
    complaint = refusal()
    for part in (
        str(cache / NAME),
        sha256(CONTENT),
        sha256(other),
        str(cache / "sha256.json"),
    ):
        assert part in complaint
    assert (cache / NAME).read_bytes() == other, "it is the user's"

    (cache / NAME).unlink()
    server = serve(Server(content=other))
    register(server.url)
    assert sha256(CONTENT) in refusal() and names_in(cache) == {"sha256.json"}, "nor is it downloaded"

    (cache / "sha256.json").write_text("{}")
    published_weights(NAME)
    assert pins(cache) == {NAME: sha256(other)}


@pytest.mark.parametrize(
    "content, about, complaint",
    [
        (CONTENT[: len(CONTENT) // 2], {}, ""),
        (b"version https://git-lfs.github.com/spec/v1\n", {}, ""),
        (b"", {}, ""),
        (CONTENT, {"size_bytes": 7}, f" {len(CONTENT):,} .* 7;"),
        (CONTENT, {"sha256": "0123"}, f"{sha256(CONTENT)} .*0123;"),
    ],
    ids=["half", "text", "empty", "size", "hash"],
)
def test_a_wrong_file_placed_by_hand_is_refused_and_not_pinned(cache, content, about, complaint):
    register(**about)
    cache.mkdir(parents=True)
    (cache / NAME).write_bytes(content)
    assert re.search(complaint, said := refusal())
    assert str(cache / NAME) in said and "https://example.org/authors" in said
    assert names_in(cache) == {NAME}


def test_legacy_checkpoint_files_are_read(cache):
    """What torch.save wrote before 2020, as the published ones are."""
    register()
    cache.mkdir(parents=True)
    torch.save({"w": torch.zeros(3)}, cache / NAME, _use_new_zipfile_serialization=False)
    assert published_weights(NAME) == cache / NAME
