"""Slow: every command of every page runs as printed, or a table here names the test that runs it, or what it needs.

Commands are in blocks of code without a language, or with ``console`` or ``bash``. In a block that has lines with "$ ",
these are the commands, and the other lines are their output, which is compared with today's, figures apart. In any
other block each line is a command. A command must end with 0, unless the page shows its error, or what it found to be
wrong.
"""

import importlib.util
import json
import os
import pty
import re
import shutil
import signal
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from urllib.request import HTTPCookieProcessor, build_opener

import pytest
from helpers import page_data
from helpers.numbered import write_video
from helpers.page_datasets import (
    TEXTS,
    write_demo_rows,
    write_demo_video,
    write_experts,
    write_files_of_other_tools,
    write_official,
    write_text_video,
    write_word_vectors,
)
from helpers.page_stage import LINES, Home, make_home, put_into_hub, write_captions, write_subtitles, write_videos
from helpers.speech import VIDEOS as SPOKEN_VIDEOS
from helpers.speech import small_model
from helpers.toy import make_toy
from helpers.zoo import write_zoo
from vlalign.storage.dataset.folder import DatasetFolder

TOP = Path(__file__).resolve().parents[1]
PAGES = [
    *(TOP / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")),
    *(TOP / "tests" / "benchmarks" / name for name in ("README.md", "gpu/README.md")),
    *sorted((TOP / "docs").glob("*.md")),
    *sorted((TOP / "docs" / "guides").glob("*.md")),
    *sorted((TOP / "docs" / "tutorials").glob("*.md")),
]
BLOCK = re.compile(r"^( *)```([^\n`]*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
LANGUAGES = ("", "console", "bash", "sh")
"""Languages of blocks that have commands."""
PROGRAM = re.compile(
    r"(?:[A-Z_]+=\S+ )*(?:\.venv/bin/|\()?"
    r"(?:(?:vlalign[\w-]*|make|mkdir|uvx?|pip|python3?|git|cd|docker|ray|torchrun|hf|curl|sed|kubectl|aws|gcloud|export|sbatch|"
    r"for)(?= |$)|\w+=)"
)


def load(name: str):
    spec = importlib.util.spec_from_file_location(name, TOP / "docs" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


runner = load("run_tutorial")


@dataclass(frozen=True)
class Command:
    """A command of a page."""

    page: str
    line: int
    text: str
    shown: tuple[str, ...] | None
    """The lines below it, which it prints; None if the page shows none."""


def commands_of(page: Path) -> list[Command]:
    """Return the commands of a page in order."""
    text, name = page.read_text(encoding="utf-8"), str(page.relative_to(TOP))
    found = []
    for block in BLOCK.finditer(text):
        if block[2] not in LANGUAGES:
            continue
        first = text.count("\n", 0, block.start(3)) + 1
        lines = [line.removeprefix(block[1]) for line in block[3].splitlines()]
        shown = any(line.startswith("$ ") for line in lines)
        commands: list[tuple[int, list[str], list[str]]] = []
        for number, line in enumerate(lines, start=first):
            if shown and line.startswith("$ "):
                commands.append((number, [line[2:]], []))
            elif commands and commands[-1][1][-1].endswith("\\") and not commands[-1][2]:
                commands[-1][1].append(line)
            elif shown and line.startswith("> ") and not commands[-1][2]:
                commands[-1][1].append(line[2:])
            elif shown:
                commands[-1][2].append(line)
            elif PROGRAM.match(line):
                commands.append((number, [line], []))
        found += [
            Command(name, number, "\n".join(parts), tuple(printed) if shown else None)
            for number, parts, printed in commands
        ]
    return found


RUN_BY = {
    r"make (?:\.venv/installed|test|audit)": ".ci/run",
    r"make demo": "tests/test_tutorials.py",
    r"uv build|uvx |uv pip install --(?:require-hashes|no-deps)": "tests/test_wheel.py",
    r"ray (?:submit|down)": "tests/test_three_calls.py",
    r"vlalign-serve|vlalign serve": "tests/train/page/test_page_server.py",
    r"vlalign[ -]sync --watch": "tests/train/sync/test_sync.py",
    r"vlalign-mcp": "tests/train/page/test_mcp.py",
}
"""{pattern of a command: the file that runs it}"""
NEEDS = {
    r"git clone ADDRESS|cd vlalign": "the address of a repository",
    r"docker ": "Docker",
    r"kubectl |sed .*kubectl|aws |gcloud |for (?:name|subnet) in|\w+=": "an account of a cloud",
    r"hf (?:auth|upload|download)": "the hub",
}
"""{pattern of a command that is not run: what it needs and these tests do not have}"""
PAGES_RUN_BY = {"docs/tutorials/": "tests/test_tutorials.py", "docs/http.md": "tests/train/page/test_http_page.py"}
"""{page or folder: the file that runs its commands}"""
WORDS = {"FOLDER": "Videos"}
"""{word that stands for a reader's own: what is there}"""
WORDS_OF_PAGE: dict[str, dict[str, str]] = {}
"""{page: its own words}"""
ELSEWHERE: dict[str, dict[str, str]] = {}
"""{page: {pattern of a command: the file that runs it, or what it needs}}, before the tables above"""
Stage = Callable[[Home, Path], None]


def videos(home: Home, folder: Path) -> None:
    """Make folders of videos, and captions."""
    write_videos(folder / "Videos")
    write_videos(folder / "Phone", 2)
    write_subtitles(folder / "Videos")
    write_captions(folder / "captions.csv")


def put_speech_model(home: Home) -> None:
    """Put a small Whisper model into the hub's cache under the default one's name."""
    if not (home.path / "hub" / "hub" / "models--Systran--faster-whisper-small").exists():
        put_into_hub(home.path, "Systran/faster-whisper-small", small_model())


def mine(*features: str) -> Stage:
    """Return what makes the data set ``mine``, with features."""

    def make(home: Home, folder: Path) -> None:
        videos(home, folder)
        home.call(folder, f"vlalign-extract --dataset mine --videos Videos --features {','.join(features)}")
        home.call(folder, "vlalign-preprocess --dataset mine --annotations captions.csv")

    return make


STAGES: dict[str, Stage] = {
    "docs/export.md": mine("clip_vit_b32"),
    "docs/extraction.md": videos,
}


def demo(home: Home, folder: Path) -> None:
    """Make the demo with random features, and its run."""
    home.call(folder, "vlalign-preprocess --dataset demo")
    write_demo_rows(folder)
    home.call(folder, "vlalign-train --dataset demo --features resnet152+s3d")


def pretrained(home: Home, folder: Path) -> None:
    """Make HowTo100M in small, with TACo's run."""
    dataset = write_official(folder, "howto100m")
    home.call(folder, "vlalign-preprocess --dataset howto100m --protocol merged")
    home.call(
        folder, "vlalign-train --dataset howto100m --recipe taco-howto100m --batch-size 4 --run-name taco-howto100m-run"
    )
    write_videos(dataset.path / "videos")
    rows = [f'{{"video_id": "id{number}", "path": "videos/clip{number}.mp4"}}\n' for number in range(1, 5)]
    (dataset.path / "videos.jsonl").write_text("".join(rows))


def youcook2(home: Home, folder: Path) -> None:
    """Make HowTo100M and YouCook2."""
    home.copy(pretrained, folder)
    write_official(folder, "youcook2")
    home.call(folder, "vlalign-preprocess --dataset youcook2")


def msrvtt(home: Home, folder: Path) -> None:
    """Make MSR-VTT's annotations and videos."""
    write_official(folder, "msrvtt")
    (folder / "Videos").mkdir(exist_ok=True)
    for number in range(len(TEXTS)):
        write_video(folder / "Videos" / f"video{number}.mp4", range(24), Fraction(1, 24))


def msrvtt_with_run(home: Home, folder: Path) -> None:
    """Make MSR-VTT with the run that CMCM starts from."""
    msrvtt(home, folder)
    home.call(folder, "vlalign-preprocess --dataset msrvtt")
    home.call(folder, "vlalign-extract --dataset msrvtt --videos Videos --features clip_vit_b32_frames")
    home.call(folder, "vlalign-train --dataset msrvtt --recipe cmcm-msrvtt-baseline")


def finetuning(home: Home, folder: Path) -> None:
    """Make videos, captions, MSR-VTT's files and a checkpoint of CLIP4Clip."""
    videos(home, folder)
    msrvtt(home, folder)
    page_data.write_clip4clip(folder)


def gallery(home: Home, folder: Path) -> None:
    """Make the demo, and a folder with one video."""
    home.copy(demo, folder)
    write_demo_video(folder / "longer")


def howto100m(home: Home, folder: Path) -> None:
    """Make HowTo100M without captions, and YouCook2."""
    youcook2(home, folder)
    shutil.rmtree(folder / "vlalign_data" / "howto100m" / "captions")


def stores(home: Home, folder: Path) -> None:
    """Write features of other programs, one file of them with several features."""
    write_files_of_other_tools(folder)
    write_experts(folder)


def objectives(home: Home, folder: Path) -> None:
    """Make YouCook2, and MSR-VTT with a run."""
    youcook2(home, folder)
    home.copy(msrvtt_with_run, folder)
    write_word_vectors(folder / "vectors.txt")


def other_languages(home: Home, folder: Path) -> None:
    """Make a data set with five videos."""
    write_videos(folder / "Videos", 5)
    home.call(folder, "vlalign-extract --dataset mine --videos Videos --features resnet152")
    (shard,) = (folder / "vlalign_data" / "mine" / "features" / "resnet152").glob("*.h5")
    shutil.copy(shard, folder / "keep.h5")


def own_stores(home: Home, folder: Path) -> None:
    """Make videos, captions and the module with the store."""
    write_videos(folder / "clips")
    write_captions(folder / "captions.csv")
    shutil.copy(TOP / "docs" / "examples" / "own_store.py", folder)
    home.call(folder, "vlalign-preprocess --dataset mine --annotations captions.csv")


def plan(home: Home, folder: Path) -> None:
    """Make videos, and lay out the checkout."""
    videos(home, folder)
    shutil.copytree(TOP / "docs", folder / "docs", ignore=shutil.ignore_patterns("_build", "images"))


def extracted(home: Home, folder: Path) -> None:
    """Make a data set without captions."""
    write_videos(folder / "Videos")
    home.call(folder, "vlalign-extract --dataset mine --videos Videos --features s3d")


def search(home: Home, folder: Path) -> None:
    """Make a data set with features and captions, and the demo."""
    mine("s3d")(home, folder)
    home.copy(demo, folder)


def speech(home: Home, folder: Path) -> None:
    """Make a video in which somebody speaks, one that shows text, and the speech model."""
    (folder / "Videos").mkdir()
    shutil.copy(SPOKEN_VIDEOS / "english.mkv", folder / "Videos")
    write_text_video(folder / "Videos" / "text.mp4")
    put_speech_model(home)


def tasks(home: Home, folder: Path) -> None:
    """Make the data sets of the other tasks."""
    home.copy(pretrained, folder)
    for dataset in ("crosstask", "coin", "msvd_qa"):
        write_official(folder, dataset)
    for dataset in ("crosstask", "coin"):
        home.call(folder, f"vlalign-preprocess --dataset {dataset}")
    write_word_vectors(folder / "vectors.txt")


def training(home: Home, folder: Path) -> None:
    """Make a data set of the reader's, and YouCook2."""
    mine("s3d")(home, folder)
    youcook2(home, folder)


def runs(home: Home, folder: Path) -> None:
    """Make the data set demo with two runs, the same videos as a data set of the reader's, and a run on the hub."""
    mine("s3d")(home, folder)
    shutil.copytree(folder / "vlalign_data" / "mine", folder / "vlalign_data" / "demo")
    home.call(folder, "vlalign-train --dataset demo --features s3d")
    home.call(folder, "vlalign-train --dataset demo --features s3d --objective taco")
    home.call(folder, "vlalign-runs export words-s3d-seed0 exported")
    put_into_hub(home.path, "ORG/NAME", folder / "exported")
    shutil.rmtree(folder / "exported")


GPU = "a GPU"
RELEASE = "the repository of a release"
WORDS_OF_PAGE |= {
    "docs/recipes.md": {"RUN": "taco-howto100m-run"},
    "docs/objectives.md": {"FILE": "vectors.txt"},
    "docs/tasks.md": {"FILE": "vectors.txt"},
    "docs/stores.md": {"FOLDER": "resnet152"},
    "docs/travelling-runs.md": {"REVISION": "0" * 40},
}
ELSEWHERE |= {
    "docs/demo.md": {"vlalign-": "tests/test_pipeline.py"},
    "docs/stores.md": {
        "vlalign-store (?:info|compact|verify)": "tests/storage/test_store_command.py",
        "vlalign-extract": "tests/storage/remote/test_s3.py",
    },
    "docs/gpus.md": {"vlalign-extract": "two GPUs"},
    "docs/guides/howto100m.md": {r".* --device cuda --precision bf16$": GPU, "torchrun": "several machines"},
    "docs/other-languages.md": {} if shutil.which("octave") else {"octave": "Octave"},
    "docs/overnight.md": {"": "a cluster of several machines"},
    "docs/releasing.md": {
        r"git ": RELEASE,
        r"make release-(?:check|notes)": "tests/test_release.py",
        r"make dist|\(cd dist": "tests/test_wheel.py",
        r"UV_PUBLISH_TOKEN": "a key of a package index",
    },
    "docs/training.md": {r"vlalign-train --features s3d$": "tests/test_three_calls.py", "torchrun": "several machines"},
    "docs/versions.md": {"uv pip compile": "a package index"},
}
STAGES |= {
    "docs/finetuning.md": finetuning,
    "docs/gallery.md": gallery,
    "docs/guides/howto100m.md": howto100m,
    "docs/messages.md": extracted,
    "docs/moving.md": lambda home, folder: write_files_of_other_tools(folder),
    "docs/objectives.md": objectives,
    "docs/other-languages.md": other_languages,
    "docs/own-data.md": videos,
    "docs/own-stores.md": own_stores,
    "docs/plan.md": plan,
    "docs/recipes.md": youcook2,
    "docs/search.md": search,
    "docs/speech.md": speech,
    "docs/stores.md": stores,
    "docs/sync.md": videos,
    "docs/tasks.md": tasks,
    "docs/training.md": training,
    "docs/travelling-runs.md": runs,
}


def readme(home: Home, folder: Path) -> None:
    """Link the programs as a checkout has them; write videos, captions and the files of YouCook2."""
    videos(home, folder)
    page_data.write_youcook2(folder)
    (folder / ".venv").mkdir()
    (folder / ".venv" / "bin").symlink_to(home.path / "bin")


def youcook2_features(home: Home, folder: Path) -> None:
    """Write the files of YouCook2, and features of its videos."""
    names = page_data.write_youcook2(folder)
    dataset = DatasetFolder(folder / "vlalign_data", "youcook2")
    words = {name: set(line.split()) for name, line in zip(names, LINES, strict=True)}
    for features in ("s3d", "resnet152"):
        page_data.write_features(dataset, features, words)


def checkout(home: Home, folder: Path) -> None:
    """Link the tests, as a checkout has them."""
    for name in ("tests", "pyproject.toml", ".venv"):
        (folder / name).symlink_to(TOP / name)


def demo_of_captions(home: Home, folder: Path) -> None:
    """Copy the demo, whose features are made of its captions."""
    shutil.copytree(page_data.made_demo(home), folder / "vlalign_data")


def short_demo(home: Home, folder: Path) -> None:
    """Make a small data set with the demo's name."""
    make_toy(folder / "vlalign_data", name="demo", prefix="demo0")


def published(home: Home, folder: Path) -> None:
    """Write all that the benchmarks read, and train a run."""
    page_data.write_charades_sta(folder)
    page_data.write_qvhighlights(folder)
    page_data.write_activitynet(folder)
    page_data.write_vsc2022(folder)
    page_data.write_momentseeker(folder)
    home.call(folder, "vlalign-extract --dataset charades_sta --videos Charades_v1_480 --features clip_vit_b32")
    home.call(folder, "vlalign-preprocess --dataset charades_sta")
    home.call(folder, "vlalign-train --dataset charades_sta --features clip_vit_b32")


def commands(home: Home, folder: Path) -> None:
    """Make both data sets of the page; a video's id begins with a dash."""
    short_demo(home, folder)
    page_data.write_clips(folder / "Videos", ["-abcdefghij", "other"])
    home.call(folder, "vlalign-extract --dataset mine --videos Videos --features s3d,clip_vit_b32")


def theirs(home: Home, folder: Path) -> None:
    """Write videos, and features of them that others made."""
    page_data.write_other_features(home, folder)
    home.call(folder, "vlalign-extract --dataset mine --videos videos --features i3d")


def comparing(home: Home, folder: Path) -> None:
    """Make a small data set with the demo's name and a run of NCL, and YouCook2."""
    short_demo(home, folder)
    youcook2_features(home, folder)
    home.call(folder, "vlalign-preprocess --dataset youcook2")
    short = "--num-steps 2 --run-name ncl-s3d-seed0"
    home.call(folder, f"vlalign-train --dataset demo --features s3d --objective ncl {short}")
    home.call(folder, "vlalign-evaluate --dataset demo")


def encoders(home: Home, folder: Path) -> None:
    """Write videos, captions, a checkpoint of CLIP4Clip, and a network of a reader's own."""
    videos(home, folder)
    page_data.write_clip4clip(folder)
    page_data.write_own_network(folder)
    home.call(folder, "vlalign-preprocess --dataset mine --annotations captions.csv")


def evaluation(home: Home, folder: Path) -> None:
    """Train the run of ``make demo``."""
    demo_of_captions(home, folder)
    home.call(folder, "vlalign-train --dataset demo --features resnet152+s3d")


def extending(home: Home, folder: Path) -> None:
    """Copy the examples, and make the data sets that they read."""
    short_demo(home, folder)
    videos(home, folder)
    for path in (TOP / "docs" / "examples").glob("own_*.py"):
        shutil.copy(path, folder)
    rows = (folder / "captions.csv").read_text().splitlines()
    (folder / "captions.csv").write_text("\n".join([f"{rows[0]},rating", *(f"{row},3.5" for row in rows[1:])]) + "\n")
    home.call(folder, "vlalign-extract --dataset mine --videos Videos --features s3d")
    home.call(folder, "vlalign-preprocess --dataset mine --annotations captions.csv")
    subsets = ("training", "training", "training", "training", "validation", "testing")
    kitchens = {f"clip{n}": {"subset": of, "sentences": [LINES[n]]} for n, of in enumerate(subsets)}
    (page_data.annotations(folder, "kitchens") / "kitchens.json").write_text(json.dumps(kitchens))


def extraction(home: Home, folder: Path) -> None:
    """Write videos of which one has no frames and another is cut off; and list two as the demo."""
    videos(home, folder)
    write_zoo(folder / "zoo")
    (folder / "videos").mkdir()
    for name in ("audio_only", "trunc_tail", "ok_h264", "oneframe", "vfr", "rot90", "odd_444"):
        shutil.copy(folder / "zoo" / f"{name}.mp4", folder / "videos")
    home.call(folder, "vlalign-extract --dataset demo --videos Phone --features s3d")


def home_videos(home: Home, folder: Path) -> None:
    """Write videos, and put a small Whisper model into the hub's cache under the default one's name."""
    page_data.write_home_videos(folder)
    put_speech_model(home)


def spoken(home: Home, folder: Path) -> None:
    """Write images, videos and recordings of Places and S-MiT."""
    page_data.write_spoken(folder)


RUN_BY |= {
    r"python3 tests/benchmarks/gpu/run\.py": "tests/test_gpu_benchmark.py",
    r"vlalign-train --features s3d$": "tests/test_three_calls.py",
    r"python ray_jobs/extract_howto100m\.py": "tests/ray_jobs/test_ray_jobs.py",
    r"python -m vlalign\.ray_jobs\.drain": "tests/ray_jobs/test_going_away.py",
    r"vlalign-extract --dataset cooking --status": "tests/ray_jobs/test_status.py",
    r"\.venv/bin/python -m pytest tests/train -m": ".ci/run",
}
NEEDS |= {
    r"\.venv/bin/python tests/benchmarks/gpu/prepare\.py": "a package index",
    r"ray (?:exec|rsync-up) ": "an account of a cloud",
}
STAGES |= {
    "CONTRIBUTING.md": checkout,
    "README.md": readme,
    "docs/benchmarks.md": published,
    "docs/captions.md": spoken,
    "docs/commands.md": commands,
    "docs/compare.md": theirs,
    "docs/comparing.md": comparing,
    "docs/encoders.md": encoders,
    "docs/evaluation.md": evaluation,
    "docs/extending.md": extending,
    "docs/extraction.md": extraction,
    "docs/guides/home-videos.md": home_videos,
}
WORDS_OF_PAGE |= {"docs/extending.md": {"RUN": "words-s3d-seed0"}}
FAILS = re.compile(r": error: |videos cannot be read$|  DIFFERENT: ")
"""Is in the output of a command that does not end with 0."""


@pytest.fixture(scope="session")
def home(tmp_path_factory) -> Home:
    return make_home(tmp_path_factory.mktemp("home"))


def run_by(command: Command) -> str | None:
    """Return which file runs a command, or what it needs; None if it is run here."""
    own = [of for pattern, of in ELSEWHERE.get(command.page, {}).items() if re.match(pattern, command.text)]
    by_page = [file for page, file in PAGES_RUN_BY.items() if command.page.startswith(page)]
    by_text = [of for pattern, of in (RUN_BY | NEEDS).items() if re.match(pattern, command.text)]
    return next(iter(own + by_page + by_text), None)


def difference(command: Command, home: Home, folder: Path, status: int = 0) -> tuple[int, str | None]:
    """Run a command, after one that ended with ``status``; return its exit status, and what differs from the page."""
    text = f"(exit {status})\n{command.text}" if "$?" in command.text else command.text
    for word, place in (WORDS | WORDS_OF_PAGE.get(command.page, {})).items():
        text = re.sub(rf"\b{word}\b", place, text)
    if "vlalign-serve" in text:
        return answer(command, text, home, folder)
    asks, terminal = pty.openpty()
    os.write(asks, b"yes\n")
    done = subprocess.run(
        ["bash", "-c", text],
        cwd=folder,
        env=home.environment,
        stdin=terminal if "--delete" in text else subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    os.close(terminal)
    os.close(asks)
    fails = any(FAILS.search(line) for line in command.shown or ())
    lines = done.stdout.replace(str(folder.resolve()), runner.SHOWN_FOLDER).splitlines()
    lines = [line for line in lines if not line.startswith("octave: ")]  # which says that there is no display
    if (done.returncode != 0) == fails and (command.shown is None or runner.matched([*command.shown], lines)):
        return done.returncode, None
    shown = "" if command.shown is None else "\n".join(["\n--- the page", *command.shown])
    wrong = f"{command.page}:{command.line}: $ {text}\nended with {done.returncode}{shown}\n--- printed\n{done.stdout}"
    return done.returncode, wrong


def answer(command: Command, text: str, home: Home, folder: Path) -> tuple[int, str | None]:
    """Start a server, open the address that it prints, and stop it; return 0, and what is wrong, if anything is."""
    printed, page = "", ""
    streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with subprocess.Popen(
        ["bash", "-c", text], cwd=folder, env=home.environment, start_new_session=True, **streams
    ) as server:
        assert server.stdout is not None
        for line in server.stdout:
            printed += line
            if found := re.search(r"http://\S+", line):
                try:
                    page = build_opener(HTTPCookieProcessor()).open(found[0], timeout=60).read().decode()
                finally:
                    os.killpg(server.pid, signal.SIGTERM)
    if "<html" in page and server.returncode in (0, 128 + signal.SIGTERM):
        return 0, None
    return 0, f"{command.page}:{command.line}: $ {text}\nended with {server.returncode}\n--- printed\n{printed}"


@pytest.mark.slow
@pytest.mark.parametrize("page", STAGES)
def test_commands_of_a_page(home, tmp_path, page):
    STAGES[page](home, tmp_path)
    here = [command for command in commands_of(TOP / page) if run_by(command) is None]
    assert here
    wrong, status = [], 0
    for command in here:
        status, line = difference(command, home, tmp_path, status)
        wrong += [line] if line else []
    assert wrong == [], "\n\n".join(wrong)


def test_every_page_with_commands_is_run():
    left = {of.page for page in PAGES for of in commands_of(page) if run_by(of) is None}
    assert left - STAGES.keys() == set()
    assert all((TOP / file).is_file() for file in [*RUN_BY.values(), *PAGES_RUN_BY.values()])
