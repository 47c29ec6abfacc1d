"""The steps of the Dockerfile, in a new Debian in a folder.

Debian's packages come from its mirror, and those of Python from uv's cache, as `make` left them there.
"""

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from string import Template

import pytest
from helpers.needs import PROGRAM, SYSTEM, missing_programs, missing_rights, need
from vlalign.storage import FeatureStore
from vlalign.storage.common.files import read_jsonl

TOP = Path(__file__).resolve().parents[2]
DOCKERFILE = TOP / "ray_jobs" / "Dockerfile"
NEEDED = ("debootstrap", "unshare", "chroot")
SUITE, PYTHON = "bookworm", (3, 11)
IN_ROOT = """
set -e
mount --bind {cache} {root}/uv
mount --rbind /dev {root}/dev
mount -t proc proc {root}/proc
exec chroot {options} {root} /bin/sh -c "$0"
"""


def instructions(text: str) -> list[tuple[str, str]]:
    """Return the instructions of a Dockerfile: (name, the rest)."""
    lines = re.sub(r"^#.*\n", "", text, flags=re.MULTILINE).replace("\\\n", " ").splitlines()
    return [(name, rest) for name, _, rest in (line.partition(" ") for line in lines if line)]


class CleanRoot:
    """A folder with a new Debian, in which instructions of a Dockerfile are carried out."""

    def __init__(self, root: Path, cache: Path, environment: dict[str, str]) -> None:
        self.root, self.cache, self.environment = root, cache, environment
        self.folder, self.user = Path("/"), ""

    def run(self, command: str) -> str:
        """Run a shell command in the folder and as the user of the moment, and return what it printed."""
        program = IN_ROOT.format(root=self.root, cache=self.cache, options=self.user)
        done = subprocess.run(
            ["unshare", "--mount", "--pid", "--fork", "bash", "-c", program, f"cd {self.folder} && {command}"],
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        return done.stdout + done.stderr

    def carry_out(self, name: str, rest: str) -> None:
        """Carry out one instruction."""
        if name == "RUN":
            self.run(rest)
        elif name == "COPY":
            *sources, target = rest.split()
            for source in sources:
                copy = shutil.copytree if (TOP / source).is_dir() else shutil.copy
                copy(TOP / source, self.root / self.folder.relative_to("/") / target)
        elif name in ("ENV", "ARG"):
            for setting in shlex.split(rest):
                key, _, value = setting.partition("=")
                if name == "ENV" or key not in self.environment:
                    self.environment[key] = Template(value).substitute(self.environment)
        elif name == "WORKDIR":
            self.folder = Path(rest)
            (self.root / self.folder.relative_to("/")).mkdir(parents=True, exist_ok=True)
        elif name == "USER":
            self.user = "--userspec=1000:1000"
            self.environment["HOME"] = f"/home/{rest}"
        else:
            assert name in ("FROM", "CMD"), name


@pytest.mark.slow
def test_what_the_steps_install_extracts_a_video_as_an_ordinary_user(tmp_path, short_video):
    need(SYSTEM, missing_rights())
    need(
        SYSTEM, [] if sys.version_info[:2] == PYTHON else [f"Python {PYTHON[0]}.{PYTHON[1]}, as Debian {SUITE} has it"]
    )
    need(PROGRAM, missing_programs(*NEEDED))
    root, wheels = tmp_path / "root", tmp_path / "root" / "wheels"
    made = subprocess.run(
        ["debootstrap", "--variant=minbase", SUITE, root], capture_output=True, text=True, check=False
    )
    need(SYSTEM, [f"a Debian by debootstrap ({made.stdout[-300:]})"] if made.returncode else [])
    wheels.mkdir()
    (root / "uv").mkdir()
    shutil.copy("/etc/resolv.conf", root / "etc" / "resolv.conf")
    pin = re.search(r"^uv==(.*\\\n)*.*\n", (TOP / "constraints.txt").read_text(), re.MULTILINE)[0]
    (tmp_path / "uv.txt").write_text(pin)
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes", "--dest", str(wheels)]
    subprocess.run([*pip, "--requirement", str(tmp_path / "uv.txt")], check=True)
    uv = str(Path(sys.executable).with_name("uv"))
    cache = subprocess.run([uv, "cache", "dir"], capture_output=True, text=True, check=True).stdout.strip()
    environment = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root"}
    offline = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "/wheels", "UV_OFFLINE": "1", "UV_CACHE_DIR": "/uv"}
    clean = CleanRoot(
        root, Path(cache), environment | offline | {"UV_NO_CACHE": "0", "DEBIAN_FRONTEND": "noninteractive"}
    )
    for name, rest in instructions(DOCKERFILE.read_text()):
        clean.carry_out(name, rest)

    data = root / "mnt" / "vlalign"
    (data / "videos").mkdir(parents=True)
    shutil.copy(short_video, data / "videos" / "one.mp4")
    shutil.chown(data, 1000, 1000)
    printed = clean.run(
        "vlalign-extract --dataset mine --videos /mnt/vlalign/videos --features s3d --weights random && "
        "python -m vlalign.ray_jobs.extract_howto100m --help && bash --login -c 'ray --version' && ffmpeg -version"
    )
    assert re.search(r"\b1 of 1 videos .*\bs3d", printed), printed
    assert FeatureStore(data / "mine" / "features" / "s3d").video_ids() == ["one"]
    assert read_jsonl(data / "mine" / "videos.jsonl")[0]["video_id"] == "one"
    assert "Landlock" not in printed, "the sandbox works for an ordinary user, too"
    assert not (root / "opt" / "source" / "tests").exists()
