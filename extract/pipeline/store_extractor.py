"""The extractor for a store: its weights must equal the weights that made the store."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from ...storage.common.device import AUTO, parse_devices
from ...storage.common.errors import UserError
from ...storage.common.terminal import say
from ...storage.hub.files import find_files
from ...storage.hub.names import is_hub_name, read_hub_name
from ...storage.profiles import BUILT_IN, WITHOUT_NETWORK
from ...storage.records import EXACT
from ...storage.shards import Provenance
from ...storage.stores.opening import open_features_writer
from ...storage.stores.store import StoreWriter
from ..encoders.custom import is_custom_encoder
from ..encoders.weights_paths import remember_weights
from ..extractor import NAMED, Extractor, load_extractor
from ..models.weights import published_weights
from ..settings import PRETRAINED, ExtractionSettings, WorkerSettings
from .store_mismatch import DEMO, OWN_NAME, mismatch

MAX_DIFFERENCE = {"fp32": 1e-3, "bf16": 5e-2, "fp16": 1e-2}
"""Maximum difference between the features of two devices, relative to their norm."""


def make_extractor(worker: WorkerSettings, name: str) -> Extractor:
    """Load the extractor for a data set's store.

    For the data set "demo", random weights replace published ones that cannot be downloaded.

    Args:
        worker: The data set, the weights of the features, and how to compute them.
        name: Name of the features, one of ``worker.weights``.

    Raises:
        UserError: The weights are missing or wrong, or the store was made with other weights.
    """
    dataset, weights = worker.dataset, worker.weights[name]
    load = partial(load_extractor, device=worker.device, precision=worker.precision, decoding=worker.decoding)
    writer = open_features_writer(dataset, name)
    stored = writer.provenance()
    if is_custom_encoder(weights) or is_hub_name(weights):
        extractor = load(weights)
        _check_store(writer, stored, extractor)
        if is_hub_name(weights) and extractor.network is not None:
            remember_weights(extractor.weights, find_files(read_hub_name(weights)).folder)
        return extractor
    if weights == PRETRAINED and dataset.name == DEMO and name not in WITHOUT_NETWORK:
        if stored and stored.weights.is_random:
            weights = "random"
        else:
            try:
                published_weights(BUILT_IN[name].weights)
            except UserError as error:
                say(f"note: {error}")
                say(
                    f"note: the demo continues with seeded random weights for {name}; its results only show that "
                    "all parts work"
                )
                weights = "random"
    extractor = load(name, weights=weights)
    _check_store(writer, stored, extractor)
    if weights not in NAMED:
        remember_weights(extractor.weights, Path(weights))
    return extractor


def make_extractors(worker: WorkerSettings) -> dict[str, Extractor]:
    """Load the extractors of a worker, {features: extractor}; see ``make_extractor``."""
    return {name: make_extractor(worker, name) for name in worker.weights}


def choose_devices(settings: ExtractionSettings, weights: Mapping[str, str]) -> list[str]:
    """Return the names of the devices that extract features with ``weights``, {features: weights}.

    Apple's GPU is chosen only if its features equal the CPU's.
    """
    devices = parse_devices(settings.device, apple=True)
    if settings.device != AUTO or devices != ["mps"]:
        return devices
    apple = replace(settings.for_worker(weights, "mps"), decoding=EXACT)
    there = make_extractors(apple)
    here = make_extractors(replace(apple, device="cpu", precision="bf16" if apple.precision == "bf16" else "fp32"))
    other = [name for name in weights if not has_features_of(there[name], here[name])]
    if other:
        say(f"note: Apple's GPU is not used, since its features differ from the CPU's for {', '.join(other)}")
    return ["cpu"] if other else devices


def has_features_of(extractor: Extractor, other: Extractor) -> bool:
    """Return whether two extractors on different devices compute the same features, apart from rounding.

    They are compared on one window of noise. An operator that a device lacks counts as a difference.
    """
    profile = extractor.profile
    if extractor.network is None:
        return True
    side = profile.crop_px or profile.short_side_px
    shape = (1, *([] if profile.window == 1 else [profile.window]), side, side, 3)
    frames = torch.randint(0, 256, shape, generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    frames = frames.to(extractor.frame_dtype)
    try:
        found = extractor.features(frames)
    except (RuntimeError, NotImplementedError, TypeError):
        return False
    expected = other.features(frames)
    return bool((found - expected).norm() <= MAX_DIFFERENCE[profile.precision] * expected.norm())


def _check_store(writer: StoreWriter, stored: Provenance | None, extractor: Extractor) -> None:
    asked = extractor.profile, extractor.weights
    if stored and (found := mismatch((stored.profile, stored.weights), asked)):
        other = "" if extractor.profile.name in BUILT_IN else f"{OWN_NAME}, "
        raise UserError(
            f"{writer.where}: {found}; a store has the features of one profile and its weights: pass the same options "
            f"and --weights, or use {other}another --root, or remove that folder"
        )
