"""What a run is made with."""

from dataclasses import dataclass

from ..storage.console import UserError

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


LEAST = {"num_steps": 1, "batch_size": 2, "max_video_tokens": 1, "max_text_tokens": 3}
LEAST |= {"warmup_steps": 0, "weight_decay": 0, "num_video_layers": 0, "validate_every": 1, "dropout": 0}


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """A complete training configuration. Numbers of the paper where it gives one that fits a small model on a CPU."""

    dataset: str
    protocol: str = ""
    """Which of the data set's splits and captions; empty: the usual ones."""
    features: str
    """Name of a store, or several joined by '+'."""
    text_encoder: str = "small"
    """'small' (two layers, learned from the captions) or a BERT-like model by folder or hub name."""
    objective: str = "taco"
    seed: int = 0
    num_steps: int = 300
    batch_size: int = 64
    learning_rate: float = 5e-4
    warmup_steps: int = 50
    weight_decay: float = 1e-5  # section 4.3
    token_loss_weight: float = 0.5  # lambda_t of Eq. 6
    token_score_weight: float = 0.5  # Figure 3
    temperature: float = 1.0
    tokens_of_interest: str = "noun+verb"  # section 3.3
    """Parts of speech, as ``parse_tokens_of_interest`` reads them."""
    max_video_tokens: int = 48  # section 4.3
    max_text_tokens: int = 30  # section 4.3
    num_video_layers: int = 1  # section 4.3
    dropout: float = 0.1
    validate_every: int = 50

    def __post_init__(self) -> None:
        for name, least in LEAST.items():
            if getattr(self, name) < least:
                raise UserError(f"--{name.replace('_', '-')} {getattr(self, name)}: expected {least} or more")
        _ = self.pos_tags  # raises for what is no part of speech
        if not (self.dropout < 1 and self.temperature > 0):
            raise UserError(f"--dropout {self.dropout} --temperature {self.temperature}: expected less than 1, and more than 0")
        if not self.learning_rate > 0:
            raise UserError(f"--learning-rate {self.learning_rate}: expected more than 0")

    @property
    def pos_tags(self) -> tuple[str, ...]:
        return parse_tokens_of_interest(self.tokens_of_interest)
