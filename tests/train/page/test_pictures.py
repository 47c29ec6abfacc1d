"""Pictures of the page: each is the frame that the ffmpeg program shows at that second, or the nearest thumbnail."""

import io
import os
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from helpers.needs import PROGRAM, skip_without
from helpers.scenes import COMPARED, SAME_PIXELS, FfmpegFrames, write_scenes
from helpers.stores import jpeg
from PIL import Image
from starlette.testclient import TestClient
from vlalign.extract.decoding.errors import VideoError
from vlalign.storage.dataset.folder import DatasetFolder
from vlalign.storage.records import VideoRecord
from vlalign.storage.stores.thumbnails import Thumbnail, write_thumbnails
from vlalign.train.page import pictures as page_pictures
from vlalign.train.page.app import SECONDS_HEADER, SOURCE_HEADER, make_app
from vlalign.train.page.concurrency import Busy
from vlalign.train.page.guard import Access
from vlalign.train.page.pictures import FrameCache, FrameError

needs_ffmpeg = skip_without(PROGRAM, [] if shutil.which("ffmpeg") else ["ffmpeg"])
MADE = ["H.264, B-frames", "H.264, clock from 20 s on", "H.264, rotated", "MPEG-4, B-frames, AVI", "VP9"]


class FakeReader:
    """Stands for the decoder: frames of one byte for each second."""

    def __init__(self) -> None:
        self.asked: list[float] = []

    def jpeg(self, path: Path, seconds: float, **_) -> tuple[float, bytes]:
        self.asked.append(seconds)
        if path.stem == "bad":
            raise VideoError("unreadable", "no frame")
        return seconds, b"x" * 10


@pytest.fixture
def videos(tmp_path) -> DatasetFolder:
    dataset = DatasetFolder(tmp_path / "root", "mine")
    (dataset.path / "videos").mkdir(parents=True)
    return dataset


def client_of(dataset: DatasetFolder) -> TestClient:
    """A client of a page that searches nothing."""
    index = SimpleNamespace(video_ids=[], num_windows=0)
    search = SimpleNamespace(encoder=SimpleNamespace(dataset=dataset), index=index, caption_index=None, id_of=str)
    return TestClient(make_app([search], Access(["127.0.0.1"])), base_url="http://127.0.0.1")


def image_of(content: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(content)).convert("RGB").resize(COMPARED, Image.Resampling.BOX)).astype(int)


@needs_ffmpeg
@pytest.mark.parametrize(
    "kind", [kind if kind in MADE[:3] else pytest.param(kind, marks=pytest.mark.slow) for kind in MADE]
)
def test_a_picture_is_the_frame_of_its_second(videos, kind):
    path = write_scenes(kind, videos.path / "videos", seconds=8, seed=MADE.index(kind))
    videos.write_videos([VideoRecord(video_id="v", path=f"videos/{path.name}")])
    client, expected = client_of(videos), FfmpegFrames.of(path)
    for seconds in (0.0, 0.7, 2.02, 3.33, 5.01, 7.9):
        answer = client.get("/media/picture", params={"video_id": "v", "seconds": seconds})
        assert (answer.status_code, answer.headers["content-type"]) == (200, "image/jpeg")
        assert answer.headers[SOURCE_HEADER] == "frame" and "max-age" in answer.headers["cache-control"]
        assert -0.05 < seconds - float(answer.headers[SECONDS_HEADER]) < 0.12, "AVI begins late by a frame"
        assert np.abs(image_of(answer.content) - expected.at(seconds)).mean() < SAME_PIXELS


def test_where_the_file_cannot_be_read_it_is_the_nearest_thumbnail(videos, tmp_path):
    (tmp_path / "outside.mp4").write_bytes(b"secret")
    os.symlink(tmp_path / "outside.mp4", videos.path / "videos" / "link.mp4")
    (videos.path / "videos" / "bad.mp4").write_bytes(b"no video")
    records = {
        "gone": VideoRecord(video_id="gone", path="videos/gone.mp4"),
        "link": VideoRecord(video_id="link", path="videos/link.mp4"),
        "bad": VideoRecord(video_id="bad", path="videos/bad.mp4"),
        "far": VideoRecord(video_id="far", path="https://example.org/far.mp4"),
    }
    videos.write_videos(list(records.values()))
    made = [Thumbnail(name, second, jpeg(int(second)), "s") for name in records for second in (1.0, 9.0)]
    write_thumbnails(videos.thumbnails, made)
    client = client_of(videos)
    for name in records:
        answer = client.get("/media/picture", params={"video_id": name, "seconds": 6})
        assert (answer.status_code, answer.content) == (200, jpeg(9))
        assert (answer.headers[SOURCE_HEADER], answer.headers[SECONDS_HEADER]) == ("thumbnail", "9.000")
        assert answer.headers["cache-control"] == "no-store"


def test_without_a_frame_and_a_thumbnail_there_is_a_reason(videos, tmp_path):
    (videos.path / "videos" / "bad.mp4").write_bytes(b"no video")
    videos.write_videos([VideoRecord(video_id="bad", path="videos/bad.mp4")])
    client = client_of(videos)
    for name in ("bad", "nobody", "../videos/bad.mp4", "\0"):
        answer = client.get("/media/picture", params={"video_id": name, "seconds": 1})
        assert answer.status_code == 404 and answer.json()["detail"] and str(tmp_path) not in answer.text
    for seconds in ("-1", "nan", "inf", "x", "1e9"):
        assert client.get("/media/picture", params={"video_id": "bad", "seconds": seconds}).status_code == 422


@pytest.fixture
def cache(monkeypatch):
    cache = FrameCache()
    monkeypatch.setitem(cache.__dict__, "_reader", FakeReader())
    return cache


def test_frames_are_kept_until_there_are_too_many_or_too_large(cache, tmp_path, monkeypatch):
    video = tmp_path / "v.mp4"
    video.write_bytes(b"1")
    monkeypatch.setattr(page_pictures, "MAX_CACHED_FRAMES", 3)
    for second in (1.0, 2.0, 3.0, 1.0, 4.0, 2.0):
        assert cache.frame(video, second).seconds == second
    assert cache._reader.asked == [1.0, 2.0, 3.0, 4.0, 2.0], "1 was used last when 4 came"
    monkeypatch.setattr(page_pictures, "MAX_CACHED_BYTES", 15)
    cache.frame(video, 9.0)
    assert len(cache._pictures) == 1 and cache._num_bytes == 10
    os.utime(video, ns=(1, 1))
    cache.frame(video, 9.0)
    assert cache._reader.asked[-2:] == [9.0, 9.0], "another file has come in its place"


def test_a_video_that_failed_is_not_tried_again_for_a_while(cache, tmp_path, monkeypatch):
    (tmp_path / "bad.mp4").write_bytes(b"1")
    for second in (1.0, 2.0):
        with pytest.raises(FrameError, match="no frame"):
            cache.frame(tmp_path / "bad.mp4", second)
    assert cache._reader.asked == [1.0]
    monkeypatch.setattr(page_pictures, "RETRY_SECONDS", 0.0)
    with pytest.raises(FrameError):
        cache.frame(tmp_path / "bad.mp4", 2.0)
    assert cache._reader.asked == [1.0, 2.0]


def test_too_many_frames_at_once_are_refused(cache, tmp_path, monkeypatch):
    (tmp_path / "v.mp4").write_bytes(b"1")
    monkeypatch.setattr(page_pictures, "MAX_WAITING", 2)
    cache._waiting = threading.BoundedSemaphore(2)
    go_on, decode = threading.Event(), cache._reader.jpeg
    monkeypatch.setattr(cache._reader, "jpeg", lambda *given, **named: go_on.wait(30) and decode(*given, **named))
    with ThreadPoolExecutor() as threads:
        results = [threads.submit(cache.frame, tmp_path / "v.mp4", second) for second in (1.0, 2.0)]
        while cache._waiting._value:  # until both have come
            time.sleep(0.01)
        with pytest.raises(Busy):
            cache.frame(tmp_path / "v.mp4", 3.0)
        go_on.set()
        assert [result.result(30).seconds for result in results] == [1.0, 2.0]
