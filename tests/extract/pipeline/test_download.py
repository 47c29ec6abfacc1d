"""Videos that lie elsewhere, fetched from a real server on loopback."""

import functools
import http.server
import re
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import fsspec
import numpy as np
import pytest
from helpers.disks import without_locks
from vlalign.extract.cli.extract import main
from vlalign.extract.pipeline import download as fetch
from vlalign.extract.pipeline.download import Fetcher
from vlalign.extract.pipeline.pending_work import PendingWork
from vlalign.extract.pipeline.video_jobs import VideoJob
from vlalign.storage import FeatureStore, VideoRecord
from vlalign.storage.common.errors import UserError
from vlalign.storage.common.files import file_identity, read_jsonl
from vlalign.storage.dataset.folder import DatasetFolder

pytestmark = pytest.mark.usefixtures("own_temporary_folder")
HERE = ["127.0.0.1"]
"""What users pass to have videos from a server of their own."""


class Server(http.server.SimpleHTTPRequestHandler):
    def do_GET(self):
        if "flaky" in self.path and self.server.failed < 2:
            self.server.failed += 1
            self.send_error(503)
        else:
            super().do_GET()

    def do_HEAD(self):
        if "flaky" in self.path and self.server.failed < 2:
            self.send_error(503)
        else:
            super().do_HEAD()

    def log_message(self, *_):
        pass


@pytest.fixture
def served(tmp_path, short_video) -> Iterator[tuple[str, Path]]:
    """An address, and the folder that it shows."""
    folder = tmp_path / "served"
    folder.mkdir()
    for name in ("a.mp4", "b.mp4", "flaky.mp4"):
        shutil.copy(short_video, folder / name)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Server, directory=str(folder)))
    server.failed = 0
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", folder
    server.shutdown()
    server.server_close()


def next_job(jobs: Iterator[VideoJob | None]) -> VideoJob:
    until = time.monotonic() + 60
    while time.monotonic() < until:
        if (job := next(jobs)) is not None:
            return job
        time.sleep(0.01)
    raise AssertionError("nothing came")


def left_on_disk(tmp_path: Path) -> list[Path]:
    return [path for path in (tmp_path / "temporary").rglob("*") if path.is_file() and path.name != "lock"]


def test_a_data_set_of_addresses_is_extracted_like_one_of_files(tmp_path, served, short_video, capsys):
    address, _ = served
    dataset = DatasetFolder(tmp_path / "root", "mine")
    paths = {
        "here": str(short_video),
        "there": f"{address}/a.mp4",
        "gone": f"{address}/gone.mp4",
        "flaky": f"{address}/flaky.mp4?x=1",
    }
    dataset.write_videos([VideoRecord(video_id=video_id, path=path) for video_id, path in paths.items()])
    call = ["--root", str(dataset.root), "--dataset", "mine", "--features", "s3d", "--weights", "random"]
    call += ["--allow-host", "127.0.0.1", "--allow-folder", str(short_video.parent)]
    assert main(call) == 1
    store = FeatureStore(dataset.features("s3d"))
    assert sorted(store.video_ids()) == ["flaky", "here", "there"]
    assert store.source("there") == store.source("here") == file_identity(short_video)
    np.testing.assert_allclose(store.get("there").features, store.get("here").features, rtol=0.01, atol=1e-3)
    (failure,) = read_jsonl(dataset.features("s3d") / "failures.jsonl")
    assert (failure["kind"], failure["path"]) == ("missing", paths["gone"]) and paths["gone"] in failure["message"]
    assert left_on_disk(tmp_path) == [] and list((tmp_path / "temporary").iterdir()) == []
    assert main(call) == 1 and "tried" not in capsys.readouterr().err.split("3 of 4 videos have features s3d")[-1]
    assert all(
        PendingWork(dataset, ["s3d"]).missing_features(video, only_failed=False) == []
        for video in dataset.read_videos()
    )


def test_unreachable_files_are_retried_and_then_fail_with_the_reason(served):
    fetcher = Fetcher(allowed_hosts=HERE)
    jobs = fetcher.jobs([VideoJob("x", Path(), [], url="http://127.0.0.1:9/x.mp4")])
    job = next_job(jobs)
    failure = fetcher.done(job)
    assert (
        failure.kind == "unreachable"
        and "http://127.0.0.1:9/x.mp4" in str(failure)
        and f"tried {fetch.TRIES} times" in str(failure)
    )
    assert list(jobs) == []
    fetcher.close()


def test_a_limited_number_of_files_is_fetched_ahead_and_removed_after_use(tmp_path, served, monkeypatch):
    address, folder = served
    monkeypatch.setattr(fetch, "NUM_PREFETCHED", 3)
    fetcher, asked = Fetcher(allowed_hosts=HERE), []

    def source() -> Iterator[VideoJob]:
        for number in range(20):
            asked.append(number)
            yield VideoJob(str(number), Path(), [], url=f"{address}/a.mp4")

    jobs = fetcher.jobs(source())
    first = next_job(jobs)
    assert first.path.read_bytes() == (folder / "a.mp4").read_bytes() and len(asked) <= 4
    done = [first]
    fetcher.done(first)
    assert not first.path.exists()
    while len(done) < 20:
        done.append(next_job(jobs))
        assert len(left_on_disk(tmp_path)) <= 4
        fetcher.done(done[-1])
    assert sorted(job.video_id for job in done) == sorted(map(str, range(20)))
    fetcher.close()


def test_downloads_are_limited_by_free_space(tmp_path, served):
    address, folder = served
    size = (folder / "a.mp4").stat().st_size
    fetcher = Fetcher(allowed_hosts=HERE, max_bytes=int(1.5 * size))
    jobs = fetcher.jobs([VideoJob(str(number), Path(), [], url=f"{address}/a.mp4") for number in range(4)])
    for _ in range(4):
        job = next_job(jobs)
        time.sleep(0.3)
        assert sum(path.stat().st_size for path in left_on_disk(tmp_path)) <= 1.5 * size
        fetcher.done(job)
    fetcher.close()


def test_local_files_do_not_wait_for_downloads():
    fetcher = Fetcher(allowed_hosts=HERE)
    here = VideoJob("here", Path("here.mp4"), [])
    assert list(fetcher.jobs([here, None, here])) == [here, None, here]
    assert fetcher.done(here) is None
    fetcher.close()


def test_a_missing_file_system_package_is_reported_at_once(monkeypatch):
    monkeypatch.setitem(sys.modules, "gcsfs", None)  # as if it were not installed
    fetcher = Fetcher(allowed_hosts=HERE)
    with pytest.raises(UserError, match=r"gs://bucket/a\.mp4: .*gcsfs"):
        next_job(fetcher.jobs([VideoJob("x", Path(), [], url="gs://bucket/a.mp4")]))
    fetcher.close()


def test_fsspec_memory_files_can_be_fetched(short_video, monkeypatch):
    """Also where the temporary folder's file system has no locks."""
    without_locks(monkeypatch)
    with fsspec.open("memory://films/a.mp4", "wb") as file:
        file.write(short_video.read_bytes())
    fetcher = Fetcher(allowed_hosts=HERE)
    job = next_job(fetcher.jobs([VideoJob("x", Path(), [], url="memory://films/a.mp4")]))
    assert job.path.read_bytes() == short_video.read_bytes() and job.path.suffix == ".mp4"
    fetcher.close()


def test_downloads_of_a_killed_process_are_removed_by_the_next(tmp_path, served):
    address, _ = served
    left = tmp_path / "temporary" / f"{fetch.PREFIX}abc"
    left.mkdir()
    (left / "lock").touch()
    (left / "0.mp4").write_bytes(b"x")
    fetcher, other = Fetcher(allowed_hosts=HERE), Fetcher(allowed_hosts=HERE)
    first = next_job(fetcher.jobs([VideoJob("x", Path(), [], url=f"{address}/a.mp4")]))
    assert not left.exists()
    next_job(other.jobs([VideoJob("x", Path(), [], url=f"{address}/a.mp4")]))
    assert first.path.exists(), "those of a process that lives stay"
    fetcher.close()
    other.close()


@pytest.mark.parametrize(
    "path", ["file:///etc/passwd", "zip://x::https://h/a.zip", "simplecache::s3://b/a.mp4", "S3://b/a.mp4", "x://y"]
)
def test_file_urls_are_refused(path):
    with pytest.raises(ValueError, match=f"{re.escape(path)}.* s3, .* https, "):
        VideoRecord(video_id="a", path=path)
