"""Encoders that transformers loads: any image or video model, as its authors published it.

The profile is derived from its configuration, its processor and a forward pass on the meta device. Nothing is guessed,
and no code from the hub is run. Features are the output of the model's own methods.
"""

import inspect
import itertools
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from ...storage.common.device import on_meta_device
from ...storage.common.errors import UserError, reason_of
from ...storage.common.packages import EXTRAS, install_command
from ...storage.hub.files import ModelFiles, find_files
from ...storage.hub.loading import (
    load_network,
    load_processor,
    load_text_processor,
    new_network,
    quiet_transformers,
    read_config,
)
from ...storage.hub.names import POOLINGS, HubName
from ...storage.profiles import frames_of
from ...storage.records import Profile, Weights
from ..decoding.kernels import Kernel
from ..models.network import Network
from . import METHODS, OWN_VECTOR, SHARED_WITH_TEXTS
from .image_processor import Preprocessing, preprocessing_of
from .text_preparation import BY_PIPELINE, NoTextRule, text_recipe, tokenizer_of

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

OWN_POOLING = {"timesformer": "first"}
"""{model type: the token that its authors' classifier reads}, for models that output tokens only. VideoMAE's
configuration has ``use_mean_pooling``. Source: transformers, ``TimesformerForVideoClassification``.
"""
IMAGE_FPS = 1
TEXT_PARTS = ("text_model", "text_projection", "logit_scale", "logit_bias")
"""Parts of two-tower models that image features do not depend on."""
LOAD_ERRORS = (OSError, ValueError, KeyError, TypeError, AttributeError, ImportError, RuntimeError, IndexError)
"""Errors that transformers raises if it cannot build a model from a configuration and weights."""


class HubNetwork(Network):
    """A model of transformers.

    ``forward``: normalised frames [B, 3, (T,) H, W] -> features [B, D], float32.
    """

    def __init__(self, model: nn.Module, pooling: str | None, *, is_video: bool) -> None:
        """Wrap a model. ``pooling`` is a key of ``POOLINGS``, or None for the model's own vector."""
        super().__init__()
        is_of_timm = type(model).__name__.startswith("TimmWrapper")
        self.libraries = ("transformers", "timm") if is_of_timm else ("transformers",)
        self.model, self._pooling, self._is_video = model, pooling, is_video
        self._method = next(name for name in METHODS if pixel_argument(model, name))
        self._input = pixel_argument(model, self._method)
        self.batch_sizes = {"cpu": 1, "cuda": 8} if is_video else {"cpu": 8, "cuda": 64}  # type: ignore[misc]

    @property
    def layer(self) -> str:
        """Description of the features, as in ``Profile.layer``."""
        if self._pooling is not None:
            return f"{self._method}, {POOLINGS[self._pooling]}"
        return f"{self._method}, {OWN_VECTOR}"

    def make_trainable(self) -> Network:
        """See ``Network.make_trainable``. The text tower and its scale are removed."""
        if self._method != "forward":
            for name in TEXT_PARTS:
                if hasattr(self.model, name):
                    setattr(self.model, name, None)
        return super().make_trainable()

    def forward(self, x: Tensor) -> Tensor:
        """See the class. Raises ``ValueError`` if the model lacks the output that ``pooling`` needs."""
        pixels = x.transpose(1, 2) if self._is_video else x
        output = getattr(self.model, self._method)(**{self._input: pixels})
        return self._vectors(output).to(torch.promote_types(x.dtype, torch.float32))

    def _vectors(self, output: Any) -> Tensor:
        own = output if isinstance(output, Tensor) else getattr(output, "pooler_output", None)
        if own is None:
            own = getattr(output, "summary", None)  # RADIO's name for it
        if self._pooling is None:
            if not isinstance(own, Tensor):  # a list of images' tokens
                own = None
            if own is not None and own.ndim == 3 and own.shape[1] == 1:  # VideoPrism's pooling has one query
                own = own[:, 0]
            if own is None or own.ndim != 2:
                raise ValueError("it gives tokens, not a vector; add :mean, :first or :tokens to its name")
            return own
        tokens = output if isinstance(output, Tensor) else getattr(output, "last_hidden_state", None)
        if tokens is not None and tokens.ndim == 4:  # a map [B, C, H, W]
            tokens = tokens.flatten(2).transpose(1, 2)
        if tokens is None or tokens.ndim != 3:
            raise ValueError("it gives no tokens; omit the option at the end of its name")
        if self._pooling == "mean":
            return tokens.mean(dim=1)
        return tokens[:, 0] if self._pooling == "first" else tokens.flatten(1)


def pixel_argument(model: nn.Module, method: str) -> str:
    """Return the name of a method's argument that takes images; empty if there is none."""
    parameters = inspect.signature(getattr(model, method, lambda: None)).parameters
    return next((name for name in parameters if name.startswith("pixel_values")), "")


@dataclass(frozen=True)
class HubEncoder:
    """A model by name, with its files on this machine."""

    name: HubName
    files: ModelFiles

    @classmethod
    def find(cls, name: HubName) -> "HubEncoder":
        """Find the files of a model. Raises ``UserError`` if there are none."""
        return cls(name, find_files(name))

    @classmethod
    def of_store(cls, profile: Profile, place: Path) -> "HubEncoder":
        """Return the encoder that made a store.

        Args:
            profile: Profile of the store.
            place: Folder of the model.

        Raises:
            UserError: The folder has another model.
        """
        model, _, revision = profile.weights.partition("@")
        where = model if revision else str(place)
        poolings = [None, *(pooling for pooling, words in POOLINGS.items() if words in profile.layer)]
        for pooling, fps in itertools.product(poolings, (None, profile.fps)):
            name = HubName(where, revision or None, pooling, fps, is_whole=profile.fps is None)
            if name.store == profile.name:
                return cls(name, ModelFiles(place, model, revision))
        raise UserError(
            f"weights {place}: another model; expected the folder of {profile.weights}, which made the features "
            f"{profile.name}"
        )

    @cached_property
    def profile(self) -> Profile:
        """The profile of its features.

        Raises:
            UserError: It is no image or video model, or its configuration does not define its features completely.
        """
        quiet_transformers()
        config = self._config()
        num_frames = _num_frames(config)
        try:
            with on_meta_device():
                network = self._network(new_network(config), config)
            images = self._preprocessing(num_frames)
            side = images.crop_px or images.short_side_px
            frames = () if num_frames is None else (num_frames,)
            dimension = 1
            if not self.name.is_frames:
                with torch.inference_mode():
                    dimension = network.eval()(torch.empty(1, 3, *frames, side, side, device="meta")).shape[1]
        except LOAD_ERRORS as error:
            raise self._refused(error) from None
        profile = Profile(
            name=self.name.store,
            model=f"{self.files.model} ({type(network.model).__name__})",
            weights=self.files.model + (f"@{self.files.revision}" if self.files.revision else ""),
            fps=self._fps(num_frames),
            window=num_frames or 1,
            stride=num_frames or 1,
            short_side_px=images.short_side_px,
            crop_px=images.crop_px,
            resize=images.resize,
            value_range="0..1",
            mean=images.mean,
            std=images.std,
            tail="none" if num_frames is None else "loop",
            layer=network.layer,
            dimension=dimension,
        )
        return self._frames_of(profile) if self.name.is_frames else profile

    def _frames_of(self, profile: Profile) -> Profile:
        """Return the profile of the model's frames. Raises ``UserError`` if a store cannot hold them."""
        if profile.side_px is None:
            problem = f"{self.files.model} takes frames of any size, which a store cannot hold"
        elif not Kernel.of(profile.resize).is_rounded:
            problem = f"{self.files.model} does not round its frames to bytes"
        else:
            return frames_of(profile, profile.name)
        features = replace(self.name, pooling=None).text
        raise UserError(f"features {self.name.text}: {problem}; train on its features, {features}")

    def new(self) -> HubNetwork:
        """Return the model with random weights.

        Raises:
            UserError: transformers cannot make it.
        """
        quiet_transformers()
        config = self._config()
        try:
            return self._network(new_network(config), config)
        except LOAD_ERRORS as error:
            raise self._refused(error) from None

    def load(self) -> tuple[HubNetwork, Weights]:
        """Return the model with its weights, in float32 on the CPU.

        Raises:
            UserError: The weights are missing, incomplete, or of a type that is not supported.
        """
        quiet_transformers()
        self.files.check_types()
        config = self._config()
        try:
            model, about = load_network(self.files, config, dtype=torch.float32)
        except LOAD_ERRORS as error:
            raise self._refused(error) from None
        missing = sorted(about["missing_keys"])
        if missing and self._pooling(config) is not None:
            missing = [key for key in missing if not key.startswith("pooler")]
        if missing:
            raise UserError(
                f"features {self.name.text}: its file lacks the weights of {len(missing)} parts of the model "
                f"({', '.join(missing[:2])}); if they only pool, add :mean or :first to its name"
            )
        network = self._network(model, config).eval().requires_grad_(False)
        network.texts = self._texts(network, config)
        return network, Weights(name=self.profile.weights, sha256=self.files.sha256())

    def _texts(self, network: HubNetwork, config: "PreTrainedConfig") -> str:
        """Return how texts must be prepared for these features; empty if the model has no text tower or no rule."""
        if network.layer not in SHARED_WITH_TEXTS:
            return ""
        try:
            tokenizer = tokenizer_of(load_text_processor(self.files))
            max_tokens = min(int(config.text_config.max_position_embeddings), int(tokenizer.model_max_length))
            return text_recipe(config, tokenizer).describe(max_tokens)
        except (NoTextRule, *LOAD_ERRORS):  # images need no tokenizer; a search by text reports the missing file
            return ""

    def _network(self, model: nn.Module, config: "PreTrainedConfig") -> HubNetwork:
        if not any(pixel_argument(model, method) for method in METHODS):
            raise ValueError(f"{type(model).__name__} takes no images")
        return HubNetwork(model, self._pooling(config), is_video=_num_frames(config) is not None)

    def _pooling(self, config: "PreTrainedConfig") -> str | None:
        if self.name.pooling is not None and not self.name.is_frames:
            return self.name.pooling
        if (by_mean := getattr(config, "use_mean_pooling", None)) is not None:
            return "mean" if by_mean else "first"
        return OWN_POOLING.get(config.model_type)

    def _fps(self, num_frames: int | None) -> float | None:
        if self.name.is_whole:
            if num_frames is None:
                raise UserError(f"features {self.name.text}: it takes one frame at a time; omit :whole")
            return None
        if self.name.fps is not None:
            return self.name.fps
        if num_frames is None:
            return IMAGE_FPS
        raise UserError(
            f"features {self.name.text}: it takes {num_frames} frames at a time, and its configuration states no "
            f"frame rate; add one to its name, such as {self.name.text}:8fps, or :whole to spread the frames over the "
            "whole video"
        )

    def _config(self) -> "PreTrainedConfig":
        from transformers import CONFIG_MAPPING, MODEL_MAPPING, __version__

        self.files.check_configuration()
        about = self.files.config
        is_of_timm = "model_type" not in about and "architecture" in about
        kind = "timm_wrapper" if is_of_timm else str(about.get("model_type"))[:80]
        if kind == "timm_wrapper" and find_spec("timm") is None:
            todo = install_command(*EXTRAS["timm"])
            raise UserError(f"features {self.name.text}: timm is not installed; install it with: {todo}")
        if kind not in CONFIG_MAPPING or ("auto_map" in about and CONFIG_MAPPING[kind] not in MODEL_MAPPING):
            own_code = "it needs its own code, which is never run" if "auto_map" in about else "its type is not known"
            raise UserError(
                f"features {self.name.text}: {own_code} (model_type {kind!r}, transformers {__version__}); expected a "
                "model that transformers itself has"
            )
        try:
            config = read_config(self.files)
        except LOAD_ERRORS as error:
            raise self._refused(error) from None
        if getattr(config, "model_args", None):  # newer timms write the number of classes there also
            config.model_args.pop("num_classes", None)
        return config

    def _preprocessing(self, num_frames: int | None) -> Preprocessing:
        """Return the preprocessing of the model's own processor. Raises ``ValueError`` if it cannot be determined."""
        processor = self._processor(is_video=num_frames is not None)

        def processed(frame: np.ndarray) -> np.ndarray:
            if num_frames is None:
                if hasattr(processor, "data_config"):  # timm's
                    return processor(images=frame)["pixel_values"][0].numpy()
                made = processor(images=frame, return_tensors="np", input_data_format="channels_last")
                return np.asarray(made["pixel_values"], dtype=np.float32)[0]
            made = processor([[frame] * num_frames], return_tensors="np")
            pixels = next(value for key, value in made.items() if key.startswith("pixel_values"))
            return np.asarray(pixels, dtype=np.float32)[0][0]

        return preprocessing_of(processor, processed)

    def _processor(self, *, is_video: bool) -> Any:
        kinds: list[Literal["image", "video"]] = ["image"]
        # the kind that the model's files name is tried first: the two differ in a few of a thousand pixels
        if is_video:
            kinds.insert(0 if self.files.names_video_processor() else 1, "video")
        reasons: list[str] = []
        for kind in kinds:
            try:
                return load_processor(self.files, kind)
            except LOAD_ERRORS as error:
                reasons.append(reason_of(error))
        raise ValueError(f"it has no image processor ({reasons[-1]}); expected a model of images or videos")

    def _refused(self, error: Exception) -> UserError:
        from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES

        reason, kind = reason_of(error), self.files.config.get("model_type")
        if kind in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES and kind not in BY_PIPELINE:
            reason = f"{kind} is a language model that sees images; expected an encoder of images, such as siglip2"
        return UserError(f"features {self.name.text}: {self.files.model} cannot be used: {reason}")


def _num_frames(config: "PreTrainedConfig") -> int | None:
    """Return the number of frames in a video model's input; None for an image model."""
    for part in (config, getattr(config, "vision_config", None)):
        for name in ("num_frames", "frames_per_clip"):
            value = getattr(part, name, None)
            if isinstance(value, int) and value > 0:
                return value
    return None
