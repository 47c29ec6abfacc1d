"""Weights: published files, from the cache or their authors, or random ones from a seed."""

import fcntl
import hashlib
import http.client
import math
import os
import urllib.error
import urllib.request
import zipfile
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from ..storage.common.errors import UserError
from ..storage.common.progress import progress
from ..storage.common.terminal import say
from ..storage.files import read_json, sha256_of, write_json
from ..storage.records import Weights

SILENCE_SECONDS = 20.0
"""How long a source may take to answer, and to go on once it has begun."""
BLOCK_BYTES = 1 << 20


@dataclass(frozen=True)
class PublishedFile:
    sources: tuple[str, ...]
    """URLs, tried in turn; none where the authors only offer a page to get it from by hand."""
    sha256: str | None = None
    """Where anybody states it. Elsewhere the first file that comes is the one that counts, and that is said."""
    size_bytes: int | None = None
    page: str = ""
    """Where the authors offer it."""


PUBLISHED = {
    # The name has the beginning of the hash (``check_hash`` of torch.hub); several who have the file state all of it.
    "resnet152-394f9c45.pth": PublishedFile(
        ("https://download.pytorch.org/models/resnet152-394f9c45.pth",),
        sha256="394f9c45966e3651a89bbb78a48410a6755854ce4a5ab64927cf1c7247f85e58",
        page="https://docs.pytorch.org/vision/stable/models/generated/torchvision.models.resnet152.html (IMAGENET1K_V1)",
    ),
    "resnext101.pth": PublishedFile(
        ("https://www.rocq.inria.fr/cluster-willow/amiech/howto100m/models/resnext101.pth",),
        page="https://github.com/antoine77340/video_feature_extractor",
    ),
    # The source has been reported dead since June 2024, in the page's issue 14, which names copies; others recorded this size.
    "s3d_howto100m.pth": PublishedFile(
        ("https://www.rocq.inria.fr/cluster-willow/amiech/howto100m/s3d_howto100m.pth",),
        size_bytes=125_031_128,
        page="https://github.com/antoine77340/S3D_HowTo100M (copies: issue 14)",
    ),
    # On the hub its name is pytorch_model.bin, which says nothing beside other files. The hub states the SHA-256.
    "clip-vit-base-patch32.bin": PublishedFile(
        ("https://huggingface.co/openai/clip-vit-base-patch32/resolve/main/pytorch_model.bin",),
        sha256="a63082132ba4f97a80bea76823f544493bffa8082296d62d71581a4feff1576f",
        page="https://huggingface.co/openai/clip-vit-base-patch32 (its pytorch_model.bin, under this name)",
    ),
    # The name's last part is not checked by its authors' own code, nor here.
    "r2plus1d_34_clip32_ig65m_from_scratch-449a7af9.pth": PublishedFile(
        (
            "https://github.com/moabitcoin/ig65m-pytorch/releases/download/v1.0.0/r2plus1d_34_clip32_ig65m_from_scratch-449a7af9.pth",
        ),
        page="https://github.com/moabitcoin/ig65m-pytorch",
    ),
    "r3d152_K_200ep.pth": PublishedFile(
        (),
        page="https://drive.google.com/drive/folders/1xbYbZ7rpyjftI_KCk6YuL-XrfQDz7Yd4 (of kenshohara/3D-ResNets-PyTorch)",
    ),
}


def cache_folder() -> Path:
    return Path(os.environ.get("VLALIGN_CACHE") or Path.home() / ".cache" / "vlalign") / "weights"


def published_weights(name: str) -> Path:
    """The file in the cache, downloaded first where it is not there, and checked. Raises ``UserError``."""
    path, published = cache_folder() / name, PUBLISHED[name]
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
        f"weights {name}: not in {path.parent}, and no source gave them ({'; '.join(reasons) or 'there is none to download from'}); "
        f"put the file there (from {published.page}), pass it as --weights FILE, or pass --weights random to try things out"
    )


def _complaint(path: Path, name: str, published: PublishedFile) -> str | None:
    """What is wrong with ``path`` as the published file ``name``; None: nothing is, and its hash counts for that name from now on."""
    again = f"get it from {published.page}, or pass the one you have as --weights FILE"
    if published.size_bytes is not None and (size := path.stat().st_size) != published.size_bytes:
        return f"has {size:,} bytes instead of {published.size_bytes:,}; {again}"
    with path.open("rb") as file:
        is_pickle = file.read(2) == b"\x80\x02"  # what torch.save wrote until 2020
    if not is_pickle and not zipfile.is_zipfile(path):
        return f"no whole PyTorch checkpoint; {again}"
    found = sha256_of(path)
    if published.sha256 and found != published.sha256:
        return f"its SHA-256 is {found} instead of {published.sha256}; {again}"
    pins_file = cache_folder() / "sha256.json"
    pins = read_json(pins_file) if pins_file.exists() else {}
    if name not in pins:
        try:
            write_json(pins_file, pins | {name: found})
            if not published.sha256:
                say(
                    f"note: nobody states the SHA-256 of {name}; this file's, first seen now, is {found}: "
                    f"compare it if you can, another file of this name will be refused ({pins_file})"
                )
        except PermissionError:
            say(f"note: {pins_file} may not be written, so that another {name} would not be noticed")
    elif pins[name] != found:
        return (
            f"its SHA-256 is {found}, but the first file of this name had {pins[name]}; put that one back, or, if this is the right "
            f"one, remove the line of {name} from {pins_file}"
        )
    return None


def _download(url: str, path: Path, published: PublishedFile) -> None:
    """Raises ``OSError``, ``HTTPException`` or, for another file than the published one, ``ValueError``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    with (path.parent / ".lock").open("w") as lock:
        fcntl.flock(
            lock, fcntl.LOCK_EX
        )  # of several processes that want the same file one downloads it, the others wait
        if path.exists():
            return
        _receive_all(url, partial, path.name)
        if complaint := _complaint(partial, path.name, published):
            partial.unlink()
            raise ValueError(f"removed what it gave: {complaint}")
        os.replace(partial, path)


def _receive_all(url: str, partial: Path, what: str) -> None:
    """As often as the connection is cut, as long as more comes each time. What has come stays in ``partial`` for another call."""
    while True:
        had = _size_bytes(partial)
        try:
            return _receive(url, partial, what)
        except (OSError, http.client.HTTPException):
            if _size_bytes(partial) <= had:
                raise
            say(f"{what}: cut after {_size_bytes(partial):,} bytes; going on from there")


def _size_bytes(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _receive(url: str, partial: Path, what: str) -> None:
    """Appends to ``partial`` what it lacks, or writes it anew where the server knows no ranges."""
    had = _size_bytes(partial)
    request = urllib.request.Request(url, headers={"Range": f"bytes={had}-"} if had else {})
    try:
        answer = urllib.request.urlopen(request, timeout=SILENCE_SECONDS)
    except urllib.error.HTTPError as error:
        if had and error.code == http.client.REQUESTED_RANGE_NOT_SATISFIABLE:  # the file ends before: it is another one
            partial.unlink()
            return _receive(url, partial, what)
        raise
    with answer, partial.open("ab" if answer.status == http.client.PARTIAL_CONTENT else "wb") as file:
        missing = int(answer.headers.get("Content-Length", 0))
        whole = file.tell() + missing
        for block in progress(
            iter(lambda: answer.read(BLOCK_BYTES), b""), total=-(-missing // BLOCK_BYTES), what=what, unit="MB"
        ):
            file.write(block)
        if file.tell() < whole:  # http.client takes an early end for the end
            raise ConnectionError(f"ended after {file.tell():,} of {whole:,} bytes")
        file.flush()
        os.fsync(file.fileno())


def read_state(path: Path) -> dict[str, Tensor]:
    """The entries of a checkpoint: bare, or under ``state_dict``; names with or without ``module.``. Nothing in it is executed."""
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises what its unpickler or zip reader happens to
        raise UserError(
            f"weights {path}: no PyTorch checkpoint ({str(error).splitlines()[0] if str(error) else error!r})"
        ) from None
    if isinstance(content, dict) and isinstance(content.get("state_dict"), dict):
        content = content["state_dict"]
    if not isinstance(content, dict) or not all(
        isinstance(n, str) and isinstance(v, Tensor) for n, v in content.items()
    ):
        raise UserError(f"weights {path}: expected a dictionary of tensors, or one under 'state_dict'")
    return {name.removeprefix("module."): value for name, value in content.items()}


def load_published(model: nn.Module, path: Path, *, left_out: tuple[str, ...]) -> Weights:
    """Fills ``model`` from a file. Only batch norm's counters may be missing, only ``left_out`` prefixes may be left over.

    Its classifier, which no feature passes through, becomes as wide as the file's: networks are published for several data sets.

    Raises ``UserError`` with the entries by name.
    """
    if not path.is_file():
        raise UserError(f"weights {path}: no such file")
    state = {name: value for name, value in read_state(path).items() if not name.startswith(left_out)}
    expected = {name: value.shape for name, value in model.state_dict().items()}
    if model.classifier and (weight := state.get(f"{model.classifier}.weight")) is not None:
        for name in (f"{model.classifier}.weight", f"{model.classifier}.bias"):
            expected[name] = weight.shape[:1] + expected[name][1:]
    missing = [n for n in expected if n not in state and not n.endswith("num_batches_tracked")]
    extra = [n for n in state if n not in expected]
    wrong = [
        f"{n} {tuple(state[n].shape)} for {tuple(expected[n])}"
        for n in state
        if n in expected and state[n].shape != expected[n]
    ]
    complaints = [
        f"{what} {len(names)}: {', '.join(names[:3])}{', ...' if len(names) > 3 else ''}"
        for what, names in (("missing", missing), ("not known", extra), ("of another shape", wrong))
        if names
    ]
    if complaints:
        raise UserError(f"weights {path}: not those of this model; entries {'; '.join(complaints)}")
    if model.classifier:
        num_classes, width = expected[f"{model.classifier}.weight"]
        setattr(model, model.classifier, nn.Linear(width, num_classes).requires_grad_(False))
    model.load_state_dict(state, strict=False)
    return Weights(name=path.name, sha256=sha256_of(path))


def load_random(model: nn.Module, seed: int) -> Weights:
    """Fills ``model`` with normally distributed weights: the same ones for the same seed, on every machine.

    Convolutions have variance gain / fan-in; the gain keeps activations in range through the network's depth, batch norms start
    as the identity. Such features are blind to meaning, but tell colours, shapes and motion apart.
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
