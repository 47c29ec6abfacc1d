"""Ctrl-C and SIGTERM, sent to real processes."""

import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers.sessions import running_in_session
from helpers.toy import make_toy
from helpers.videos import scene
from vlalign.extract.cli.extract import main as extract_main
from vlalign.extract.videos.demo import render_video
from vlalign.preprocess import prepare
from vlalign.preprocess.cli import main as preprocess_main
from vlalign.storage import FeatureStore
from vlalign.storage.captions.files import read_captions
from vlalign.storage.dataset.folder import DatasetFolder

WAIT_SECONDS = 300.0
"""Generous, because the machine may be busy."""
LOOSELY = 60.0
"""Stopping takes at most 10 seconds on a machine that is not busy."""


class Process:
    """A process in its own session, with its output."""

    def __init__(self, folder: Path, command: list[object]) -> None:
        self.file = folder / f"said-{time.monotonic_ns()}.txt"
        with self.file.open("w") as file:
            call = list(map(str, command))
            shown_at_abort = {**os.environ, "PYTHONFAULTHANDLER": "1"}
            self.process = subprocess.Popen(call, stdout=file, stderr=file, start_new_session=True, env=shown_at_abort)

    @property
    def said(self) -> str:
        return self.file.read_text()

    def wait_for(self, ready: Callable[[], bool]) -> None:
        deadline = time.monotonic() + WAIT_SECONDS
        while not ready():
            assert self.process.poll() is None and time.monotonic() < deadline, self.said
            time.sleep(0.02)

    def maps(self, library: str) -> bool:
        return library in Path(f"/proc/{self.process.pid}/maps").read_text()

    def stop(self, *numbers: int, group: bool = False) -> int:
        """Send the signals, check that no process of the session remains, and return the exit code."""
        for number in numbers:
            (os.killpg if group else os.kill)(self.process.pid, number)
            time.sleep(0.2 * (len(numbers) > 1))
        try:
            return self.process.wait(LOOSELY)
        finally:
            deadline = time.monotonic() + LOOSELY
            while (left := self.left()) and time.monotonic() < deadline:
                time.sleep(0.05)
            for pid in left:
                os.kill(pid, signal.SIGABRT)
            time.sleep(bool(left))
            assert not left, self.said

    def left(self) -> list[int]:
        """Return the ids of the running processes of the session."""
        return running_in_session(self.process.pid)


def script(lines: str, *arguments: object) -> list[object]:
    return [sys.executable, "-c", textwrap.dedent(lines), *arguments]


# The signals themselves

COMMAND = """
    import sys, threading, time
    from vlalign.storage.cli.command import run_command
    from vlalign.storage.cli.parser import command_parser
    from vlalign.storage.common.signals import report_saved_work, uninterrupted
    def command(args):
        {}
    sys.exit(run_command(command, command_parser("vlalign-test", "tests", "vlalign-test"), []))
"""
SLEEP = "print('ready', flush=True); time.sleep(1000)"
CASES = {
    "nothing kept": (SLEEP, "ready\nvlalign-test: [^\\d\n]+\n"),
    "something kept": (
        f"with report_saved_work(lambda: '3 videos are kept'): {SLEEP}",
        "ready\nvlalign-test: .*3 videos are kept.*\n",
    ),
    "in the midst of writing": (
        "with uninterrupted(): print('ready', flush=True); time.sleep(1.2); print('written', flush=True)",
        "ready\nwritten\nvlalign-test: [^\\d\n]+\n",
    ),
    "an error on the way out": (
        f"\n        try: {SLEEP}\n        finally: raise RuntimeError('a peer is gone')",
        "ready\nvlalign-test: [^\\d\n]+\n",
    ),
    "a place where Python drops what is raised": (
        "\n        class Held:"
        "\n            def __del__(self): print('ready', flush=True); time.sleep(1.2)"
        "\n        held = Held(); del held; time.sleep(1000)",
        "ready\nvlalign-test: [^\\d\n]+\n",
    ),
    "another error in its place": (
        "\n        with report_saved_work(lambda: '3 videos are kept'):"
        f"\n            try: {SLEEP}\n            finally: raise RuntimeError('a peer is gone')",
        "ready\nvlalign-test: .*3 videos are kept.*\n",
    ),
    "a thread that does not end": (
        f"threading.Thread(target=time.sleep, args=(1000,)).start(); {SLEEP}",
        "ready\nvlalign-test: [^\\d\n]+\n",
    ),
    "threads of a generator that do not end": (
        "\n        from concurrent.futures import ThreadPoolExecutor"
        "\n        def items():"
        "\n            with ThreadPoolExecutor() as pool: yield pool.submit(time.sleep, 1000)"
        f"\n        for item in items(): {SLEEP}",
        "ready\nvlalign-test: [^\\d\n]+\n",
    ),
    "an end that hangs": (
        "\n        with report_saved_work(lambda: '3 videos are kept'):"
        f"\n            try: {SLEEP}"
        "\n            finally: threading.Event().wait()",
        "ready\nvlalign-test: .*3 videos are kept.*\n",
    ),
    "a library that drops what is raised": (
        "\n        with report_saved_work(lambda: '3 videos are kept'):"
        f"\n            try: {SLEEP}"
        "\n            except BaseException: pass"
        "\n            while True: time.sleep(0.1)",
        "ready\nvlalign-test: .*3 videos are kept.*\n",
    ),
}
STUCK = "threads of a generator that do not end", "an end that hangs", "a library that drops what is raised"


@pytest.mark.parametrize(
    "numbers",
    [
        pytest.param([signal.SIGINT], marks=pytest.mark.slow),
        [signal.SIGTERM],
        [signal.SIGTERM, signal.SIGINT, signal.SIGTERM],
    ],
)
@pytest.mark.parametrize("case", CASES)
def test_a_stopped_command_reports_what_is_kept_and_exits_with_the_first_signal(tmp_path, case, numbers):
    body, shown = CASES[case]
    if case in STUCK:
        body = f"\n        from vlalign.storage.common import signals; signals.STUCK_SECONDS = 2.0{body}"
    process = Process(tmp_path, script(COMMAND.replace("{}", body)))
    process.wait_for(lambda: "ready\n" in process.said)
    assert process.stop(*numbers) == 128 + numbers[0]
    assert re.fullmatch(shown, process.said), process.said


def test_a_signal_that_the_caller_ignores_stays_ignored(tmp_path):
    ignored = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n" + textwrap.dedent(COMMAND)
    process = Process(tmp_path, script(ignored.replace("{}", SLEEP)))
    process.wait_for(lambda: "ready\n" in process.said)
    os.kill(process.process.pid, signal.SIGINT)
    time.sleep(0.5)
    assert process.process.poll() is None
    assert process.stop(signal.SIGTERM) == 143


# The commands

EXTRACT = """
    import sys
    from vlalign.extract.pipeline import shard_writing
    from vlalign.extract.cli.extract import main
    shard_writing.SHARD_VIDEOS = 4
    sys.exit(main(sys.argv[1:]))
"""
NUM_VIDEOS = 16


@pytest.fixture(scope="module")
def videos(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("videos")
    for number in range(NUM_VIDEOS):
        render_video(scene(0.8), folder / f"v{number:02d}.mp4")
    return folder


def extraction(root: Path, videos: Path) -> list[object]:
    call = [
        "--root",
        root,
        "--dataset",
        "mine",
        "--videos",
        videos,
        "--features",
        "resnet152,logmel",
        "--weights",
        "random",
    ]
    return script(EXTRACT, *call)


@pytest.mark.slow
@pytest.mark.parametrize(
    "numbers, group",
    [
        ([signal.SIGTERM], False),
        ([signal.SIGINT], True),
        ([signal.SIGTERM, signal.SIGTERM], True),
    ],
)
def test_extraction_keeps_finished_videos_and_continues(tmp_path, videos, numbers, group, capsys):
    dataset = DatasetFolder(tmp_path, "mine")
    process = Process(tmp_path, extraction(tmp_path, videos))
    process.wait_for(lambda: any(dataset.features("resnet152").glob("*.h5")))
    assert process.stop(*numbers, group=group) == 128 + numbers[0]
    stores = [FeatureStore(dataset.features(name)) for name in ("resnet152", "logmel")]
    kept = re.search(r"vlalign-extract: .* (\d+) videos ", process.said)
    assert kept and 4 <= int(kept[1]) == len(stores[0]) == len(stores[1]) < NUM_VIDEOS
    assert "Traceback" not in process.said and "warning" not in process.said  # no video is reported as the cause
    assert not list(tmp_path.rglob("failures.jsonl")) and not list(tmp_path.rglob("*.partial"))
    before = {path.name for path in dataset.features("resnet152").glob("*.h5")}
    assert extract_main([str(argument) for argument in extraction(tmp_path, videos)[3:]]) == 0
    assert len(FeatureStore(dataset.features("resnet152"))) == NUM_VIDEOS
    assert before < {path.name for path in dataset.features("resnet152").glob("*.h5")}
    assert re.search(rf": {NUM_VIDEOS - len(stores[0])} videos .*\b0 ", capsys.readouterr().err)


def test_extraction_without_a_finished_video_keeps_nothing(tmp_path, videos):
    call = extraction(tmp_path, videos)
    process = Process(
        tmp_path,
        [
            *call[:2],
            "import sys; from vlalign.extract.cli.extract import main; sys.exit(main(sys.argv[1:]))",
            *call[3:],
        ],
    )
    process.wait_for(lambda: process.maps("libtorch"))  # libraries are loaded only if there is work to do
    assert process.stop(signal.SIGTERM) == 143
    assert re.fullmatch(r"vlalign-extract: [^\d;]+", process.said.splitlines()[-1])
    assert not list(tmp_path.rglob("*.h5"))


def children_of(process: Process) -> list[int]:
    """Return the ids of a command's own children, the oldest first."""
    pid = process.process.pid
    return list(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))


def on_two_devices(root: Path, videos: Path) -> list[object]:
    options = ["--root", root, "--dataset", "mine", "--videos", videos, "--features", "logmel", "--device", "cpu,cpu"]
    return script(EXTRACT, *options)


def lines_besides_progress(process: Process) -> list[str]:
    """Return what a command said, but for its progress and the devices."""
    progress = ("extracting: ", "training: ")
    return [
        line for line in process.said.splitlines() if ": computes on 2 " not in line and not line.startswith(progress)
    ]


@pytest.fixture(scope="module")
def many_videos(tmp_path_factory, videos) -> Path:
    """Enough for a shard of 64 videos while most are still to do."""
    folder = tmp_path_factory.mktemp("many")
    for number in range(1500):
        os.link(videos / f"v{number % NUM_VIDEOS:02d}.mp4", folder / f"v{number:04d}.mp4")
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(
    "numbers, group",
    [([signal.SIGTERM], False), ([signal.SIGINT], True)],
)
def test_extraction_on_two_devices_stops_with_one_line(tmp_path, many_videos, numbers, group):
    dataset = DatasetFolder(tmp_path, "mine")
    process = Process(tmp_path, on_two_devices(tmp_path, many_videos))
    process.wait_for(lambda: any(dataset.features("logmel").glob("*.h5")))
    assert process.stop(*numbers, group=group) == 128 + numbers[0]
    [stopped] = lines_besides_progress(process)
    kept = re.fullmatch(
        r"vlalign-extract: .* ([\d,]+) videos .*",
        stopped,
    )
    num_kept = int(kept[1].replace(",", ""))
    assert 64 <= num_kept <= len(FeatureStore(dataset.features("logmel"))) < 1500  # what was not yet told is kept, too
    assert not list(tmp_path.rglob("failures.jsonl")) and not list(tmp_path.rglob("*.partial"))


@pytest.mark.parametrize("whose", [pytest.param("a device's", marks=pytest.mark.slow), "the command's"])
def test_extraction_on_two_devices_loses_nothing_when_a_process_is_killed(tmp_path, many_videos, whose):
    dataset = DatasetFolder(tmp_path, "mine")
    process = Process(tmp_path, on_two_devices(tmp_path, many_videos))
    process.wait_for(lambda: any(dataset.features("logmel").glob("*.h5")))
    _, second = children_of(process)
    before = len(FeatureStore(dataset.features("logmel")))
    if whose == "a device's":
        os.kill(second, signal.SIGKILL)
        assert process.process.wait(LOOSELY) == 2
        [error] = lines_besides_progress(process)
        assert re.match(r"vlalign-extract: error: .*\bcpu\b.*\(SIGKILL\)", error)
    else:
        os.kill(process.process.pid, signal.SIGKILL)
    process.stop(*[])  # no process is left
    assert len(FeatureStore(dataset.features("logmel"))) >= before and not list(tmp_path.rglob("*.partial"))


def training(root: Path) -> list[object]:
    call = [
        "--root",
        root,
        "--dataset",
        "toy",
        "--features",
        "s3d",
        "--run-name",
        "run",
        "--num-steps",
        100_000,
        "--validate-every",
        4,
    ]
    return [sys.executable, "-m", "vlalign.train.cli.train", *call, "--batch-size", 4]


TRAIN = "import sys; from vlalign.train.cli.train import main; sys.exit(main(sys.argv[1:]))"


@pytest.mark.parametrize("continued", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_training_reports_the_kept_step_and_continues_there(tmp_path, continued):
    dataset = make_toy(tmp_path)
    call = [sys.executable, "-c", TRAIN, *training(tmp_path)[3:]]
    process = Process(tmp_path, call)
    process.wait_for((dataset.runs / "run" / "state.safetensors").exists)
    assert process.stop(signal.SIGTERM, signal.SIGTERM, group=True) == 143
    kept = re.search(
        r"vlalign-train: .* (\d+) ",
        process.said,
    )
    assert kept and int(kept[1]) % 4 == 0 and "Traceback" not in process.said
    if continued:
        again = Process(tmp_path, call)
        again.wait_for(lambda: re.search(rf" {kept[1]}\n", again.said))
        assert again.stop(signal.SIGINT) == 130


@pytest.mark.slow
@pytest.mark.parametrize("group", [False, True], ids=["torchrun alone", "all of them"])
def test_processes_of_torchrun_stop_together(tmp_path, group):
    dataset = make_toy(tmp_path)
    (tmp_path / "train.py").write_text(TRAIN)
    torchrun = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node",
        2,
        "--master-port",
        29567,
        tmp_path / "train.py",
    ]
    process = Process(tmp_path, [*torchrun, *training(tmp_path)[3:]])
    process.wait_for((dataset.runs / "run" / "state.safetensors").exists)
    assert process.stop(signal.SIGTERM, group=group) != 0
    assert (
        process.said.count("vlalign-train: stopped; the state of step") == 1
        and process.said.count("vlalign-train: stopped") == 2
    )


def on_two_cpus(root: Path) -> list[object]:
    return [sys.executable, "-c", TRAIN, *training(root)[3:], "--device", "cpu,cpu"]


@pytest.mark.slow
def test_training_on_two_devices_stops_with_one_line(tmp_path):
    dataset = make_toy(tmp_path)
    process = Process(tmp_path, on_two_cpus(tmp_path))
    process.wait_for((dataset.runs / "run" / "state.safetensors").exists)
    assert process.stop(signal.SIGINT, group=True) == 130
    kept = re.fullmatch(
        r"vlalign-train: .* ([\d,]+) .*",
        process.said.splitlines()[-1],
    )
    assert kept and int(kept[1].replace(",", "")) % 4 == 0
    assert "Traceback" not in process.said and process.said.count("vlalign-train: ") == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "whose",
    [
        "the first",
        "the second",
        "the command's",
    ],
)
def test_training_on_two_devices_ends_when_a_process_is_killed(tmp_path, whose):
    dataset = make_toy(tmp_path)
    process = Process(tmp_path, on_two_cpus(tmp_path))
    process.wait_for((dataset.runs / "run" / "state.safetensors").exists)
    if whose == "the command's":
        os.kill(process.process.pid, signal.SIGKILL)
    else:
        os.kill(children_of(process)[whose == "the second"], signal.SIGKILL)
        assert process.process.wait(LOOSELY) == 2
        assert re.match(r"vlalign-train: error: .*\bcpu\b.*\(SIGKILL\)", process.said.splitlines()[-1])
    process.stop(*[])  # no process is left
    assert "Traceback" not in process.said and (dataset.runs / "run" / "state.safetensors").exists()


PREPROCESS = """
    import sys
    from vlalign.preprocess import prepare
    from vlalign.preprocess.cli import main
    prepare.PART_CAPTIONS = 50
    if __name__ == "__main__":
        sys.exit(main(sys.argv[1:]))
"""
NUM_CAPTIONS = 600


@pytest.mark.slow
@pytest.mark.parametrize("num_workers", [1, 2])
def test_preprocessing_keeps_finished_parts_and_continues(tmp_path, num_workers, monkeypatch):
    rows = [
        f"v{n % 40},a person {['cuts', 'fries', 'stirs', 'peels'][n % 4]} the onion number {n} in a small pan"
        for n in range(NUM_CAPTIONS)
    ]
    (tmp_path / "captions.csv").write_text("video_id,caption\n" + "\n".join(rows))
    call = [
        "--root",
        tmp_path,
        "--dataset",
        "mine",
        "--annotations",
        tmp_path / "captions.csv",
        "--workers",
        num_workers,
    ]
    captions = DatasetFolder(tmp_path, "mine").captions
    process = Process(tmp_path, script(PREPROCESS, *call))
    # Two processes receive at most five parts before the first one is counted.
    process.wait_for(lambda: len(list((captions / "counts").glob("part-*.parquet"))) > 5)
    assert process.stop(signal.SIGTERM, group=True) == 143
    kept = re.search(
        r"vlalign-preprocess: .* ([\d,]+) captions ",
        process.said,
    )
    made = len(list(captions.glob("part-*.parquet")))
    assert kept and 0 < int(kept[1].replace(",", "")) <= 50 * made < NUM_CAPTIONS
    assert "Traceback" not in process.said
    monkeypatch.setattr(prepare, "PART_CAPTIONS", 50)
    assert preprocess_main([str(argument) for argument in call]) == 0
    assert len(read_captions(captions)) == NUM_CAPTIONS
