"""Weights: published files from the cache or their authors, or random ones from a seed."""

import hashlib
import http.client
import math
import os
import pickle
import re
import struct
import urllib.error
import urllib.request
import zipfile
import zlib
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from ...storage.common.errors import READ_ERRORS, UserError, reason_of, refuse_unreadable
from ...storage.common.files import read_json, sha256_of, write_json
from ...storage.common.progress import progress
from ...storage.common.system import wait_for_lock
from ...storage.common.terminal import say
from ...storage.common.user_state import cache_folder
from ...storage.common.writing import make_folder, move, open_to_write, remove_file
from ...storage.records import Weights
from . import PUBLISHED
from .network import Network, PublishedFile

TENSORS_FILE = "model.safetensors"
"""The weights in a folder that transformers' ``save_pretrained`` wrote."""

STATE_KEYS = "state_dict", "model_state"
"""Keys under which checkpoints store their entries: the usual one in PyTorch, and PySlowFast's."""
SILENCE_SECONDS = 20.0
"""Time limit for a source to answer, and for each pause during the download."""
BLOCK_BYTES = 1 << 20


def published_weights(name: str) -> Path:
    """Return the path of a published file in the cache; download the file if necessary, and check it.

    Raises:
        UserError: The file cannot be downloaded, or differs from the published one.
    """
    path, published = cache_folder("weights") / name, PUBLISHED[name]
    if path.exists():
        if complaint := _complaint(path, name, published):
            raise UserError(f"weights {path}: {complaint}")
        return path
    reasons = []
    for url in published.sources:
        try:
            _download(url, path, published)
            return path
        except (OSError, ValueError, http.client.HTTPException) as error:  # URLError and timeouts are OSErrors
            reasons.append(f"{url}: {getattr(error, 'reason', None) or error}")
    raise UserError(
        f"weights {name}: not in {path.parent}, and could not be downloaded "
        f"({'; '.join(reasons) or 'no address is known'}); "
        f"put the file there (from {published.page}), pass it as --weights FILE, or use a model of transformers in a "
        "folder instead: --features hf:/FOLDER"
    )


def _complaint(path: Path, name: str, published: PublishedFile) -> str | None:
    """Describe how ``path`` differs from the published file ``name``; return None for a match.

    The hash of the first file of a name is recorded; another file of that name is refused from then on.
    """
    again = f"get it from {published.page}, or pass your own as --weights FILE"
    if published.size_bytes is not None and (size := path.stat().st_size) != published.size_bytes:
        return f"has {size:,} bytes instead of {published.size_bytes:,}; {again}"
    with path.open("rb") as file:
        is_pickle = file.read(2) == b"\x80\x02"  # torch.save wrote this header until 2020
    if not is_pickle and not zipfile.is_zipfile(path):
        return f"not a complete PyTorch checkpoint; {again}"
    sha256 = sha256_of(path)
    if published.sha256 and sha256 != published.sha256:
        return f"its SHA-256 is {sha256} instead of {published.sha256}; {again}"
    pins_file = cache_folder("weights") / "sha256.json"
    pins = read_json(pins_file) if pins_file.exists() else {}
    if name not in pins:
        try:
            write_json(pins_file, pins | {name: sha256})
            if not published.sha256:
                say(
                    f"note: {name}: no SHA-256 is published; this file has {sha256}{_hint_of(name, sha256)}; compare "
                    f"it if you can; other files of this name will be refused ({pins_file})"
                )
        except PermissionError:
            say(f"note: {pins_file}: not writable, so a changed {name} would not be noticed")
    elif pins[name] != sha256:
        return (
            f"its SHA-256 is {sha256}, but the first file of this name had {pins[name]}; put that one back, or, if "
            f"this is the right one, remove the line of {name} from {pins_file}"
        )
    return None


def _hint_of(name: str, sha256: str) -> str:
    """Return words on whether the digits in a file's name agree with its SHA-256; empty without such digits.

    In many names, but not in all, hexadecimal digits are the start of the SHA-256.
    """
    digits = re.search(r"-([0-9a-f]{8,})\.", name)
    if digits is None:
        return ""
    return f" ({'as' if sha256.startswith(digits[1]) else 'NOT as'} the {digits[1]} in its name suggests)"


def _download(url: str, path: Path, published: PublishedFile) -> None:
    """Download a published file. Raise ``OSError``, ``HTTPException`` or, if it is another file, ``ValueError``."""
    make_folder(path.parent)
    partial = path.with_name(f".{path.name}.partial")
    with open_to_write(path.parent / ".lock", "w") as lock:
        wait_for_lock(lock)  # one process downloads the file, the others wait
        if path.exists():
            return
        _receive_all(url, partial, path.name)
        if complaint := _complaint(partial, path.name, published):
            remove_file(partial)
            raise ValueError(f"download removed: {complaint}")
        move(partial, path)
        if published.sha256:
            say(f"{path.name}: its SHA-256 matches the published one")


def _receive_all(url: str, partial: Path, what: str) -> None:
    """Download to ``partial``; resume after each interruption if the last attempt received anything.

    Received bytes are stored for a later call.
    """
    while True:
        had = _size_bytes(partial)
        try:
            return _receive(url, partial, what)
        except (OSError, http.client.HTTPException):
            if _size_bytes(partial) <= had:
                raise
            say(f"{what}: interrupted after {_size_bytes(partial):,} bytes; resuming")


def _size_bytes(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _receive(url: str, partial: Path, what: str) -> None:
    """Append the missing bytes to ``partial``, or write it again if the server does not support ranges."""
    had = _size_bytes(partial)
    request = urllib.request.Request(url, headers={"Range": f"bytes={had}-"} if had else {})
    try:
        answer = urllib.request.urlopen(request, timeout=SILENCE_SECONDS)
    except urllib.error.HTTPError as error:
        # the file on the server is shorter: it is another file
        if had and error.code == http.client.REQUESTED_RANGE_NOT_SATISFIABLE:
            remove_file(partial)
            return _receive(url, partial, what)
        raise
    mode = "ab" if answer.status == http.client.PARTIAL_CONTENT else "wb"
    with answer, open_to_write(partial, mode) as file:
        missing = int(answer.headers.get("Content-Length", 0))
        whole = file.tell() + missing
        for block in progress(
            iter(lambda: answer.read(BLOCK_BYTES), b""), total=-(-missing // BLOCK_BYTES), what=what, unit="MB"
        ):
            file.write(block)
        if file.tell() < whole:  # http.client does not report an early end
            raise ConnectionError(f"ended after {file.tell():,} of {whole:,} bytes")
        file.flush()
        os.fsync(file.fileno())


def read_state(path: Path) -> dict[str, Tensor]:
    """Read the entries of a checkpoint: its top level, or the dictionary under one of ``STATE_KEYS``.

    The prefix ``module.`` is removed from names. A file with the suffix .safetensors is read as safetensors, with names
    unchanged. Nothing in the file is executed.

    Raises:
        UserError: The file is not a checkpoint.
    """
    if path.suffix == ".safetensors":
        with refuse_unreadable(path, "not a safetensors file", errors=(*READ_ERRORS, SafetensorError)):
            return load_file(path)
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except (*READ_ERRORS, pickle.UnpicklingError, struct.error, zlib.error, ImportError, AssertionError) as error:
        reason = reason_of(error)
        if "weights only" in reason.lower() or "weights_only" in reason:  # torch's own advice is to execute the file
            reason = "it is damaged, or has more than tensors; no code in it is run"
        raise UserError(f"weights {path}: not a PyTorch checkpoint ({reason})") from None
    for name in STATE_KEYS:
        if isinstance(content, dict) and isinstance(content.get(name), dict):
            content = content[name]
    if not isinstance(content, dict) or not all(
        isinstance(n, str) and isinstance(v, Tensor) for n, v in content.items()
    ):
        raise UserError(f"weights {path}: expected a dictionary of tensors, or one under 'state_dict' or 'model_state'")
    return {name.removeprefix("module."): value for name, value in content.items()}


def load_published(model: Network, path: Path) -> Weights:
    """Load published weights into ``model``.

    The classifier, which does not affect features, gets the width of the file's classifier: networks are published for
    several data sets.

    Args:
        model: A network before ``fold``.
        path: A checkpoint, or a folder that ``save_pretrained`` wrote. It must have all of the model's entries except
            batch norm's counters, and no others but ``ignored_entries``.

    Raises:
        UserError: The file is missing, not a checkpoint, or has other entries, which are named.
    """
    given, path = path, path / TENSORS_FILE if path.is_dir() else path
    if not path.is_file():
        raise UserError(f"weights {path}: no such file; expected the model's file or folder")
    state = {name: value for name, value in read_state(path).items() if not name.startswith(model.ignored_entries)}
    expected = {name: value.shape for name, value in model.state_dict().items()}
    if model.classifier and (weight := state.get(f"{model.classifier}.weight")) is not None:
        for name in (f"{model.classifier}.weight", f"{model.classifier}.bias"):
            expected[name] = torch.Size((*weight.shape[:1], *expected[name][1:]))
    if complaints := _differences(state, expected):
        raise UserError(f"weights {path}: expected weights of this model; entries {'; '.join(complaints)}")
    if model.classifier:
        num_classes, width = expected[f"{model.classifier}.weight"]
        setattr(model, model.classifier, nn.Linear(width, num_classes).requires_grad_(False))
    model.load_state_dict(state, strict=False)
    return Weights(name=given.name or given.absolute().name, sha256=sha256_of(path))


def _differences(state: dict[str, Tensor], expected: dict[str, torch.Size]) -> list[str]:
    """List the entries of a file that are missing, unknown or of another shape."""
    missing = [n for n in expected if n not in state and not n.endswith("num_batches_tracked")]
    extra = [n for n in state if n not in expected]
    wrong = [
        f"{n} {tuple(state[n].shape)} for {tuple(expected[n])}"
        for n in state
        if n in expected and state[n].shape != expected[n]
    ]
    return [
        f"{what} {len(names)}: {', '.join(names[:3])}{', ...' if len(names) > 3 else ''}"
        for what, names in (("missing", missing), ("not known", extra), ("of another shape", wrong))
        if names
    ]


def load_random(model: Network, seed: int) -> Weights:
    """Fill ``model`` with normally distributed weights: the same for the same seed, on every machine.

    Convolutions have variance gain / fan-in. The gain keeps activations in range through the depth of the network;
    batch norms begin as the identity. Such features have no meaning, but they distinguish colours, shapes and motion.
    """
    generator = torch.Generator().manual_seed(seed)
    digest = hashlib.sha256()
    for name, value in model.named_parameters():
        if value.ndim >= 4:
            nn.init.normal_(value, 0.0, math.sqrt(model.random_gain / value[0].numel()), generator=generator)
        elif value.ndim == 2:
            nn.init.normal_(value, 0.0, math.sqrt(1 / value.shape[1]), generator=generator)
        else:
            nn.init.constant_(value, 0.0 if name.endswith("bias") else 1.0)
        digest.update(value.detach().numpy().tobytes())
    return Weights(name=f"random (seed {seed})", sha256=digest.hexdigest())
