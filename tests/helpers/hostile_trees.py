"""Folders from somebody else: a whole data set in which one name is a link, a pipe, a device or another odd thing.

``Grounds`` makes a data set once. ``Grounds.run`` copies it, lays one trap and runs a command in a process of its own.
The names are those of the data set and those that the commands open, create, list or rename.
"""

import contextlib
import ctypes
import faulthandler
import fcntl
import hashlib
import http.client
import importlib
import io
import json
import os
import re
import resource
import shutil
import signal
import socket
import stat
import struct
import sys
import tempfile
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from urllib.parse import parse_qs, urlencode, urlsplit

import torch
from PIL import Image
from vlalign.extract.videos.demo import render_video
from vlalign.preprocess.settings import SPACY_MODEL
from vlalign.preprocess.tag import load_pipeline
from vlalign.storage.captions.transcripts import Transcript, TranscriptSegment, TranscriptStore
from vlalign.storage.cli.all_commands import COMMANDS as MODULES
from vlalign.storage.common.files import write_jsonl
from vlalign.storage.dataset.folder import DatasetFolder
from vlalign.storage.profiles import PROFILES
from vlalign.storage.records import VideoRecord
from vlalign.storage.stores.thumbnails import Thumbnail, write_thumbnails

from helpers.openai_clip import random_state, save_like
from helpers.toy import make_toy
from helpers.training import GATED, TWO_STEPS, options
from helpers.videos import scene

SECONDS = 10
"""How much longer a command may compute than it does in the folder without a trap."""
WAITING = 4
"""How many times as long it may take: other programs may compute, too."""
MOST_BYTES = 1 << 30
"""How much memory a command may take more than it takes in the folder without a trap."""
ADDRESS_SPACE = 6 << 30
SPARSE, HUGE = 2 << 30, 1 << 40

# Commands

CUT = "cut the onion"
GATED_RUN = options({"objective": "mil-nce", **GATED, "batch_size": 4, "num_steps": 2, "validate_every": 1})
COMMANDS: dict[str, list[str]] = {
    "extract plan": ["extract", "AT", "--features", "logmel", "--plan"],
    "extract": ["extract", "AT", "--features", "logmel"],
    "extract again": ["extract", "AT", "--features", "logmel", "--retry-failed"],
    "extract folder": ["extract", "AT", "--features", "logmel", "--videos", "ROOT/toy/videos"],
    "extract verify": ["extract", "AT", "--features", "logmel", "--verify-against", "ROOT/toy/theirs"],
    "preprocess": ["preprocess", "AT", "--annotations", "ROOT/toy/annotations/captions.jsonl", "--workers", "1"],
    "preprocess spoken": ["preprocess", "AT", "--workers", "1"],
    "transcribe": ["transcribe", "AT", "--weights", "ROOT/toy/whisper", "--device", "cpu", "--replace"],
    "train": ["train", "AT", *GATED_RUN, "--features", "s3d", "--run-name", "new"],
    "train again": ["train", "AT", *TWO_STEPS, "--run-name", "taco"],
    "train from": ["train", "AT", *TWO_STEPS, "--run-name", "new", "--init", "taco"],
    "evaluate": ["evaluate", "AT", "fresh"],
    "evaluate again": ["evaluate", "AT", "taco"],
    "search": ["search", "AT", "taco", CUT],
    "search like": ["search", "AT", "gated", "--like", "v000"],
    "index": ["index", "AT", "taco", "--duplicates", "0.98"],
    "benchmark": ["benchmark", "AT", "copies", "taco", "--ground-truth", "ROOT/toy/pairs.csv"],
    "mcp": ["mcp", "AT", "taco"],
    "serve": ["serve", "AT", "taco", "--port", "0"],
    "sync": ["sync", "AT", "ROOT/toy/videos", "--features", "logmel"],
    "runs list": ["runs", "AT"],
    "runs compare": ["runs", "AT", "--compare", "gated", "taco"],
    "runs export": ["runs", "AT", "export", "taco", "HERE/out/given"],
    "search exported": ["search", "AT", "ROOT/toy/given", CUT],
    "evaluate exported": ["evaluate", "AT", "ROOT/toy/given"],
    "runs rename": ["runs", "AT", "--rename", "gated", "renamed"],
    "runs delete": ["runs", "AT", "--delete", "gated", "--yes"],
    "store info": ["store", "info", "AT"],
    "store ls": ["store", "ls", "AT"],
    "store verify": ["store", "verify", "AT"],
    "store repair": ["store", "repair", "AT", "s3d", "logmel"],
    "store compact": ["store", "compact", "AT", "s3d", "logmel"],
    "store link": ["store", "link", "AT", "s3d", "HERE/there/new"],
    "store merge": ["store", "merge", "AT", "s3d", "--into", "merged"],
    "store rm": ["store", "rm", "AT", "s3d", "v003"],
    "store import": ["store", "import", "ROOT/toy/theirs", "AT", "--profile", "HERE/profile.json"],
    "store export": ["store", "export", "AT", "s3d", "HERE/out/s3d", "--form", "webdataset"],
    "convert": ["convert", "ROOT/toy/clip.pt", "HERE/out/clip", "--like", "ROOT/toy/clip"],
    "doctor": ["doctor", "--root", "ROOT"],
    "vlalign": ["vlalign", "runs", "AT"],
}
"""{what is tried: call}. AT stands for the options that name the data set."""
ONLY_LOOK = {"extract plan", "runs list", "store info", "store ls", "store verify", "doctor", "vlalign"}
"""These change nothing in the data set's folder."""
PAGES = (
    "/",
    "/api/about",
    f"/api/search?{urlencode({'q': CUT})}",
    "/api/like?video_id=v000&start=0&end=1",
    f"/api/score_curve?{urlencode({'q': CUT, 'video_id': 'v000'})}",
    "/media/video?video_id=v000",
    "/media/picture?video_id=v000",
    "/media/clip?video_id=v001&start=0&end=0.5",
)


def main_of(command: str) -> Callable[[list[str]], int]:
    """Return the function behind a command of ``pyproject.toml``."""
    module = MODULES[command][0] if command in MODULES else "vlalign.storage.cli.all_commands"
    return importlib.import_module(module).main


# Traps

PRECIOUS = "alias ll='ls -l'\n"
ODD_NAMES = {
    "control characters": [b"a\nerror: x", b"a\x1b[2Jb", b"a\rb", b"a\tb", "a\u202eb".encode(), b"a\x07\x7f\xc2\x9b1m"],
    "bytes": [b"\xff\xfe", b"\xed\xa0\x80", b"x" * 240, "é".encode(), "e\u0301".encode(), b"\xc3\x28"],
    "shell": [
        *(b"-rf", b"--help", b"$(touch x)", b"`touch x`", b"*", b"[a]", b"?", b"...", b"..a", b" ", b"CON", b"a."),
        *(b"~", b";", b"|", b"%s%n", b"{0.x}", b"<script>", b"'\"", b"=1+1", b"a,b", b"#", b"a::b", b"a\\b"),
    ],
}
MODES = {"mode 000": 0, "mode 200": 0o200, "mode 111": 0o111, "mode 1777": 0o1777, "mode 2755": 0o2755}


class NotHere(Exception):
    """This trap cannot be laid at this name, or not on this machine."""


@dataclass(frozen=True)
class Tree:
    """A trap at a name, and what is run there."""

    command: str
    name: str
    """Relative to the root; parts that a time or a process decides are replaced."""
    kind: str

    def __str__(self) -> str:
        return f"{self.command}: {self.name}: {self.kind}"

    def order(self) -> str:
        """Return what trees are drawn by."""
        return hashlib.sha256(str(self).encode()).hexdigest()


def _aside(path: Path, home: Path) -> Path:
    """Move what is there into the user's folder; return where it is now."""
    if not os.path.lexists(path):
        raise NotHere
    return Path(shutil.move(path, home / "precious" / path.name))


def _gone(path: Path) -> Path:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    return path


def _link(target: str) -> Callable[[Path, Path], None]:
    return lambda path, home: os.symlink(target.format(home=home, up=home.parent), _gone(path))


def _link_to_its_own(path: Path, home: Path) -> None:
    path.symlink_to(_aside(path, home))


def _hard_link_to_its_own(path: Path, home: Path) -> None:
    if not path.is_file():
        raise NotHere
    os.link(path, home / "precious" / path.name)


def _loop(path: Path, home: Path) -> None:
    other = path.with_name(f"{path.name[:100]}.b")
    _gone(path).symlink_to(other.name)
    other.symlink_to(path.name)


def _socket(path: Path, home: Path) -> None:
    short = home.parent / "s"  # a name of at most 108 bytes
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(short))
    os.rename(short, _gone(path))


def _device(major: int, minor: int) -> Callable[[Path, Path], None]:
    def lay(path: Path, home: Path) -> None:
        try:
            os.mknod(_gone(path), stat.S_IFCHR | 0o666, os.makedev(major, minor))
            os.close(os.open(path, os.O_RDWR))
        except OSError:
            raise NotHere from None

    return lay


def _other_kind(path: Path, home: Path) -> None:
    if path.is_dir():
        _gone(path).write_text("a file")
    else:
        _gone(path).mkdir()


def _mode(mode: int) -> Callable[[Path, Path], None]:
    def lay(path: Path, home: Path) -> None:
        if not path.exists():
            path.write_bytes(b"")
        path.chmod(mode)

    return lay


def _unchanging(path: Path, home: Path, flag: int = 0x10) -> None:
    if not path.exists():
        path.write_bytes(b"")
    try:
        _change_flags(path, flag)
    except OSError:
        raise NotHere from None


def _change_flags(path: Path, flags: int) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        fcntl.ioctl(descriptor, 0x40086602, struct.pack("l", flags))
    finally:
        os.close(descriptor)


def _empty(path: Path, home: Path) -> None:
    if path.is_dir():
        _gone(path).mkdir()
    else:
        path.write_bytes(b"")


def _large(num_bytes: int) -> Callable[[Path, Path], None]:
    def lay(path: Path, home: Path) -> None:
        if path.is_dir():
            raise NotHere
        with path.open("ab") as file:
            try:
                file.truncate(num_bytes)
            except OSError:
                raise NotHere from None

    return lay


def _deep(path: Path, home: Path) -> None:
    if not path.is_dir():
        _gone(path).mkdir()
    (path / "/".join("d" * 500)).mkdir(parents=True)


def _odd_names(names: Iterable[bytes]) -> Callable[[Path, Path], None]:
    """Beside what is there, and as it is, apart from large files."""

    def lay(path: Path, home: Path) -> None:
        if not path.exists():
            raise NotHere
        for name in names:
            copy = path.parent / (os.fsdecode(name) + path.suffix)
            if path.is_dir():
                shutil.copytree(path, copy, ignore=shutil.ignore_patterns("*.safetensors", "*.mp4"))
            else:
                shutil.copyfile(path, copy)

    return lay


KINDS: dict[str, Callable[[Path, Path], None]] = {
    "link": _link("{home}/.bashrc"),
    "link to its own": _link_to_its_own,
    "dangling link": _link("{home}/.profile"),
    "link to nowhere": _link("{home}/no/such/folder"),
    "link to a folder": _link("{home}/documents"),
    "link to an empty folder": _link("{home}/empty"),
    "link to /dev/zero": _link("/dev/zero"),
    "link up": _link("{up}"),
    "link to itself": lambda path, home: os.symlink(path.name, _gone(path)),
    "link loop": _loop,
    "pipe": lambda path, home: os.mkfifo(_gone(path)),
    "socket": _socket,
    "device null": _device(1, 3),
    "device zero": _device(1, 5),
    "hard link": lambda path, home: os.link(home / ".bashrc", _gone(path)),
    "hard link to its own": _hard_link_to_its_own,
    "other kind": _other_kind,
    **{kind: _mode(mode) for kind, mode in MODES.items()},
    "immutable": _unchanging,
    "empty": _empty,
    "sparse": _large(SPARSE),
    "huge": _large(HUGE),
    "deep": _deep,
    **{f"odd names, {group}": _odd_names(names) for group, names in ODD_NAMES.items()},
}
UNPRIVILEGED = {*MODES, "immutable"}
"""Root's rights would hide these."""

# What a command did

UNGUESSABLE = re.compile(r"[0-9]+-[\w-]{8}\.partial|[0-9a-f]{32}|tmp[a-z0-9_]{8}")
CHANGING = [(re.compile(r"\d{20}-[0-9a-f]{8}"), "SHARD"), (re.compile(r"tfevents\.[^/]*"), "tfevents.TIME")]
CHANGING += [(re.compile(r"vlalign-clips-\w+"), "vlalign-clips")]
NAMED: dict[str, list[tuple[int, int | None]]] = {
    **{event: [(0, None)] for event in ("open", "os.listdir", "os.scandir", "os.truncate", "sqlite3.connect")},
    **{"os.mkdir": [(0, 2)], "os.chmod": [(0, 2)], "os.utime": [(0, 3)], "os.remove": [(0, 1)], "os.rmdir": [(0, 1)]},
    **{"os.rename": [(0, 2), (1, 3)], "os.link": [(0, 2), (1, 3)], "os.symlink": [(1, 2)]},
}
"""{audit event: where its arguments have a path, and the open folder in which that lies}"""
STARTED = {"subprocess.Popen", "os.exec", "os.posix_spawn", "os.spawn", "os.system"}
ASKED = {"socket.connect", "socket.sendto", "socket.sendmsg", "socket.getaddrinfo", "socket.gethostbyname"}
OWN_PROGRAMS = {"ffmpeg", "ffprobe", "nvidia-smi", "ldd", "ldconfig", "uname", "lscpu", "gcc", "cc", "c++", "g++"}


@dataclass
class Outcome:
    """What a command did in a tree."""

    code: int | None
    """Exit code; None if it was stopped, or minus the signal's number."""
    seconds: float
    grown_bytes: int
    shown: str
    """Both outputs."""
    touched: set[str] = field(default_factory=set)
    """Names below the root, as trees name them."""
    changed_outside: set[str] = field(default_factory=set)
    changed_inside: set[str] = field(default_factory=set)
    noted: list[str] = field(default_factory=list)
    """Addresses that were dialled, programs that were started, modules that came from the tree."""


def label(path: str) -> str:
    """Return a name that is the same in each run."""
    for pattern, text in CHANGING:
        path = pattern.sub(text, path)
    return path


def snapshot(folder: Path) -> dict[str, object]:
    """Return all names below a folder, with the kind, the mode, the time and the content of each."""
    found: dict[str, object] = {}
    for parent, folders, files in os.walk(folder):
        for name in folders + files:
            path = os.path.join(parent, name)
            about = os.lstat(path)
            what: object = about.st_size
            if stat.S_ISLNK(about.st_mode):
                what = os.readlink(path)
            elif stat.S_ISREG(about.st_mode) and about.st_size < 1 << 20:
                what = Path(path).read_bytes()
            changed = 0 if stat.S_ISDIR(about.st_mode) else about.st_mtime_ns
            size = 0 if stat.S_ISDIR(about.st_mode) else what
            found[os.path.relpath(path, folder)] = (about.st_mode, about.st_uid, about.st_gid, changed, size)
    return found


def _drop_rights() -> None:
    """Give up what root may do: from here on, modes count."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(28, 3, 0, 0, 0)  # PR_SET_SECUREBITS: programs that are started get no rights, either
    header, none = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    assert libc.capset(header, none) == 0


class _Watch:
    """Notes what a process does to names below a folder, and what it should never do."""

    def __init__(self, folder: Path, log: int, *, local: bool) -> None:
        self.prefix, self.log, self.local = f"{folder}/", log, local
        sys.addaudithook(self.note)

    def note(self, event: str, args: tuple) -> None:
        if event in NAMED:
            for place, folder in NAMED[event]:
                self.note_name(args[place], -1 if folder is None else args[folder])
        elif event in ASKED:
            address = args[1] if event == "socket.connect" else args[-1] if event.startswith("socket.send") else args[0]
            host = address[0] if isinstance(address, tuple) else address
            if not (self.local and host in ("127.0.0.1", "localhost", "::1")) and not str(host).startswith("/"):
                self.write("dialled", repr(address))
        elif event in STARTED:
            program = args[1][0] if event == "subprocess.Popen" and args[1] else args[0]
            name = os.path.basename(os.fsdecode(program))
            if os.fsdecode(program) != sys.executable and name not in OWN_PROGRAMS:
                self.write("started", repr(args[:2]))
        elif event == "import" and args[1] and str(args[1]).startswith(self.prefix):
            self.write("imported", str(args[1]))
        elif event == "exec" and getattr(args[0], "co_filename", "").startswith(self.prefix):
            self.write("ran", args[0].co_filename)
        elif event == "ctypes.dlopen" and str(args[0]).startswith(self.prefix):
            self.write("loaded", str(args[0]))

    def note_name(self, name: object, folder: int) -> None:
        if isinstance(name, str | bytes | os.PathLike):
            path = os.fsdecode(name)
            if folder >= 0 and os.path.exists(f"/proc/self/fd/{folder}"):
                path = os.path.join(os.readlink(f"/proc/self/fd/{folder}"), path)
            if (path := os.path.abspath(path)).startswith(self.prefix):
                self.write("touched", path[len(self.prefix) :])

    def write(self, what: str, about: str) -> None:
        os.write(self.log, json.dumps([what, about]).encode() + b"\n")


def _ask_pages(shown: Path) -> None:
    """Ask the page that the command serves for a few things, then end it."""
    address, end = None, time.monotonic() + 8
    while address is None and time.monotonic() < end:
        time.sleep(0.02)
        address = re.search(r"http://\S+", shown.read_text(errors="replace"))
    if address is not None:
        parts = urlsplit(address[0])
        token = parse_qs(parts.query).get("token", [""])[0]
        for page in PAGES:
            with contextlib.suppress(OSError, http.client.HTTPException):
                connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=8)
                connection.request("GET", page + (f"{'&' if '?' in page else '?'}token={token}" if token else ""))
                answer = connection.getresponse()
                answer.read()
                if answer.status == 500:
                    with shown.open("a") as file:
                        file.write(f"Traceback: {page} was answered by 500\n")
                connection.close()
    os.kill(os.getpid(), signal.SIGINT)


class Grounds:
    """A folder with a whole data set, where one tree after another is made."""

    def __init__(self, folder: Path) -> None:
        """Make the data set, and run each command once without a trap."""
        self.folder, self.case, self.whole = folder, folder / "case", folder / "whole"
        self.root, self.home = self.case / "root", self.case / "home"
        self.base: dict[str, Outcome] = {}
        self.tried: set[str] = set()
        """Trees that a command was run in."""
        with self._environment():
            self._make()
        self.case.rename(self.whole)

    @contextlib.contextmanager
    def _environment(self):
        places = {"XDG_STATE_HOME": "state", "VLALIGN_CACHE": "cache", "HOME": "home", "TMPDIR": "tmp"}
        new = {name: str(self.case / place) for name, place in places.items()} | {"TOKENIZERS_PARALLELISM": "false"}
        before = {name: os.environ.get(name) for name in new}
        os.environ.update(new)
        try:
            yield
        finally:
            for name, value in before.items():
                os.environ.pop(name) if value is None else os.environ.update({name: value})

    def _call(self, command: str) -> list[str]:
        at = ["--root", str(self.root), "--dataset", "toy"]
        call = [word for part in COMMANDS[command] for word in (at if part == "AT" else [part])]
        return [word.replace("ROOT", str(self.root)).replace("HERE", str(self.case)) for word in call]

    def _prepare(self, *call: str) -> None:
        code = main_of(call[0])([*call[1:], "--root", str(self.root), "--dataset", "toy"])
        assert code in (0, 1), call

    def _make(self) -> None:
        for name in (
            "home/documents",
            "home/empty",
            "home/precious",
            "home/.ssh",
            "state",
            "tmp",
            "cwd",
            "out",
            "there",
        ):
            (self.case / name).mkdir(parents=True)
        for name, mode in {".bashrc": 0o644, ".ssh/id": 0o600, "documents/letter.txt": 0o640}.items():
            (self.home / name).write_text(PRECIOUS)
            (self.home / name).chmod(mode)
        toy = make_toy(self.root, num_videos=12)
        (toy.path / "videos").mkdir()
        (toy.path / "annotations").mkdir()
        for number in (0, 1):
            render_video(scene(0.6, width=64, height=48), toy.path / "videos" / f"v00{number}.mp4")
        videos = [VideoRecord(video_id=f"v{n:03d}", path=f"videos/v{n:03d}.mp4") for n in (0, 1, 2)]
        toy.write_videos(videos[:1])
        self._prepare("extract", "--features", "logmel")
        toy.write_videos([videos[0], videos[2]])
        self._prepare("extract", "--features", "logmel")
        self._prepare("store", "export", "logmel", str(toy.path / "theirs"), "--form", "npy")
        self._prepare("store", "export", "s3d", str(self.case / "there" / "linked"), "--form", "npy")
        save_like(toy.path / "clip")
        torch.save(random_state(), toy.path / "clip.pt")
        profile = asdict(PROFILES["logmel"]) | {"name": "theirs"}
        (self.case / "profile.json").write_text(json.dumps(profile))
        toy.write_videos([*videos, *(VideoRecord(video_id=f"gone{n}", path=f"videos/gone{n}.mp4") for n in range(25))])
        jpeg = io.BytesIO()
        Image.new("RGB", (16, 9)).save(jpeg, "jpeg")
        write_thumbnails(toy.thumbnails, [Thumbnail(f"v{n:03d}", 0.0, jpeg.getvalue(), "s") for n in range(12)])
        splits = ["train"] * 6 + ["validation", "test"] * 3
        rows = ({"video_id": f"v{n:03d}", "caption": CUT, "split": split} for n, split in enumerate(splits))
        write_jsonl(toy.path / "annotations" / "captions.jsonl", rows)
        self._prepare("train", *TWO_STEPS, "--run-name", "taco")
        for name in ("gated", "fresh"):
            self._prepare("train", *GATED_RUN, "--features", "s3d", "--run-name", name)
        for name in ("taco", "gated"):
            self._prepare("evaluate", name)
        self._prepare("runs", "export", "taco", str(toy.path / "given"))
        self._prepare("index", "taco")
        self._prepare("search", "taco", CUT)
        self._prepare("runs", "--compare", "gated", "taco")
        self._speak(toy)
        self._link(toy)

    @staticmethod
    def _speak(toy: DatasetFolder) -> None:
        """Lay transcripts, a speech model that cannot be loaded, and a ground truth of which no video is there."""
        store, key = TranscriptStore(toy.transcripts), "0123456789abcdef"
        segments = [TranscriptSegment(0.0, 0.5, CUT, 0.9)]
        for video_id in ("v000", "v001", "v002"):
            about = {"video_id": video_id, "source": "1-a", "model": key, "duration_seconds": 0.6}
            store.add(Transcript(**about, languages={"en": 0.5}, segments=segments))
        store.write_model(key, {"model": "small", "sha256": key})
        (toy.path / "whisper").mkdir()
        for name in ("model.bin", "config.json", "tokenizer.json", "vocabulary.txt"):
            (toy.path / "whisper" / name).write_text("{}")
        (toy.path / "pairs.csv").write_text("query_id,ref_id\nQ1,R1\n")

    def _link(self, toy: DatasetFolder) -> None:
        """Let a folder stand for a store elsewhere, as this user confirmed."""
        shutil.copytree(toy.features("s3d"), toy.features("linked"))
        shutil.rmtree(self.case / "there" / "linked")
        (self.case / "there" / "linked").mkdir()
        self._prepare("store", "link", "linked", str(self.case / "there" / "linked"))

    def clean_run(self, command: str) -> Outcome:
        """Return what a command does without a trap."""
        if command not in self.base:
            if command == "preprocess":
                load_pipeline(SPACY_MODEL)  # once for all processes
            self.base[command] = self._run(command, lambda: None, seconds=60)
        return self.base[command]

    def names(self, command: str) -> list[str]:
        """Return the names that a command touches, then all others of the data set."""
        touched = self.clean_run(command).touched
        whole = {label(os.path.relpath(path, self.whole / "root")) for path in (self.whole / "root").rglob("*")}
        ours = {name for name in touched | whole if not UNGUESSABLE.search(name) and name != "toy"}
        return sorted(ours & touched) + sorted(ours - touched)

    def all_trees(self, command: str) -> list[Tree]:
        """Return each trap at each name."""
        return [Tree(command, name, kind) for name in self.names(command) for kind in KINDS]

    def trees(self, command: str) -> list[Tree]:
        """Return all trees of a command, always in the same order.

        The first ones have each kind, and each name that the command touches; of the next ones, each fifth is at
        another name of the data set.
        """
        touched = self.clean_run(command).touched
        drawn = sorted(self.all_trees(command), key=Tree.order)
        first, later, others = list[Tree](), list[Tree](), list[Tree]()
        kinds, names = set[str](), set[str]()
        for tree in drawn:
            if tree.name not in touched:
                others.append(tree)
            elif tree.kind not in kinds or tree.name not in names:
                first.append(tree)
                kinds.add(tree.kind)
                names.add(tree.name)
            else:
                later.append(tree)
        mixed = [others.pop() if others and number % 5 == 4 else tree for number, tree in enumerate(first + later)]
        return list(dict.fromkeys([*mixed, *first, *later, *others]))

    def run(self, tree: Tree) -> Outcome | None:
        """Run a command in a tree; None if the trap cannot be laid."""
        self.clean_run(tree.command)
        lay = KINDS[tree.kind]
        base = self.base[tree.command]

        def laid() -> None:
            path = self.place(tree.name)
            path.parent.mkdir(parents=True, exist_ok=True)
            lay(path, self.home)

        try:
            self.tried.add(str(tree))
            return self._run(
                tree.command, laid, seconds=SECONDS + 3 * base.seconds, no_rights=tree.kind in UNPRIVILEGED
            )
        except NotHere:
            self.tried.discard(str(tree))
            return None
        finally:
            if tree.kind == "immutable":
                with contextlib.suppress(OSError):
                    _change_flags(self.place(tree.name), 0)

    def place(self, name: str) -> Path:
        """Return the path of what a label stands for."""
        return self.root / self._labels().get(name, name)

    @cache  # noqa: B019
    def _labels(self) -> dict[str, str]:
        root = self.whole / "root"
        return {label(path): path for path in (os.path.relpath(path, root) for path in root.rglob("*"))}

    def _run(self, command: str, lay: Callable[[], None], *, seconds: float, no_rights: bool = False) -> Outcome:
        _remove(self.case)
        shutil.copytree(self.whole, self.case, symlinks=True)
        lay()
        before, inside = self._outside(), snapshot(self.root) if command in ONLY_LOOK else {}
        out, log = self.folder / "shown", self.folder / "log"
        out.write_bytes(b"")
        log.write_bytes(b"")
        began = time.monotonic()
        with self._environment():
            child = os.fork()
            if child == 0:
                self._child(command, out, log, no_rights=no_rights)
        code = _wait(child, seconds)
        took = time.monotonic() - began
        outcome = Outcome(code, took, 0, out.read_text(errors="replace"))
        for line in log.read_text().splitlines():
            what, about = json.loads(line)
            if what == "touched":
                outcome.touched.add(label(about).removesuffix("/"))
            elif what == "grown":
                outcome.grown_bytes = int(about)
            else:
                outcome.noted.append(f"{what} {about}")
        _release(self.root)
        outcome.changed_outside = _differences(before, self._outside())
        if command in ONLY_LOOK:
            outcome.changed_inside = _differences(inside, snapshot(self.root))
        return outcome

    def _outside(self) -> dict[str, object]:
        names = [path.name for path in self.case.iterdir() if path.name not in ("root", "state")]
        found: dict[str, object] = {name: os.lstat(self.case / name).st_mode for name in names}
        for name in names:
            found |= {f"{name}/{path}": what for path, what in snapshot(self.case / name).items()}
        return found

    def _child(self, command: str, out: Path, log: Path, *, no_rights: bool) -> None:
        code = 70
        try:
            os.setsid()
            signal.signal(signal.SIGINT, signal.default_int_handler)
            shown = os.open(out, os.O_WRONLY | os.O_APPEND)
            log_file = os.open(log, os.O_WRONLY | os.O_APPEND)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(shown, 1)
            os.dup2(shown, 2)
            sys.stdin, sys.stdout, sys.stderr = (
                os.fdopen(n, "r" if n == 0 else "w", 1, closefd=False, errors="backslashreplace") for n in range(3)
            )
            tempfile.tempdir = None
            faulthandler.disable()
            faulthandler.register(signal.SIGUSR1, file=shown)  # pytest's own watch holds a lock that a fork keeps
            os.chdir(self.case / "cwd")
            size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (size + ADDRESS_SPACE, size + ADDRESS_SPACE))
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            if no_rights and os.geteuid() == 0:
                _drop_rights()
            watch = _Watch(self.root, log_file, local=command == "serve")
            name, *call = self._call(command)
            if command == "serve":
                threading.Thread(target=_ask_pages, args=(out,), daemon=True).start()
            try:
                code = main_of(name)(call)
            except SystemExit as error:
                code = error.code if isinstance(error.code, int) else 1
            except BaseException:
                traceback.print_exc()
            for thread in threading.enumerate():
                if not thread.daemon and thread is not threading.current_thread():
                    thread.join()
            weakref.finalize._exitfunc()  # temporary folders are removed, as at the end of each Python
            grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - resident
            watch.write("grown", str(grown * 1024))
            sys.stdout.flush()
            sys.stderr.flush()
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)


def _wait(child: int, most_seconds: float) -> int | None:
    """Return the exit code. A process that computes or waits for too long is ended with those it started; None."""
    code, end = None, time.monotonic() + WAITING * most_seconds
    while code is None and time.monotonic() < end:
        times = Path(f"/proc/{child}/stat").read_text().rsplit(")", 1)[1].split()[11:15]
        if sum(map(int, times)) / os.sysconf("SC_CLK_TCK") > most_seconds:
            break
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            code = os.waitstatus_to_exitcode(status)
        else:
            time.sleep(0.002)
    if code is None:
        os.kill(child, signal.SIGUSR1)  # it says where it is
        time.sleep(0.2)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    if code is None:
        os.waitpid(child, 0)
    return code


def _differences(before: dict[str, object], after: dict[str, object]) -> set[str]:
    return {label(name) for name in before.keys() | after.keys() if before.get(name, 0) != after.get(name, 0)}


def _release(folder: Path) -> None:
    """Let folders be listed and removed again."""
    for parent, folders, _ in os.walk(folder):
        for name in folders:
            path = os.path.join(parent, name)
            if not os.path.islink(path) and os.lstat(path).st_mode & 0o700 != 0o700 and os.geteuid() != 0:
                os.chmod(path, 0o700)


def _remove(folder: Path) -> None:
    if folder.exists():
        for parent, folders, files in os.walk(folder):
            for name in folders + files:
                path = Path(parent, name)
                if not path.is_symlink() and (path.is_dir() or path.is_file()):
                    with contextlib.suppress(OSError):
                        _change_flags(path, 0) if _is_unchanging(path) else None
        shutil.rmtree(folder)


def _is_unchanging(path: Path) -> bool:
    return not os.access(path, os.W_OK)


def faults(base: Outcome, outcome: Outcome, command: str) -> list[str]:
    """Return what a command should not have done in a tree."""
    found = []
    if outcome.code is None:
        found.append(f"went on after {outcome.seconds:.0f} s")
    elif outcome.code not in (0, 1, 2) and not (command == "serve" and outcome.code == 130):
        found.append(f"exit code {outcome.code}")
    if "Traceback" in outcome.shown or "Exception ignored" in outcome.shown:
        found.append("traceback: " + " | ".join(outcome.shown.strip().splitlines()[-3:]))
    if re.search("[\x00-\x08\x0b-\x1f\x7f\x80-\x9f\u202a-\u202e\u2066-\u2069]", outcome.shown.replace("\r", "")):
        found.append("control characters in the output")
    found += [f"changed outside: {name}" for name in sorted(outcome.changed_outside - base.changed_outside)]
    found += [f"changed inside: {name}" for name in sorted(outcome.changed_inside - base.changed_inside)]
    found += [note for note in outcome.noted if note not in base.noted]
    if outcome.grown_bytes - base.grown_bytes > MOST_BYTES:
        found.append(f"took {outcome.grown_bytes >> 20} MiB")
    return found
