"""A finished run with its model, loaded from its folder."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...storage.captions.idf import read_idf
from ...storage.common.device import find_device, on_meta_device
from ...storage.common.errors import SettingError
from ...storage.common.terminal import say
from ...storage.dataset.folder import DatasetFolder
from ...storage.untrusted.tensor_shapes import shape_difference
from ..data.clip_features import ClipFeatures
from ..data.extra_inputs import ExtraInputs
from ..data.stores import Stores, origin_of
from ..data.text_inputs import TextInputs, TextSource, TokenWeights, saved_text_inputs
from ..models.base import ModelPlan
from ..models.build import make_model
from ..recipes.own_parts import facts_of_plugins, plugins_of
from ..recipes.train_config import TrainConfig
from ..scoring.scorer import Scorer
from ..untrusted_files import START_AGAIN, TRAIN_AGAIN, read_shapes, refuse_damaged
from .checkpoint import load_model
from .files import MODEL_FILE, STATE_FILE, TEXT_FOLDER, VIDEO_FOLDER
from .folder import idf_of_run, old_idf_note, own_dataset
from .run_json import features_note, find_run_stores, is_edited, read_config, read_labels, read_run, score_weights

if TYPE_CHECKING:
    from ..models.video_tower import VideoTower


@dataclass(frozen=True)
class Run:
    """A trained run that ranks videos for queries."""

    folder: Path
    dataset: DatasetFolder
    """The data set for evaluation or search: the run's own, or another one."""
    stores: Stores
    """Stores of that data set."""
    about: dict[str, Any]
    """``run.json``."""
    scorer: Scorer
    labels: list[str]
    """The possible answers or labels, if they are a fixed list; else empty."""

    @property
    def config(self) -> TrainConfig:
        """The run's settings."""
        return self.scorer.config

    @property
    def score_weights(self) -> dict[str, float]:
        """{stage: weight}: as validation chose them, or else as the settings say."""
        return score_weights(self.about, self.config)

    @property
    def features(self) -> ClipFeatures:
        """Features of the data set's clips."""
        return self.scorer.features

    @property
    def note(self) -> str | None:
        """The note to show with every number of the run, or None."""
        return features_note([*self.about["inputs"]["features"], *map(origin_of, self.features.stores)])


def open_run(
    folder: Path, on: DatasetFolder | None = None, device_name: str = "auto", *, stores: Stores | None = None
) -> Run:
    """Load a finished run.

    Args:
        folder: The run's folder.
        on: The data set for evaluation or search; None: the run's own.
        device_name: As for ``find_device``.
        stores: The stores of that data set if they are open already.

    Raises:
        UserError: The run is incomplete or damaged, no store has the features that it was trained on, or it was
            exported and ``on`` is None.
    """
    about = read_run(folder)
    own = own_dataset(folder, about)
    dataset = on or own
    if dataset is None:
        problem = f"run {folder.name} was exported, without a data set; expected the data set to use it on"
        raise SettingError("dataset", "is missing", problem)
    stores = stores or find_run_stores(dataset, folder.name, about)
    scorer, labels = load_scorer(folder, about, stores, device_name)
    return Run(folder, dataset, stores, about, scorer, labels)


def load_scorer(
    folder: Path, about: Mapping[str, Any], stores: Stores, device_name: str = "auto"
) -> tuple[Scorer, list[str]]:
    """Load the model of a finished run with its input pipeline; return it and its labels.

    Args:
        folder: The run's folder.
        about: Its ``run.json``.
        stores: Stores with the run's features.
        device_name: As for ``find_device``.

    Raises:
        UserError: The run is incomplete or damaged.
    """
    device, config = find_device(device_name), read_config(about)
    if is_edited(about["inputs"], {"plugins": facts_of_plugins(config)}):
        modules = ", ".join(sorted({plugin.module for plugin in plugins_of(config).values()}))
        say(f"note: {folder}: module {modules} is not the version of the run's training; scores can differ")
    features = ClipFeatures(stores.features, config.store_grid)
    weights = read_token_weights(idf_of_run(folder, own_dataset(folder, about)), config)
    source = TextSource(
        config.model.encoder_traits, config.data.max_text_tokens, weights, stores.recordings, config.objective.is_solved
    )
    text_inputs = read_text_inputs(folder / MODEL_FILE, source)
    labels = read_labels(folder)
    tower = read_video_tower(folder / MODEL_FILE, config)
    plan = plan_model(config, features.dim, text_inputs, len(labels), tower)
    check_model(folder / MODEL_FILE, config, plan)
    model = make_model(config.model, plan)
    load_model(folder, model)
    extra = ExtraInputs(config.extra, stores.extra)
    return Scorer(model.to(device).eval(), text_inputs, weights, features, config, extra), labels


def read_token_weights(path: Path, config: TrainConfig) -> TokenWeights:
    """Return the word weights of a run with these settings, from an IDF table.

    Raises:
        UserError: The table is missing or damaged.
    """
    entries, counted = read_idf(path), config.objective.idf_counts
    if counted != "tag" and entries and entries[0].token_idf is None:
        say(old_idf_note(path))
    return TokenWeights(entries, config.data.pos_tags, counted)


def check_model(path: Path, config: TrainConfig, plan: ModelPlan) -> None:
    """Compare a file of weights with the model that it should hold, before anything is allocated.

    Raises:
        UserError: The file holds another model.
    """
    shapes = read_shapes(path)
    with refuse_damaged(path):
        for name in ("num_video_layers", "num_fusion_layers"):
            if (num_layers := getattr(config.model, name)) > len(shapes):
                raise ValueError(f"the run's {name} is {num_layers:,}, but the file has only {len(shapes):,} tensors")
        with on_meta_device():
            model = make_model(config.model, plan)
        if wrong := shape_difference({name: tuple(value.shape) for name, value in model.state_dict().items()}, shapes):
            raise ValueError(f"does not match the run's settings, {wrong}")


def read_text_inputs(tensors: Path, source: TextSource) -> TextInputs:
    """Return the text inputs of an existing run, with a text encoder that has no weights yet.

    Args:
        tensors: The run's model or state, in its folder.
        source: The run's encoder and token weights.

    Raises:
        UserError: The folder or the weights are not as a training writes them.
    """
    is_state = tensors.name == STATE_FILE
    prefix, todo = ("model.text_encoder.", START_AGAIN) if is_state else ("text_encoder.", TRAIN_AGAIN)
    return saved_text_inputs(source, tensors.parent / TEXT_FOLDER, lambda: read_shapes(tensors, prefix, todo))


def read_video_tower(tensors: Path, config: TrainConfig) -> "VideoTower | None":
    """Return the video tower of an existing run, without weights yet; None if the settings name no tower.

    Args:
        tensors: The run's model or state, in its folder.
        config: The settings of the run that will have the tower.

    Raises:
        UserError: The folder or the weights are not as a training writes them, or hold another network.
    """
    if (name := config.model.tower) is None:
        return None
    is_state = tensors.name == STATE_FILE
    prefix, todo = ("model.video_tower.", START_AGAIN) if is_state else ("video_tower.", TRAIN_AGAIN)
    from ..models.video_tower import VideoTower  # imports the networks of extraction

    folder, shapes = tensors.parent / VIDEO_FOLDER, read_shapes(tensors, prefix, todo)
    return VideoTower.read(folder, shapes, name, config.data.grid)


def plan_model(
    config: TrainConfig,
    row_width: int,
    text_inputs: TextInputs,
    num_labels: int = 0,
    video_tower: "VideoTower | None" = None,
) -> ModelPlan:
    """Return the plan of a run's model.

    Args:
        config: The run's settings.
        row_width: Width of a row of the store.
        text_inputs: Give the text encoder or the width of the word vectors.
        num_labels: Number of answers or steps that the run distinguishes; 0 if the objective has none.
        video_tower: Turns the store's frames into features; None: the store has features.
    """
    objective = config.objective
    return ModelPlan(
        row_width if video_tower is None else video_tower.dim,
        text_inputs,
        has_fusion=objective.has_fusion,
        has_token_head=objective.has_token_head,
        masks_words=objective.masks_words,
        reads_texts=objective.reads_texts,
        is_solved=objective.is_solved,
        still=config.data.grid is not None and config.data.grid[0] == 1,
        make_modules=lambda sizes: objective.modules_of(replace(sizes, grid=config.data.grid), num_labels),
        video_tower=video_tower,
    )
