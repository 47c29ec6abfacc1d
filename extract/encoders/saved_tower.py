"""A network that a training run has tuned: its description and its weights, in the run's folder.

    RUN/video_tower/tower.json     the profile of its features, and the weights that training began with
    RUN/video_tower/config.json    its sizes, if its own files state them, with its image processor's settings
    RUN/model.safetensors          all weights of the run; the network's begin with ``video_tower.network.``

A run may come from a stranger: the network must be of a kind that extraction supports and have the sizes of the run's
weights, and no code from the run is executed.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from ...storage.common.device import on_meta_device
from ...storage.common.errors import READ_ERRORS, UserError, refuse_unreadable
from ...storage.common.files import check_regular, read_object, sha256_of, write_json
from ...storage.hub.files import CONFIG_FILE, PROCESSOR_FILES, ModelFiles
from ...storage.hub.names import POOLINGS, TOWER_FOLDER, HubName
from ...storage.profiles import PROFILES
from ...storage.records import Profile, Weights
from ...storage.untrusted.tensor_shapes import check_finite, shape_difference, shapes_in
from ..models import MODELS
from ..models.network import Network
from ..models.weights import TENSORS_FILE
from . import is_of_hub
from .hub import HubEncoder
from .profile_checks import check_extractable

ABOUT_FILE = "tower.json"
PREFIX = f"{TOWER_FOLDER}.network."
"""Prefix of the names of the network's weights in the run's file of weights."""
COPIED = (CONFIG_FILE, *(name for name in PROCESSOR_FILES if not name.endswith("tokenizer_config.json")))
MAX_BYTES = 4 << 20
MAX_TIMES_LARGER, FREE_VALUES = 16, 1 << 22
"""Maximum size of a two-tower model: this many times the parameters of its tuned tower, plus some millions. The largest
published text towers have ten times as many parameters as their image towers.
"""
DAMAGED = "not a network that vlalign-train saved"


def run_of(weights: str | Path) -> Path | None:
    """Return the folder of the run that a path names, if the run has tuned a network; else None."""
    folder = Path(weights)
    return folder if (folder / TOWER_FOLDER / ABOUT_FILE).is_file() else None


@dataclass(frozen=True)
class SavedTower:
    """The description of a network that a run tunes."""

    profile: Profile
    """Profile of its features."""
    weights: Weights
    """Weights that the training began with."""
    pooling: str | None = None
    """One of ``POOLINGS`` if the network's name includes it."""
    files: Mapping[str, dict[str, Any]] | None = None
    """{name: content} of the network's own configuration files, which state its sizes."""

    @classmethod
    def of(cls, profile: Profile, weights: Weights, pooling: str | None, folder: Path | None) -> "SavedTower":
        """Describe a network.

        Args:
            profile: Profile of its features.
            weights: Its weights.
            pooling: As the field.
            folder: Folder of its own files; None if it has none.

        Raises:
            UserError: One of these files is damaged.
        """
        files = {}
        for path in (folder / name for name in COPIED if folder is not None):
            if path.is_file():
                with refuse_unreadable(path, "not the configuration of a network"):
                    files[path.name] = _without_places(read_object(path, MAX_BYTES))
        return cls(profile, weights, pooling, files)

    def save(self, folder: Path) -> None:
        """Write the files that ``read`` reads."""
        for name, content in (self.files or {}).items():
            write_json(folder / name, content)
        profile = json.loads(self.profile.to_json())
        about = {"profile": profile, "weights": asdict(self.weights), "pooling": self.pooling}
        write_json(folder / ABOUT_FILE, about)

    @classmethod
    def read(cls, folder: Path) -> "SavedTower":
        """Read a description from a run's folder ``video_tower``.

        Raises:
            UserError: The description is not as training writes it.
        """
        path = folder / ABOUT_FILE
        with refuse_unreadable(path, DAMAGED):
            about = read_object(path, MAX_BYTES)
            profile, weights, pooling = about["profile"], about["weights"], about["pooling"]
            faults = Profile.faults(profile) if isinstance(profile, dict) else ["expected an object"]
            if faults:
                raise ValueError(f"its profile is not valid: {'; '.join(faults)[:200]}")
            if not isinstance(weights, dict) or not all(isinstance(weights.get(n), str) for n in ("name", "sha256")):
                raise ValueError("its weights have no name and SHA-256")
            if pooling is not None and pooling not in POOLINGS:
                raise ValueError(f"its pooling is {str(pooling)[:80]!r}; expected one of {', '.join(POOLINGS)}")
            made = Profile.from_json(json.dumps(profile))
            check_extractable(made)
            if not is_of_hub(made) and (made.name not in MODELS or made != PROFILES[made.name]):
                raise ValueError(f"this version has no network for its profile {made.name!r}")
        used = Weights(name=weights["name"], sha256=weights["sha256"])
        for name in COPIED:
            if (folder / name).is_symlink():  # the target of the link would become part of an exported run
                raise UserError(f"{folder / name}: a link; expected a file")
        return cls.of(made, used, pooling, folder)

    def new_network(self, folder: Path, shapes: Mapping[str, tuple[int, ...]]) -> Network:
        """Return the network with random weights, ready to be trained.

        Args:
            folder: Folder that ``save`` wrote.
            shapes: {name: shape} of its stored weights, compared before memory is allocated. The model with a second
                tower, which is then removed, may be ``MAX_TIMES_LARGER`` times as large as these weights.

        Raises:
            UserError: The shapes do not match, or the folder is not as training writes it.
        """
        with refuse_unreadable(folder / ABOUT_FILE, DAMAGED):
            for name, content in (self.files or {}).items():
                _check_numbers_of_layers(content, len(shapes), name)
            with on_meta_device():
                whole = self._new(folder)
                num_values = sum(value.numel() for value in (*whole.parameters(), *whole.buffers()))
                expected = shapes_of(whole.make_trainable())
            if wrong := shape_difference(expected, shapes):
                raise ValueError(f"it does not match the weights, {wrong}")
            if num_values > MAX_TIMES_LARGER * sum(map(math.prod, shapes.values())) + FREE_VALUES:
                raise ValueError(f"its towers have {num_values:,} numbers, far more than the weights")
            return self._new(folder).make_trainable()

    def _new(self, folder: Path) -> Network:
        if is_of_hub(self.profile):
            encoder = HubEncoder(HubName(str(folder), pooling=self.pooling), ModelFiles(folder, folder.name, ""))
            return encoder.new().eval()
        kind = MODELS[self.profile.name]
        network = kind.of_folder(folder) if CONFIG_FILE in (self.files or {}) else kind()
        return network.eval().fold()


def load_tuned(run: Path) -> tuple[SavedTower, Network, Weights]:
    """Return a run's tuned network: its description, the network ready to run, and its weights' name and checksum.

    Args:
        run: The run's folder, as ``run_of`` returns it.

    Raises:
        UserError: The run is incomplete or damaged.
    """
    saved, path = SavedTower.read(run / TOWER_FOLDER), run / TENSORS_FILE
    if not path.is_file():
        raise UserError(f"{path}: no such file; expected the folder of a finished run")
    check_regular(path)
    errors = (*READ_ERRORS, SafetensorError)
    with refuse_unreadable(path, DAMAGED, errors=errors), safe_open(path, framework="pt") as file:
        shapes = shapes_in(file, PREFIX)
        network = saved.new_network(run / TOWER_FOLDER, shapes)
        tensors: dict[str, Tensor] = {name: file.get_tensor(f"{PREFIX}{name}") for name in shapes}
        check_finite(tensors)
        network.load_state_dict(tensors)
    used = Weights(name=f"{run.absolute().name}/{TENSORS_FILE}", sha256=sha256_of(path))
    return saved, network.make_fixed(), used


def shapes_of(network: Network) -> dict[str, tuple[int, ...]]:
    """Return {name: shape} of all weights of a network."""
    return {name: tuple(value.shape) for name, value in network.state_dict().items()}


def _without_places(value: Any) -> Any:
    """Return a file's content without the folder or hub name that it was loaded from."""
    if isinstance(value, list):
        return [_without_places(inner) for inner in value]
    if not isinstance(value, dict):
        return value
    return {n: _without_places(inner) for n, inner in value.items() if n not in ("_name_or_path", "name_or_path")}


def _check_numbers_of_layers(about: Any, num_tensors: int, name: str) -> None:
    """Raise ``ValueError`` if a configuration states more layers than there are tensors; building them takes time."""
    if isinstance(about, dict):
        for inner, value in about.items():
            _check_numbers_of_layers(value, num_tensors, inner)
    elif isinstance(about, list):
        for value in about:
            _check_numbers_of_layers(value, num_tensors, name)
    elif isinstance(about, int) and about > num_tensors and ("layers" in name or "depth" in name):
        raise ValueError(f"its {name[:80]} is {str(about)[:20]}; the weights have {num_tensors:,} tensors")
