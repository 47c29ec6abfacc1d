"""What some tests need and not every machine has. A test that is skipped names what is missing."""

import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType

import pytest
import torch

DATA = "no real data beside this checkout"
GPU = "no GPU on this machine"
PROGRAM = "no such program on this machine"
PACKAGE = "no such package in this environment"
SYSTEM = "not on this system"
KINDS = (DATA, GPU, PROGRAM, PACKAGE, SYSTEM)
"""How each reason begins. CONTRIBUTING.md lists them."""

SHARED = Path(__file__).resolve().parents[3] / "shared"
"""Where a checkout may have real data beside it."""


def shared(path: str) -> Path:
    """Return a file or folder of real data; skip the test where it is not there."""
    need(DATA, [] if (SHARED / path).exists() else [path])
    return SHARED / path


def need(kind: str, missing: Iterable[str]) -> None:
    """Skip the test, unless nothing is missing."""
    if missing := [*missing]:
        pytest.skip(f"{kind}: {', '.join(missing)}")


def skip_without(kind: str, missing: Iterable[str]) -> pytest.MarkDecorator:
    """Return a mark that skips a test, unless nothing is missing."""
    missing = [*missing]
    return pytest.mark.skipif(bool(missing), reason=f"{kind}: {', '.join(missing)}")


def missing_programs(*names: str, path: str | None = None) -> list[str]:
    """Return those programs that are not installed."""
    return [name for name in names if shutil.which(name, path=path) is None]


def missing_precision(precision: str) -> list[str]:
    """Return what is missing to compute in a precision. A processor without instructions for it takes minutes."""
    is_fast = {
        "fp32": lambda: True,
        "bf16": torch.ops.mkldnn._is_mkldnn_bf16_supported,
        "fp16": torch.ops.mkldnn._is_mkldnn_fp16_supported,
    }[precision]
    return [] if torch.cuda.is_available() or is_fast() else [f"instructions for {precision}"]


def missing_lanczos() -> list[str]:
    """Return what is missing to resize tensors by Lanczos' kernel, which torch 2.11 does not."""
    try:
        torch.nn.functional.interpolate(torch.zeros(1, 3, 4, 4), size=2, mode="lanczos", antialias=True)
    except (NotImplementedError, ValueError):
        return ["a torch that resizes by Lanczos' kernel"]
    return []


def missing_rights() -> list[str]:
    """Return what is missing to mount file systems and to make networks."""
    return [] if os.geteuid() == 0 else ["the rights of root"]


def package(name: str) -> ModuleType:
    """Import a module; skip the test where its package is not installed."""
    return pytest.importorskip(name, reason=f"{PACKAGE}: {name.partition('.')[0]}")


needs_program = skip_without(PROGRAM, missing_programs("ffmpeg"))
needs_lanczos = skip_without(PACKAGE, missing_lanczos())
needs_gpu = skip_without(GPU, [] if torch.cuda.is_available() else ["CUDA"])
needs_linux = skip_without(SYSTEM, [] if os.uname().sysname == "Linux" else ["Linux"])
