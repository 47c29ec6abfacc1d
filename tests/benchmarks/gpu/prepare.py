"""Packs what a machine with a GPU and no network lacks: ``.venv/bin/python tests/benchmarks/gpu/prepare.py``.

Writes ``.gpu/packages.tar.gz`` in the checkout, which git ignores: packages for Python 3.12 on Linux (x86-64), in the
versions of ``constraints.txt``, and golden values if they lie beside the checkout. See README.md beside this file.
"""

import argparse
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

TOP = Path(__file__).resolve().parents[3]
GOLDEN = TOP.parent / "shared" / "golden"
SITES = {
    "site": [
        "av",
        "ffmpeg-python",
        "future",
        "fvcore",
        "iopath",
        "portalocker",
        "pytorchvideo",
        "tabulate",
        "termcolor",
        "zlib-ng",
    ],
    "torchcodec-site": ["torchcodec"],  # apart: where transformers finds it, it needs FFmpeg's libraries
}
"""{folder: packages that the machine lacks}"""
PYTHON, PLATFORM = "3.12", "x86_64-manylinux_2_28"


def install(packages: list[str], folder: Path) -> None:
    """Install packages, without those that they need, into a folder for the machine's Python."""
    pins = str(TOP / "constraints.txt")
    call = [Path(sys.executable).with_name("uv"), "pip", "install", "--quiet", "--no-deps", "--target", folder]
    call += ["--python-version", PYTHON, "--python-platform", PLATFORM]
    call += ["--require-hashes", "--require-build-hashes", "--constraint", pins, "--build-constraint", pins, *packages]
    subprocess.run(call, check=True)


def main() -> None:
    """Pack it, and say how large it is."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.parse_args()
    target = TOP / ".gpu" / "packages.tar.gz"
    target.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as work, tarfile.open(target, "w:gz") as packed:
        for name, packages in SITES.items():
            install(packages, Path(work) / name)
            packed.add(Path(work) / name, name)
        if GOLDEN.is_dir():
            packed.add(GOLDEN, "shared/golden")
    print(f"{target}: {target.stat().st_size / 2**20:.1f} MiB")


if __name__ == "__main__":
    main()
