"""What a run is made with."""

import re
from dataclasses import dataclass

from ..storage.common.errors import UserError
from ..storage.profiles import FRAME_MAPS
from ..storage.records import DATASET_NAME

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
]
"""Of universaldependencies.org/u/pos, as spaCy gives them."""


def parse_tokens_of_interest(text: str) -> tuple[str, ...]:
    """Tags of a name such as ``noun+verb`` (TACo), ``noun+verb+adj`` (ToCo) or ``det+adp`` (TACo's Table 4); none of ``none``."""
    tags = () if text == "none" else tuple(sorted(set(text.upper().replace(",", "+").split("+"))))
    if unknown := [tag for tag in tags if tag not in UNIVERSAL_TAGS]:
        raise UserError(
            f"--tokens-of-interest {text}: {unknown[0]!r} is no part of speech; expected 'none', or some of "
            f"{', '.join(UNIVERSAL_TAGS).lower()}, joined by +"
        )
    return tags


def parse_grid(text: str) -> tuple[int, int, int] | None:
    """TIMExHEIGHTxWIDTH, such as ``2x2x2``."""
    if not text:
        return None
    if not re.fullmatch(r"[1-9]\d*x[1-9]\d*x[1-9]\d*", text):
        raise UserError(f"--video-grid {text}: expected TIMExHEIGHTxWIDTH, such as 2x2x2")
    time, height, width = map(int, text.split("x"))
    return time, height, width


LOSSES = {
    "taco": ("sentence", "token", "fusion"),
    "toco": ("pooled", "fusion", "token"),
    "ssml": ("margin",),
    "mil-nce": ("candidates",),
    "ncl": ("contrast",),
    "cmcm": ("contrast", "codes"),
    "vqa": ("answers", "blind"),
    "segmentation": ("labels",),
}
"""{objective: the terms of its loss}: L1, L2 and L3 of TACo's Eq. 6; ToCo's "another contrastive loss" of section 3.3, and Eq. 3; SSML's
Eq. 4; MIL-NCE; NCL's Eq. 4; CMCM's Eq. 1 and 2; SSML's section 5.2, and the same without videos; labels of a video's rows."""
HEADS = ("vqa", "segmentation")
"""Objectives whose answer is one of a list: such a run is asked for nothing else."""
ENCODERS = {
    "transformer": "self-attention over a clip's rows and over a caption's word pieces (TACo, section 3.1)",
    "gated": "gated embeddings of the maximum of a clip's rows and of the average of a caption's word vectors (SSML, section 5.1)",
    "spoken": "a linear layer on a clip's rows, and Harwath's residual network on its spoken caption's log-mel rows (CMCM, Table 3)",
}
"""{encoder: in words}"""
GATED = ("ssml", "mil-nce", "ncl", "vqa")
"""Objectives that need no more of a clip and a caption than a vector of each."""
SPOKEN = ("cmcm", "ncl", "ssml")
"""Objectives that know no words."""
SCHEDULES = {"linear": "to 0 in a straight line", "cosine": "to 0 as a cosine", "constant": "not at all"}
"""{how the learning rate falls after the warm-up: in words}"""
PAIR_WEIGHTS = {
    "none": "all pairs count the same",
    "density": "as probable as it is that a clip and its caption belong together (SSML, Eq. 2)",
}
"""{by what the pairs are weighted: in words}"""
NEGATIVES = {
    "cascade": "the hardest by the early scores",
    "random": "as many, drawn at random",
    "all": "every other pair of the batch",
}
"""{how the pairs for the fusion layers are chosen: in words}"""
PRECISIONS = ("fp32", "bf16")

LEAST = {
    "num_steps": 1,
    "batch_size": 2,
    "max_video_tokens": 1,
    "max_text_tokens": 3,
    "num_negatives": 1,
    "validate_every": 1,
}
LEAST |= {
    "warmup_steps": 0,
    "weight_decay": 0,
    "num_video_layers": 0,
    "num_fusion_layers": 1,
    "dropout": 0,
    "micro_batch_size": 0,
}
LEAST |= {
    "embedding_size": 1,
    "density_neighbors": 1,
    "query_queue": 1,
    "clips_per_video": 0,
    "captions_per_clip": 1,
    "codebook_size": 0,
}
LEAST |= {"margin": 0, "code_loss_weight": 0}
KNOWN = {
    "objective": LOSSES,
    "negatives": NEGATIVES,
    "precision": PRECISIONS,
    "encoder": ENCODERS,
    "schedule": SCHEDULES,
}
KNOWN |= {"pair_weights": PAIR_WEIGHTS}
MAX_TOKENS = 512
"""Of a text and a video together: positions that the layers know, as many as BERT. ActivityNet takes 256 and 256 (section 4.3)."""


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """A complete training configuration. Numbers of the paper where it gives one that fits a small model on a CPU."""

    dataset: str
    protocol: str = ""
    """Which of the data set's splits and captions; empty: the usual ones."""
    features: str
    """Name of a store, or several joined by '+'."""
    video_grid: str = ""
    """TIMExHEIGHTxWIDTH: a clip's maps of frames are averaged in so many places, each a token (CMCM section 4.3, appendix B); for
    features that are maps alone, of which ``max_video_tokens`` counts the frames."""
    recipe: str = ""
    """Where the settings came from that were not given."""
    init: str = ""
    """The run whose model training goes on from; empty: none."""
    text_encoder: str = "small"
    """'small' (two layers, learned from the captions) or a BERT-like model by folder or hub name."""
    encoder: str = "transformer"
    embedding_size: int = 6144  # SSML section 5.1
    """Of the gated encoder."""
    objective: str = "taco"
    losses: str = "all"
    """Some of the objective's ``LOSSES``, joined by +, or all of them."""
    negatives: str = "cascade"
    num_negatives: int = 8  # section 4.3
    margin: float = 0.1
    """By which a pair is to be ahead (SSML's delta; CMCM's M, which is 1e-3)."""
    pair_weights: str = "none"
    density_neighbors: int = 4  # K of SSML's Eq. 3, as in its section 6.1
    normalized_loss: bool = False
    """With NCL's biases (its Eq. 12)."""
    query_queue: int = 16_384  # NCL, appendix B
    """Training queries that are kept for normalising test scores, where the loss is normalised."""
    clips_per_video: int = 0
    """So many clips of a video stand in a batch together; 0: as chance has it."""
    intra_video_rate: float = 0.5
    """The part of a pair's negatives' weight that those of its video have, in a margin loss with ``clips_per_video`` above 1."""
    captions_per_clip: int = 3
    """Candidates of MIL-NCE: a clip's own caption and those next to it in time."""
    codebook_size: int = 1024  # CMCM section 4.1
    """0: no codebook, CMCM's baseline."""
    code_loss_weight: float = 0.1  # alpha of CMCM section 2.3
    seed: int = 0
    num_steps: int = 300
    batch_size: int = 64
    """Pairs that are contrasted with each other, in all processes together."""
    micro_batch_size: int = 0
    """So many pairs a process computes at once, for the loss over the whole batch all the same; 0: all of them."""
    learning_rate: float = 5e-4
    warmup_steps: int = 50
    schedule: str = "linear"
    weight_decay: float = 1e-5  # section 4.3
    token_loss_weight: float = 0.5  # lambda_t of Eq. 6; lambda of ToCo's Eq. 3
    sentence_score_weight: float = 1.0
    token_score_weight: float = 0.5  # Figure 3; lambda in ToCo
    fusion_score_weight: float = 1.0
    temperature: float = 1.0  # tau_1 and tau_2, section 4.3; gamma of NCL
    tokens_of_interest: str = "noun+verb"  # section 3.3
    """Parts of speech, as ``parse_tokens_of_interest`` reads them."""
    max_video_tokens: int = 48  # section 4.3
    max_text_tokens: int = 30  # section 4.3
    num_video_layers: int = 1  # section 4.2
    num_fusion_layers: int = 2  # section 4.2
    dropout: float = 0.1
    precision: str = "fp32"
    compile: bool = False
    validate_every: int = 50
    """Steps after which the model is validated, and all that is needed to go on is written down."""

    def __post_init__(self) -> None:
        for name, least in LEAST.items():
            if getattr(self, name) < least:
                raise UserError(f"--{name.replace('_', '-')} {getattr(self, name)}: expected {least} or more")
        for name, known in KNOWN.items():
            if getattr(self, name) not in known:
                raise UserError(f"--{name.replace('_', '-')} {getattr(self, name)}: expected one of {', '.join(known)}")
        if self.max_video_tokens + self.max_text_tokens > MAX_TOKENS:
            raise UserError(
                f"--max-video-tokens {self.max_video_tokens} --max-text-tokens {self.max_text_tokens}: "
                f"expected {MAX_TOKENS} or less together"
            )
        _ = self.pos_tags  # raises for what is no part of speech
        if wrong := [name for name in self.features.split("+") if not DATASET_NAME.fullmatch(name)]:
            raise UserError(
                f"--features {self.features}: {wrong[0]!r} names no store; expected letters, digits, '.', '_' and '-' only"
            )
        if not (self.dropout < 1 and self.temperature > 0):
            raise UserError(
                f"--dropout {self.dropout} --temperature {self.temperature}: expected less than 1, and more than 0"
            )
        if not self.learning_rate > 0:
            raise UserError(f"--learning-rate {self.learning_rate}: expected more than 0")
        if not 0 <= self.intra_video_rate <= 1:
            raise UserError(f"--intra-video-rate {self.intra_video_rate}: expected 0 to 1")
        if self.clips_per_video and self.batch_size % self.clips_per_video:
            raise UserError(
                f"--batch-size {self.batch_size} --clips-per-video {self.clips_per_video}: expected a batch of whole groups of clips"
            )
        if self.encoder == "gated" and self.objective not in GATED:
            raise UserError(
                f"--encoder gated --objective {self.objective}: needs tokens; expected one of {', '.join(GATED)}"
            )
        if self.encoder == "spoken" and self.objective not in SPOKEN:
            raise UserError(
                f"--encoder spoken --objective {self.objective}: it knows words; expected one of {', '.join(SPOKEN)}"
            )
        if self.encoder == "spoken" and self.micro_batch_size:
            raise UserError(
                "--micro-batch-size with --encoder spoken: its batch normalisation must see the whole batch; expected 0"
            )
        if self.normalized_loss and self.objective in ("toco", "ssml", "mil-nce", *HEADS):
            raise UserError(
                f"--normalized-loss --objective {self.objective}: its loss has no retrieval probabilities of its own batch"
            )
        if self.pair_weights != "none" and self.objective in HEADS:
            raise UserError(
                f"--pair-weights {self.pair_weights} --objective {self.objective}: it has no pairs of clips and captions"
            )
        if self.objective in HEADS and self.losses != "all":
            raise UserError(f"--losses {self.losses} --objective {self.objective}: expected all")
        self._check_grid()
        self._check_losses()

    def _check_grid(self) -> None:
        maps = [name for name in self.features.split("+") if name in FRAME_MAPS]
        if maps and "+" in self.features:
            raise UserError(
                f"--features {self.features}: {maps[0]} is a map of each frame, which cannot be joined; expected it alone"
            )
        if not self.grid:
            if maps and self.encoder != "gated":
                raise UserError(
                    f"--features {self.features}: a map of each frame; pass --video-grid TIMExHEIGHTxWIDTH, such as 2x2x2"
                )
            return
        if not maps or self.encoder == "gated" or self.objective == "segmentation":
            what = f"--features {self.features} --encoder {self.encoder} --objective {self.objective}"
            raise UserError(
                f"--video-grid {self.video_grid} {what}: expected features that are maps ({', '.join(FRAME_MAPS)}), an encoder that takes "
                f"tokens, and a task that needs no row's time"
            )
        (time, *places), known = self.grid, FRAME_MAPS[maps[0]]
        if any(own > there for own, there in zip(places, known, strict=False)):
            raise UserError(
                f"--video-grid {self.video_grid}: a map of {self.features} has {known[0]} x {known[1]} places; expected no more"
            )
        if time * places[0] * places[1] + self.max_text_tokens > MAX_TOKENS:
            raise UserError(
                f"--video-grid {self.video_grid} --max-text-tokens {self.max_text_tokens}: expected {MAX_TOKENS} tokens or fewer together"
            )

    def _check_losses(self) -> None:
        names, known = self.loss_names, LOSSES[self.objective]
        if unknown := [name for name in self.losses.split("+") if self.losses != "all" and name not in known]:
            raise UserError(
                f"--losses {self.losses}: {unknown[0]!r} is no term of {self.objective}'s; expected all, or {'+'.join(known)}"
            )
        if self.objective == "toco" and not {"fusion", "token"} & set(names):
            raise UserError(f"--losses {self.losses}: trains no score of ToCo's; expected fusion or token among them")
        if self.objective == "taco" and names == ("fusion",) and self.negatives == "cascade":
            raise UserError(
                "--losses fusion --negatives cascade: no early loss finds the hard ones; expected random or all"
            )
        if self.objective == "cmcm" and "contrast" not in names:
            raise UserError(f"--losses {self.losses}: trains no score of CMCM's; expected contrast among them")
        if self.objective == "taco" and names == ("token",) and not self.pos_tags:
            raise UserError("--losses token --tokens-of-interest none: nothing to train")

    @property
    def pos_tags(self) -> tuple[str, ...]:
        return parse_tokens_of_interest(self.tokens_of_interest)

    @property
    def grid(self) -> tuple[int, int, int] | None:
        return parse_grid(self.video_grid)

    @property
    def loss_names(self) -> tuple[str, ...]:
        known = LOSSES[self.objective]
        return known if self.losses == "all" else tuple(name for name in known if name in self.losses.split("+"))

    @property
    def has_fusion(self) -> bool:
        return self.objective == "toco" or "fusion" in self.loss_names

    @property
    def score_weights(self) -> dict[str, float]:
        """Of the stages of the score that are trained: their sum is the score (TACo section 3.4; ToCo's "f + lambda f^t").

        An early one that weighs 0 still finds what the fusion layers are to look at.
        """
        if self.objective == "toco":
            weights = {"pooled": 0.0, "fusion": self.fusion_score_weight, "fusion_token": self.token_score_weight}
            return {
                stage: weight for stage, weight in weights.items() if stage.removeprefix("fusion_") in self.loss_names
            }
        if self.objective != "taco":
            return {"pair": 1.0}
        weights = {
            "sentence": self.sentence_score_weight,
            "token": self.token_score_weight,
            "fusion": self.fusion_score_weight,
        }
        return {stage: weights[stage] for stage in self.loss_names}
