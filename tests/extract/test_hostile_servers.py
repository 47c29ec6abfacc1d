"""Videos at web addresses whose server sends too much, too slowly, or something else than it declared."""

import gzip
import http.server
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.sounds import sound_of_one_second
from vlalign.extract.cli.extract import main
from vlalign.extract.pipeline import download as fetch
from vlalign.extract.pipeline.download import Fetcher
from vlalign.extract.pipeline.video_jobs import VideoJob
from vlalign.storage import FeatureStore, VideoRecord
from vlalign.storage.common.files import read_jsonl
from vlalign.storage.dataset.folder import DatasetFolder

pytestmark = pytest.mark.usefixtures("own_temporary_folder")
SIZE = 1_000_000
PACKED = gzip.compress(bytes(50 * SIZE))


class Hostile(http.server.BaseHTTPRequestHandler):
    """Answers by the path's first word."""

    protocol_version = "HTTP/1.1"

    def do_HEAD(self):
        self._begin(head=True)

    def do_GET(self):
        self.server.asked.append(self.path)
        try:
            self._begin(head=False)
        except ConnectionError:  # the other side had enough
            self.close_connection = True

    def _begin(self, head: bool) -> None:
        what = self.path.split("/")[1]
        redirects = {
            "redirect": f"http://127.0.0.1:{self.server.server_port}/good",
            "away": "http://169.254.169.254/good",
        }
        sizes = {"good": SIZE, "large": 1 << 50, "packed": len(PACKED), "short": SIZE // 2, "longer": 3 * SIZE}
        if what in redirects or what == "file":
            self.send_response(302)
            self.send_header("Location", redirects.get(what, "file:///etc/hostname"))
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        self.send_response(200)
        if what == "packed":
            self.send_header("Content-Encoding", "gzip")
        if what in sizes:
            size = SIZE if head and what in ("short", "longer") else sizes[what]
            self.send_header("Content-Length", str(size))
        else:
            self.send_header("Connection", "close")
        self.end_headers()
        if not head:
            self._send(what, sizes.get(what, 0))

    def _send(self, what: str, size: int) -> None:
        if what == "packed":
            self.wfile.write(PACKED)
        elif what == "endless":
            for _ in range(100):  # as good as: no file of these tests may have so much
                self.wfile.write(bytes(SIZE))
        elif what == "slow":
            for _ in range(100):
                self.wfile.write(b"x")
                time.sleep(0.05)
        elif what == "sound":
            self.wfile.write(self.server.sound)
        elif what != "large":
            self.wfile.write(bytes(size))
        self.close_connection = True

    def log_message(self, *_):
        pass


@pytest.fixture
def server() -> Iterator[http.server.ThreadingHTTPServer]:
    made = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hostile)
    made.asked, made.sound = [], sound_of_one_second()
    threading.Thread(target=made.serve_forever, daemon=True).start()
    yield made
    made.shutdown()
    made.server_close()


def fetched(url: str, *, allowed=("localhost",), max_bytes=2 * SIZE) -> tuple[int | None, str, str]:
    """(its size, kind of failure, words) of what is fetched."""
    fetcher = Fetcher(allowed_hosts=allowed, max_bytes=max_bytes)
    jobs = fetcher.jobs([VideoJob("x", Path(), [], url=url)])
    until = time.monotonic() + 60
    while (job := next(jobs)) is None and time.monotonic() < until:
        time.sleep(0.01)
    size = job.path.stat().st_size if job.path.exists() else None
    failure = fetcher.done(job)
    fetcher.close()
    return size, failure.kind if failure else "", str(failure or "")


def at(server: http.server.ThreadingHTTPServer, path: str) -> str:
    return f"http://localhost:{server.server_port}/{path}"


@pytest.mark.parametrize(
    ("path", "kind", "words"),
    [
        ("good/a.mp4", "", ""),
        ("endless/a.mp4", "too_large", " 2,000,000"),
        ("large/a.mp4", "too_large", "has 1,125,899,906,842,624 bytes, there is room for 2,000,000 in "),
        ("longer/a.mp4", "too_large", " 1,000,000 "),
        ("short/a.mp4", "unreachable", "500,000 of 1,000,000 "),
        ("packed/a.mp4", "unreachable", "'gzip'"),
        (
            "redirect/a.mp4",
            "refused",
            "--allow-host 127.0.0.1",
        ),
        ("away/a.mp4", "refused", "--allow-host 169.254.169.254"),
        ("file/a.mp4", "unreachable", " 3 "),
    ],
)
def test_downloads_are_limited_to_what_the_server_declared(server, path, kind, words):
    size, failed, told = fetched(at(server, path))
    assert (failed, size) == (kind, None if kind else SIZE) and words in told
    assert told == "" or at(server, path) in told
    if kind in ("refused", "too_large"):
        assert len(server.asked) <= 2, "for its length and for itself; no other attempt would end another way"


def test_a_download_that_is_too_slow_is_given_up(server, monkeypatch):
    monkeypatch.setattr(fetch, "PATIENCE_SECONDS", 0.2)
    monkeypatch.setattr(fetch, "TRIES", 1)
    _, kind, reason = fetched(at(server, "slow/a.mp4"))
    assert kind == "unreachable" and reason.startswith(f"{at(server, 'slow/a.mp4')}: ")
    assert "1,000 bytes" in reason and " 1 " in reason


def test_files_of_unknown_length_are_fetched_one_at_a_time(server, tmp_path):
    fetcher = Fetcher(allowed_hosts=["localhost"], max_bytes=2 * SIZE)
    jobs = fetcher.jobs(
        [VideoJob(str(number), Path(), [], url=at(server, f"sound/{number}.mp4")) for number in range(3)]
    )
    done = 0
    for job in jobs:
        if job is not None:
            assert job.path.read_bytes() == server.sound and fetcher.done(job) is None
            done += 1
        assert sum(path.stat().st_size for path in (tmp_path / "temporary").rglob("*.mp4")) <= 2 * SIZE
        time.sleep(0.01)
    assert done == 3
    fetcher.close()


def test_hostile_addresses_are_failures_of_their_videos_only(server, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(Fetcher.__init__.__kwdefaults__, "max_bytes", 2 * SIZE)
    dataset = DatasetFolder(tmp_path / "root", "mine")
    paths = {name: at(server, f"{name}/a.wav") for name in ("sound", "endless", "packed", "redirect")}
    paths["number"] = at(server, "sound/b.wav").replace("localhost", "127.0.0.1")
    dataset.write_videos([VideoRecord(video_id=video_id, path=path) for video_id, path in paths.items()])
    call = ["--root", str(dataset.root), "--dataset", "mine", "--features", "logmel"]
    assert main([*call, "--allow-host", "localhost"]) == 1
    failures = {row["video_id"]: row["kind"] for row in read_jsonl(dataset.features("logmel") / "failures.jsonl")}
    assert failures == {"endless": "too_large", "packed": "unreachable", "redirect": "refused", "number": "refused"}
    assert "--allow-host 127.0.0.1 --retry-failed; " in capsys.readouterr().err
    assert FeatureStore(dataset.features("logmel")).video_ids() == ["sound"]


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "localhost",
        "127.1",
        "2130706433",
        "0x7f000001",
        "0.0.0.0",
        "[::1]",
        "[::ffff:127.0.0.1]",
        "[::]",
        "127.0.0.1.",
    ],
)
def test_no_spelling_of_this_machine_is_contacted(server, host):
    size, kind, _ = fetched(f"http://{host}:{server.server_port}/good/a.mp4", allowed=())
    assert size is None and kind in ("refused", "unreachable") and server.asked == []


@pytest.mark.parametrize(
    "url", ["ftp://localhost/a.mp4", "sftp://127.0.0.1/a.mp4", "hdfs://10.0.0.5/a.mp4", "ftp://[::1]/a.mp4"]
)
def test_private_hosts_are_refused_in_other_schemes(url):
    size, kind, words = fetched(url, allowed=())
    assert (size, kind) == (None, "refused") and "--allow-host" in words
