"""The text encoder of a run as a model of sentence-transformers, which loads without this package."""

import os
import tempfile
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import nn

from ...storage.common.errors import UserError
from ...storage.common.files import write_text
from ...storage.common.packages import missing_package_message
from ...storage.common.plugins import trust_modules
from ...storage.common.writing import make_folder
from ...storage.hub.loading import quiet_transformers
from ..data.text_inputs import SubwordInputs
from ..data.text_towers import TextTower
from ..runs.files import CARD_FILE
from ..runs.folder import named_folder, own_dataset
from ..runs.load import load_scorer
from ..runs.run_json import exported_stores, find_run_stores, read_run
from ..scoring.scorer import Scorer, text_vectors

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules import Module

POOLINGS = ("cls", "mean", "lasttoken")
CARD = """\
---
license: other
library_name: sentence-transformers
tags: [sentence-transformers, video-text-retrieval, vlalign]
---

# Texts of {name}

The text encoder of the video-text run {name}, as `vlalign-runs export --form sentence-transformers` wrote it. The dot
product of its vectors with the run's vectors of videos (`load_run(...).encode_video`) is the stage `{score}` of the
run's score. It was trained to find videos, not texts that mean the same.

```python
from sentence_transformers import SentenceTransformer

SentenceTransformer("FOLDER").encode(["a dog runs"])  # this folder, anywhere
```

## Licence

Not stated: the program does not know it. State it here, and replace `other` at the top with it.
"""
SAMPLES = (
    "a",
    "Cut the red onion, and fry it.",
    "two dogs run over a wet meadow while a child watches them from a blue bench",
    "?!",
    "word " * 600,
)
"""Texts for the comparison of vectors: short ones, one without words, and one that is cut."""
TOLERANCE = 1e-4
"""Largest difference of two vectors, relative to the longest."""


def export_sentence_transformer(run: Path | str, folder: Path | str, *, trust: Collection[str] = ()) -> Path:
    """Write the text encoder of a run as a model of sentence-transformers. Its vectors equal ``encode_text``'s.

    The model has the library's own modules: the encoder, the pooling, and any last step to the run's vector. It loads
    with ``SentenceTransformer(folder)``, without this package. The dot product of its vectors with vectors of videos
    from ``LoadedRun.encode_video`` is one stage of the run's score, which finds candidates.

    Args:
        run: The run's folder, exported or not, or "hf:ORG/NAME".
        folder: A new folder, or an empty one.
        trust: As for ``load_run``.

    Returns:
        The folder.

    Raises:
        UserError: sentence-transformers is not installed; the run has no text encoder, or these modules cannot
            reproduce its vectors of texts; the run is damaged; or the folder has files.

    Example:
        >>> from vlalign.train import export_sentence_transformer
        >>> folder = export_sentence_transformer("vlalign_data/demo/runs/words-s3d-seed0", "texts")
        >>> (folder / "modules.json").is_file()
        True
    """
    trust_modules(trust)
    try:
        import sentence_transformers as sentence_transformers
    except ImportError as error:
        raise UserError(missing_package_message(error) or f"sentence-transformers: {error}") from None
    run, folder = named_folder(run), Path(folder)
    if os.path.lexists(folder) and (not folder.is_dir() or folder.is_symlink() or any(folder.iterdir())):
        raise UserError(f"{folder}: already exists; expected a new or empty folder")
    about = read_run(run)
    own = own_dataset(run, about)
    stores = exported_stores(about) if own is None else find_run_stores(own, run.name, about)
    scorer, _ = load_scorer(run, about, stores, "cpu")
    inputs = scorer.text_inputs
    if type(inputs) is not SubwordInputs:
        what = "its vectors of texts are not the output of a text encoder alone"
        raise UserError(f"{run}: cannot be exported for sentence-transformers: {what}; export the run itself")
    if isinstance(inputs.encoder, TextTower):
        raise UserError(
            f"{run}: its text encoder is a part of {inputs.encoder.config.model_type}; export the run itself"
        )
    model = _same_model(scorer, inputs)
    if model is None:
        what = f"its pooling is none of {', '.join(POOLINGS)}"
        raise UserError(f"{run}: cannot be exported for sentence-transformers: {what}; export the run itself")
    make_folder(folder)
    model.save_pretrained(str(folder), create_model_card=False)
    write_text(folder / CARD_FILE, CARD.format(name=run.name, score=scorer.config.objective.vector_score))
    return folder


def _same_model(scorer: Scorer, inputs: SubwordInputs) -> "SentenceTransformer | None":
    """Return the model if its vectors of ``SAMPLES`` equal the run's; otherwise None."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules import Transformer
    from sentence_transformers.sentence_transformer.modules import Pooling

    assert not isinstance(inputs.encoder, TextTower), "export_sentence_transformer has refused it"
    expected = text_vectors(scorer, [scorer.weights.tag_query(text) for text in SAMPLES])
    with tempfile.TemporaryDirectory(prefix="vlalign-export-") as name:
        inputs.encoder.save_pretrained(name)
        inputs.tokenizer.save_pretrained(name)
        quiet_transformers()
        encoder = Transformer(name)
    encoder.max_seq_length = inputs.max_tokens
    for parameter_name, parameter in encoder.model.named_parameters():
        if parameter_name.startswith(
            "pooler."
        ):  # new and unused; without it, the library warns when it loads the model
            nn.init.zeros_(parameter)
    for pooling in POOLINGS:
        modules = [encoder, Pooling(expected.shape[1], pooling)]
        pooled = SentenceTransformer(modules=modules, device="cpu")
        found = pooled.encode(list(SAMPLES), batch_size=1, show_progress_bar=False)
        if (last := _last_modules(np.asarray(found), expected)) is not None:
            return SentenceTransformer(modules=[*modules, *last], device="cpu", similarity_fn_name="dot")
    return None


def _last_modules(found: np.ndarray, expected: np.ndarray) -> "list[Module] | None":
    """Return the modules that normalise or scale pooled vectors [N, D] to the run's; None if neither is enough."""
    from sentence_transformers.base.modules import Dense, Normalize

    lengths = np.linalg.norm(found, axis=1, keepdims=True)
    factor = float((found * expected).sum() / (found * found).sum())
    if _are_same(found / lengths, expected):
        return [Normalize()]
    if not _are_same(factor * found, expected):
        return None
    if abs(factor - 1) <= TOLERANCE:
        return []
    width = expected.shape[1]
    return [Dense(width, width, bias=False, activation_function=nn.Identity(), init_weight=factor * torch.eye(width))]


def _are_same(found: np.ndarray, expected: np.ndarray) -> bool:
    return bool(np.abs(found - expected).max() <= TOLERANCE * np.linalg.norm(expected, axis=1).max())
