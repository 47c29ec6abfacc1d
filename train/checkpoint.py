"""A trained model, to disk and back."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save
from torch import nn

from ..storage.captions import read_idf
from ..storage.common.device import find_device
from ..storage.common.errors import UserError
from ..storage.files import written_whole
from ..storage.layout import DatasetFolder
from .config import TrainConfig
from .data.pairs import ClipFeatures
from .data.text import TokenWeights, Words
from .data.text_inputs import TextInputs, saved_text_inputs
from .models.gated import GatedPair, QueryQueue, SharedCodebook
from .models.heads import AnswerHead
from .models.spoken import Recordings, SpokenPair
from .models.transformer import VideoTextModel
from .objectives import OBJECTIVES, Model
from .outside import BEGIN_ANEW, difference, read_shapes, refusing
from .run_files import read_config
from .runs import LAST_MODEL_FILE, MODEL_FILE, STATE_FILE, dataset_of, features_note, open_stores, read_labels, read_run
from .scoring import Scorer


@dataclass(frozen=True)
class Run:
    folder: Path
    dataset: DatasetFolder
    """What is asked: the data set of the run, or another one."""
    about: dict[str, Any]
    """``run.json``."""
    scorer: Scorer
    labels: list[str]
    """What the run can answer, where that is one of a list."""

    @property
    def config(self) -> TrainConfig:
        return self.scorer.config

    @property
    def features(self) -> ClipFeatures:
        return self.scorer.features

    @property
    def note(self) -> str | None:
        asked = [
            {"features": s.profile.name, "weights": s.weights.name, "origin": s.origin} for s in self.features.stores
        ]
        return features_note({"features": [*self.about["inputs"]["features"], *asked]})


def save_model(folder: Path, model: Model, *, last: bool = False) -> None:
    """As the one that did best, or as the last one."""
    _write(folder / (LAST_MODEL_FILE if last else MODEL_FILE), model.state_dict())


def _write(path: Path, tensors: dict[str, torch.Tensor], metadata: dict[str, str] | None = None) -> None:
    with written_whole(path) as partial:
        partial.write_bytes(save({name: value.contiguous() for name, value in tensors.items()}, metadata))


def save_state(
    folder: Path,
    model: Model,
    optimizer: torch.optim.Optimizer,
    config: TrainConfig,
    inputs: dict[str, Any],
    step: int,
    best: dict[str, Any] | None,
) -> None:
    """Model, optimizer and where the run stands: one file, written whole or not at all.

    What is drawn at random depends on seed and step alone, so that this is all.
    """
    tensors = {f"model.{name}": value for name, value in model.state_dict().items()}
    for number, state in optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{number}.{name}": value for name, value in state.items()}
    about = {"config": asdict(config), "inputs": inputs, "step": step, "best": best}
    _write(folder / STATE_FILE, tensors, {"run": json.dumps(about)})


def load_state(
    folder: Path, model: Model, optimizer: torch.optim.Optimizer, config: TrainConfig, inputs: dict[str, Any]
) -> tuple[int, dict[str, Any] | None]:
    """Puts back what ``save_state`` wrote; returns the step and the best one. Raises ``UserError`` for a run of other settings or data."""
    path = folder / STATE_FILE
    with refusing(path, BEGIN_ANEW):
        return _load_state(path, model, optimizer, config, inputs)


def _load_state(
    path: Path, model: Model, optimizer: torch.optim.Optimizer, config: TrainConfig, inputs: dict[str, Any]
) -> tuple[int, dict[str, Any] | None]:
    with safe_open(path, framework="pt") as file:
        about = json.loads(file.metadata()["run"])
    step, best = about["step"], about["best"]
    if about["config"] != asdict(config) or about["inputs"] != json.loads(json.dumps(inputs)):
        changed = [name for name, value in asdict(config).items() if about["config"].get(name) != value]
        what = f"other settings ({', '.join(changed)})" if changed else "other features or captions"
        raise UserError(
            f"{path.parent}: holds an unfinished run with {what}; pass another --run-name NAME, or remove that folder"
        )
    if not isinstance(step, int) or not 0 <= step <= config.num_steps or not (best is None or isinstance(best, dict)):
        raise ValueError("it is of no step of this run")
    tensors = load_file(path)
    model.load_state_dict(
        {name.removeprefix("model."): value for name, value in tensors.items() if name.startswith("model.")}
    )
    states: dict[int, dict[str, torch.Tensor]] = {}
    for name, value in tensors.items():
        if name.startswith("optimizer."):
            _, number, of_what = name.split(".")
            states.setdefault(int(number), {})[of_what] = value
    optimizer.load_state_dict({"state": states, "param_groups": optimizer.state_dict()["param_groups"]})
    return step, best


def load_init(folder: Path, model: Model) -> None:
    """The model of the run in ``folder``, as far as the new one has the same parts: fusion layers, a codebook or a head that only one of
    them has stay as they are or are left out, and another run's queries are not this one's. Raises ``UserError`` where a part has
    another shape."""
    tensors = {name: value for name, value in _read_model(folder).items() if not name.startswith("queries.")}
    own = {name: value for name, value in model.state_dict().items() if not name.startswith("queries.")}
    unlike = [name for name, value in tensors.items() if name in own and own[name].shape != value.shape]
    if unlike:
        shapes = f"{list(tensors[unlike[0]].shape)}, here {list(own[unlike[0]].shape)}"
        raise UserError(
            f"--init {folder}: its {unlike[0]} is {shapes}; expected a run with the same features, text encoder and layers"
        )
    missing, unused = own.keys() - tensors.keys(), tensors.keys() - own.keys()
    for part, sign in (("fusion.", "fusion."), ("codebook.", "codebook.codewords"), ("head.", "head.")):
        if not any(name.startswith(sign) for name in tensors):
            missing = {name for name in missing if not name.startswith(part)}
        if not any(name.startswith(sign) for name in own):
            unused = {name for name in unused if not name.startswith(part)}
    if different := missing | unused:
        raise UserError(
            f"--init {folder}: its layers are not the new run's, such as {min(different)}; expected a run with the same ones"
        )
    model.load_state_dict({name: value for name, value in tensors.items() if name in own}, strict=False)


def _read_model(folder: Path) -> dict[str, torch.Tensor]:
    with refusing(folder / MODEL_FILE):
        return load_file(folder / MODEL_FILE)


def load_run(folder: Path, on: DatasetFolder | None = None, device_name: str = "cpu") -> Run:
    """``on``: another data set than the run's, whose stores are asked. Raises ``UserError`` where the run is not whole, or where the
    stores were not made as those that it was trained on."""
    device = find_device(device_name)
    about = read_run(folder)
    config = read_config(about)
    trained = dataset_of(folder, config)
    features = ClipFeatures(open_stores(on or trained, config.features), config.grid)
    for store, trained_on in zip(features.stores, about["inputs"]["features"], strict=True):
        if (store.profile.hash, store.weights.sha256) != (trained_on["profile_hash"], trained_on["weights_sha256"]):
            todo = f"extract {on.name} as {trained.name} was, or train" if on and on != trained else "train"
            raise UserError(
                f"{store.folder}: has profile {store.profile.hash} with weights {store.weights.name}; the run {folder.name} was trained "
                f"on {trained_on['profile_hash']} with {trained_on['weights']}; {todo} a new run on this store"
            )
    weights = TokenWeights(
        read_idf(trained.idf), config.pos_tags
    )  # of the captions that the run was trained on, wherever it is asked
    text_inputs = saved_text_inputs(config, folder / MODEL_FILE, on or trained, weights)
    labels = read_labels(folder)
    check_model(folder / MODEL_FILE, config, features.dim, text_inputs, len(labels))
    model = make_model(config, features.dim, text_inputs, len(labels))
    model.load_state_dict(_read_model(folder))
    return Run(
        folder, on or trained, about, Scorer(model.to(device).eval(), text_inputs, weights, features, config), labels
    )


def check_model(path: Path, config: TrainConfig, feature_dim: int, text_inputs: TextInputs, num_labels: int) -> None:
    """Raises ``UserError`` where the model of these settings is not the one in the file, before any of it is allocated."""
    there = read_shapes(path)
    with refusing(path):
        if max(config.num_video_layers, config.num_fusion_layers) > len(there):
            raise ValueError("the run's settings have more layers")
        with torch.device("meta"):
            model = make_model(config, feature_dim, text_inputs, num_labels)
        if wrong := difference({name: tuple(value.shape) for name, value in model.state_dict().items()}, there):
            raise ValueError(f"not the run's model, {wrong}")


def make_model(config: TrainConfig, feature_dim: int, text_inputs: TextInputs, num_labels: int = 0) -> Model:
    """``num_labels``: of what a row of a video can show, beside the background."""
    if isinstance(text_inputs, Words):
        model = GatedPair(feature_dim, text_inputs.width, config.embedding_size)
    elif isinstance(text_inputs, Recordings):
        model = SpokenPair(feature_dim, still=config.grid is not None and config.grid[0] == 1)
    else:
        model = VideoTextModel(
            feature_dim,
            text_inputs.encoder,
            num_video_layers=config.num_video_layers,
            num_fusion_layers=config.num_fusion_layers if config.has_fusion else None,
            dropout=config.dropout,
            token_head=OBJECTIVES[config.objective].token_head,
        )
    if config.objective == "cmcm":
        model.codebook = SharedCodebook(model.width, config.codebook_size)
    if config.objective == "vqa":
        model.head = AnswerHead(model.width)
    if config.objective == "segmentation":
        model.head = nn.Linear(model.width, num_labels + 1)
        model.text_encoder.requires_grad_(False)  # nothing is read
    if config.normalized_loss:
        model.queries = QueryQueue(config.query_queue, model.width)
    return model
