"""A folder from somebody else: links, hard links and pipes at the names that commands write to.

Nothing outside of the folder is written or created, and nothing blocks.
"""

import fcntl
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from helpers.deadlines import in_time
from helpers.toy import make_toy
from helpers.training import TWO_STEPS, at
from helpers.videos import scene
from vlalign.extract.cli.doctor import main as doctor_main
from vlalign.extract.cli.extract import main as extract_main
from vlalign.extract.models import weights as published
from vlalign.extract.pipeline.download import PREFIX, Fetcher
from vlalign.extract.videos.demo import render_video
from vlalign.preprocess.cli import main as preprocess_main
from vlalign.preprocess.datasets import DATASETS
from vlalign.preprocess.first_pass import open_first_pass_log
from vlalign.storage.cli.store import main as store_main
from vlalign.storage.common.errors import UserError
from vlalign.storage.common.locks import file_lock
from vlalign.storage.dataset.folder import DatasetFolder
from vlalign.storage.records import VideoRecord
from vlalign.train.cli.evaluate import main as evaluate_main
from vlalign.train.cli.index import main as index_main
from vlalign.train.cli.runs import main as runs_main
from vlalign.train.cli.train import main as train_main
from vlalign.train.data.text_inputs import TextSource, TokenWeights, save_text_inputs, saved_text_inputs
from vlalign.train.loop.event_log import EventLog
from vlalign.train.models.words import WordPair

PRECIOUS = "alias ll='ls -l'\n"


class Trap:
    """A file of the user's, and a name in a stranger's folder that stands for it."""

    def __init__(self, home: Path) -> None:
        self.home = home
        home.mkdir()
        self.file, self.new = home / ".bashrc", home / ".profile"
        self.file.write_text(PRECIOUS)

    def link(self, path: Path) -> None:
        path.symlink_to(os.path.relpath(self.file, path.parent))

    def dangling_link(self, path: Path) -> None:
        path.symlink_to(self.new)

    def link_to_nowhere(self, path: Path) -> None:
        path.symlink_to(self.home / "no" / "such" / "folder" / "file")

    def hard_link(self, path: Path) -> None:
        os.link(self.file, path)

    def pipe(self, path: Path) -> None:
        os.mkfifo(path)

    def device(self, path: Path) -> None:
        path.symlink_to("/dev/zero")

    def lay(self, kind: str, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        getattr(self, kind)(path)

    def check(self) -> None:
        """Check that nothing in the user's folder was written or created."""
        assert {path.name: path.read_text() for path in self.home.iterdir()} == {".bashrc": PRECIOUS}


KINDS = ["link", "dangling_link", "link_to_nowhere", "hard_link", "pipe", "device"]


@pytest.fixture
def trap(tmp_path) -> Trap:
    return Trap(tmp_path / "home")


@pytest.fixture
def evil(tmp_path) -> DatasetFolder:
    """A list of 25 videos that do not exist."""
    dataset = DatasetFolder(tmp_path / "root", "evil")
    (dataset.path / "videos").mkdir(parents=True)
    (dataset.path / "videos" / "other.txt").touch()  # an empty folder might not be mounted
    dataset.write_videos([VideoRecord(video_id=f"v{n}", path=f"videos/v{n}.mp4") for n in range(25)])
    return dataset


@pytest.fixture
def toy(tmp_path) -> DatasetFolder:
    return make_toy(tmp_path / "root")


def contents(folder: Path) -> dict[str, object]:
    """Return all names below a folder, with the content of files and the targets of links."""
    return {
        str(path.relative_to(folder)): os.readlink(path)
        if path.is_symlink()
        else path.read_bytes()
        if path.is_file()
        else None
        for path in folder.rglob("*")
    }


LOGMEL = ["--features", "logmel"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("more", [["--plan"], []], ids=["plan", "extract"])
def test_a_list_of_problems_is_written_to_no_other_file(evil, trap, capsys, more, kind):
    trap.lay(kind, evil.problems("extract"))
    with in_time():
        assert extract_main([*at(evil), *LOGMEL, *more]) == 1
    trap.check()
    shown = capsys.readouterr().err.splitlines()
    assert sum(line.startswith("warning: video ") for line in shown) == 25, "all are printed"
    assert sum(line.startswith("note: ") and str(evil.problems("extract")) in line for line in shown) == (not more)


def test_a_list_of_problems_is_written_to_no_other_folder(evil, trap, capsys):
    evil.problems("extract").parent.symlink_to(trap.home)
    assert extract_main([*at(evil), *LOGMEL]) == 1
    trap.check()
    assert sum(line.startswith("warning: video ") for line in capsys.readouterr().err.splitlines()) == 25


def helped(to: list[str]) -> int:
    for main in (
        extract_main,
        preprocess_main,
        train_main,
        evaluate_main,
        index_main,
        runs_main,
        store_main,
        doctor_main,
    ):
        with pytest.raises(SystemExit):
            main([*to, "--help"])
    return 0


READ_ONLY: dict[str, Callable[[list[str]], int]] = {
    "plan": lambda to: extract_main([*to, *LOGMEL, "--plan"]),
    "runs": runs_main,
    "store ls": lambda to: store_main(["ls", *to]),
    "store info": lambda to: store_main(["info", *to]),
    "store verify": lambda to: store_main(["verify", *to]),
    "doctor": lambda to: doctor_main(to[:2]),
    "help": helped,
}


@pytest.mark.parametrize("command", READ_ONLY)
def test_commands_that_only_look_write_nothing_there(toy, evil, trap, command):
    """25 videos are missing, 25 runs and 25 shards are damaged: all have something to report."""
    toy.write_videos(evil.read_videos())
    for number in range(25):
        (toy.runs / f"r{number}").mkdir(parents=True)
        (toy.runs / f"r{number}" / "run.json").write_text("{")
        (toy.features("s3d") / f"x{number}.h5").write_text("damaged")
    if command in ("store ls", "store info"):
        for path in toy.features("s3d").glob("x*.h5"):
            path.unlink()
    for name in ("extract", "runs", "store"):
        trap.lay("link", toy.problems(name))
    before = contents(toy.root)
    with in_time():
        READ_ONLY[command](at(toy))
    assert contents(toy.root) == before
    trap.check()


# Locks and logs


def train(dataset: DatasetFolder, *more: str) -> int:
    return train_main([*at(dataset), *TWO_STEPS, "--run-name", "r", *more])


def write_failures(dataset: DatasetFolder) -> int:
    (dataset.path / "videos").mkdir(exist_ok=True)
    (dataset.path / "videos" / "other.txt").touch()  # an empty folder might not be mounted
    return extract_main([*at(dataset), *LOGMEL])


def preprocess(dataset: DatasetFolder) -> int:
    path = dataset.root / "captions.jsonl"
    path.write_text('{"video_id": "v", "caption": "a man cooks"}\n')
    return preprocess_main([*at(dataset), "--annotations", str(path)])


LOCKS: dict[str, tuple[str, Callable[[DatasetFolder], int]]] = {
    "train": ("runs/r/train.lock", train),
    "mapped captions": ("captions/.captions.safetensors.lock", train),
    "preprocess": ("captions/preprocess.lock", preprocess),
    "failures": ("features/logmel/.failures.jsonl.lock", write_failures),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_is_a_file_of_its_own(toy, evil, trap, capsys, lock, kind):
    name, command = LOCKS[lock]
    toy.write_videos(evil.read_videos())
    path = toy.path / name
    trap.lay(kind, path)
    with in_time():
        code = command(toy)
    trap.check()
    if kind == "hard_link" and path.name.startswith("."):
        assert code in (0, 1), "it is only locked, never written to"
        return
    error = capsys.readouterr().err.splitlines()[-1]
    assert code == 2 and f"error: {path}: " in error


@pytest.mark.parametrize("kind", KINDS)
def test_logs_are_files_of_their_own(tmp_path, trap, kind):
    folder = tmp_path / "captions"
    trap.lay(kind, folder / "survey.jsonl")
    with (
        in_time(),
        pytest.raises(UserError, match=r"/survey\.jsonl: "),
        open_first_pass_log(folder / "survey.jsonl", {}),
    ):
        pass
    trap.lay(kind, folder / "events.jsonl")
    if kind == "hard_link":
        EventLog(folder, 3).close()  # written anew, so that the other name stays
    else:
        with in_time(), pytest.raises(UserError, match=r"/events\.jsonl: "):
            EventLog(folder, 3)
    trap.lay(kind, folder / ".model.pth.partial")
    with in_time(), pytest.raises(UserError, match=r"/\.model\.pth\.partial: "):
        published._receive(Path(__file__).as_uri(), folder / ".model.pth.partial", "model.pth")
    trap.check()


def test_a_log_and_a_lock_of_ones_own_are_used_again(tmp_path):
    for _ in range(2):
        with open_first_pass_log(tmp_path / "survey.jsonl", {"a": 1}) as log:
            assert log.lines == []
        with file_lock(tmp_path / "x"):
            pass
    os.link(tmp_path / ".x.lock", tmp_path / "copy of the folder")
    with file_lock(tmp_path / "x"), (tmp_path / ".x.lock").open("a") as other, pytest.raises(BlockingIOError):
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_what_others_left_among_temporary_folders_is_not_opened(tmp_path, trap, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    for kind in ("link", "pipe", "hard_link"):
        trap.lay(kind, tmp_path / f"{PREFIX}{kind}" / "lock")
    with in_time():
        fetcher = Fetcher()
        list(fetcher.jobs([]))
        fetcher.close()
    trap.check()


def test_a_scene_is_drawn_into_no_other_file(tmp_path, trap):
    """The name of the unfinished file could be guessed."""
    trap.link(tmp_path / f".v.mp4.{os.getpid()}.partial")
    render_video(scene(0.3), tmp_path / "v.mp4")
    trap.check()
    assert (tmp_path / "v.mp4").stat().st_size > 1000


@pytest.mark.parametrize("kind", ["link", "dangling_link", "hard_link"])
def test_a_run_writes_no_file_of_its_text_encoder_elsewhere(toy, trap, kind):
    """Tokenizers write their files by themselves."""
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        trap.lay(kind, toy.runs / "r" / "text_encoder" / name)
    assert train(toy) == 0
    trap.check()
    assert not (toy.runs / "r" / "text_encoder" / "config.json").is_symlink()
    assert evaluate_main([*at(toy), "r"]) == 0


OWN_INPUTS = """
class Inputs:
    @classmethod
    def read(cls, folder, max_tokens):
        return (folder / "words.json").read_text()

    def save(self, folder):
        (folder / "inner").mkdir(parents=True, exist_ok=True)
        for name in ("words.json", "inner/more.json"):
            (folder / name).write_text("overwritten")
"""


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["text_encoder/words.json", "text_encoder/inner/more.json", "text_encoder"])
def test_inputs_of_ones_own_write_no_file_elsewhere(tmp_path, trap, name, kind):
    """They follow links, and wait for pipes."""
    module: dict[str, Any] = {}
    exec(OWN_INPUTS, module)
    path = tmp_path / "runs" / "r" / name
    trap.lay(kind, path)
    with in_time():
        save_text_inputs(module["Inputs"](), tmp_path / "runs" / "r" / "text_encoder")
    trap.check()
    written = contents(tmp_path / "runs" / "r")
    assert written == dict.fromkeys(["text_encoder", "text_encoder/inner"]) | dict.fromkeys(
        ["text_encoder/words.json", "text_encoder/inner/more.json"], b"overwritten"
    )


def test_inputs_of_ones_own_do_not_wait_for_a_pipe(tmp_path, trap):
    module: dict[str, Any] = {}
    exec(OWN_INPUTS, module)
    trap.lay("pipe", tmp_path / "text_encoder" / "words.json")
    traits = replace(WordPair.traits, caption_input=module["Inputs"])
    with in_time(), pytest.raises(UserError, match=r"words\.json: "):
        saved_text_inputs(TextSource(traits, 3, TokenWeights([], [])), tmp_path / "text_encoder", dict)


@pytest.mark.parametrize("name", ["captions.csv", "captions.parquet", "captions.vtt"])
def test_annotations_that_are_a_pipe_are_not_waited_for(evil, capsys, name):
    path = evil.path / "annotations" / name
    path.parent.mkdir()
    os.mkfifo(path)
    with in_time():
        code = preprocess_main([*at(evil), "--annotations", str(path)])
    error = capsys.readouterr().err.splitlines()[-1]
    assert code == 2 and f"error: {path}: " in error


def test_published_annotations_that_are_a_pipe_are_not_waited_for(tmp_path, capsys):
    folder = tmp_path / "root" / "youcook2" / "annotations"
    folder.mkdir(parents=True)
    for name in DATASETS["youcook2"].published:
        os.mkfifo(folder / name)
    with in_time():
        code = preprocess_main(["--root", str(tmp_path / "root"), "--dataset", "youcook2"])
    error = capsys.readouterr().err.splitlines()[-1]
    assert code == 2 and any(f"error: {folder / name}: " in error for name in DATASETS["youcook2"].published)


# Folders that are links


WRITERS: dict[str, tuple[str, Callable[[DatasetFolder], int]]] = {
    "all runs": ("runs", train),
    "a run": ("runs/r", train),
    "a part of a run": ("runs/r/tensorboard", train),
    "captions": ("captions", preprocess),
    "counted words": ("captions/counts", preprocess),
    "clips": ("pairs", train),
    "a store": ("features/logmel", write_failures),
    "thumbnails": ("thumbnails", write_failures),
    "a merged store": ("features/s3d", lambda d: store_main(["compact", *at(d), "s3d"])),
    "index": ("index", lambda d: index_main([*at(d), "r"])),
    "deleted runs": ("runs", lambda d: runs_main([*at(d), "--delete", "r", "--yes"])),
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    toy = make_toy(tmp_path_factory.mktemp("trained") / "root")
    assert train(toy) == 0
    return toy.root


@pytest.mark.parametrize("folder", ["features", "runs"])
def test_a_store_or_a_run_that_is_named_by_its_path_is_not_changed_elsewhere(tmp_path, trained, folder, capsys):
    shutil.copytree(trained, tmp_path / "root", dirs_exist_ok=True)
    toy, elsewhere = DatasetFolder(tmp_path / "root", "toy"), tmp_path / "another disk"
    shutil.move(toy.path / folder, elsewhere)
    (toy.path / folder).symlink_to(elsewhere)
    before = contents(elsewhere)
    if folder == "features":
        assert store_main(["compact", str(toy.features("s3d"))]) == 2
    else:
        assert evaluate_main([str(toy.runs / "r"), "--root", str(toy.root), "--device", "cpu"]) == 2
    assert f"--allow-folder '{elsewhere}" in capsys.readouterr().err
    assert contents(elsewhere) == before


@pytest.mark.parametrize("name", WRITERS)
def test_a_folder_that_leads_out_of_the_root_is_written_to_only_if_it_was_allowed(
    tmp_path, trained, evil, capsys, name
):
    folder, command = WRITERS[name]
    shutil.copytree(trained, tmp_path / "root", dirs_exist_ok=True)
    toy = DatasetFolder(tmp_path / "root", "toy")
    toy.write_videos(evil.read_videos())
    if command is train:
        shutil.rmtree(toy.runs)
        shutil.rmtree(toy.pairs)
    path, elsewhere = toy.path / folder, tmp_path / "another disk"
    if path.is_dir():
        shutil.move(path, elsewhere)
    else:
        elsewhere.mkdir()
        path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(elsewhere)
    before = contents(elsewhere)
    assert command(toy) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert f"error: {path}: " in error and f"--allow-folder '{elsewhere}'" in error
    assert contents(elsewhere) == before
    assert store_main(["ls", *at(toy), "s3d", "--allow-folder", str(elsewhere)]) == 0
    assert command(toy) in (0, 1), "once is enough"


def test_a_link_within_the_root_and_a_linked_root_or_data_set_are_used(tmp_path, toy):
    shutil.move(toy.path, tmp_path / "toy")
    toy.path.symlink_to(tmp_path / "toy")
    (toy.root / "big" / "runs").mkdir(parents=True)
    toy.runs.symlink_to(toy.root / "big" / "runs")
    (tmp_path / "linked root").symlink_to(toy.root)
    assert train(DatasetFolder(tmp_path / "linked root", "toy")) == 0
    assert (toy.root / "big" / "runs" / "r" / "run.json").exists()
