"""The model and the training state of a run, to disk and back."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save

from ...storage.common.errors import SettingError, UserError
from ...storage.common.writing import atomic_write
from ...storage.untrusted.tensor_shapes import check_finite
from ..data.order import ORDERS, KeyedOrder, StoredOrder
from ..models.base import PairModel
from ..recipes.train_config import TrainConfig
from ..untrusted_files import START_AGAIN, refuse_damaged
from .files import LAST_MODEL_FILE, MODEL_FILE, STATE_FILE
from .run_json import RunInputs, is_edited, read_config


def save_model(folder: Path, model: PairModel, *, last: bool = False) -> None:
    """Write a model into a run's folder, as the best one so far or as the ``last`` one."""
    _write(folder / (LAST_MODEL_FILE if last else MODEL_FILE), model.state_dict())


def _write(path: Path, tensors: dict[str, torch.Tensor], metadata: dict[str, str] | None = None) -> None:
    with atomic_write(path) as partial:
        partial.write_bytes(save({name: value.contiguous() for name, value in tensors.items()}, metadata))


@dataclass
class RunState:
    """The state of a run after a step. Random draws depend on the seed and the step alone, so this is all to save."""

    model: PairModel
    optimizer: torch.optim.Optimizer
    config: TrainConfig
    inputs: RunInputs
    """The result of ``describe_inputs``."""
    num_steps: int
    """Steps of the whole training."""
    ema_model: PairModel | None = None
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
    if state.ema_model is not None:
        tensors |= {f"average.{name}": value for name, value in state.ema_model.state_dict().items()}
    for index, of_parameter in state.optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{index}.{name}": value for name, value in of_parameter.items()}
    about = {"config": state.config.flat(), "inputs": state.inputs, "order": state.order, "shards": state.shards}
    about |= {"step": state.step, "best": state.best}
    _write(folder / STATE_FILE, tensors, {"run": json.dumps(about)})


def load_state(folder: Path, state: RunState) -> None:
    """Restore the state that ``save_state`` wrote: model, optimizer, step, best validation and order.

    Raises:
        UserError: The file is of a run with other settings or data, or is damaged.
    """
    path = folder / STATE_FILE
    with refuse_damaged(path, START_AGAIN):
        _load_state(path, state)


def _load_state(path: Path, state: RunState) -> None:
    with safe_open(path, framework="pt") as file:
        about = json.loads(file.metadata()["run"])
    step, best, saved = about["step"], about["best"], read_config(about)
    order = about.get("order", StoredOrder.version)  # states of older versions do not say it
    if saved != state.config or about["inputs"] != json.loads(json.dumps(state.inputs)):
        old = saved.flat()
        changed = [name for name, value in state.config.flat().items() if old.get(name) != value]
        edited = is_edited(about["inputs"], state.inputs)
        of_inputs = "another version of your own module" if edited else "other features or captions"
        what = f"other settings ({', '.join(changed)})" if changed else of_inputs
        raise UserError(f"{path.parent}: has an unfinished run with {what}; pass another --run-name NAME, or remove it")
    if about.get("shards", "") != state.shards:
        raise UserError(
            f"{path.parent}: has an unfinished run whose features were in other shards, for which --shuffle-shards "
            "gives another order; pass another --run-name NAME, or remove it"
        )
    if not isinstance(step, int) or not 0 <= step <= state.num_steps:
        raise ValueError(f"step: {step!r}, expected 0 to {state.num_steps}")
    if not (best is None or isinstance(best, dict)):
        raise ValueError(f"best: {best!r}, expected an object or null")
    if order not in ORDERS:
        raise ValueError(f"order of batches: {str(order)[:20]}, expected {' or '.join(map(str, ORDERS))}")
    tensors = load_file(path)
    state.model.load_state_dict(_below(tensors, "model."))
    if state.ema_model is not None:
        state.ema_model.load_state_dict(_below(tensors, "average."))
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


OPTIONAL_PARTS = (
    ("fusion.", "fusion."),
    ("codebook.", "codebook.codewords"),
    ("codebook.high.", "codebook.high."),
    ("head.", "head."),
    ("own.", "own."),
    ("video_tower.", "video_tower."),
)
"""(prefix of a part's tensors, prefix of the tensors that every model with this part has)"""


def load_init(folder: Path, model: PairModel) -> None:
    """Load the model of the run in ``folder`` into a new one, as far as both have the same parts.

    Fusion layers, a codebook, a head, an objective's own module and a video tower are optional: those that only the
    new model has are not changed; those that only the run has are skipped. The queue of queries is never loaded.

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
        problem = f"its layers differ from the new run's, such as {min(different)}; expected a run with the same layers"
        raise SettingError("init", folder, problem)
    model.load_state_dict({name: value for name, value in tensors.items() if name in own}, strict=False)


def load_model(folder: Path, model: PairModel) -> None:
    """Load the best model of a run into one with the same layers."""
    model.load_state_dict(_read_model(folder))


def _read_model(folder: Path) -> dict[str, torch.Tensor]:
    with refuse_damaged(folder / MODEL_FILE):
        tensors = load_file(folder / MODEL_FILE)
        check_finite(tensors)
        return tensors
