"""``failures.jsonl`` while several write to it, and writing where a disk is full."""

import errno
import multiprocessing
import subprocess
import sys
import threading

import pytest
from vlalign.extract.work import WorkList
from vlalign.storage import VideoRecord
from vlalign.storage.common.command import command_parser, run_command
from vlalign.storage.common.errors import UserError
from vlalign.storage.files import one_at_a_time, read_jsonl, write_jsonl, written_whole
from vlalign.storage.layout import DatasetFolder
from vlalign.storage.records import Failure


def failure(video_id: str, kind: str = "unreadable") -> Failure:
    return Failure(video_id=video_id, path=f"{video_id}.mp4", kind=kind, message="no")


def listed(dataset: DatasetFolder) -> dict[str, str]:
    return {row["video_id"]: row["kind"] for row in read_jsonl(dataset.features("s3d") / "failures.jsonl")}


def test_two_extractions_at_once_lose_no_line(tmp_path):
    dataset = DatasetFolder(tmp_path, "mine")
    one, other = WorkList(dataset, ["s3d"]), WorkList(dataset, ["s3d"])
    one.note("s3d", "a", failure("a"))
    other.note("s3d", "b", failure("b"))
    one.write_failures()
    other.write_failures()
    assert listed(dataset) == {"a": "unreadable", "b": "unreadable"}
    one.note("s3d", "a", None)
    other.note("s3d", "b", failure("b", "crashed"))
    other.write_failures()
    one.write_failures()
    assert listed(dataset) == {"b": "crashed"}
    assert one.failures["s3d"].keys() == {"b"}, "what others noted is known"


def note_some(dataset: DatasetFolder, worker: int, num: int) -> None:
    work = WorkList(dataset, ["s3d"])
    for number in range(num):
        work.note("s3d", f"{worker}-{number}", failure(f"{worker}-{number}"))
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


def test_a_turn_ends_with_its_process_and_nobody_waits_for_ever(tmp_path, monkeypatch):
    path = tmp_path / "x"
    monkeypatch.setattr("vlalign.storage.files.TURN_SECONDS", 0.2)
    with one_at_a_time(path):
        waiting = threading.Thread(target=lambda: one_at_a_time(path).__enter__())
        waiting.start()
        waiting.join(10)
        assert not waiting.is_alive()
    monkeypatch.setattr("vlalign.storage.files.fcntl.flock", raising(OSError(errno.ENOLCK, "no locks")))
    with one_at_a_time(path):
        pass


def raising(error: Exception):
    def call(*_):
        raise error

    return call


@pytest.mark.parametrize(
    "row", [{"video_id": "a"}, {"path": "x"}, {"video_id": "a", "path": "x", "kind": "y", "message": "z", "new": 1}]
)
def test_a_list_of_something_else_is_one_line(tmp_path, row):
    dataset = DatasetFolder(tmp_path, "mine")
    write_jsonl(dataset.features("s3d") / "failures.jsonl", [row])
    with pytest.raises(
        UserError, match=r"failures.jsonl: not a list of failures .*; remove it, and those videos are tried again"
    ):
        WorkList(dataset, ["s3d"])


def fill(path) -> None:
    with written_whole(path) as partial:
        partial.symlink_to("/dev/full")
        partial.write_text("x")


def test_a_full_disk_is_named(tmp_path, capsys):
    assert run_command(lambda _: fill(tmp_path / "videos.jsonl"), command_parser("vlalign-test", "", ""), []) == 1
    assert capsys.readouterr().err == (
        "vlalign-test: error: [Errno 28] No space left on device; make room there: "
        f"{str(tmp_path / 'videos.jsonl')!r}\n"
    )
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_behind_standard_output_is_named(tmp_path):
    program = """if True:
        import sys
        from vlalign.storage.common.command import command_parser, run_command
        sys.exit(run_command(lambda _: print("x", flush=True), command_parser("t", "", ""), []))
    """
    with open("/dev/full", "w") as full:
        made = subprocess.run(
            [sys.executable, "-c", program], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert made.stderr.splitlines()[0].startswith("t: error: No space left on device: standard output or a log, or /")


def test_videos_of_a_list_are_still_left_as_before(tmp_path):
    dataset = DatasetFolder(tmp_path, "mine")
    work = WorkList(dataset, ["s3d"])
    work.note("s3d", "a", failure("a"))
    work.write_failures()
    video = VideoRecord(video_id="a", path="https://example.org/a.mp4")
    assert WorkList(dataset, ["s3d"]).left(video, only_failed=False) == []
    assert WorkList(dataset, ["s3d"]).left(video, only_failed=True) == ["s3d"]
