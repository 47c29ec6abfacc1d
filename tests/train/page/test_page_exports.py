"""What visitors of the page take along: exports and clips, without the folders of this machine."""

import io
import json
import os
import threading
import zipfile
from fractions import Fraction

import av
import pytest
from helpers.numbered import numbers_of, write_video
from helpers.planted_search import open_planted, plant
from starlette.testclient import TestClient
from vlalign.extract.decoding.errors import VideoError
from vlalign.extract.decoding.process import ConfinedChild
from vlalign.storage.records import VideoRecord
from vlalign.train.export.source_videos import Part, SourceVideos
from vlalign.train.page import exports
from vlalign.train.page.app import MISSING_HEADER, make_app
from vlalign.train.page.guard import Access


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    dataset = plant(
        tmp_path_factory.mktemp("page") / "root", {"a": [(4, "dog"), (4, "cat")], "b": [(4, "dog")], "c": [(4, "dog")]}
    )
    for name, container in (("a", "mp4"), ("b", "matroska")):
        write_video(dataset.root / f"{name}.mp4", range(192), Fraction(1, 24), container=container, g="48")
    secret = dataset.root.parent / "secret.mp4"
    write_video(secret, range(48), Fraction(1, 24))
    paths = {"a": dataset.root / "a.mp4", "b": dataset.root / "b.mp4", "c": secret}
    dataset.write_videos([VideoRecord(video_id=name, path=str(path)) for name, path in paths.items()])
    return dataset


@pytest.fixture(scope="module")
def client(dataset):
    app = make_app([open_planted(dataset)], Access(["127.0.0.1"]))
    return TestClient(app, base_url="http://127.0.0.1:8377", raise_server_exceptions=False)


def export(client, form: str, **more):
    return client.get("/api/export", params={"q": "dog", "by": "video", "num_results": 3, "form": form, **more})


def test_an_export_has_what_the_search_shows_without_folders(client, dataset):
    shown = client.get("/api/search", params={"q": "dog", "by": "video", "num_results": 3}).json()["moments"]
    answer = export(client, "json")
    assert [m["video_id"] for m in answer.json()["moments"]] == [m["video_id"] for m in shown]
    assert answer.headers["content-disposition"] == 'attachment; filename="moments.json"'
    for form in ("json", "csv", "m3u8", "edl", "fcpxml", "otio"):
        answer = export(client, form)
        assert answer.status_code == 200, answer.text
        assert str(dataset.root) not in answer.text and "a.mp4" in answer.text and "file://" not in answer.text
        hidden = sum(m["video_id"] == "c" for m in shown)  # lies outside of the root
        assert answer.headers[MISSING_HEADER] == str(hidden if form in ("edl", "fcpxml", "otio") else 0)
    assert export(client, "jpg").content.startswith(b"\xff\xd8")
    packed = zipfile.ZipFile(io.BytesIO(export(client, "vtt", num_results=20, fold=False).content))
    assert [name[:11] for name in packed.namelist()] == ["moments-001", "moments-002", "moments-003"]
    assert all(packed.read(name).startswith(b"WEBVTT") for name in packed.namelist())


def test_a_clip_has_the_frames_and_a_name_of_ours(client):
    for exact, kind in (("true", "exact"), ("false", "copy")):
        answer = client.get("/media/cut", params={"video_id": "a", "start": 2.5, "end": 3.5, "exact": exact})
        assert answer.status_code == 200 and answer.headers["content-type"] == "video/mp4"
        name = answer.headers["content-disposition"]
        assert name == f'attachment; filename="a-{"2.500" if kind == "exact" else "2.000"}s-{kind}.mp4"'
        with av.open(io.BytesIO(answer.content)) as clip:
            numbers = numbers_of([frame.to_ndarray(format="rgb24") for frame in clip.decode(video=0)])
        first = 60 if kind == "exact" else 48
        assert numbers[: 84 - first] == list(range(first, 84))


def test_what_is_refused(client, monkeypatch):
    for answer, status, words in (
        (export(client, "doc"), 422, "form doc"),
        (export(client, "edl", num_results=0), 422, "num_results"),
        (export(client, "csv", q=""), 422, ""),
        (client.get("/media/cut", params={"video_id": "a", "start": 0, "end": 121}), 422, "120 s"),
        (client.get("/media/cut", params={"video_id": "a", "start": 3, "end": 3}), 422, "120 s"),
        (
            client.get("/media/cut", params={"video_id": "c", "start": 0, "end": 1}),
            404,
            "outside the folders that may be read",
        ),
        (client.get("/media/cut", params={"video_id": "zz", "start": 0, "end": 1}), 404, ""),
    ):
        assert answer.status_code == status and words in answer.text, answer.text
        json.loads(answer.text)
    monkeypatch.setattr(exports, "MAX_READ", 1)
    assert "at most 1" in export(client, "edl").json()["detail"]
    monkeypatch.setattr(exports, "MAX_CUT_BYTES", 1000)
    answer = client.get("/media/cut", params={"video_id": "a", "start": 0, "end": 2})
    assert answer.status_code == 404 and "MiB" in answer.text


LAST_WORDS = "its decoder ended with exit code 1; its last output: File /home/somebody/lib/av.py line 3"


@pytest.mark.parametrize(
    "address", ["/media/cut?start=0&end=1", "/media/clip?start=0&end=1", "/media/picture?seconds=1", "/api/export"]
)
def test_what_a_decoder_wrote_before_it_ended_is_not_shown(dataset, monkeypatch, address):
    """It names folders of this machine."""

    def ended(*_: object, **__: object) -> None:
        raise VideoError("crashed", LAST_WORDS)

    monkeypatch.setattr(ConfinedChild, "receive_bytes", ended)
    app = make_app([open_planted(dataset)], Access(["127.0.0.1"]))
    client = TestClient(app, base_url="http://127.0.0.1:8377", raise_server_exceptions=False)
    answer = export(client, "edl") if address == "/api/export" else client.get(f"{address}&video_id=a")
    assert answer.status_code in (404, 422) and "somebody" not in answer.text
    assert "ended with exit code 1" in answer.text


def test_one_address_cannot_keep_others_from_clips(dataset, monkeypatch):
    """While a long clip of one is cut, another is answered."""
    made, videos = exports.PageExports(), {video.video_id: video for video in dataset.read_videos()}
    begun, go_on = threading.Event(), threading.Event()
    cut = SourceVideos.cut

    def slow(self, part, *more):
        if part.start_seconds == 0:
            begun.set()
            assert go_on.wait(60)
        return cut(self, part, *more)

    monkeypatch.setattr(SourceVideos, "cut", slow)
    descriptors = []

    def ask(start: float) -> None:
        descriptors.append(made.clip(Part("a", start, start + 1), False, dataset, videos)[1])

    one = threading.Thread(target=ask, args=(0,))
    one.start()
    try:
        assert begun.wait(60)
        ask(2)
        assert len(descriptors) == 1
    finally:
        go_on.set()
        one.join()
        for each in descriptors:
            os.close(each)
    assert len(descriptors) == 2
