"""The settings of a run's components: data, model, optimization, validation.

Each class checks its values. Objectives have settings of their own (``objectives``); all settings of a run are in
``recipes.train_config.TrainConfig``. Nothing here imports torch, so that a command line starts quickly.
"""

import contextlib
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from ..storage.common.errors import SettingError
from ..storage.common.plugins import loaded_plugins
from ..storage.common.settings import SettingInfo, Settings, setting
from ..storage.common.validation import DATASET_NAME
from ..storage.hub.names import FRAMES, HubName, is_hub_name, read_hub_name
from ..storage.profiles import ALIASES, FRAME_MAPS, PROFILES

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
"""Maximum number of tokens of a text and a video together: the layers have as many positions as BERT. ActivityNet
uses 256 and 256 (TACo section 4.3)."""


def parse_tokens_of_interest(text: str) -> tuple[str, ...]:
    """Return the tags of a name such as "noun+verb" (TACo), "noun+verb+adj" (ToCo) or "det+adp" (TACo's Table 4).

    Raises:
        SettingError: One of them is no part of speech.
    """
    tags = () if text == "none" else tuple(sorted(set(text.upper().replace(",", "+").split("+"))))
    if unknown := [tag for tag in tags if tag not in UNIVERSAL_TAGS]:
        known = ", ".join(UNIVERSAL_TAGS).lower()
        problem = f"{unknown[0]!r} is not a part of speech; expected 'none', or some of {known}, joined by +"
        raise SettingError("tokens_of_interest", text, problem)
    return tags


ADDITIONS = {
    "standardise": "features minus the training clips' mean, divided by their standard deviation",
    "positions": "learned positions of a clip's feature vectors",
    "norm": "LayerNorm and dropout on the input of the fusion layers; dropout after the video encoder's linear layer",
    "scale": "dot products of tokens are divided by the square root of their width",
}
"""{addition of the encoder "transformer" to the model of TACo's section 3: description}"""


def parse_additions(text: str) -> frozenset[str]:
    """Return the additions of a text such as "standardise+scale", or "none".

    Raises:
        SettingError: One of them does not exist.
    """
    names = frozenset(() if text == "none" else text.split("+"))
    if unknown := sorted(names - ADDITIONS.keys()):
        expected = f"'none', or some of {', '.join(ADDITIONS)}, joined by +"
        raise SettingError("additions", text, f"{unknown[0]!r} is not an addition; expected {expected}")
    return names


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
        "", "protocol of the data set (its splits and captions), as for vlalign-preprocess; empty: the default"
    )
    features: str = field(
        metadata={"setting": SettingInfo(description="name of a feature store, such as s3d, or several joined by +")}
    )
    video_grid: str = setting(
        "",
        "TIMExHEIGHTxWIDTH: average a clip's feature maps into this many cells, each one a token (CMCM section 4.3, "
        "appendix B); only for feature maps. --max-video-tokens is then a number of frames",
    )
    max_video_tokens: int = setting(
        48, "feature vectors of a clip; longer clips are sampled evenly", ge=1
    )  # TACo section 4.3
    max_text_tokens: int = setting(30, "subwords of a caption; longer captions are truncated", ge=3)  # TACo section 4.3
    tokens_of_interest: str = setting(
        "noun+verb", "parts of speech of the tokens in the token loss, such as noun+verb+adj; or none"
    )  # TACo section 3.3
    shuffle_shards: int = setting(
        0,
        "number of feature shards whose clips are shuffled together, one group of shards after the other; for features "
        "larger than memory or disk; 0: all shards",
        ge=0,
    )
    clips_per_video: int = setting(0, "clips of the same video in a batch; 0: any number, drawn at random", ge=0)

    @property
    def pos_tags(self) -> tuple[str, ...]:
        """The universal part-of-speech tags of the tokens of interest."""
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
            problem = f"{wrong[0]!r} is not a store's name; expected letters, digits, '.', '_' and '-' only"
            raise SettingError("features", self.features, problem)
        if self.maps and not set(self.features.split("+")) <= set(FRAME_MAPS):
            problem = f"{self.maps} is a map of each frame; maps can only be joined with other maps"
            raise SettingError("features", self.features, problem)
        if self.grid is not None and math.prod(self.grid) + self.max_text_tokens > MAX_TOKENS:
            problem = f"expected {MAX_TOKENS} tokens or fewer together with max_text_tokens, {self.max_text_tokens}"
            raise SettingError("video_grid", self.video_grid, problem)


@dataclass(frozen=True)
class CaptionColumn:
    """A custom input: each caption's number in a column of the caption file.

    It is ``texts.extra[NAME]``, float32 [B]; a whole number above 2**24 loses digits. Each training caption must have a
    number. Queries, and other texts without a number, do not have this input.

    Example:
        >>> from vlalign.train import CaptionColumn
        >>> extra = {"rating": CaptionColumn("rating")}  # a class attribute of an objective or an encoder
        >>> extra["rating"].column
        'rating'
    """

    column: str
    """Name of the column."""


@dataclass(frozen=True)
class FeatureRows:
    """A custom input: the rows of a second feature store of the data set, at each clip's times.

    They are ``videos.extra[NAME]``, float32 [B, M, F], as they are in the store and padded with zeros, and
    ``videos.extra[NAME_mask]``, True for a row, [B, M]. A clip without rows there has one row of zeros.

    Example:
        >>> from vlalign.train import FeatureRows
        >>> extra = {"sound": FeatureRows("log_mel", max_rows=16)}  # a class attribute of an objective or an encoder
        >>> extra["sound"].max_rows
        16
    """

    features: str
    """Name of the store's features, such as "log_mel"."""
    max_rows: int = 48
    """Maximum number of rows of a clip; rows of longer clips are sampled evenly."""


ExtraInput = CaptionColumn | FeatureRows


def extra_problem(extra: Any) -> str | None:
    """Return the reason why a value does not declare custom inputs, or None if it does."""
    if not isinstance(extra, Mapping):
        return f"its extra is {type(extra).__name__}; expected a dict of CaptionColumn or FeatureRows by name"
    wrong = [name for name, of in extra.items() if not isinstance(name, str) or not isinstance(of, ExtraInput)]
    return f"its extra has {wrong[0]!r}: {extra[wrong[0]]!r}; expected CaptionColumn or FeatureRows" if wrong else None


@dataclass(frozen=True, kw_only=True)
class EncoderTraits:
    """The properties of a kind of encoder for clips and captions.

    Example:
        >>> from vlalign.train import EncoderTraits
        >>> EncoderTraits(description="means of feature vectors", gives_tokens=False).pools_rows
        True
    """

    description: str
    """A short description with its source, shown in the help of ``--encoder``."""
    gives_tokens: bool = True
    """False: it gives one vector for each clip and caption."""
    reads_rows: bool = False
    """True if it gives no tokens but reads all rows of a clip. Others without tokens get the maximum over the rows."""
    reads_frames: bool = False
    """It turns frames into rows itself (``PairModel.rows_of_frames``), so it takes a store of frames and no video
    tower."""
    caption_input: Literal["subwords", "word_vectors", "each_word_vector", "word_ids", "recordings"] | type = "subwords"
    """What it reads of a caption; decides the class of its inputs (``data/text_inputs.py``). A custom encoder can name
    a custom class with the methods of ``data.text_inputs.LearnedInputs``."""
    ignored_settings: tuple[str, ...] = ()
    """Settings that have no effect with this encoder."""
    normalises_batches: bool = False
    """It has batch normalisation, so it must see the whole batch at once."""
    extra: Mapping[str, ExtraInput] = field(default_factory=dict)
    """{name: custom input}, passed to the encoders of its model as the argument ``extra``."""

    @property
    def pools_rows(self) -> bool:
        """It gets the maximum over a clip's rows, as one row."""
        return not (self.gives_tokens or self.reads_rows or self.reads_frames)

    @property
    def reads_words(self) -> bool:
        """False: captions are recordings."""
        return self.caption_input != "recordings"

    @property
    def learns_word_vectors(self) -> bool:
        """It learns a vector and a weight for each word."""
        return self.caption_input == "word_ids"


ENCODERS = {
    "transformer": EncoderTraits(
        description="self-attention over a clip's feature vectors and over a caption's subwords (TACo, section 3.1)",
        ignored_settings=("embedding_size", "glu_size"),
    ),
    "mean": EncoderTraits(
        description="the mean of a clip's feature vectors, each of length 1, and a text encoder, without any layer "
        "between them: CLIP4Clip's meanP (NCL, section 4)",
        ignored_settings=(
            "embedding_size",
            "glu_size",
            "num_video_layers",
            "num_fusion_layers",
            "additions",
            "dropout",
        ),
    ),
    "gated": EncoderTraits(
        description="gated embeddings of the maximum of a clip's feature vectors and of the average of a caption's "
        "word vectors (SSML, section 5.1)",
        gives_tokens=False,
        caption_input="word_vectors",
        ignored_settings=(
            "max_video_tokens",
            "max_text_tokens",
            "tokens_of_interest",
            "text_encoder",
            "glu_size",
            "num_video_layers",
            "num_fusion_layers",
            "additions",
            "dropout",
        ),
    ),
    "htm": EncoderTraits(
        description="HowTo100M's model: gated embeddings of the maximum of a clip's feature vectors and of the maximum "
        "over a caption's words of a linear layer and ReLU on their vectors (Miech et al. 2019)",
        gives_tokens=False,
        caption_input="each_word_vector",
        ignored_settings=(
            "max_video_tokens",
            "tokens_of_interest",
            "text_encoder",
            "glu_size",
            "num_video_layers",
            "num_fusion_layers",
            "additions",
            "dropout",
        ),
    ),
    "words": EncoderTraits(
        description="a vector and a weight for each word of the training captions, and linear layers on a clip's "
        "feature vectors; with a text encoder also its sentence vectors, which are not trained",
        caption_input="word_ids",
        ignored_settings=(
            "embedding_size",
            "glu_size",
            "num_video_layers",
            "num_fusion_layers",
            "additions",
            "tokens_of_interest",
        ),
    ),
    "spoken": EncoderTraits(
        description="gated linear units of a clip's feature vectors, and of Harwath's residual network on the log-mel "
        "spectrogram of its spoken caption (CMCM, Table 3)",
        caption_input="recordings",
        ignored_settings=(
            "text_encoder",
            "embedding_size",
            "num_video_layers",
            "num_fusion_layers",
            "additions",
            "tokens_of_interest",
            "dropout",
        ),
        normalises_batches=True,
    ),
    "ssb": EncoderTraits(
        description="a GRU over a clip's feature vectors and a convolution over a caption's subwords, each with a "
        "pooling layer of self-attention (Support-Set Bottlenecks; NCL, Appendix C)",
        gives_tokens=False,
        reads_rows=True,
        ignored_settings=(
            "embedding_size",
            "glu_size",
            "num_video_layers",
            "num_fusion_layers",
            "additions",
            "tokens_of_interest",
        ),
    ),
}
"""{name: properties} of the built-in encoders"""


def encoders() -> dict[str, EncoderTraits]:
    """Return {name: properties} of all encoders: built-in ones, and loaded custom ones."""
    own = {plugin.text: plugin.value.traits for plugin in loaded_plugins("encoders")}
    return ENCODERS | {name: traits for name, traits in own.items() if name not in ENCODERS}


def encoder_problem(value: Any) -> str | None:
    """Return the reason why a custom value is not an encoder, or None if it is: see ``models.base.PairModel``."""
    if not isinstance(getattr(value, "traits", None), EncoderTraits) or not callable(
        getattr(value, "from_settings", None)
    ):
        return (
            "is not an encoder; expected a subclass of vlalign.train.models.base.PairModel with traits and "
            "from_settings"
        )
    if value.__module__.startswith("vlalign."):
        return f"is built in; expected one of {', '.join(ENCODERS)}, or one of your own"
    return extra_problem(value.traits.extra)


class _EncoderDescriptions(Mapping[str, str]):
    """{name: description} of all encoders, looked up when used."""

    def __getitem__(self, name: str) -> str:
        return encoders()[name].description

    def __iter__(self) -> Iterator[str]:
        return iter(encoders())

    def __len__(self) -> int:
        return len(encoders())


SMALL_TEXT_ENCODER = "small"
"""The text encoder that is learned from the captions."""
PRETRAINED = "pretrained"
"""The published weights of a network."""


@dataclass(frozen=True)
class TowerName:
    """The encoder and weights of a video tower, which computes features from frames during training."""

    encoder: str
    """A name of ``PROFILES``, or the name of a model of the hub (``HubName.text``)."""
    weights: str = PRETRAINED
    """For a name of ``PROFILES``: "pretrained", "random", or a file or a folder."""

    @property
    def hub(self) -> HubName | None:
        """The name of a model of the hub in parts; None for another network."""
        return read_hub_name(self.encoder) if is_hub_name(self.encoder) else None

    @property
    def frames(self) -> str:
        """Name of the store of its input frames, as made by vlalign-extract."""
        return f"{self.encoder}_frames" if self.hub is None else replace(self.hub, pooling=FRAMES).text

    @property
    def map_shape(self) -> tuple[int, int, int] | None:
        """(height, width, channels) of its features if they are maps; else None."""
        return FRAME_MAPS.get(self.encoder)


def parse_video_tower(text: str) -> TowerName | None:
    """Return the network of a text such as "clip_vit_b32", "clip_vit_b32=FILE" or "hf:FOLDER"; None for an empty one.

    Raises:
        SettingError: There is no such network.
    """
    if not text:
        return None
    name, _, weights = (text, "", "") if is_hub_name(text) else text.partition("=")
    name = ALIASES.get(name, name)
    if is_hub_name(name):
        hub = read_hub_name(name)
        if weights:
            raise SettingError("video_tower", text, "a model of the hub has its own weights; omit =WEIGHTS")
        if hub.is_frames:
            raise SettingError("video_tower", text, "has :frames, but a tower makes features; omit :frames")
        return TowerName(hub.text)
    profile = PROFILES.get(name)
    if profile is None or profile.modality != "frames" or profile.side_px is None:
        known = [name for name, of in PROFILES.items() if of.modality == "frames" and of.side_px is not None]
        why = f"expected one of {', '.join(known)}, with =WEIGHTS if wanted, or hf:ORG/MODEL or hf:/path/to/folder"
        raise SettingError("video_tower", text, why)
    if "=" in text and not weights:
        raise SettingError("video_tower", text, "expected a file, a folder or 'random' after =")
    return TowerName(name, weights or PRETRAINED)


FRAME_AUGMENTATIONS = {
    "none": "as they are",
    "flip": "mirrored with probability 1/2",
    "crop": "a random square of 0.8 to 1 of the frame's area, enlarged to its size",
    "crop+flip": "both",
}
"""{augmentation of a clip's frames in training, the same for all frames: description}"""


@dataclass(frozen=True, kw_only=True)
class ModelSettings(Settings):
    """Settings of the model.

    Raises:
        SettingError: A value cannot be used.

    Example:
        >>> from vlalign.train import ModelSettings
        >>> settings = ModelSettings(encoder="gated", embedding_size=256)
        >>> settings.encoder_traits.gives_tokens
        False
    """

    encoder: str = setting("transformer", choices=_EncoderDescriptions())
    text_encoder: str = setting(
        SMALL_TEXT_ENCODER,
        "'small' (two layers, learned from the captions; with encoder words: none), or a BERT-like model, T5, CLIP or "
        "SigLIP by folder or hub name",
    )
    video_tower: str = setting(
        "",
        "network that turns frames into features and is tuned with the model: a name as for vlalign-extract, such as "
        "clip_vit_b32, clip_vit_b32=WEIGHTS (a file, the folder of a model or of a run, or 'random') or hf:FOLDER. "
        "--features is then a store of its frames, such as clip_vit_b32_frames; empty: the store has features",
    )
    frame_augmentation: str = setting(
        "none", "augmentation of the frames of a training clip, the same for all of them", choices=FRAME_AUGMENTATIONS
    )
    embedding_size: int = setting(6144, "width of the encoders gated and htm", ge=1)  # SSML section 5.1
    glu_size: int = setting(
        0,
        "width of the vectors of encoder spoken: 4096 for S-MiT, 1024 for Places (CMCM section 4.1); 0: 1,024, in the "
        "form of earlier versions, with a linear layer on the features and another gate",
        ge=0,
    )
    num_video_layers: int = setting(1, "self-attention layers over a clip's feature vectors", ge=0)  # TACo section 4.2
    num_fusion_layers: int = setting(
        2, "fusion layers: self-attention over the tokens of a text and a video together", ge=1
    )  # TACo section 4.2
    additions: str = setting(
        "+".join(ADDITIONS),
        "additions to the model of TACo's section 3, joined by +, or none. "
        + "; ".join(f"{name}: {text}" for name, text in ADDITIONS.items()),
    )
    dropout: float = setting(0.1, "dropout rate of all layers outside the text encoder", ge=0, lt=1)
    precision: str = setting(
        "fp32",
        choices={"fp32": "", "bf16": "mixed precision in training: layers compute in bfloat16, the rest in float32"},
    )
    compile: bool = setting(False, "compile the layers with torch.compile")

    @property
    def added(self) -> frozenset[str]:
        """The chosen additions, keys of ``ADDITIONS``."""
        return parse_additions(self.additions)

    @property
    def tower(self) -> TowerName | None:
        """The network of ``video_tower``, or None."""
        return parse_video_tower(self.video_tower)

    def check(self) -> None:
        """Check the additions and the video tower."""
        _ = self.added, self.tower  # raise for one that does not exist

    @property
    def encoder_traits(self) -> EncoderTraits:
        """The properties of ``encoder``."""
        return encoders()[self.encoder]


NUM_EPOCHS, MIN_STEPS, MAX_STEPS = 30, 300, 30_000
"""Epochs, and limits of the number of steps, if ``num_steps`` is 0."""
OPTIMIZERS = {
    "adamw": "Adam with decoupled weight decay",
    "adam": "Adam, whose weight decay is a part of the gradient",
    "bertadam": "as CLIP4Clip: betas 0.9 and 0.98, epsilon 1e-6, no correction of bias, decoupled weight decay, and "
    "the gradient clipped to norm 1",
}
"""{name of an optimizer: description}"""
SCHEDULES = {
    "linear": "linearly to 0",
    "cosine": "to 0 by a cosine",
    "constant": "no decay",
    "bert-cosine": "as CLIP4Clip: by the cosine of the whole training, which the warm-up covers at first; the first "
    "step of a warm-up has rate 0",
}
"""{name of a learning rate schedule: description of its decay after the warm-up}"""


@dataclass(frozen=True, kw_only=True)
class ParameterGroup:
    """Parameters that are trained with settings of their own."""

    pattern: str
    """Pattern of parameter names, as in ``fnmatch``; a parameter belongs to the first group with a matching pattern."""
    lr: float = 1.0
    """Factor of the learning rate."""
    decay: float | None = None
    """Weight decay; None for the run's."""
    frozen: bool = False
    """True if the parameters are not trained. Dropout and batch statistics are still active."""
    schedule: str | None = None
    """One of ``SCHEDULES``; None for the run's."""


MAX_GROUPS = 10_000
"""Maximum number of groups, more than a model has parameters: settings can come from a stranger's run."""


def parse_parameter_groups(text: str) -> tuple[ParameterGroup, ...]:
    """Return the groups in a text such as "text_encoder.*:lr=0.1,decay=0;own.*:lr=10".

    Raises:
        SettingError: The text is not of this form.
    """
    groups: list[ParameterGroup] = []
    if text.count(";") > MAX_GROUPS:
        raise SettingError("parameter_groups", text, f"{text.count(';'):,} groups; expected {MAX_GROUPS:,} or fewer")
    for part in filter(None, (part.strip() for part in text.split(";"))):
        pattern, colon, written = (piece.strip() for piece in part.partition(":"))
        pairs = [tuple(piece.strip() for piece in pair.partition("=")[::2]) for pair in written.split(",")]
        values = {key: _group_value(text, key, value) for key, value in pairs}
        if not (pattern and colon) or len(values) < len(pairs):
            problem = f"{part!r} is not a group; expected PATTERN:key=value,key=value with each key once"
            raise SettingError("parameter_groups", text, problem)
        if values.get("frozen") and len(values) > 1:
            raise SettingError("parameter_groups", text, f"{part!r}: a frozen group has no other keys; omit them")
        groups.append(ParameterGroup(pattern=pattern, **values))
    return tuple(groups)


def _group_value(text: str, key: str, value: str) -> Any:
    """Return the value of a key of ``ParameterGroup``."""
    expected = {
        "lr": "more than 0",
        "decay": "0 or more",
        "frozen": "true or false",
        "schedule": " or ".join(SCHEDULES),
    }
    if key not in expected:
        raise SettingError("parameter_groups", text, f"unknown key {key!r}; expected some of {', '.join(expected)}")
    if key == "frozen" and value in ("true", "false"):
        return value == "true"
    if key == "schedule" and value in SCHEDULES:
        return value
    with contextlib.suppress(ValueError):
        number = float(value)
        if (key == "lr" and 0 < number < math.inf) or (key == "decay" and 0 <= number < math.inf):
            return number
    raise SettingError("parameter_groups", text, f"{key} is {value!r}; expected {expected[key]}")


@dataclass(frozen=True, kw_only=True)
class OptimizationSettings(Settings):
    """Settings of the training: steps, batches and the optimizer."""

    seed: int = setting(0, "seed of all random numbers")
    num_steps: int = setting(
        300,
        f"optimizer steps; 0: {NUM_EPOCHS} epochs of the training clips, at least {MIN_STEPS} steps and at "
        f"most {MAX_STEPS:,}",
        ge=0,
    )
    batch_size: int = setting(64, "pairs of a batch, over all processes; all are contrasted with each other", ge=2)
    micro_batch_size: int = setting(
        0,
        "pairs that a process computes at once: fewer take less memory and more time, with the same loss; 0: all",
        ge=0,
    )
    optimizer: str = setting("adamw", "method that turns gradients into steps", choices=OPTIMIZERS)
    learning_rate: float = setting(5e-4, "peak learning rate", gt=0)
    warmup_steps: int = setting(50, "steps in which the learning rate rises from 0", ge=0)
    schedule: str = setting("linear", "learning rate decay after the warm-up", choices=SCHEDULES)
    weight_decay: float = setting(1e-5, "weight decay of the optimizer", ge=0)  # TACo section 4.3
    parameter_groups: str = setting(
        "",
        "groups of parameters with their own training: PATTERN:KEY=VALUE,KEY=VALUE joined by ;, such as "
        "own.*:lr=10,decay=0. The first pattern that matches a parameter's name counts (fnmatch). Keys: lr, a factor "
        "of the learning rate; decay, the weight decay; schedule; frozen=true",
        metavar="GROUPS",
    )
    ema_decay: float = setting(
        0.0, "decay of the exponential moving average of the weights that is validated and saved; 0: none", ge=0, lt=1
    )

    @property
    def groups(self) -> tuple[ParameterGroup, ...]:
        """The groups of ``parameter_groups``."""
        return parse_parameter_groups(self.parameter_groups)

    def check(self) -> None:
        """Check the groups."""
        _ = self.groups  # raises for a text of another form

    def steps_for(self, num_clips: int) -> int:
        """Return the number of steps of a training on this many clips."""
        steps = round(NUM_EPOCHS * num_clips / self.batch_size)
        return self.num_steps or min(max(steps, MIN_STEPS), MAX_STEPS)


STAGE_WEIGHTS = {
    "set": "by their settings",
    "validation": "the best on the validation split; 0 for a stage that does not help",
}
"""{method of choosing the weights of a score's stages: description}"""


@dataclass(frozen=True, kw_only=True)
class ValidationSettings(Settings):
    """Settings of the validation during training."""

    validate_every: int = setting(50, "steps between validations; each saves a checkpoint", ge=1)
    validation_share: float = setting(
        0.0, "share of the training videos that become the validation split if the data set has none", ge=0, lt=1
    )
    stage_weights: str = setting("set", "how the weights of the score's stages are chosen", choices=STAGE_WEIGHTS)
