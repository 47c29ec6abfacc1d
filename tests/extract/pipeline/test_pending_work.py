"""The list of videos that could not be extracted, ``failures.jsonl``, while several extractions write to it."""

import multiprocessing
import re

import pytest
from vlalign.extract.pipeline.pending_work import PendingWork
from vlalign.storage import VideoRecord
from vlalign.storage.common.errors import UserError
from vlalign.storage.common.files import read_jsonl, write_jsonl
from vlalign.storage.dataset.folder import DatasetFolder
from vlalign.storage.records import Failure


def failure(video_id: str, kind: str = "unreadable") -> Failure:
    return Failure(video_id=video_id, path=f"{video_id}.mp4", kind=kind, message="no")


def listed(dataset: DatasetFolder) -> dict[str, str]:
    return {row["video_id"]: row["kind"] for row in read_jsonl(dataset.features("s3d") / "failures.jsonl")}


def test_two_extractions_at_once_lose_no_line(tmp_path):
    dataset = DatasetFolder(tmp_path, "mine")
    one, other = PendingWork(dataset, ["s3d"]), PendingWork(dataset, ["s3d"])
    one.note_failure("s3d", "a", failure("a"))
    other.note_failure("s3d", "b", failure("b"))
    one.write_failures()
    other.write_failures()
    assert listed(dataset) == {"a": "unreadable", "b": "unreadable"}
    one.note_failure("s3d", "a", None)
    other.note_failure("s3d", "b", failure("b", "crashed"))
    other.write_failures()
    one.write_failures()
    assert listed(dataset) == {"b": "crashed"}
    assert one.failures["s3d"].keys() == {"b"}, "what others noted is known"


def note_some(dataset: DatasetFolder, worker: int, num: int) -> None:
    work = PendingWork(dataset, ["s3d"])
    for number in range(num):
        work.note_failure("s3d", f"{worker}-{number}", failure(f"{worker}-{number}"))
        work.write_failures()


def test_many_processes_at_once_lose_no_line(tmp_path):
    dataset = DatasetFolder(tmp_path, "mine")
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=note_some, args=(dataset, worker, 25)) for worker in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert listed(dataset).keys() == {f"{worker}-{number}" for worker in range(4) for number in range(25)}


@pytest.mark.parametrize(
    "row", [{"video_id": "a"}, {"path": "x"}, {"video_id": "a", "path": "x", "kind": "y", "message": "z", "new": 1}]
)
def test_a_failure_list_with_wrong_fields_is_refused(tmp_path, row):
    dataset = DatasetFolder(tmp_path, "mine")
    write_jsonl(dataset.features("s3d") / "failures.jsonl", [row])
    with pytest.raises(UserError, match=rf"{re.escape(str(dataset.features('s3d') / 'failures.jsonl'))}: "):
        PendingWork(dataset, ["s3d"])


def test_a_failed_video_is_skipped_unless_failed_ones_are_asked_for(tmp_path):
    dataset = DatasetFolder(tmp_path, "mine")
    work = PendingWork(dataset, ["s3d"])
    work.note_failure("s3d", "a", failure("a"))
    work.write_failures()
    video = VideoRecord(video_id="a", path="https://example.org/a.mp4")
    assert PendingWork(dataset, ["s3d"]).missing_features(video, only_failed=False) == []
    assert PendingWork(dataset, ["s3d"]).missing_features(video, only_failed=True) == ["s3d"]


@pytest.mark.parametrize("only_failed", [False, True])
def test_what_is_left_has_sizes_and_keeps_its_order(tmp_path, only_failed):
    dataset = DatasetFolder(tmp_path, "mine")
    dataset.path.mkdir()
    videos = [VideoRecord(video_id=f"{number:05d}", path=f"{number}.mp4") for number in range(10_000)]
    for number in range(0, 10_000, 1000):
        (dataset.path / f"{number}.mp4").write_bytes(b"x" * (number + 1))
    remote = VideoRecord(video_id="remote", path="https://example.org/a.mp4")
    work = PendingWork(dataset, ["s3d"])
    if only_failed:
        for video in (*videos, remote):
            work.note_failure("s3d", video.video_id, failure(video.video_id))
    tasks = list(work.tasks([*videos, remote], only_failed=only_failed))
    assert [task.video for task in tasks] == [*videos, remote]
    assert [task.size for task in tasks] == [0 if n % 1000 else n + 1 for n in range(10_000)] + [0]
