"""A run's JSON files: its sources, settings and results. Heavy imports are deferred.

Files are not trusted: each value that is used is checked for its type.
"""

import importlib.metadata
import json
import math
import platform
from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from typing import Any, TypedDict

from ...storage.captions.files import read_captions_about
from ...storage.common.errors import SettingError, UserError
from ...storage.common.files import check_regular, read_json, read_jsonl, write_json
from ...storage.common.packages import package_version
from ...storage.common.plugins import PluginFacts
from ...storage.common.settings import types_of
from ...storage.common.terminal import one_line, say
from ...storage.common.validation import DATASET_NAME, is_text
from ...storage.dataset.folder import DatasetFolder
from ...storage.profiles import LOGMEL
from ...storage.records import Profile, Weights
from ...storage.shards import EXTRACTED, UNKNOWN_FACTS
from ...storage.stores.memory_store import MemoryStore
from ...storage.stores.opening import feature_names, open_features
from ...storage.stores.store import Store
from ..data.stores import StoreFacts, StoreOrigin, Stores, facts_of, open_stores
from ..objectives import DEFAULT_OBJECTIVE, objectives
from ..recipes.own_parts import facts_of_plugins, load_from_file
from ..recipes.train_config import TrainConfig, setting_types
from ..settings import FeatureRows
from ..untrusted_files import sha256_of_tensors
from .files import EVENTS_FILE, LABELS_FILE, MODEL_FILE, RUN_FILE

STORE_FIELDS = ("features", "profile_hash", "weights", "weights_sha256", "origin")
RENAMED_SETTINGS = {"held_out": "validation_share", "average": "ema_decay"}
"""{name of a setting in runs of earlier versions: its name now}"""
SETTINGS_BEFORE = {"idf": "tag", "density_vectors": "centered", "bag": "trained"}
"""{setting that runs of earlier versions lack, and whose default has changed: its earlier behaviour}"""
MAX_LOSS_TERMS = 64
"""Upper limit of the terms of a loss."""


class InitFacts(TypedDict):
    """The run whose model a training started from."""

    run: str
    model_sha256: str


class _OptionalInputs(TypedDict, total=False):
    init: InitFacts
    recordings: StoreFacts
    extra: list[StoreFacts]
    """The stores of custom inputs."""
    plugins: dict[str, PluginFacts]
    """The objective and the encoder, if they are custom."""


class RunInputs(_OptionalInputs):
    """The inputs of a run, as in ``run.json``. They tell runs on different data apart."""

    captions: dict[str, Any] | None
    """The note ``about.json`` of the captions."""
    features: list[StoreFacts]


def open_run_stores(dataset: DatasetFolder, config: TrainConfig) -> Stores:
    """Open the stores that a run with these settings reads.

    Raises:
        UserError: A store is missing or damaged.
    """
    extra = [of.features for of in config.extra.values() if isinstance(of, FeatureRows)]
    recordings = not config.model.encoder_traits.reads_words
    return open_stores(dataset, config.data.features, recordings=recordings, extra=extra)


def find_run_stores(dataset: DatasetFolder, run_name: str, about: Mapping[str, Any]) -> Stores:
    """Open the stores of a data set that have the features of a run, whatever the names of their folders.

    A store has the features if its profile and the SHA-256 of its weights equal the run's. The folder with the name
    from training is tried first.

    Args:
        dataset: The data set.
        run_name: Name of the run.
        about: Its ``run.json``.

    Raises:
        UserError: No store has the features; the message names the wanted features and the stores that exist.
    """
    config, inputs = read_config(about), about["inputs"]
    names = config.data.features.split("+")
    stores = [
        _find_store(dataset, name, facts, run_name) for name, facts in zip(names, inputs["features"], strict=True)
    ]
    own = sorted({of.features for of in config.extra.values() if isinstance(of, FeatureRows)})
    extra = {
        name: _find_store(dataset, name, facts, run_name)
        for name, facts in zip(own, inputs.get("extra", []), strict=True)
    }
    if config.model.encoder_traits.reads_words:
        return Stores(stores, extra=extra)
    if "recordings" in inputs:
        return Stores(stores, _find_store(dataset, LOGMEL, inputs["recordings"], run_name), extra)
    return Stores(stores, open_stores(dataset, LOGMEL).features[0], extra)  # earlier versions did not record it


def _find_store(dataset: DatasetFolder, name: str, wanted: Mapping[str, str], run_name: str) -> Store:
    """Return the store that has the features ``wanted`` (``StoreFacts``); see ``find_run_stores``."""
    folder, there = dataset.path / "features", list[str]()
    names = feature_names(dataset)  # a name out of run.json is compared with these, and opens nothing itself
    if not names and DATASET_NAME.fullmatch(name):
        return open_features(dataset, name)  # raises an error with a remedy
    for candidate in sorted(names, key=lambda candidate: candidate != name):
        try:
            store = open_features(dataset, candidate)
        except UserError:
            if candidate == name:
                raise
            there.append(f"{candidate} (not readable)")
            continue
        # Features of unknown weights are distinguished only by the names of their folders.
        if has_features(store, wanted) and (candidate == name or store.weights.sha256):
            if candidate != name:
                say(f"note: {store.where} has the features {name} of the run {run_name}: the same profile and weights")
            return store
        there.append(f"{candidate} (profile {store.profile.hash}, weights {store.weights.name})")
    raise UserError(
        f"{folder}: no store has the features {name} that run {run_name} was trained on (profile "
        f"{wanted['profile_hash']}, weights {wanted['weights']} with SHA-256 {wanted['weights_sha256'] or 'unknown'}); "
        f"found: {', '.join(there) or 'none'}; extract {dataset.name} with that profile and weights, or train a new run"
    )


def has_features(store: Store, wanted: Mapping[str, str]) -> bool:
    """Return whether a store has the profile and the weights of ``StoreFacts``."""
    return (store.profile.hash, store.weights.sha256) == (wanted["profile_hash"], wanted["weights_sha256"])


def is_exported(about: Mapping[str, Any]) -> bool:
    """Return whether a run was exported, by its ``run.json``. An exported run has no data set of its own."""
    return "exported" in about


def exported_stores(about: Mapping[str, Any]) -> Stores:
    """Return empty stores with the profiles and weights of an exported run's features."""
    exported, inputs = about["exported"], about["inputs"]
    features = [_empty_store(*both) for both in zip(exported["profiles"], inputs["features"], strict=True)]
    recordings = exported.get("recordings")
    return Stores(features, None if recordings is None else _empty_store(recordings, inputs["recordings"]))


def _empty_store(profile: Mapping[str, Any], facts: Mapping[str, str]) -> MemoryStore:
    weights = Weights(name=facts["weights"], sha256=facts["weights_sha256"])
    return MemoryStore(Profile.from_json(json.dumps(profile)), weights, [], origin=facts["origin"])


def describe_inputs(
    dataset: DatasetFolder, stores: Stores, init: Path | None = None, *, config: TrainConfig
) -> RunInputs:
    """Return the inputs that distinguish a run from runs on other data.

    Args:
        dataset: Data set with the captions.
        stores: The stores that the run reads.
        init: Folder of the run whose model training starts from.
        config: The run's settings, which may name a custom objective or encoder.
    """
    inputs: RunInputs = {
        "captions": read_captions_about(dataset.captions),
        "features": [*map(facts_of, stores.features)],
    }
    if init is not None:
        inputs["init"] = {"run": init.name, "model_sha256": sha256_of_tensors(init / MODEL_FILE)}
    if stores.recordings is not None:
        inputs["recordings"] = facts_of(stores.recordings)
    if stores.extra:
        inputs["extra"] = [*map(facts_of, stores.extra.values())]
    if plugins := facts_of_plugins(config):
        inputs["plugins"] = plugins
    return inputs


def describe_software() -> dict[str, str]:
    """Return the versions of Python and of the packages that affect a run's results."""
    versions = {name: importlib.metadata.version(name) for name in ("torch", "transformers", "numpy")}
    return {"vlalign": package_version()} | versions | {"python": platform.python_version()}


def save_run(folder: Path, config: TrainConfig, inputs: RunInputs, result: dict[str, Any]) -> None:
    """Write ``run.json``, last of all files: a folder with it is a finished run.

    Args:
        folder: The run's folder.
        config: Its settings.
        inputs: Result of ``describe_inputs``.
        result: The best validation, and how the training went.
    """
    write_json(
        folder / RUN_FILE,
        {"config": config.flat(), "inputs": inputs, "result": result, "software": describe_software()},
    )


class UnknownRun(UserError):
    """A run with unknown settings, from another version or with a custom objective."""


def read_run(folder: Path) -> dict[str, Any]:
    """Return the content of ``run.json``.

    Raises:
        UserError: It cannot be read, or the folder has an entry that is neither file nor folder.
    """
    for path in folder.rglob("*"):  # libraries open some of them by name
        check_regular(path)
    try:
        about = read_json(folder / RUN_FILE)
        if isinstance(about, dict) and isinstance(about.get("config"), dict):
            _load_own_parts(about["config"], folder / RUN_FILE)
        check_run(about)
    except UnknownRun as error:
        raise UnknownRun(f"{folder / RUN_FILE}: {one_line(str(error))}") from None
    except SettingError as error:
        if error.setting == "trust":
            raise
        raise UserError(f"{folder / RUN_FILE}: not readable ({one_line(str(error))}); train the run again") from None
    except (OSError, ValueError, TypeError, RecursionError, UserError) as error:
        raise UserError(f"{folder / RUN_FILE}: not readable ({one_line(str(error))}); train the run again") from None
    if is_exported(about):  # a stranger's link could lead to any file
        for path in folder.rglob("*"):
            if path.is_symlink():
                raise UserError(
                    f"{path}: is a symbolic link; expected a file or a folder; copy the exported run without links"
                )
    return about


def _load_own_parts(config: dict[str, Any], path: Path) -> None:
    """Load the run's custom objective and encoder.

    Raises:
        SettingError: A module is not trusted.
        UnknownRun: A part cannot be loaded.
    """
    try:
        load_from_file(config, path)
    except SettingError:
        raise
    except UserError as error:
        raise UnknownRun(f"{error}; the run was trained with it") from None


def check_run(about: Any) -> None:
    """Raise ``ValueError`` if ``run.json`` lacks something or has a value of another type."""
    _expect(isinstance(about, dict), "not an object")
    for part in ("config", "inputs", "result", "software"):
        _expect(isinstance(about.get(part), dict), f"{part} is not an object")
    config, stores = read_config(about), about["inputs"].get("features")
    _expect(
        isinstance(stores, list) and all(isinstance(store, dict) for store in stores),
        "inputs.features is not a list of objects",
    )
    _expect(
        DATASET_NAME.fullmatch(config.data.dataset) is not None,
        f"config.dataset: {config.data.dataset!r} names no data set",
    )
    own = about["inputs"].get("extra", [])
    _expect(isinstance(own, list) and all(isinstance(of, dict) for of in own), "inputs.extra is not a list of objects")
    num_own = len({of.features for of in config.extra.values() if isinstance(of, FeatureRows)})
    _expect(len(own) == num_own, f"inputs.extra has {len(own)} stores; its objective and encoder read {num_own}")
    num_expected = len(config.data.features.split("+"))
    _expect(
        len(stores) == num_expected,
        f"inputs.features has {len(stores)} stores; config.features {config.data.features}",
    )
    plugins = about["inputs"].get("plugins", {})
    _expect(
        isinstance(plugins, dict) and all(isinstance(facts, dict) for facts in plugins.values()),
        "inputs.plugins is not an object of objects",
    )
    for name in PluginFacts.__annotations__:
        _expect(
            all(isinstance(facts.get(name), str) for facts in plugins.values()), f"inputs.plugins: {name} is not text"
        )
    for name in STORE_FIELDS:
        _expect(all(isinstance(store.get(name), str) for store in stores), f"inputs.features: {name} is not text")
        _expect(all(isinstance(store.get(name), str) for store in own), f"inputs.extra: {name} is not text")
    if is_exported(about):
        _check_exported(about)
    best = about["result"].get("best")
    _expect(isinstance(best, dict) and isinstance(best.get("step"), int), "result.best has no step")
    _expect(
        all(value is None or _is_number(value) for value in best.values()),
        "result.best has values that are not finite numbers",
    )
    weights = about["result"].get("stage_weights", {})
    _expect(isinstance(weights, dict), "result.stage_weights is not an object")
    _expect(weights.keys() <= config.score_weights.keys(), "result.stage_weights names other stages than the run's")
    _expect(all(map(_is_number, weights.values())), "result.stage_weights has values that are not finite numbers")
    tried = about["result"].get("stage_weights_tried", [])
    _expect(
        isinstance(tried, list) and all(_is_trial(trial, config.score_weights.keys()) for trial in tried),
        "result.stage_weights_tried is not a list of weights of the run's stages with their figures",
    )
    json.dumps(about, ensure_ascii=False).encode()  # raises for text that no encoding can hold


def _check_exported(about: Mapping[str, Any]) -> None:
    """Raise ``ValueError`` if an exported run's profiles do not match its features."""
    exported, inputs = about["exported"], about["inputs"]
    if not isinstance(exported, dict) or not isinstance(profiles := exported.get("profiles"), list):
        raise ValueError("exported.profiles is not a list")
    _expect(not inputs.get("extra"), "inputs.extra: an exported run reads no store besides its features")
    facts = [*inputs["features"]]
    if "recordings" in exported:
        profiles, facts = [*profiles, exported["recordings"]], [*facts, inputs.get("recordings")]
    _expect(len(profiles) == len(facts), "exported.profiles and inputs.features have different lengths")
    for profile, of_store in zip(profiles, facts, strict=True):
        _expect(isinstance(profile, dict) and isinstance(of_store, dict), "exported: a profile is not an object")
        _expect(all(isinstance(of_store.get(name), str) for name in STORE_FIELDS), "inputs: a store's fact is not text")
        _expect(not (faults := Profile.faults(profile)), f"exported: a profile's {'; '.join(faults)[:100]}")
        _expect(
            Profile.from_json(json.dumps(profile)).hash == of_store["profile_hash"],
            "exported: a profile is not that of the run's features",
        )


def read_config(about: Mapping[str, Any]) -> TrainConfig:
    """Return the configuration in ``run.json``.

    Raises:
        UnknownRun: The objective or a setting does not exist.
        ValueError: A setting has another type.
        UserError: A value cannot be used.
    """
    written: dict[str, Any] = about["config"]
    settings = {RENAMED_SETTINGS.get(name, name): value for name, value in written.items()}
    name = settings.get("objective", DEFAULT_OBJECTIVE)
    _expect(isinstance(name, str), "config.objective is not text")
    if name not in objectives():
        raise UnknownRun(_unknown("objective", name, f"it knows {', '.join(objectives())}"))
    of_objective = types_of(objectives()[name])
    types = setting_types() | of_objective
    for name, value in settings.items():
        if name not in types:
            raise UnknownRun(_unknown("setting", name, "another version wrote it"))
        expected = types[name]
        is_type = isinstance(value, expected) and not (isinstance(value, bool) and expected is not bool)
        _expect(is_type or (expected is float and _is_number(value)), f"config.{name}: expected {expected.__name__}")
    before = {key: value for key, value in SETTINGS_BEFORE.items() if of_objective.get(key) is str}
    config = TrainConfig.from_flat(before | settings)
    ignored = before.keys() & config.ignored_settings().keys() - settings.keys()
    return (
        TrainConfig.from_flat({k: v for k, v in before.items() if k not in ignored} | settings) if ignored else config
    )


def _unknown(what: str, name: str, why: str) -> str:
    return f"this version does not know its {what} '{one_line(name)[:80]}' ({why}); use the version that trained it"


def is_edited(before: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Return whether the custom parts of two runs' inputs have the same names but different code."""

    def plugins(inputs: Mapping[str, Any], *names: str) -> dict[str, list[Any]]:
        parts = inputs.get("plugins")
        parts = parts.items() if isinstance(parts, dict) else ()
        return {setting: [facts.get(name) for name in names] for setting, facts in parts if isinstance(facts, dict)}

    code = "module", "sha256"
    return plugins(before, "name") == plugins(now, "name") and plugins(before, *code) != plugins(now, *code)


def is_trained(folder: Path, config: TrainConfig, inputs: RunInputs) -> bool:
    """Return whether ``folder`` holds a finished run with these settings and inputs.

    Raises:
        UserError: It holds another finished run.
    """
    if not (folder / RUN_FILE).exists():
        return False
    about = read_run(folder)
    if about["inputs"] == inputs and read_config(about) == config:
        return True
    what = "another version of your own module" if is_edited(about["inputs"], inputs) else "other settings or data"
    raise UserError(f"{folder}: has a finished run with {what}; pass another --run-name NAME, or remove the folder")


def features_note(stores: Sequence[StoreOrigin]) -> str | None:
    """Return the note to show with all numbers of a run whose features are imported or of random weights; else None."""
    notes = []
    random = " and ".join(dict.fromkeys(s["features"] for s in stores if s["weights"].startswith("random")))
    imported = " and ".join(dict.fromkeys(s["features"] for s in stores if s["origin"] != EXTRACTED))
    if random:
        notes.append(
            f"Features {random} come from seeded random weights, not from published ones: the numbers show that all "
            "parts work."
        )
    if imported:
        notes.append(f"Features {imported} were imported: their settings were stated at the import, and not checked.")
    for store in stores:
        if unknown := store["origin"].partition(UNKNOWN_FACTS)[2]:
            notes.append(f"Unknown facts about {store['features']}: {unknown}.")
    return " ".join(dict.fromkeys(notes)) or None


def read_labels(folder: Path) -> list[str]:
    """Return the possible answers or labels of a run; empty if they are not a fixed list.

    Raises:
        UserError: The file cannot be read.
    """
    path = folder / LABELS_FILE
    labels = read_json(path) if path.exists() else []
    if not isinstance(labels, list) or not all(map(is_text, labels)):
        raise UserError(f"{path}: expected a list of labels; train the run again")
    return labels


def score_weights(about: Mapping[str, Any], config: TrainConfig) -> dict[str, float]:
    """Return the weight of each stage of a run's score: as validation chose them, or else as the settings say."""
    return config.score_weights | about["result"].get("stage_weights", {})


def read_events(path: Path) -> list[dict[str, Any]]:
    """Return the numbers of each step of a training, each a number or None.

    Raises:
        UserError: The file is not such a log.
    """
    events = read_jsonl(path)
    wrong = f"{path}: not a valid log of a training; train the run again"
    if not events or len(events[0]) > MAX_LOSS_TERMS:
        raise UserError(wrong)
    for event in events:
        if not isinstance(event.get("step"), int) or not all(
            value is None or _is_number(value) for value in event.values()
        ):
            raise UserError(wrong)
    return events


def read_figures(folder: Path) -> tuple[dict[str, float], dict[str, float]]:
    """Return the logged figures of two steps of a finished run: the step of the saved model, and the last one.

    Without the log, only the best step's figures in ``run.json`` are available.

    Raises:
        UserError: A file cannot be read.
    """
    best, path = read_run(folder)["result"]["best"], folder / EVENTS_FILE
    events = read_events(path) if path.exists() else []
    of_best = next((event for event in events if event["step"] == best["step"]), best)
    figures = (of_best, events[-1] if events else {})
    best_figures, last_figures = ({name: v for name, v in of_step.items() if v is not None} for of_step in figures)
    return best_figures, last_figures


def _expect(holds: bool, otherwise: str) -> None:
    if not holds:
        raise ValueError(one_line(otherwise)[:200])


def _is_trial(trial: Any, stages: Set[str]) -> bool:
    """Return whether a value is a ``TriedWeights`` of these stages."""
    if not isinstance(trial, dict) or not isinstance(weights := trial.get("weights"), dict):
        return False
    figures = [trial.get("recall"), trial.get("mean_reciprocal_rank"), *weights.values()]
    return weights.keys() == stages and all(map(_is_number, figures))


def _is_number(value: Any) -> bool:
    try:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:  # an int too large for a float
        return False
