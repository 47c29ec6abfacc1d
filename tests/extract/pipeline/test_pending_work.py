"""The list of videos that could not be extracted, ``failures.jsonl``, while several extractions write to it."""

import json
import multiprocessing
import os
import re
from dataclasses import asdict
from pathlib import Path

import pytest
from vlalign.extract.pipeline.pending_work import PendingWork
from vlalign.storage import VideoRecord
from vlalign.storage.common.errors import UserError
from vlalign.storage.common.files import write_jsonl
from vlalign.storage.dataset.folder import DatasetFolder
from vlalign.storage.records import Failure
from vlalign.storage.stores import failure_log
from vlalign.storage.stores.failure_log import read_failures


def failure(video_id: str, kind: str = "unreadable") -> Failure:
    return Failure(video_id=video_id, path=f"{video_id}.mp4", kind=kind, message="no")


def log_of(dataset: DatasetFolder) -> Path:
    return dataset.features("s3d") / "failures.jsonl"


def listed(dataset: DatasetFolder) -> dict[str, str]:
    return {video_id: failed.kind for video_id, failed in read_failures(log_of(dataset)).items()}


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


def test_failures_are_appended_and_nothing_is_rewritten(tmp_path):
    dataset = DatasetFolder(tmp_path, "mine")
    work = PendingWork(dataset, ["s3d"])
    work.note_failure("s3d", "a", failure("a"))
    work.write_failures()
    file, before = log_of(dataset).stat().st_ino, log_of(dataset).read_text()
    for changed in (failure("b"), failure("a", "crashed")):
        work.note_failure("s3d", changed.video_id, changed)
    work.write_failures()
    work.note_failure("s3d", "b", None)
    work.write_failures()
    work.compact_failures()
    assert log_of(dataset).stat().st_ino == file
    lines = log_of(dataset).read_text().removeprefix(before).splitlines()
    expected = [asdict(failure("b")), asdict(failure("a", "crashed")), {"video_id": "b", "failed": False}]
    assert list(map(json.loads, lines)) == expected
    assert listed(dataset) == {"a": "crashed"} == {id: each.kind for id, each in work.failures["s3d"].items()}


def test_a_line_that_was_cut_is_ignored_and_said(tmp_path, capsys):
    dataset = DatasetFolder(tmp_path, "mine")
    write_jsonl(log_of(dataset), [asdict(failure("a"))])
    whole = log_of(dataset).read_bytes()
    log_of(dataset).write_bytes(whole + whole[:20])
    work = PendingWork(dataset, ["s3d"])
    assert work.failures["s3d"].keys() == {"a"}
    work.note_failure("s3d", "b", failure("b"))
    work.write_failures()
    assert listed(dataset) == {"a": "unreadable", "b": "unreadable"} and log_of(dataset).read_bytes().startswith(whole)
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and f"{log_of(dataset)}, line 2: cut short" in said


def test_a_log_of_superseded_lines_is_written_anew_at_the_start(tmp_path, monkeypatch):
    monkeypatch.setattr(failure_log, "MAX_SUPERSEDED", 10)
    dataset = DatasetFolder(tmp_path, "mine")
    work, other = PendingWork(dataset, ["s3d"]), PendingWork(dataset, ["s3d"])
    for number in range(20):
        work.note_failure("s3d", "a", failure("a", f"kind {number}"))
        work.write_failures()
    PendingWork(dataset, ["s3d"]).compact_failures()
    assert len(log_of(dataset).read_text().splitlines()) == 1 and listed(dataset) == {"a": "kind 19"}
    for each, video_id in ((work, "b"), (other, "c")):  # they go on with the new file
        each.note_failure("s3d", video_id, failure(video_id))
        each.write_failures()
    assert listed(dataset).keys() == {"a", "b", "c"} == other.failures["s3d"].keys()


def test_a_copy_of_hard_links_is_not_appended_to(tmp_path):
    dataset = DatasetFolder(tmp_path, "mine")
    write_jsonl(log_of(dataset), [asdict(failure("a"))])
    os.link(log_of(dataset), tmp_path / "copy.jsonl")
    work = PendingWork(dataset, ["s3d"])
    work.note_failure("s3d", "b", failure("b"))
    work.write_failures()
    assert listed(dataset).keys() == {"a", "b"} and read_failures(tmp_path / "copy.jsonl").keys() == {"a"}


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
    "row",
    [
        {"video_id": "a"},
        {"path": "x"},
        {"video_id": "a", "path": "x", "kind": "y", "message": "z", "new": 1},
        {"failed": False},
        {"video_id": ["a"], "failed": False},
    ],
)
def test_a_failure_list_with_wrong_fields_is_refused(tmp_path, row):
    dataset = DatasetFolder(tmp_path, "mine")
    write_jsonl(dataset.features("s3d") / "failures.jsonl", [row])
    with pytest.raises(UserError, match=rf"^{re.escape(str(log_of(dataset)))}, line 1: "):
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
