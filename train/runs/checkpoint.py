"""A trained model, to disk and back."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save

from ...storage.captions.idf import read_idf
from ...storage.common.device import find_device, on_meta_device
from ...storage.common.errors import SettingError, UserError
from ...storage.common.writing import atomic_write
from ...storage.dataset.folder import DatasetFolder
from ..data.clip_features import ClipFeatures
from ..data.order import ORDERS, KeyedOrder, StoredOrder
from ..data.stores import StoreFacts, Stores, origin_of
from ..data.text import TokenWeights
from ..data.text_inputs import TextInputs, TextSource, saved_text_inputs
from ..models.base import PairModel
from ..models.build import ModelPlan, make_model
from ..recipes.train_config import TrainConfig
from ..run_file_names import LAST_MODEL_FILE, MODEL_FILE, STATE_FILE
from ..scoring.scorer import Scorer
from ..untrusted_files import BEGIN_ANEW, difference, read_shapes, refusing
from .folder import RunInputs, dataset_of, features_note, open_run_stores, read_labels, read_run
from .run_json import read_config, score_weights


@dataclass(frozen=True)
class Run:
    """A trained run, ready to be asked."""

    folder: Path
    dataset: DatasetFolder
    """The data set that the run is asked about: its own, or another one."""
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


def save_model(folder: Path, model: PairModel, *, last: bool = False) -> None:
    """Write a model into a run's folder, as the best one so far or as the ``last`` one."""
    _write(folder / (LAST_MODEL_FILE if last else MODEL_FILE), model.state_dict())


def _write(path: Path, tensors: dict[str, torch.Tensor], metadata: dict[str, str] | None = None) -> None:
    with atomic_write(path) as partial:
        partial.write_bytes(save({name: value.contiguous() for name, value in tensors.items()}, metadata))


@dataclass
class RunState:
    """The state of a run after a step. Random draws depend on the seed and the step alone, so this is all to keep."""

    model: PairModel
    optimizer: torch.optim.Optimizer
    config: TrainConfig
    inputs: RunInputs
    """The result of ``describe_inputs``."""
    num_steps: int
    """Steps of the whole training."""
    average: PairModel | None = None
    """The running average of the model's weights, if there is one."""
    order: int = KeyedOrder.version
    """Version of the order of the batches."""
    shards: str = ""
    """The shards that the order depends on (``ClipBatches.shards``)."""
    step: int = 0
    """Steps that are done."""
    best: dict[str, Any] | None = None
    """The step and the figure of the best validation, None before the first one."""


def save_state(folder: Path, state: RunState) -> None:
    """Write all that is needed to resume a run into one file, whole or not at all."""
    tensors = {f"model.{name}": value for name, value in state.model.state_dict().items()}
    if state.average is not None:
        tensors |= {f"average.{name}": value for name, value in state.average.state_dict().items()}
    for index, of_parameter in state.optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{index}.{name}": value for name, value in of_parameter.items()}
    about = {"config": state.config.flat(), "inputs": state.inputs, "order": state.order, "shards": state.shards}
    about |= {"step": state.step, "best": state.best}
    _write(folder / STATE_FILE, tensors, {"run": json.dumps(about)})


def load_state(folder: Path, state: RunState) -> None:
    """Restore what ``save_state`` wrote: model, optimizer, step, best validation and order.

    Raises:
        UserError: The file is of a run with other settings or data, or is damaged.
    """
    path = folder / STATE_FILE
    with refusing(path, BEGIN_ANEW):
        _load_state(path, state)


def _load_state(path: Path, state: RunState) -> None:
    with safe_open(path, framework="pt") as file:
        about = json.loads(file.metadata()["run"])
    step, best, saved = about["step"], about["best"], read_config(about)
    order = about.get("order", StoredOrder.version)  # states of older versions do not say it
    if saved != state.config or about["inputs"] != json.loads(json.dumps(state.inputs)):
        old = saved.flat()
        changed = [name for name, value in state.config.flat().items() if old.get(name) != value]
        what = f"other settings ({', '.join(changed)})" if changed else "other features or captions"
        raise UserError(
            f"{path.parent}: holds an unfinished run with {what}; pass another --run-name NAME, or remove that folder"
        )
    if about.get("shards", "") != state.shards:
        raise UserError(
            f"{path.parent}: holds an unfinished run whose features were in other shards; with shuffle_shards their "
            "order would be another one. Pass another --run-name NAME, or remove that folder"
        )
    is_step = isinstance(step, int) and 0 <= step <= state.num_steps
    if not is_step or not (best is None or isinstance(best, dict)):
        raise ValueError("its step is not one of this run")
    if order not in ORDERS:
        raise ValueError(f"order {str(order)[:20]} of its batches, this version has {' and '.join(map(str, ORDERS))}")
    tensors = load_file(path)
    state.model.load_state_dict(_below(tensors, "model."))
    if state.average is not None:
        state.average.load_state_dict(_below(tensors, "average."))
    of_parameters: dict[int, dict[str, torch.Tensor]] = {}
    for name, value in tensors.items():
        if name.startswith("optimizer."):
            _, index, what = name.split(".")
            of_parameters.setdefault(int(index), {})[what] = value
    groups = state.optimizer.state_dict()["param_groups"]
    state.optimizer.load_state_dict({"state": of_parameters, "param_groups": groups})
    state.step, state.best, state.order = step, best, order


def _below(tensors: dict[str, torch.Tensor], prefix: str) -> dict[str, torch.Tensor]:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


OPTIONAL_PARTS = (("fusion.", "fusion."), ("codebook.", "codebook.codewords"), ("head.", "head."))
"""(prefix of a part's tensors, prefix of what shows that a model has it)"""


def load_init(folder: Path, model: PairModel) -> None:
    """Load the model of the run in ``folder`` into a new one, as far as both have the same parts.

    Fusion layers, a codebook or a head that only one of them has stay as they are, or are left out. The queue of
    queries is never loaded.

    Raises:
        SettingError: A part has another shape or other layers.
    """
    tensors = {name: value for name, value in _read_model(folder).items() if not name.startswith("queries.")}
    own = {name: value for name, value in model.state_dict().items() if not name.startswith("queries.")}
    unlike = [name for name, value in tensors.items() if name in own and own[name].shape != value.shape]
    if unlike:
        shapes = f"{list(tensors[unlike[0]].shape)}, the new run's {list(own[unlike[0]].shape)}"
        problem = f"its {unlike[0]} is {shapes}; expected a run with the same features, text encoder and layers"
        raise SettingError("init", folder, problem)
    missing, unused = own.keys() - tensors.keys(), tensors.keys() - own.keys()
    for part, sign in OPTIONAL_PARTS:
        if not any(name.startswith(sign) for name in tensors):
            missing = {name for name in missing if not name.startswith(part)}
        if not any(name.startswith(sign) for name in own):
            unused = {name for name in unused if not name.startswith(part)}
    if different := missing | unused:
        problem = f"its layers are not the new run's, such as {min(different)}; expected a run with the same ones"
        raise SettingError("init", folder, problem)
    model.load_state_dict({name: value for name, value in tensors.items() if name in own}, strict=False)


def load_model(folder: Path, model: PairModel) -> None:
    """Load the best model of a run into one with the same layers."""
    model.load_state_dict(_read_model(folder))


def _read_model(folder: Path) -> dict[str, torch.Tensor]:
    with refusing(folder / MODEL_FILE):
        tensors = load_file(folder / MODEL_FILE)
        if not all(torch.isfinite(tensor).all() for tensor in tensors.values() if tensor.is_floating_point()):
            raise ValueError("it has values that are no numbers")
        return tensors


def load_run(
    folder: Path, on: DatasetFolder | None = None, device_name: str = "auto", *, stores: Stores | None = None
) -> Run:
    """Load a finished run.

    Args:
        folder: The run's folder.
        on: The data set that the run is asked about; None: its own.
        device_name: As for ``find_device``.
        stores: The stores of that data set if they are open already.

    Raises:
        UserError: The run is incomplete or damaged, or the stores were made otherwise than those it was trained on.
    """
    device = find_device(device_name)
    about = read_run(folder)
    config = read_config(about)
    trained = dataset_of(folder, config)
    dataset = on or trained
    stores = stores or open_run_stores(dataset, config)
    check_stores(folder, stores, about["inputs"]["features"], dataset, trained)
    features = ClipFeatures(stores.features, config.data.grid)
    # Of the captions that the run was trained on, whatever it is asked about.
    weights = TokenWeights(read_idf(trained.idf), config.data.pos_tags)
    source = TextSource(config.model.encoder_traits, config.data.max_text_tokens, weights, stores.recordings)
    text_inputs = saved_text_inputs(source, folder / MODEL_FILE)
    labels = read_labels(folder)
    plan = plan_model(config, features.dim, text_inputs, len(labels))
    check_model(folder / MODEL_FILE, config, plan)
    model = make_model(config.model, plan)
    load_model(folder, model)
    scorer = Scorer(model.to(device).eval(), text_inputs, weights, features, config)
    return Run(folder, dataset, stores, about, scorer, labels)


def check_stores(
    folder: Path, stores: Stores, trained_on: list[StoreFacts], dataset: DatasetFolder, trained: DatasetFolder
) -> None:
    """Raise ``UserError`` if stores have another profile or other weights than those that a run was trained on."""
    for store, about in zip(stores.features, trained_on, strict=True):
        if (store.profile.hash, store.weights.sha256) != (about["profile_hash"], about["weights_sha256"]):
            todo = f"extract {dataset.name} as {trained.name} was, or train" if dataset != trained else "train"
            raise UserError(
                f"{store.where}: has profile {store.profile.hash} with weights {store.weights.name}; the run "
                f"{folder.name} was "
                f"trained on {about['profile_hash']} with {about['weights']}; {todo} a new run on this store"
            )


def check_model(path: Path, config: TrainConfig, plan: ModelPlan) -> None:
    """Compare a file of weights with the model that it should hold, before anything is allocated.

    Raises:
        UserError: The file holds another model.
    """
    shapes = read_shapes(path)
    with refusing(path):
        if max(config.model.num_video_layers, config.model.num_fusion_layers) > len(shapes):
            raise ValueError("the run's settings have more layers")
        with on_meta_device():
            model = make_model(config.model, plan)
        if wrong := difference({name: tuple(value.shape) for name, value in model.state_dict().items()}, shapes):
            raise ValueError(f"not the run's model, {wrong}")


def plan_model(config: TrainConfig, feature_dim: int, text_inputs: TextInputs, num_labels: int = 0) -> ModelPlan:
    """Return what the model of a run is made of.

    Args:
        config: The run's settings.
        feature_dim: Width of a row of features.
        text_inputs: Give the text encoder or the width of the word vectors.
        num_labels: What the run can answer, if that is one of a list; else 0.
    """
    objective = config.objective
    return ModelPlan(
        feature_dim,
        text_inputs,
        has_fusion=objective.has_fusion,
        has_token_head=objective.has_token_head,
        reads_texts=objective.reads_texts,
        still=config.data.grid is not None and config.data.grid[0] == 1,
        make_parts=lambda width: objective.make_parts(width, num_labels),
    )
