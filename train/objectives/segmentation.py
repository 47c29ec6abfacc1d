"""Action segmentation: which step each row of a video shows (TACo section 5.2, on COIN)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from ...storage.common.errors import SettingError
from .base import PAIR_LOSS_SETTINGS, Objective

if TYPE_CHECKING:
    from torch import Tensor, nn

    from ..data.examples import Examples, ExampleSource
    from ..models.base import ObjectiveModules, PairModel
    from .batch import Batch


@dataclass(frozen=True, kw_only=True)
class SegmentationObjective(Objective):
    """Cross entropy of each row's label, by a linear layer on the video encoder's tokens."""

    name: ClassVar[str] = "segmentation"
    description: ClassVar[str] = "the step of each feature vector of a video (TACo, section 5.2)"
    loss_terms: ClassVar[tuple[str, ...]] = ("labels",)
    needs_tokens: ClassVar[bool] = True
    needs_words: ClassVar[bool] = True
    needs_row_times: ClassVar[bool] = True
    reads_texts: ClassVar[bool] = False
    learns_from_pairs: ClassVar[bool] = False
    task: ClassVar[str | None] = "segmentation"
    ignored_settings: ClassVar[frozenset[str]] = PAIR_LOSS_SETTINGS | {
        "max_text_tokens",
        "clips_per_video",
        "shuffle_shards",
        "validation_share",
    }

    def check(self) -> None:
        """Check that its one term is trained."""
        super().check()
        if self.losses != "all":
            raise SettingError("losses", self.losses, f"{self.name} has one term; expected all")

    def make_examples(self, source: ExampleSource) -> Examples:
        """Read windows of videos with labelled feature vectors."""
        from ..data.examples import SegmentExamples

        return SegmentExamples(source)

    def make_modules(self, width: int, num_labels: int) -> ObjectiveModules:
        """Make a linear layer that scores each label and the background."""
        from torch import nn

        from ..models.base import ObjectiveModules

        return ObjectiveModules(head=nn.Linear(width, num_labels + 1), queries=self._make_queries(width))

    def compute_loss(self, model: PairModel, batch: Batch) -> dict[str, Tensor]:
        """Return the cross entropy, the mean over the rows of all processes."""
        import torch.nn.functional as F

        from ..models.tokens import lengths_of, nonzero

        assert batch.labels is not None, "rows come with labels"
        mask_BM = batch.videos.mask_BM
        index_S = nonzero(mask_BM, lengths_of(mask_BM, batch.videos.lengths_B))
        scores_SC = label_head(model)(batch.videos.tokens_BMD[index_S])
        loss = F.cross_entropy(scores_SC, batch.labels[index_S], reduction="sum")
        num_rows = batch.workers.sum(mask_BM.sum().to(loss.dtype))
        return {"labels": loss * batch.workers.size / num_rows}  # the mean over processes is taken later


def label_head(model: PairModel) -> nn.Module:
    """Return the head of a model that was made for this objective."""
    assert model.head is not None, "the model has no head for labels"
    return model.head
