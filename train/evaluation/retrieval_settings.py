"""Settings of the task retrieval: how scores are normalised and ranked."""

from collections.abc import Mapping
from dataclasses import dataclass

from ...storage.common.errors import SettingError
from ..metrics import TIES
from .task import option

NORMALIZATIONS = {
    "none": "scores as they are",
    "ncl": "inductive: NCL's biases, from training queries that the run kept",
    "ncl-oracle": "transductive: NCL's biases, from the test queries and the number of captions of each clip "
    "(NCL's upper bound)",
    "dsl": "transductive: CAMoE's dual softmax over the test queries",
    "qbnorm": "inductive: QB-Norm's dynamic inverted softmax, over training queries that the run kept",
}
"""Ways to normalise scores before they are ranked: {name: description}."""
DEPARTURES = {
    "ncl": [
        "this is not NCL's section 3.4 as published: the biases are added with a strength that is chosen on five folds "
        "of the training queries, and not at all where they would not reduce the normalisation error; the paper adds "
        "them as they are"
    ],
}
"""{name: notes on where a normalisation departs from its paper}, shown with every result."""
NEEDS_QUERIES = ("ncl", "qbnorm")
"""Normalisations that need the training queries that a run kept."""


def _listed(descriptions: Mapping[str, str]) -> str:
    return "; ".join(f"{name}: {description}" for name, description in descriptions.items())


@dataclass(frozen=True)
class RetrievalSettings:
    """How retrieval is scored and ranked."""

    ties: str = option("average", f"how equal scores are counted (default: average). {_listed(TIES)}", choices=TIES)
    rerank: int | None = option(
        None,
        "the fusion layers score only the K best clips of each caption, and the K best captions of each clip "
        "(default: all pairs)",
        parse=int,
        metavar="K",
    )
    normalize: str = option(
        "none",
        f"how scores are normalised before they are ranked (default: none). {_listed(NORMALIZATIONS)}",
        choices=NORMALIZATIONS,
    )
    temperature: float | None = option(
        None,
        "temperature that turns scores into probabilities, for --normalize (default: that of the run's loss)",
        parse=float,
        metavar="T",
    )

    def __post_init__(self) -> None:
        for name, known in (("ties", TIES), ("normalize", NORMALIZATIONS)):
            if getattr(self, name) not in known:
                raise SettingError(name, getattr(self, name), f"expected one of {', '.join(known)}")
        if self.rerank is not None and self.rerank < 1:
            raise SettingError("rerank", self.rerank, "expected 1 or more")
        if self.temperature is not None and not self.temperature > 0:
            raise SettingError("temperature", self.temperature, "expected more than 0")
