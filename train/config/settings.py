"""The settings of a run, in parts: data, model, optimisation, validation. Each checks itself.

An objective's settings are its own (``objectives``); ``config.TrainConfig`` holds all parts together. Nothing here
imports torch, so that a command line starts quickly.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from ...storage.common.errors import SettingError
from ...storage.common.validation import DATASET_NAME
from ...storage.profiles import FRAME_MAPS
from .fields import Rule, Settings, setting

UNIVERSAL_TAGS = [
    "ADJ",
    "ADP",
    "ADV",
    "AUX",
    "CCONJ",
    "DET",
    "INTJ",
    "NOUN",
    "NUM",
    "PART",
    "PRON",
    "PROPN",
    "PUNCT",
    "SCONJ",
    "SYM",
    "VERB",
    "X",
]  # as spaCy gives them
"""Parts of speech, universaldependencies.org/u/pos."""
MAX_TOKENS = 512
"""Most tokens of a text and a video together: the positions that the layers know, as many as BERT's. ActivityNet
uses 256 and 256 (TACo section 4.3)."""


def parse_tokens_of_interest(text: str) -> tuple[str, ...]:
    """Return the tags of a name such as "noun+verb" (TACo), "noun+verb+adj" (ToCo) or "det+adp" (TACo's Table 4).

    Raises:
        SettingError: One of them is no part of speech.
    """
    tags = () if text == "none" else tuple(sorted(set(text.upper().replace(",", "+").split("+"))))
    if unknown := [tag for tag in tags if tag not in UNIVERSAL_TAGS]:
        known = ", ".join(UNIVERSAL_TAGS).lower()
        problem = f"{unknown[0]!r} is no part of speech; expected 'none', or some of {known}, joined by +"
        raise SettingError("tokens_of_interest", text, problem)
    return tags


def parse_grid(text: str) -> tuple[int, int, int] | None:
    """Return the (time, height, width) of a text such as "2x2x2"; None for an empty text."""
    if not text:
        return None
    if not re.fullmatch(r"[1-9]\d*x[1-9]\d*x[1-9]\d*", text):
        raise SettingError("video_grid", text, "expected TIMExHEIGHTxWIDTH, such as 2x2x2")
    time, height, width = map(int, text.split("x"))
    return time, height, width


@dataclass(frozen=True, kw_only=True)
class DataSettings(Settings):
    """Settings of the training data."""

    dataset: str
    protocol: str = setting(
        "", "which splits and captions of the data set, as for vlalign-preprocess; empty: the usual ones"
    )
    features: str = field(metadata={"rule": Rule(help="name of a feature store, such as s3d, or several joined by +")})
    video_grid: str = setting(
        "",
        "TIMExHEIGHTxWIDTH: average a clip's frame maps into this many cells, each one a token (CMCM section 4.3, "
        "appendix B); for features that are maps. --max-video-tokens counts frames then",
    )
    max_video_tokens: int = setting(48, "rows of a clip, evenly chosen from longer clips", least=1)  # TACo section 4.3
    max_text_tokens: int = setting(30, "word pieces of a caption; longer ones are cut", least=3)  # TACo section 4.3
    tokens_of_interest: str = setting(
        "noun+verb", "parts of speech that the token loss is about, such as noun+verb+adj; or none"
    )  # TACo section 3.3
    shuffle_shards: int = setting(
        0,
        "shards of the features whose clips are shuffled together, one such group after the other, for features that "
        "no disk or memory here holds whole; 0: all",
        least=0,
    )
    clips_per_video: int = setting(0, "clips of the same video in a batch; 0: as many as are drawn by chance", least=0)

    @property
    def pos_tags(self) -> tuple[str, ...]:
        """The universal tags of the tokens of interest."""
        return parse_tokens_of_interest(self.tokens_of_interest)

    @property
    def grid(self) -> tuple[int, int, int] | None:
        """Time, height and width of the grid, or None."""
        return parse_grid(self.video_grid)

    @property
    def maps(self) -> str | None:
        """The first of the features that is a map of each frame, or None."""
        return next((name for name in self.features.split("+") if name in FRAME_MAPS), None)

    def check(self) -> None:
        """Check sizes and names."""
        if self.max_video_tokens + self.max_text_tokens > MAX_TOKENS:
            problem = f"expected {MAX_TOKENS} or fewer together with max_text_tokens, which is {self.max_text_tokens}"
            raise SettingError("max_video_tokens", self.max_video_tokens, problem)
        _ = self.pos_tags  # raises for an unknown part of speech
        if wrong := [name for name in self.features.split("+") if not DATASET_NAME.fullmatch(name)]:
            problem = f"{wrong[0]!r} names no store; expected letters, digits, '.', '_' and '-' only"
            raise SettingError("features", self.features, problem)
        if self.maps and "+" in self.features:
            problem = f"{self.maps} is a map of each frame, which cannot be joined; expected it alone"
            raise SettingError("features", self.features, problem)
        self._check_grid()

    def _check_grid(self) -> None:
        if self.grid is None:
            return
        if self.maps is None:
            problem = f"features {self.features} are no maps; expected one of {', '.join(FRAME_MAPS)}, or no grid"
            raise SettingError("video_grid", self.video_grid, problem)
        (time, height, width), (map_height, map_width, _) = self.grid, FRAME_MAPS[self.maps]
        if height > map_height or width > map_width:
            problem = f"a map of {self.features} has {map_height} x {map_width} cells; expected no more"
            raise SettingError("video_grid", self.video_grid, problem)
        if time * height * width + self.max_text_tokens > MAX_TOKENS:
            problem = f"expected {MAX_TOKENS} tokens or fewer together with max_text_tokens, {self.max_text_tokens}"
            raise SettingError("video_grid", self.video_grid, problem)


@dataclass(frozen=True, kw_only=True)
class Encoder:
    """A kind of encoders for clips and captions."""

    meaning: str
    gives_tokens: bool = True
    """False: it gives one vector for each clip and caption."""
    reads_words: bool = True
    """False: captions are recordings."""
    gives_word_vectors: bool = False
    """It gives each word a vector and a weight of its own."""
    unused: tuple[str, ...] = ()
    """Settings that change nothing with it."""
    normalises_batches: bool = False
    """It has batch normalisation, so it must see the whole batch at once."""


ENCODERS = {
    "transformer": Encoder(
        meaning="self-attention over a clip's rows and over a caption's word pieces (TACo, section 3.1)",
        unused=("embedding_size",),
    ),
    "gated": Encoder(
        meaning="gated embeddings of the maximum of a clip's rows and of the average of a caption's word vectors "
        "(SSML, section 5.1)",
        gives_tokens=False,
        unused=(
            "max_video_tokens",
            "max_text_tokens",
            "tokens_of_interest",
            "text_encoder",
            "num_video_layers",
            "num_fusion_layers",
            "dropout",
        ),
    ),
    "words": Encoder(
        meaning="a vector and a weight for each word of the training captions, and linear layers on a clip's rows",
        gives_word_vectors=True,
        unused=("text_encoder", "embedding_size", "num_video_layers", "num_fusion_layers", "tokens_of_interest"),
    ),
    "spoken": Encoder(
        meaning="a linear layer on a clip's rows, and Harwath's residual network on its spoken caption's log-mel rows "
        "(CMCM, Table 3)",
        reads_words=False,
        unused=(
            "text_encoder",
            "embedding_size",
            "num_video_layers",
            "num_fusion_layers",
            "tokens_of_interest",
            "dropout",
        ),
        normalises_batches=True,
    ),
}
"""{name: encoders}"""


def _meanings(encoders: Iterable[tuple[str, Encoder]]) -> dict[str, str]:
    return {name: encoder.meaning for name, encoder in encoders}


@dataclass(frozen=True, kw_only=True)
class ModelSettings(Settings):
    """Settings of the model."""

    encoder: str = setting("transformer", choices=_meanings(ENCODERS.items()))
    text_encoder: str = setting(
        "small", "'small' (two layers, learned from the captions), or a BERT-like model by folder or hub name"
    )
    embedding_size: int = setting(6144, "width of the gated encoder", least=1)  # SSML section 5.1
    num_video_layers: int = setting(1, "self-attention layers over a clip's rows", least=0)  # TACo section 4.2
    num_fusion_layers: int = setting(2, "layers that see a text and a video together", least=1)  # TACo section 4.2
    dropout: float = setting(0.1, "dropout rate of the new layers", least=0, below=1)
    precision: str = setting(
        "fp32", choices={"fp32": "", "bf16": "layers compute in bfloat16 while training, the rest in float32"}
    )
    compile: bool = setting(False, "compile the layers with torch.compile")

    @property
    def encoders(self) -> Encoder:
        """The encoders of this name."""
        return ENCODERS[self.encoder]


PASSES, LEAST_STEPS, MOST_STEPS = 30, 300, 30_000
"""The number of steps that follows from the data."""
SCHEDULES = {"linear": "to 0 in a straight line", "cosine": "to 0 as a cosine", "constant": "not at all"}
"""{how the learning rate falls after the warm-up: in words}"""


@dataclass(frozen=True, kw_only=True)
class OptimizationSettings(Settings):
    """Settings of the training: steps, batches and the optimizer."""

    seed: int = setting(0, "seed of everything random")
    num_steps: int = setting(
        300,
        f"steps, each on one batch; 0: {PASSES} times through the training clips, at least {LEAST_STEPS} steps and at "
        f"most {MOST_STEPS:,}",
        least=0,
    )
    batch_size: int = setting(64, "pairs that are contrasted with each other, in all processes together", least=2)
    micro_batch_size: int = setting(
        0, "pairs that a process computes at once, for the same loss in less memory and more time; 0: all", least=0
    )
    learning_rate: float = setting(5e-4, "peak learning rate of AdamW", above=0)
    warmup_steps: int = setting(50, "steps in which the learning rate rises from 0", least=0)
    schedule: str = setting("linear", "how the learning rate falls", choices=SCHEDULES)
    weight_decay: float = setting(1e-5, "decoupled weight decay of AdamW", least=0)  # TACo section 4.3
    average: float = setting(
        0.0, "decay of a running average of the weights, which is validated and kept; 0: no average", least=0, below=1
    )

    def steps_for(self, num_clips: int) -> int:
        """Return the number of steps of a training on this many clips."""
        passes = round(PASSES * num_clips / self.batch_size)
        return self.num_steps or min(max(passes, LEAST_STEPS), MOST_STEPS)


STAGE_WEIGHTS = {
    "set": "they are settings",
    "validation": "those that rank the validation split best; a stage that does not help has 0",
}
"""{where the stages' weights come from: in words}"""


@dataclass(frozen=True, kw_only=True)
class ValidationSettings(Settings):
    """Settings of the validation during training."""

    validate_every: int = setting(50, "steps between validations; the run's state is saved as often", least=1)
    held_out: float = setting(
        0.0, "share of the training videos to validate on if the data set has no validation split", least=0, below=1
    )
    stage_weights: str = setting("set", "where the weights of the score's stages come from", choices=STAGE_WEIGHTS)
