"""An extractor: a profile, and a network with its weights.

To add one, write a file in ``models/`` with the network and the ``PublishedFile`` of its weights, a row in
``models.MODELS``, a row in ``storage.profiles.PROFILES`` under the same name, and tests.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ..storage.common.device import find_device, on_device
from ..storage.common.errors import SettingError, UserError
from ..storage.common.packages import EXTRAS, install_command
from ..storage.hub.names import TOWER_FOLDER, is_hub_name, read_hub_name
from ..storage.profiles import ALIASES, BUILT_IN, WITHOUT_NETWORK, find_profile
from ..storage.records import EXACT, NVDEC, Profile, Weights
from .decoding.kernels import Kernel
from .decoding.log_mel import log_mel_of_all
from .encoders import is_of_hub
from .encoders.custom import is_custom_encoder, read_custom_encoder
from .encoders.hub import HubEncoder
from .encoders.profile_checks import DECODINGS, PRECISIONS, VALUE_RANGES, check_extractable
from .encoders.saved_tower import load_tuned, run_of
from .models import MODELS
from .models.cuda_graphs import CudaGraphCall, supports_cuda_graphs
from .models.network import Network
from .models.weights import load_published, load_random, published_weights

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
CPU = torch.device("cpu")
NAMED = ("pretrained", "random")
"""Values of ``weights`` that are not paths."""
NO_WEIGHTS = Weights(name="none", sha256="")
"""Weights of features that are computed without a network."""
FRAME_BATCH_BYTES = 1 << 20
"""Size of a batch of frames if no network computes features from them."""


@dataclass(frozen=True)
class Extractor:
    """Computes the features of a profile.

    Raises:
        ValueError: The features of this profile cannot be computed.
    """

    profile: Profile
    weights: Weights
    network: Network | None
    """None if there is no network: the feature vectors are the frames themselves, or the decoding process computes them
    (log-mel, shots).
    """
    device: torch.device
    batch_size: int
    """Number of windows that are best computed together on this device."""

    def __post_init__(self) -> None:
        check_extractable(self.profile)

    @property
    def frame_dtype(self) -> torch.dtype:
        """The type of the frames: uint8, or float32 of 0 to 255 if the profile's kernel does not round."""
        return torch.uint8 if Kernel.of(self.profile.resize).is_rounded else torch.float32

    @torch.inference_mode()
    def features(self, frames: Tensor | np.ndarray) -> Tensor:
        """Compute the features of a batch of windows, or of a whole signal.

        Args:
            frames: RGB [B, T, H, W, 3] of ``frame_dtype``, at the profile's size, or [B, H, W, 3] for a window of one
                frame. For sound: float mono samples [N] of -1..1 at the profile's rate, from time zero.

        Returns:
            float32 [B, D]; for sound [rows, D]. If the profile stores frames, uint8 [B, D].

        Raises:
            ValueError: The shape or type is wrong, or the profile is for shots, which are not found in batches.
        """
        frames, profile = torch.as_tensor(frames), self.profile
        if profile.is_shots:
            raise ValueError(f"{profile.name}: shots are found while a video is decoded; call extract_video")
        if profile.modality == "sound":
            if not frames.is_floating_point() or frames.ndim != 1 or not len(frames):
                raise ValueError(f"{profile.name}: samples must be floats [N], got {frames.dtype} {list(frames.shape)}")
            return torch.from_numpy(log_mel_of_all(frames.numpy()))
        window = () if profile.window == 1 else (profile.window,)
        if (
            frames.dtype != self.frame_dtype
            or frames.ndim != 4 + len(window)
            or frames.shape[1:-3] != window
            or frames.shape[-1] != 3
        ):
            kind, shape = str(self.frame_dtype).removeprefix("torch."), ["B", *map(str, window), "H", "W", "3"]
            raise ValueError(
                f"{profile.name}: frames must be {kind} [{', '.join(shape)}], got {frames.dtype} {list(frames.shape)}"
            )
        if self.network is None:
            return frames.reshape(len(frames), -1)
        if supports_cuda_graphs(self.device) and self.network.has_many_kernels and len(frames) == self.batch_size:
            rows = self._recorded(frames)
            if rows is not None:
                return rows
        return self._rows(on_device(frames, self.device)).cpu()

    @cached_property
    def _recorded(self) -> CudaGraphCall:
        return CudaGraphCall(self._rows, self.device)

    @cached_property
    def _rows(self) -> Callable[[Tensor], Tensor]:
        """The function that computes float32 features [B, D] from frames, both on the device."""
        profile, network = self.profile, self.network
        assert network is not None
        mean, std = (on_device(torch.tensor(channels), self.device) for channels in (profile.mean, profile.std))

        def rows(frames: Tensor) -> Tensor:
            return network(normalised(frames, profile, mean, std).to(DTYPES[profile.precision])).float()

        return rows


def normalised(frames: Tensor, profile: Profile, mean: Tensor, std: Tensor) -> Tensor:
    """Normalise frames for a profile's network.

    Args:
        frames: RGB [B, (T,) H, W, 3] of 0 to 255.
        profile: The profile.
        mean: Its mean [3], on the frames' device.
        std: Its standard deviation [3], on the same device.

    Returns:
        A view [B, 3, (T,) H, W], float32.
    """
    values = frames.to(torch.float32, copy=True)
    if (divisor := VALUE_RANGES[profile.value_range]) != 1:
        values /= divisor
    if any(profile.mean) or set(profile.std) != {1.0}:
        values = values.sub_(mean).div_(std)
    return values.movedim(-1, 1)


def profile_of(name: str, weights: str) -> Profile:
    """Return the profile of features that are computed with ``weights`` (``ExtractionSettings.weights_of``).

    Raises:
        UserError: ``weights`` names a library's encoder or a custom encoder that cannot be used.
    """
    if is_custom_encoder(weights):
        return read_custom_encoder(weights).profile
    if not is_hub_name(weights):
        return BUILT_IN[name]
    return HubEncoder.find(read_hub_name(weights)).profile


def load_extractor(
    name: str,
    *,
    weights: str | Path = "pretrained",
    device: str = "cpu",
    precision: str = "fp32",
    decoding: str = EXACT,
    seed: int = 0,
) -> Extractor:
    """Load an extractor by the name of its features.

    Args:
        name: Such as "s3d"; see ``storage.profiles.PROFILES``. Or any model of transformers: "hf:ORG/MODEL" or
            "hf:/path/to/folder", with @REVISION, :tokens, :mean, :first, :frames, :2fps or :whole at its end. Or the
            file of a custom profile; the module that it names is then run.
        weights: A file, a folder that transformers' ``save_pretrained`` wrote, the folder of a run that has tuned this
            network (for a tuned model of transformers, pass the name "hf:RUN/video_tower" instead), "pretrained" (the
            profile's published weights, from the cache or their authors) or "random".
        device: "cpu", "cuda" or "cuda:N".
        precision: Precision of the network: "fp32", "bf16" or, on a GPU, "fp16". Another precision makes another
            profile. Log-mel features and frames, which have no network, do not depend on it.
        decoding: "exact" or, on a GPU, "nvdec": see ``Profile.decoding``. Each makes its own profile.
        seed: Seed of random weights.

    Returns:
        The extractor. Its method ``features`` takes frames, uint8 [B, T, H, W, 3] RGB in the size of its profile, and
        returns float32 [B, D].

    Raises:
        UserError: The name is unknown, or the weights are missing or belong to another model.

    Example:
        >>> from vlalign.extract import load_extractor
        >>> load_extractor("s3d", weights="random").profile.dimension
        1024
    """
    torch_device = find_device(device)
    if precision not in PRECISIONS or (precision == "fp16" and torch_device.type == "cpu"):
        raise SettingError(
            "precision", repr(precision), f"on {torch_device}; expected fp32, bf16 or (only on a GPU) fp16"
        )
    if decoding not in DECODINGS or (decoding == NVDEC and torch_device.type != "cuda"):
        raise SettingError("decoding", decoding, f"on {torch_device}; expected exact or (only on an NVIDIA GPU) nvdec")
    name = ALIASES.get(name, name)
    if is_custom_encoder(name):
        own = read_custom_encoder(name)
        network, used = own.load()
        return _on_device(replace(own.profile, precision=precision, decoding=decoding), used, network, torch_device)
    if is_hub_name(name):
        return _load_hub_encoder(name, torch_device, precision, decoding)
    if name in WITHOUT_NETWORK:
        if weights not in NAMED:
            raise SettingError("weights", weights, f"{name} uses no network and no weights; omit --weights")
        profile = find_profile(name)
        if profile.is_shots and find_spec("scenedetect") is None:
            todo = install_command(*EXTRAS["shots"])
            raise UserError(f"features {name}: PySceneDetect is not installed; install it with: {todo}")
        return without_network(profile if profile.modality == "sound" else replace(profile, decoding=decoding))
    profile = replace(find_profile(name), precision=precision, decoding=decoding)
    if weights not in NAMED and (run := run_of(weights)) is not None:
        saved, network, used = load_tuned(run)
        if saved.profile.name != profile.name:
            problem = f"a run that tuned {saved.profile.name}; expected one that tuned {profile.name}"
            raise SettingError("weights", weights, problem)
        return _on_device(profile, used, network, torch_device)
    kind = MODELS[profile.name]
    network = kind.of_folder(Path(weights)) if Path(weights).is_dir() and weights not in NAMED else kind()
    network.eval().requires_grad_(False)
    if weights == "random":
        used = load_random(network, seed)
    else:
        path = published_weights(profile.weights) if weights == "pretrained" else Path(weights)
        used = load_published(network, path)
    return _on_device(profile, used, network.fold(), torch_device)


def without_network(profile: Profile) -> Extractor:
    """Return an extractor without a network, for frames, log-mel features or shots."""
    batch_size = max(FRAME_BATCH_BYTES // profile.dimension, 1) if profile.is_frames else 1
    return Extractor(profile, NO_WEIGHTS, None, torch.device("cpu"), batch_size)


def _load_hub_encoder(name: str, device: torch.device, precision: str, decoding: str) -> Extractor:
    encoder = HubEncoder.find(read_hub_name(name))
    if encoder.name.is_frames:
        return without_network(replace(encoder.profile, decoding=decoding))
    profile = replace(encoder.profile, precision=precision, decoding=decoding)
    network, used = load_hub_network(encoder)
    return _on_device(profile, used, network, device)


def load_hub_network(encoder: HubEncoder) -> tuple[Network, Weights]:
    """Return an encoder's network with its weights: the tuned weights if the encoder is in a run's folder."""
    if (run := run_of(encoder.files.folder.parent)) is not None and encoder.files.folder.name == TOWER_FOLDER:
        _, network, used = load_tuned(run)
        return network, used
    return encoder.load()


def load_for_store(profile: Profile, weights: Path, device: torch.device = CPU) -> Extractor:
    """Load the extractor that made a store.

    Args:
        profile: The store's profile.
        weights: File or folder of the weights that made it.
        device: Device of the network.

    Raises:
        UserError: The weights are missing or of another model.
    """
    if not is_of_hub(profile):
        extractor = load_extractor(profile.name, weights=weights, device=str(device), precision=profile.precision)
        return replace(extractor, profile=replace(extractor.profile, decoding=profile.decoding))
    encoder = HubEncoder.of_store(profile, weights)
    network, used = load_hub_network(encoder)
    made = replace(encoder.profile, precision=profile.precision, decoding=profile.decoding)
    return _on_device(made, used, network, device)


def _on_device(profile: Profile, used: Weights, network: Network, device: torch.device) -> Extractor:
    batch_size = network.batch_sizes["cpu" if device.type == "cpu" else "cuda"]
    return Extractor(profile, used, network.to(device, DTYPES[profile.precision]), device, batch_size)
