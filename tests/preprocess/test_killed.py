"""A large file of captions: killed and continued, two calls at once, a disk that fills up. No work is done twice."""

import json
import os
import pickle
import random
import re
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from functools import partial

import pytest
from helpers.annotation_files import howto_video
from helpers.captions import tables
from helpers.disks import mounted
from helpers.sessions import running_in_session
from vlalign.preprocess import prepare as preparing
from vlalign.preprocess.caption_source import choose_source
from vlalign.preprocess.chunks import in_one_process
from vlalign.preprocess.cli import main
from vlalign.preprocess.datasets import howto100m
from vlalign.preprocess.datasets.sources import Annotations
from vlalign.preprocess.first_pass import LOG_NAME
from vlalign.preprocess.prepare import prepare_captions, prepare_records
from vlalign.preprocess.settings import SPACY_MODEL, PreprocessingSettings
from vlalign.preprocess.tables import Preparation
from vlalign.storage.common.problems import Problems
from vlalign.storage.dataset.folder import DatasetFolder

PART, CHUNK_CHARACTERS, NUM_PARTS = 400, 1 << 12, 50
WAIT_SECONDS = 900
LEFT_SECONDS = 5
"""So long after the command the last of its processes may end."""
PROGRAM = f"""
import sys
from vlalign.preprocess import prepare as preparing
from vlalign.preprocess.cli import main
from vlalign.preprocess.datasets import howto100m
preparing.PART_CAPTIONS, preparing.BYTES_PER_PROCESS, howto100m.CHUNK_CHARACTERS = {PART}, 1, {CHUNK_CHARACTERS}
if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture(scope="module")
def annotations(tmp_path_factory):
    """19,941 captions of few texts, so that tagging is quick; some rows, a second entry and a video cannot be used."""
    rng = random.Random(0)
    texts = [f"a man cuts the {word} onion" for word in ("red", "old", "big", "last")]
    videos = {}
    for number in range(250):
        rows = [(4.0 * n, 4.0 * n + 3, rng.choice(texts)) for n in range(rng.randint(1, 163))]
        videos[f"v{number:04d}"] = howto_video(*rows)
    videos["v0003"]["text"][0] = float("nan")
    videos["v0100"]["text"][0] = " "
    path = tmp_path_factory.mktemp("annotations") / "caption.json"
    again = f', "v0007": {json.dumps(videos["v0008"])}}}'
    path.write_text(json.dumps(videos)[:-1] + again)
    return path.parent


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(preparing, "PART_CAPTIONS", PART)
    monkeypatch.setattr(howto100m, "CHUNK_CHARACTERS", CHUNK_CHARACTERS)


def arguments(root, annotations, workers=2):
    return ["--root", str(root), "--dataset", "howto100m", "--annotations", str(annotations), "--workers", str(workers)]


@pytest.fixture(scope="module")
def expected(annotations, tmp_path_factory):
    """The tables as one process makes them that reads one caption after the other and keeps nothing."""
    dataset = DatasetFolder(tmp_path_factory.mktemp("expected"), "howto100m")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(preparing, "PART_CAPTIONS", PART)
        read = in_one_process(lambda problems: howto100m.read(Annotations(annotations, {}, problems), "captions"))
        source = choose_source(PreprocessingSettings(dataset.path, annotations))
        problems = Problems(quiet=True)
        prepare_records(
            Preparation(
                dataset=dataset,
                chunks=read,
                spacy_model=SPACY_MODEL,
                problems=problems,
                provenance=source.provenance,
            )
        )
    assert problems.count == 3 and not (dataset.captions / LOG_NAME).exists()
    made = tables(dataset.path)
    assert f"captions/part-{NUM_PARTS - 1:05d}.parquet" in made
    return made


@contextmanager
def running(tmp_path, root, annotations):
    """Run the command in a session of its own."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    command = [sys.executable, str(program), *arguments(root, annotations)]
    with (tmp_path / "said.txt").open("a") as said:
        process = subprocess.Popen(command, stdout=said, stderr=said, start_new_session=True)
    try:
        yield process
    finally:
        for pid in running_in_session(process.pid):
            os.kill(pid, signal.SIGKILL)
        process.wait()


def lines_of(log):
    """Return the whole lines of the log."""
    return log.read_bytes().splitlines(keepends=True) if log.exists() else []


def parts_in(folder):
    return {path.name: path.stat().st_mtime_ns for path in folder.glob("part-*.parquet")}


def kill(process, is_time, seconds):
    """Kill the command, but not the processes that it started, and check that they end, too."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not is_time():
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.001)
    time.sleep(seconds)
    process.kill()
    process.wait()
    deadline = time.monotonic() + LEFT_SECONDS
    while (left := running_in_session(process.pid)) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not left


def has_more(list_all, path, than):
    return len(list_all(path)) > than


def kill_and_continue(tmp_path, annotations, kills_in_first_pass, kills_later):
    """Kill the command again and again, and let it end. Check that it kept all lines of the log and all parts."""
    rng, root = random.Random(0), tmp_path / "root"
    folder = DatasetFolder(root, "howto100m").captions
    log, lines, parts = folder / LOG_NAME, [], {}
    for number in range(kills_in_first_pass + kills_later):
        if number < kills_in_first_pass:
            is_time, seconds = partial(has_more, lines_of, log, len(lines)), 0.0
        elif number % 3 == 1:
            is_time, seconds = partial(has_more, parts_in, folder, min(len(parts), NUM_PARTS - 1)), rng.uniform(0, 0.5)
        else:
            is_time, seconds = (lambda: True), rng.uniform(0, 6)  # while its processes start, too
        with running(tmp_path, root, annotations) as process:
            kill(process, is_time, seconds)
        if number < kills_in_first_pass:
            assert not parts_in(folder) and not json.loads(lines_of(log)[-1]).get("is_last")
        earlier_lines, lines = lines, lines_of(log)
        assert lines[: len(earlier_lines)] == earlier_lines
        earlier_parts, parts = parts, parts_in(folder)
        assert earlier_parts.items() <= parts.items()
    assert len(parts) > 0
    return root, lines, parts


def check_continued(root, lines, parts, expected):
    dataset = DatasetFolder(root, "howto100m")
    assert lines_of(dataset.captions / LOG_NAME)[: len(lines)] == lines
    assert parts.items() <= parts_in(dataset.captions).items()
    assert tables(dataset.path) == expected


def test_a_killed_call_leaves_no_process_and_is_continued(tmp_path, annotations, expected, small):
    root, lines, parts = kill_and_continue(tmp_path, annotations, 1, 1)
    assert main(arguments(root, annotations, workers=1)) == 1
    check_continued(root, lines, parts, expected)


@pytest.mark.slow
def test_a_call_that_is_killed_twenty_times_is_continued(tmp_path, annotations, expected, small):
    root, lines, parts = kill_and_continue(tmp_path, annotations, 6, 14)
    assert main(arguments(root, annotations)) == 1
    check_continued(root, lines, parts, expected)


def test_the_first_pass_is_not_repeated(tmp_path, annotations, expected, small, monkeypatch, capsys):
    assert main(arguments(tmp_path, annotations, workers=1)) == 1
    assert tables(tmp_path / "howto100m") == expected
    said = [line for line in capsys.readouterr().err.splitlines() if "warning" in line]
    folder = DatasetFolder(tmp_path, "howto100m").captions
    parts = parts_in(folder)
    monkeypatch.setattr(howto100m, "stream_object", None)
    assert main(arguments(tmp_path, annotations, workers=1)) == 1
    again = capsys.readouterr().err.splitlines()
    assert [line for line in again if "warning" in line] == said and len(said) == 3
    assert parts_in(folder) == parts and any(line.startswith(f"{folder}: ") for line in again)
    assert tables(tmp_path / "howto100m") == expected


def test_progress_of_the_first_pass_counts_all_bytes_and_continues(tmp_path, annotations, small):
    """The second call goes on in the middle of the file."""
    log, states = DatasetFolder(tmp_path, "howto100m").captions / LOG_NAME, []
    num_bytes = (annotations / "caption.json").stat().st_size

    def stop_in_the_middle(state):
        states.append(state)
        if state.what == "reading captions" and state.done > num_bytes / 2 and not state.earlier:
            raise KeyboardInterrupt

    settings = PreprocessingSettings(tmp_path / "howto100m", annotations)
    options = {"num_processes": 1, "on_progress": stop_in_the_middle}
    with pytest.raises(KeyboardInterrupt):
        prepare_captions(settings, **options)
    first = states.copy()
    assert {state.what for state in first} == {"reading captions"}
    known = sum(len(json.loads(line)["pieces"]) for line in lines_of(log)[1:])
    states.clear()
    prepare_captions(settings, **options)
    passed = [state for state in states if state.what == "passing what was read before"]
    assert passed[-1].done == passed[-1].total == known > 10
    read = [state for state in states if state.what == "reading captions"]
    assert 0 < read[0].earlier <= first[-1].done
    for state in (*first, *read):
        assert (state.unit, state.total) == ("bytes", num_bytes)
    assert read[-1].done == num_bytes and read[-1].ended


def test_captions_are_read_and_tagged_where_the_caller_wants_it(tmp_path, annotations, expected, small):
    calls = []

    def elsewhere(call, items, *, doing):
        calls.append(doing)
        for item in items:
            yield pickle.loads(pickle.dumps(call))(pickle.loads(pickle.dumps(item)))

    prepare_captions(PreprocessingSettings(tmp_path / "howto100m", annotations), parallel_map=elsewhere)
    assert calls == ["reading captions", "tagging captions", "writing captions"]
    assert tables(tmp_path / "howto100m") == expected


@pytest.mark.parametrize("change", ["file", "code", "cut", "noise", "header"])
def test_a_log_of_something_else_or_with_damage_is_made_again(tmp_path, annotations, small, monkeypatch, change):
    folder, log = tmp_path / "annotations", DatasetFolder(tmp_path, "howto100m").captions / LOG_NAME
    folder.mkdir()
    videos = {f"v{n}": howto_video(*[(4 * m, 4 * m + 3, f"text {m}") for m in range(300)]) for n in range(10)}
    (folder / "caption.json").write_text(json.dumps(videos))

    def keys():
        chunks = choose_source(PreprocessingSettings(tmp_path / "howto100m", folder)).chunks
        dataset = DatasetFolder(tmp_path, "howto100m")
        found = preparing._first_pass(
            Preparation(dataset=dataset, chunks=chunks, spacy_model=SPACY_MODEL, problems=Problems())
        )
        return found.keys, found.counter.to_json(), found.chunk_sizes

    first = keys()
    whole = log.read_bytes()
    if change == "file":
        del videos["v5"]
        (folder / "caption.json").write_text(json.dumps(videos))
    elif change == "code":
        monkeypatch.setattr(preparing, "code_hash", lambda: "other")
    else:
        lines = whole.splitlines(keepends=True)
        damage = {
            "cut": whole[:-30],
            "noise": b"".join(lines[:2]) + bytes(100) + b"\n",
            "header": b'{"x": 1}\n' + lines[1],
        }
        log.write_bytes(damage[change])
    assert (keys() == first) == (change != "file")
    assert (log.read_bytes() == whole) == (change in ("cut", "noise", "header"))


def test_a_second_call_at_the_same_time_is_refused(tmp_path, annotations, small, capsys):
    root = tmp_path / "root"
    folder = DatasetFolder(root, "howto100m").captions
    with running(tmp_path, root, annotations) as process:
        while not lines_of(folder / LOG_NAME):
            assert process.poll() is None
            time.sleep(0.01)
        before = lines_of(folder / LOG_NAME)
        assert main(arguments(root, annotations)) == 2
        error = capsys.readouterr().err
        assert f"error: {folder}: " in error and re.search(rf"\b{process.pid}\b", error)
        assert lines_of(folder / LOG_NAME)[: len(before)] == before


@pytest.mark.parametrize("kilobytes", [pytest.param(12, marks=pytest.mark.slow), 400])
def test_a_disk_that_fills_up_is_named_and_the_call_is_continued_when_there_is_room(
    tmp_path, annotations, expected, small, capsys, kilobytes
):
    """Full in the first pass, and full while parts are written."""
    with mounted(tmp_path / "disk", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs") as root:
        assert main(arguments(root, annotations, workers=1)) != 0
        said = capsys.readouterr().err
        assert "No space left on device" in said and str(root) in said and "Traceback" not in said
        folder = DatasetFolder(root, "howto100m").captions
        kept = parts_in(folder)
        assert bool(kept) == (kilobytes > 100)
        subprocess.run(["mount", "-o", "remount,size=64m", root], check=True)
        assert main(arguments(root, annotations, workers=1)) == 1
        check_continued(root, [], kept, expected)
