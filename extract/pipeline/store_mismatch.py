"""Compare the profile and weights of a call with those that made its stores. Heavy imports are deferred."""

from collections.abc import Mapping
from dataclasses import asdict, replace
from functools import lru_cache
from pathlib import Path

from ...storage.common.errors import UserError
from ...storage.common.files import read_json, sha256_of
from ...storage.common.user_state import cache_folder
from ...storage.hub.names import TOWER_FOLDER, is_hub_name, read_hub_name
from ...storage.profiles import BUILT_IN, WITHOUT_NETWORK
from ...storage.records import Profile, Weights
from ...storage.stores.store import Store
from ..encoders.custom import is_custom_encoder, read_custom_encoder
from ..settings import PRETRAINED, ExtractionSettings

DEMO = "demo"
"""The only data set that falls back to random weights if the published ones cannot be downloaded."""
TENSORS_FILE = "model.safetensors"
MAX_FIELDS = 3
"""Maximum number of differing fields of a profile in a message."""
OWN_NAME = "another 'name' in your profile"
"""A way to keep the features of two custom encoders."""


def mismatch(stored: tuple[Profile, Weights], asked: tuple[Profile, Weights]) -> str:
    """Return how the profile and weights of a store differ from a call's, in words; empty if they are equal."""
    before, now = asdict(stored[0]), asdict(asked[0])
    fields = [field for field in now if before[field] != now[field]]
    more = f", and {len(fields) - MAX_FIELDS} more fields of the profile" if len(fields) > MAX_FIELDS else ""
    made = [f"{field} {before[field]}" for field in fields[:MAX_FIELDS]]
    given = [f"{field} {now[field]}" for field in fields[:MAX_FIELDS]]
    if stored[1] != asked[1]:
        made.append(_describe(stored[1]))
        given.append(_describe(asked[1]))
    return f"was made with {', '.join(made)}, but this call has {', '.join(given)}{more}" if made else ""


def mismatch_notes(settings: ExtractionSettings, stores: Mapping[str, Store]) -> list[str]:
    """Return a line for each store that was made with another profile or other weights than the call has.

    An extraction compares them itself; these are for stores that already have all features. The newest revision of a
    model on the hub is not looked up.
    """
    notes = []
    for name, store in stores.items():
        encoder = settings.encoders[name]
        try:
            asked = _profile(settings, name, store.profile), _weights(settings, name, store)
            found = mismatch((store.profile, store.weights), asked)
        except UserError as error:
            notes.append(f"{error}; not needed now, since no video lacks features {name}")
            continue
        if found:
            other = f"{OWN_NAME}, " if is_custom_encoder(encoder) else ""
            todo = f"to extract again, use {other}another --root, or remove that folder"
            notes.append(f"{store.where}: {found}; no video lacks these features, so they stay as they are; {todo}")
    return notes


def _describe(weights: Weights) -> str:
    return f"weights {weights.name}" + (f" (SHA-256 {weights.sha256[:12]}...)" if weights.sha256 else "")


def _profile(settings: ExtractionSettings, name: str, stored: Profile) -> Profile:
    """Return the profile of features in this call. Of a library's encoder, only options are compared."""
    encoder = settings.encoders[name]
    own = read_custom_encoder(encoder).profile if is_custom_encoder(encoder) else None
    profile = own or BUILT_IN.get(name, stored)
    if profile.modality == "sound" or profile.is_shots:
        return profile
    profile = replace(profile, decoding=settings.decoding)
    return profile if profile.is_frames else replace(profile, precision=settings.precision)


def _weights(settings: ExtractionSettings, name: str, store: Store) -> Weights:
    """Return the weights of features in this call, or the store's if they cannot be told apart."""
    encoder, used = settings.encoders[name], store.weights
    if name in WITHOUT_NETWORK or store.profile.is_frames:
        return used
    if is_custom_encoder(encoder):
        own = read_custom_encoder(encoder)
        module = own.path.parent / f"{own.module.replace('.', '/')}.py"
        return _custom_weights(encoder, _versions(own.path, module, *filter(None, [own.weights])))
    if is_hub_name(encoder):
        hub = read_hub_name(encoder)
        if not hub.is_folder:
            return used
        from ...storage.hub.files import find_files  # imports safetensors

        files = find_files(hub)
        tuned = files.folder.parent / TENSORS_FILE
        paths = [tuned] if files.folder.name == TOWER_FOLDER and tuned.is_file() else files.weights
        sha256 = _sha256(_versions(*paths)) if len(paths) == 1 else files.sha256()
        return replace(used, sha256=sha256)
    chosen = settings.weights_of(name)
    if chosen == "random":
        return used if used.is_random else Weights(name="random (seed 0)", sha256="")
    if chosen == PRETRAINED:
        return used if settings.folder.name == DEMO and used.is_random else _published(BUILT_IN[name].weights, used)
    given = Path(chosen)
    path = given / TENSORS_FILE if given.is_dir() else given
    if not path.is_file():
        raise UserError(f"weights {path}: no such file; expected the model's file or folder")
    is_tuned = (given / TOWER_FOLDER).is_dir()
    title = given.absolute().name
    return Weights(name=f"{title}/{TENSORS_FILE}" if is_tuned else title, sha256=_sha256(_versions(path)))


def _published(name: str, used: Weights) -> Weights:
    """Return a published file of weights; with the store's SHA-256 if the file was never on this machine."""
    try:
        pins = cache_folder("weights") / "sha256.json"
        sha256 = read_json(pins).get(name) if pins.is_file() else None
    except UserError:  # no home folder
        sha256 = None
    return Weights(name=name, sha256=sha256 or (used.sha256 if used.name == name else ""))


Versions = tuple[tuple[Path, int, int], ...]
"""(path, size, time of modification) of files: repeated syncs read large files only once."""


def _versions(*paths: Path) -> Versions:
    existing = [(path, path.stat()) for path in paths if path.is_file()]
    return tuple((path, about.st_size, about.st_mtime_ns) for path, about in existing)


@lru_cache(maxsize=16)
def _sha256(file: Versions) -> str:
    return sha256_of(file[0][0])


@lru_cache(maxsize=16)
def _custom_weights(encoder: str, files: Versions) -> Weights:
    return read_custom_encoder(encoder).load()[1]
