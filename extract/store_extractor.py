"""The extractor for a store: its weights must be those that the store was made with so far."""

from pathlib import Path

from ..storage.common.errors import UserError
from ..storage.common.terminal import say
from ..storage.hub_names import is_hub_name, read_hub_name
from ..storage.layout import DatasetFolder
from ..storage.profiles import PROFILES
from ..storage.shards import Shard, read_shard
from ..storage.store_folder import shard_files
from .encoders.files import find_files
from .encoders.own import is_own_encoder
from .extractor import NAMED, Extractor, load_extractor
from .settings import PRETRAINED
from .weights import published_weights
from .weights_place import remember_place

DEMO = "demo"
"""The one data set that falls back to random weights if the published ones cannot be downloaded."""


def first_shard(dataset: DatasetFolder, features: str) -> Shard | None:
    """Return one shard of a store, which says how the whole store was made; None if there is none."""
    return next(map(read_shard, shard_files(dataset.features(features))), None)


def make_extractor(
    dataset: DatasetFolder, name: str, weights: str, *, device: str = "cpu", precision: str = "fp32"
) -> Extractor:
    """Load the extractor for a data set's store.

    For the data set "demo", random weights stand in for published ones that cannot be downloaded.

    Args:
        dataset: The data set.
        name: Name of the features.
        weights: A file, "pretrained" or "random"; or an encoder of a library, such as "hf:ORG/MODEL".
        device: "cpu", "cuda" or "cuda:N".
        precision: "fp32", "bf16" or, on a GPU, "fp16".

    Raises:
        UserError: The weights are missing or wrong, or the store was made with other weights.
    """
    shard = first_shard(dataset, name)
    if is_own_encoder(weights) or is_hub_name(weights):
        extractor = load_extractor(weights, device=device, precision=precision)
        _check_store(shard, extractor)
        if is_hub_name(weights):
            remember_place(extractor.weights, find_files(read_hub_name(weights)).folder)
        return extractor
    if weights == PRETRAINED and dataset.name == DEMO and PROFILES[name].modality == "pictures":
        if shard and shard.weights.is_random:
            weights = "random"
        else:
            try:
                published_weights(PROFILES[name].weights)
            except UserError as error:
                say(f"note: {error}")
                say(
                    f"note: the demo goes on with seeded random weights for {name}; its numbers show that all parts "
                    "work, no more"
                )
                weights = "random"
    extractor = load_extractor(name, weights=weights, device=device, precision=precision)
    _check_store(shard, extractor)
    if weights not in NAMED:
        remember_place(extractor.weights, Path(weights))
    return extractor


def _check_store(shard: Shard | None, extractor: Extractor) -> None:
    if shard and (shard.profile, shard.weights) != (extractor.profile, extractor.weights):
        raise UserError(
            f"{shard.path.parent}: was made with profile {shard.profile.hash} and weights {shard.weights.name}, "
            f"now asked for: profile {extractor.profile.hash} and {extractor.weights.name}; pass the same --weights, "
            "another --root, or remove that folder"
        )
