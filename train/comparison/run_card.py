"""The card of an exported run: ``README.md``, for model hubs and for people."""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import yaml

from ...storage.common.terminal import one_line
from ...storage.profiles import BUILT_IN
from ...storage.shards import EXTRACTED
from ...storage.stores.store import Store
from ..data.stores import Stores
from ..data.text_inputs import WORD_LIST_FILE, WORD_VECTORS_FILE
from ..evaluation import TASKS
from ..recipes.departures import departures_of
from ..recipes.own_parts import plugins_of
from ..recipes.train_config import TrainConfig
from ..runs.files import (
    CARD_FILE,
    EVENTS_FILE,
    IDF_FILE,
    LABELS_FILE,
    METRICS_FILE,
    MODEL_FILE,
    RUN_FILE,
    TEXT_FOLDER,
    VIDEO_FOLDER,
)
from ..runs.folder import changed_settings
from ..runs.run_json import features_note
from .run_metrics import RunMetrics

UNKNOWN = "not known"
FILES = {
    RUN_FILE: "settings, profiles and checksums of the features, and how the training went",
    MODEL_FILE: "the weights",
    f"{TEXT_FOLDER}/": f"the inputs of the text encoder: a tokenizer, {WORD_LIST_FILE} or {WORD_VECTORS_FILE}",
    f"{VIDEO_FOLDER}/": "the video tower: the profile and the sizes of the network, if one was tuned",
    IDF_FILE: "number of training captions with each word, which sets the weights of words",
    LABELS_FILE: "the answers or labels that the run chooses from, if it has any",
    EVENTS_FILE: "the losses of each step, which the report of an evaluation shows",
    METRICS_FILE: "the whole evaluation on the test split, if there was one",
    CARD_FILE: "this card",
}


LICENCE = """\
Not stated: the program does not know it. The terms of whoever made the captions, the videos and the weights of the
features (and of the text encoder, if a published one was tuned) apply to these weights. Before you
publish this, state the licence here, and replace `other` at the top with it."""


def run_card(
    name: str,
    config: TrainConfig,
    about: Mapping[str, Any],
    stores: Stores,
    training: str,
    evaluations: Sequence[RunMetrics],
    files: Collection[str],
) -> str:
    """Return the card of a run.

    Args:
        name: The run's name.
        config: Its settings.
        about: ``run.json`` of the exported run.
        stores: The stores that it was trained on.
        training: Size of the split that it was trained on; empty if it is not known.
        evaluations: Its metrics, on its own data set and on others.
        files: Names of all files and folders of the export, including the card.
    """
    parts = [
        _front_matter(name, evaluations),
        f"# {_text(name)}",
        _summary(config, about),
        "## How to load it",
        _loading(config, about, stores),
        "## Features that it reads",
        _features(config, about, stores),
        "## Training data",
        _data(config, about, training),
        "## Scores",
        _scores(evaluations),
        "## Departures from the paper",
        _departures(config),
        "## Limits",
        _bullets(_limits(config, about)),
        "## Settings",
        _settings(config, about),
        "## Licence",
        LICENCE,
        "## Files",
        _table(("file", "content"), [(name, FILES[name]) for name in FILES if name.rstrip("/") in files]),
    ]
    return "\n\n".join(parts) + "\n"


def _front_matter(name: str, evaluations: Sequence[RunMetrics]) -> str:
    """Return the metadata for model hubs: YAML between two lines of dashes."""
    tags = ["vlalign", "video", "video-text-retrieval"]
    about: dict[str, Any] = {"license": "other", "library_name": "vlalign", "tags": tags}
    if evaluations:
        about["model-index"] = [{"name": name, "results": [*map(_result, evaluations)]}]
    return f"---\n{yaml.safe_dump(about, sort_keys=False, allow_unicode=True)}---"


def _result(metrics: RunMetrics) -> dict[str, Any]:
    test = metrics.test
    dataset = {"type": test.dataset, "name": test.dataset, "split": test.split}
    dataset |= {"config": test.protocol} if test.protocol else {}
    values = [{"type": key, "name": key, "value": round(float(metrics.values[key]), 4)} for key in metrics.main]
    task = {"type": metrics.task, "name": TASKS[metrics.task].description}
    return {"task": task, "dataset": dataset, "metrics": values}


def _summary(config: TrainConfig, about: Mapping[str, Any]) -> str:
    objective, data = config.objective, config.data
    if objective.task is None and config.model.encoder_traits.reads_words:
        use = "It scores how well a text matches a video, or a part of one, and finds moments by text."
    elif objective.task is None:
        use = "It scores how well a spoken caption matches a video, or a part of one."
    else:
        use = f"It was trained for one task: {TASKS[objective.task].description}."
    return (
        f"A video-text model. {use} It reads features of videos ({_text(data.features)}), not pixels. Trained with "
        f"vlalign {_text(about['software'].get('vlalign', UNKNOWN))}, objective `{_text(objective.name)}` "
        f"({_text(objective.description)}), encoder `{_text(config.model.encoder)}` "
        f"({_text(config.model.encoder_traits.description)})."
    )


def _loading(config: TrainConfig, about: Mapping[str, Any], stores: Stores) -> str:
    both = [*zip(config.data.features.split("+"), stores.features, strict=True)]
    scores_texts = config.objective.task is None and config.model.encoder_traits.reads_words
    can_extract = all(name in BUILT_IN and BUILT_IN[name].hash == store.profile.hash for name, store in both)
    modules = sorted({plugin.module for plugin in plugins_of(config).values()})
    trust = f", trust={json.dumps(modules)}" if modules else ""
    option = "".join(f" --trust {module}" for module in modules)
    python = ["from vlalign.train import load_run", "", f'run = load_run("FOLDER"{trust})  # this folder, anywhere']
    shell = [f"vlalign-evaluate FOLDER --dataset mine{option}  # needs captions: vlalign-preprocess"]
    if scores_texts and can_extract:
        python.insert(0, "from vlalign.extract import extract_video, load_extractor")
        extractors = ", ".join(f'load_extractor("{name}")' for name, _ in both)
        python += [f'video = extract_video("VIDEO.mp4", [{extractors}])  # with the weights below']
        python += ['run.similarity(["a dog runs"], [video])  # float32 [1, 1]']
    elif scores_texts:
        rows = ", ".join(f'"{name}": {_variable(name)}' for name, _ in both)
        widths = " and ".join(f"{_variable(name)} [T, {store.profile.dimension}]" for name, store in both)
        python += [f'run.similarity(["a dog runs"], [{{{rows}}}])  # {widths}, a row for each window of a video']
    else:
        python += ["run.config, run.metrics"]
    if scores_texts:
        shell.insert(0, f'vlalign-search FOLDER "a dog runs" --dataset mine{option}')
    if can_extract:
        names = ",".join(name for name, _ in both)
        shell.insert(0, f"vlalign-extract --dataset mine --videos VIDEOS --features {names}  # with the weights below")
    what = "Search videos of your own, or evaluate on them" if scores_texts else "Evaluate it on videos of your own"
    newline = "\n"
    return (
        f"```python\n{newline.join(python)}\n```\n\n{what}, with the same features:\n\n"
        f"```\n{newline.join(shell)}\n```\n\n{_own_code(config, about)}"
    )


def _own_code(config: TrainConfig, about: Mapping[str, Any]) -> str:
    """Return the notes on the custom modules that a run needs."""
    if not (own_parts := plugins_of(config)):
        return "Nothing in this folder is run as code."
    parts = _bullets(
        f"{setting} `{plugin.text}`: module `{plugin.module}`, SHA-256 {_sha256_of(setting, about)}"
        for setting, plugin in own_parts.items()
    )
    return (
        "**It needs code that is not part of vlalign and not in this folder.** Ask whoever gave you the folder for it, "
        "read it, and put it where Python finds it, such as the folder in which you work. It is imported only if you "
        f"name it as above.\n\n{parts}\n\nWith a module of another SHA-256, the scores can differ; a note reports it."
    )


def _sha256_of(setting: str, about: Mapping[str, Any]) -> str:
    """Return the SHA-256 of the custom module with which a run was trained."""
    plugins = about["inputs"].get("plugins")
    facts = plugins.get(setting) if isinstance(plugins, dict) else None
    return _text(facts.get("sha256", UNKNOWN)) if isinstance(facts, dict) else UNKNOWN


def _variable(name: str) -> str:
    """Return the name of features as a valid name in Python."""
    text = "".join(character if character.isalnum() else "_" for character in name)
    return text if text[:1].isalpha() else f"rows_{text}"


def _features(config: TrainConfig, about: Mapping[str, Any], stores: Stores) -> str:
    names = config.data.features.split("+")
    of_texts = [("spoken captions", stores.recordings)] if stores.recordings is not None else []
    rows = [
        (
            _text(name),
            _text(store.profile.model),
            f"{_text(store.weights.name)}, SHA-256 {_text(store.weights.sha256) or UNKNOWN}",
            _rate(store),
            f"{store.profile.dimension:,}",
            store.profile.hash,
            "vlalign" if store.origin == EXTRACTED else f"imported; stated: {_text(store.origin)}",
        )
        for name, store in [*zip(names, stores.features, strict=True), *of_texts]
    ]
    columns = ("features", "model", "weights", "rate", "numbers a row", "profile", "made by")
    return (
        "A store fits if its profile and its weights' SHA-256 are in this table; its folder can have any name. All "
        f"fields of the profiles are in `{RUN_FILE}`.\n\n{_table(columns, rows)}"
    )


def _rate(store: Store) -> str:
    profile = store.profile
    if profile.fps is None:
        return "spread evenly over the video, or not known"
    window = f", windows of {profile.window:,}, a new one every {profile.stride:,}" if profile.window > 1 else ""
    return f"{profile.fps:g} {'frame' if profile.fps == 1 else 'frames'} a second{window}"


def _data(config: TrainConfig, about: Mapping[str, Any], training: str) -> str:
    inputs, result = about["inputs"], about["result"]
    protocol = f", protocol {_text(config.data.protocol)}" if config.data.protocol else ""
    lines = [f"data set {_text(config.data.dataset)}{protocol}"]
    if training:
        lines.append(f"training split: {training}, including the validation split")
    if sha256 := inputs["captions"].get("captions_sha256"):
        lines.append(f"captions: SHA-256 {_text(sha256)}, tagged by {_text(inputs['captions'].get('tagger', UNKNOWN))}")
    for name, facts in zip(config.data.features.split("+"), inputs["features"], strict=True):
        num_videos, checksum = facts.get("num_videos", UNKNOWN), facts.get("rows_checksum", UNKNOWN)
        videos = f"{_text(num_videos)} videos, all splits"
        lines.append(f"features {_text(name)} of {videos}; checksum of their rows {_text(checksum)}")
    if config.init:
        lines.append(f"training started from the weights of the run {_text(config.init)}")
    if config.model.video_tower:
        lines.append(f"video tower {_text(config.model.video_tower)}, tuned on frames")
    if config.model.text_encoder != "small" and "text_encoder" not in config.ignored_settings():
        how = "not tuned" if config.objective.is_solved else "tuned"
        lines.append(f"text encoder {_text(config.model.text_encoder)}, {how}")
    if left_out := result.get("left_out"):
        lines.append(f"{_text(left_out)} captions and videos could not be used")
    lines.append("this folder has no videos, no features and no captions; it has the words of the training captions")
    return _bullets(lines)


def _scores(evaluations: Sequence[RunMetrics]) -> str:
    if not evaluations:
        return "None: the run was not evaluated before it was exported."
    parts = []
    for metrics in evaluations:
        test = metrics.test
        protocol = f", protocol {_text(test.protocol)}" if test.protocol else ""
        task = _text(TASKS[metrics.task].description)
        heading = f"**{_text(test.dataset)}**{protocol}, {_text(test.split)} split, {task}"
        used = f"{_text(test.size)}{'' if test.is_whole else '; not the whole split'}; checksum {_text(test.checksum)}"
        values = _figures(metrics.values)
        notes = "".join(f"\n- {_text(note)}" for note in metrics.notes)
        parts.append(f"{heading} ({used}):\n\n{values}" + (f"\n{notes}" if notes else ""))
    return "\n\n".join(parts)


def _figures(values: Mapping[str, float]) -> str:
    """Return metrics as a table, with both directions of retrieval side by side."""
    prefixes = [p for p in ("", "video to text ", "mean of both ") if any(name.startswith(p) for name in values)]
    names = [name for name in values if not name.startswith(tuple(filter(None, prefixes)))]
    titles = ["text to video", *map(str.strip, prefixes[1:])] if len(prefixes) > 1 else ["value"]
    figures = [[f"{values[p + name]:.4g}" if p + name in values else "" for p in prefixes] for name in names]
    return _table(["metric", *titles], [[name, *row] for name, row in zip(names, figures, strict=True)])


def _departures(config: TrainConfig) -> str:
    if found := departures_of([config.recipe]):
        changed = changed_settings(config)
        also = f"\n\nBesides, these settings are not the recipe's: {_text(', '.join(changed))}." if changed else ""
        return _bullets(str(departure) for departure in found) + also
    recipe = f"The recipe `{_text(config.recipe)}`" if config.recipe else "No recipe was used, so the run"
    return f"{recipe} is not a paper's; its figures are not comparable with a published method."


def _limits(config: TrainConfig, about: Mapping[str, Any]) -> Iterable[str]:
    if note := features_note(about["inputs"]["features"]):
        yield _text(note)
    yield "a score ranks videos for a text; it is not a probability, and not comparable across runs"
    if config.model.encoder_traits.caption_input == "word_ids":
        yield "words that no training caption has are skipped: the model cannot read a text of such words alone"
    else:
        yield "texts work best if they resemble the training captions in language, length and subject"
    yield (
        f"of a text, {config.data.max_text_tokens:,} tokens are read; of a video or a part of one, "
        f"{config.data.max_video_tokens:,} rows, evenly chosen"
    )
    yield "videos unlike the training videos, and people and things that are rare in them, are found less reliably"
    if config.objective.normalized_loss:
        yield f"{MODEL_FILE} has vectors of the last training queries, for normalised scores"


def _settings(config: TrainConfig, about: Mapping[str, Any]) -> str:
    result = about["result"]
    facts = {"recipe": config.recipe or "none", **changed_settings(config), "seed": config.optimization.seed}
    facts |= {"steps of the saved weights": f"{result['best']['step']:,} (the best on validation)"}
    facts |= {"device": result.get("device", UNKNOWN), "seconds of training": result.get("seconds", UNKNOWN)}
    facts |= {name: version for name, version in about["software"].items() if name != "vlalign"}
    rows = [(_text(name), _text(value)) for name, value in facts.items()]
    what = f"Settings that differ from the recipe's, and how the training went. All settings are in `{RUN_FILE}`."
    return f"{what}\n\n{_table(('setting', 'value'), rows)}"


def _bullets(lines: Iterable[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)


def _table(columns: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    columns = list(columns)
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _text(value: Any) -> str:
    """Return a value from a file as one line of plain text in Markdown, also in a table."""
    text = one_line(str(value))[:400]
    return "".join(f"\\{character}" if character in "\\`*[]<>|#" else character for character in text)
