"""TACo's Tables 1, 10, 13 and 14, which need no training, and its Figure 3."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...storage.captions.files import read_captions
from ...storage.captions.idf import read_idf
from ...storage.common.errors import UserError
from ...storage.dataset.folder import find_dataset
from ...storage.profiles import PROFILES
from ..objectives.taco import TacoObjective
from ..recipes.recipes import make_config
from ..recipes.train_config import TrainConfig
from ..runs.folder import find_run
from ..runs.run_json import read_config, read_run
from .table import Cell, Column, ResultsTable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ..runs.load import Run

YES, NO = "yes", "no"
TABLE_1: Mapping[str, tuple[str, str, str, str, str]] = {
    "VideoBert": (NO, NO, YES, NO, "BCE"),
    "CBT": (NO, NO, YES, NO, "NCE"),
    "TJVE": (NO, YES, NO, NO, "Margin"),
    "MIL-NCE": (NO, YES, NO, NO, "NCE"),
    "ActBert": (NO, NO, YES, NO, "BCE"),
    "UniVL": (NO, YES, YES, NO, "NCE"),
    "MMT": (NO, YES, NO, NO, "Margin"),
    "TACo": (YES, YES, YES, YES, "NCE"),
}
"""{method: whether it is token-aware, has an early and a later stage and the cascade, and its loss}, as printed."""
TABLE_10: Mapping[str, tuple[int, int, int]] = {
    "youcook2": (378, 168, 2_144),
    "msrvtt": (4_415, 1_463, 15_740),
    "activitynet": (2_602, 1_021, 9_059),
}
"""{data set: nouns, verbs and all tokens}, as printed; our copy of the paper lacks the names of the data sets."""
TABLE_13: Mapping[int, tuple[float, float]] = {0: (126.5, 3.86), 1: (133.6, 4.11), 2: (140.7, 4.45), 4: (154.9, 5.14)}
"""{video layers: million parameters, billion multiply-adds}, as printed."""
TABLE_14: Mapping[str, tuple[int, int, int, int, float, float]] = {
    "ActBert": (12, 12, 0, 24, 369.1, 13.80),
    "MMT": (12, 4, 0, 0, 133.3, 4.63),
    "UniVL": (12, 6, 2, 0, 169.0, 5.82),
    "Our largest": (12, 4, 2, 0, 154.9, 5.14),
}
"""{method: layers of text, video, multi-modal self-attention and cross-attention, and sizes as in Table 13}, as
printed."""
QUERIES = {
    "youcook2": "cut the tomato and put it inside a bowl",
    "msrvtt": "two people are talking with each other on a table",
}
"""{data set: query of Figure 3}"""
TOKEN_WEIGHTS = (0.0, 0.1, 0.5)
NUM_SHOWN = 5
POOLING = "Not counted: BERT's pooling layer, 0.6 M parameters that nothing uses"


def strategies(root: Path, dataset: str | None) -> "tuple[Figure | None, ResultsTable]":
    """Return Table 1, the contrastive strategies of methods; TACo's row is also derived from its recipe."""
    del root, dataset  # the table needs no data set
    config = make_config("taco-youcook2", {"dataset": "youcook2"})
    objective = config.objective
    assert isinstance(objective, TacoObjective)
    of_recipe = {
        "token-aware": "token" in objective.loss_names,
        "early stage": "sentence" in objective.loss_names,
        "later stage": objective.has_fusion,
        "cascade": objective.has_fusion and objective.negatives == "cascade",
    }
    rows: list[tuple[Cell, ...]] = [(method, "paper", *printed) for method, printed in TABLE_1.items()]
    rows.append(("TACo", "ours", *(YES if value else NO for value in of_recipe.values()), "NCE"))
    columns = [Column(name, is_text=True) for name in ("method", "whose", *of_recipe, "loss")]
    return None, ResultsTable(tuple(columns), tuple(rows), ("paper: TACo, Table 1; ours: recipe taco-youcook2",))


def token_statistics(root: Path, dataset: str | None) -> "tuple[Figure | None, ResultsTable]":
    """Return Table 10: how many different nouns, verbs and tokens the training captions of a data set have.

    Raises:
        UserError: No data set is named and there are several, or the data set is not prepared.
    """
    folder = find_dataset(root, dataset, having="captions", hint="vlalign-preprocess")
    entries = read_idf(folder.idf)
    nouns, verbs = (len({e.word for e in entries if e.part_of_speech == tag}) for tag in ("NOUN", "VERB"))
    columns = (Column("data set", is_text=True), Column("whose", is_text=True), *map(Column, ("noun", "verb", "all")))
    rows: list[tuple[Cell, ...]] = [(folder.name, "ours", nouns, verbs, len({e.word for e in entries}))]
    if folder.name in TABLE_10:
        rows.insert(0, (folder.name, "paper", *TABLE_10[folder.name]))
    notes = (
        "paper: TACo, Table 10; ours: different words with this tag, and different words",
        "left open by TACo, Table 10: what a token is, and which are counted; of the definitions that were tried, its "
        "numbers are nearest to those of noun and verb lemmas that are a single piece of BERT's vocabulary and occur "
        "at least twice, and of the different pieces of BERT's tokenizer",
    )
    return None, ResultsTable(columns, tuple(rows), notes)


def model_size(config: TrainConfig, **layers: int) -> tuple[float, float]:
    """Return the parameters of a run's model in millions, and its multiply-adds for a text and a clip in billions.

    Text and clip are as long as the settings allow. The text encoder is BERT-base without its pooling layer. All
    outputs of the fusion layers are counted, though scores use only the first.

    Args:
        config: The run's settings; its encoder is "transformer".
        layers: ``num_video_layers`` or ``num_fusion_layers``, instead of the settings'.

    Example:
        >>> model_size(make_config("taco-youcook2", {"dataset": "youcook2"}))  # doctest: +SKIP
    """
    import torch
    from torch.utils.flop_counter import FlopCounterMode
    from transformers import BertConfig, BertModel

    from ..models.transformer import VideoTextModel

    settings, data = replace(config.model, **layers), config.data
    width = sum(PROFILES[name].dimension for name in data.features.split("+"))
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        model = VideoTextModel(
            width,
            BertModel(BertConfig(), add_pooling_layer=False),
            num_video_layers=settings.num_video_layers,
            num_fusion_layers=settings.num_fusion_layers,
            dropout=settings.dropout,
            additions=settings.added,
        ).eval()
        assert model.fusion is not None, "it has fusion layers"
        model.text_encoder(input_ids=torch.zeros(1, data.max_text_tokens, dtype=torch.long))
        x = model.project(torch.zeros(1, data.max_video_tokens, width))
        for layer in model.video_layers:
            x = layer(x, None)
        z = torch.zeros(1, data.max_text_tokens + data.max_video_tokens, model.width)
        for layer in model.fusion.layers:
            z = layer(z, None)
        model.fusion.score(z[:, 0])
    return sum(p.numel() for p in model.parameters()) / 1e6, counter.get_total_flops() / 2e9


SIZES = (Column("#params (M)"), Column("FLOPs (G)"))


def sizes_by_video_layers(root: Path, dataset: str | None) -> "tuple[Figure | None, ResultsTable]":
    """Return the columns #params and FLOPs of Table 13. ``--suite taco-table13`` has the others."""
    del root, dataset
    config = make_config("taco-youcook2-ablation", {"dataset": "youcook2"})
    rows: list[tuple[Cell, ...]] = []
    for layers, printed in TABLE_13.items():
        rows += _compared(str(layers), printed, model_size(config, num_video_layers=layers))
    columns = (Column("#video enc. layers", is_text=True), Column("whose", is_text=True), *SIZES)
    notes = (
        f"paper: TACo, Table 13; ours: recipe taco-youcook2-ablation, multiply-adds for a text and a clip. {POOLING}",
    )
    return None, ResultsTable(columns, tuple(rows), notes)


def sizes_of_methods(root: Path, dataset: str | None) -> "tuple[Figure | None, ResultsTable]":
    """Return Table 14. Our sizes are computed; UniVL's are estimated as in the paper, by our model with UniVL's
    number of layers."""
    del root, dataset
    config = make_config("taco-howto100m", {"dataset": "howto100m"})
    computed = {"UniVL": 6, "Our largest": config.model.num_video_layers}
    rows: list[tuple[Cell, ...]] = []
    for method, (*layers, parameters, products) in TABLE_14.items():
        ours = model_size(config, num_video_layers=computed[method]) if method in computed else None
        for whose, *sizes in _compared(method, (parameters, products), ours):
            rows.append((whose, sizes[0], *(map(int, layers) if sizes[0] == "paper" else (None,) * 4), *sizes[1:]))
    named = (Column("method", is_text=True), Column("whose", is_text=True))
    columns = (*named, *map(Column, ("text", "video", "mm self", "mm cross")), *SIZES)
    notes = (
        "paper: TACo, Table 14, whose numbers of UniVL are estimates; ours: recipe taco-howto100m, and with 6 video "
        f"layers for UniVL. {POOLING}",
    )
    return None, ResultsTable(columns, tuple(rows), notes)


def _compared(name: str, printed: tuple[float, float], ours: tuple[float, float] | None) -> Iterator[tuple[Any, ...]]:
    """Yield the paper's numbers, ours and the difference."""
    yield (name, "paper", f"{printed[0]:.1f}", f"{printed[1]:.2f}")
    if ours is not None:
        yield (name, "ours", f"{ours[0]:.1f}", f"{ours[1]:.2f}")
        yield (name, "difference", f"{ours[0] - printed[0]:+.1f}", f"{ours[1] - printed[1]:+.2f}")


def examples_by_token_weight(root: Path, dataset: str | None) -> "tuple[Figure | None, ResultsTable]":
    """Return Figure 3: the best clips for a query by the run finished last, with three weights of the token score.

    A clip is shown by its caption. The query is the paper's for YouCook2 and MSR-VTT, and elsewhere the first test
    caption.

    Raises:
        UserError: There is no run with token scores.
    """
    folder = find_run(root, find_dataset(root, dataset, having="runs", hint="vlalign-train").name, None)
    objective = read_config(read_run(folder)).objective
    if not isinstance(objective, TacoObjective) or "token" not in objective.score_weights:
        raise UserError(f"{folder}: its score has no token stage; train a run with --objective taco")
    from ..runs.load import open_run  # torch takes seconds to import

    run = open_run(folder)
    query, found = _best_captions(run)
    columns = (Column("rank"), *(Column(f"weight {weight:g}", is_text=True) for weight in TOKEN_WEIGHTS))
    rows = tuple((rank, *texts) for rank, texts in enumerate(zip(*found, strict=True), start=1))
    notes = (f"query: {query}", f"run: {folder}", "paper: TACo, Figure 3, which shows frames and captions")
    return None, ResultsTable(columns, rows, notes)


def _best_captions(run: "Run") -> tuple[str, list[list[str]]]:
    """Return the query, and for each weight the captions of the best clips."""
    import numpy as np

    from ..data.clips import Clip
    from ..data.usable_captions import captions_of_split
    from ..scoring.scorer import stage_scores

    texts: dict[Clip, str] = {}
    for caption in captions_of_split(read_captions(run.dataset.captions), "test"):
        texts.setdefault(Clip(caption.video_id, caption.start_seconds, caption.end_seconds), caption.caption)
    has_features = set(run.features.video_ids())
    clips = [clip for clip in texts if clip.video_id in has_features]
    clips = [clip for clip, has in zip(clips, run.features.has_rows(clips), strict=True) if has]
    if not clips:
        raise UserError(f"{run.dataset.captions}: no test clip has features; run vlalign-extract")
    query = QUERIES.get(run.dataset.name, texts[clips[0]])
    scores = stage_scores(run.scorer, [run.scorer.weights.tag_query(query)], clips)
    found: list[list[str]] = []
    for weight in TOKEN_WEIGHTS:
        total = scores.by_caption({**run.score_weights, "token": weight})[0]
        found.append([texts[clips[index]] for index in np.argsort(-total, kind="stable")[:NUM_SHOWN]])
    return query, found
