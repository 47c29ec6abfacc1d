"""Weights: published files, from the cache or their authors, or random ones from a seed."""

import hashlib
import math
import os
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from ..storage.console import UserError, progress
from ..storage.files import sha256_of, written_whole
from ..storage.records import Weights

TIMEOUT_SECONDS = 20
BLOCK_BYTES = 1 << 20


@dataclass(frozen=True)
class PublishedFile:
    urls: tuple[str, ...]
    sha256_prefix: str | None
    """Where the authors state one."""


PUBLISHED = {
    "resnet152-394f9c45.pth": PublishedFile(("https://download.pytorch.org/models/resnet152-394f9c45.pth",), "394f9c45"),
    "s3d_howto100m.pth": PublishedFile(("https://www.rocq.inria.fr/cluster-willow/amiech/howto100m/s3d_howto100m.pth",), None),
}


def cache_folder() -> Path:
    return Path(os.environ.get("VLALIGN_CACHE") or Path.home() / ".cache" / "vlalign") / "weights"


def published_weights(name: str) -> Path:
    """The file in the cache, downloaded first where it is not there. Raises ``UserError``."""
    path = cache_folder() / name
    if path.exists():
        return path
    reasons = []
    for url in PUBLISHED[name].urls:
        try:
            _download(url, path, PUBLISHED[name].sha256_prefix)
            return path
        except (OSError, ValueError) as error:  # URLError and timeouts are OSErrors
            reasons.append(f"{url}: {getattr(error, 'reason', error)}")
    raise UserError(
        f"weights {name}: not in {path.parent}, and no source gave them ({'; '.join(reasons)}); put the file there, pass it as "
        "--weights FILE, or pass --weights random to try things out"
    )


def _download(url: str, path: Path, sha256_prefix: str | None) -> None:
    with urllib.request.urlopen(url, timeout=TIMEOUT_SECONDS) as answer, written_whole(path) as partial:
        num_blocks = -(-int(answer.headers.get("Content-Length", 0)) // BLOCK_BYTES)
        with partial.open("wb") as file:
            for block in progress(iter(lambda: answer.read(BLOCK_BYTES), b""), total=num_blocks, what=path.name, unit="MB"):
                file.write(block)
        if sha256_prefix and not (found := sha256_of(partial)).startswith(sha256_prefix):
            raise ValueError(f"its SHA-256 begins with {found[:8]}, not {sha256_prefix}")


def read_state(path: Path) -> dict[str, Tensor]:
    """The entries of a checkpoint: bare, or under ``state_dict``; names with or without ``module.``. Nothing in it is executed."""
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises what its unpickler or zip reader happens to
        raise UserError(f"weights {path}: no PyTorch checkpoint ({str(error).splitlines()[0] if str(error) else error!r})") from None
    if isinstance(content, dict) and isinstance(content.get("state_dict"), dict):
        content = content["state_dict"]
    if not isinstance(content, dict) or not all(isinstance(n, str) and isinstance(v, Tensor) for n, v in content.items()):
        raise UserError(f"weights {path}: expected a dictionary of tensors, or one under 'state_dict'")
    return {name.removeprefix("module."): value for name, value in content.items()}


def load_published(model: nn.Module, path: Path, *, left_out: tuple[str, ...]) -> Weights:
    """Fills ``model`` from a file. Only batch norm's counters may be missing, only ``left_out`` prefixes may be left over.

    Raises ``UserError`` with the entries by name.
    """
    if not path.is_file():
        raise UserError(f"weights {path}: no such file")
    state = {name: value for name, value in read_state(path).items() if not name.startswith(left_out)}
    expected = model.state_dict()
    missing = [n for n in expected if n not in state and not n.endswith("num_batches_tracked")]
    extra = [n for n in state if n not in expected]
    wrong = [
        f"{n} {tuple(state[n].shape)} for {tuple(expected[n].shape)}"
        for n in state
        if n in expected and state[n].shape != expected[n].shape
    ]
    complaints = [
        f"{what} {len(names)}: {', '.join(names[:3])}{', ...' if len(names) > 3 else ''}"
        for what, names in (("missing", missing), ("not known", extra), ("of another shape", wrong))
        if names
    ]
    if complaints:
        raise UserError(f"weights {path}: not those of this model; entries {'; '.join(complaints)}")
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
