"""An objective of your own, with an input of its own: SigLIP's loss, in which a well rated caption counts more.

The caption file has a column of numbers, ``rating``, which preprocessing keeps::

    vlalign-preprocess --dataset mine --annotations captions.csv

Beside this file::

    vlalign-train --dataset mine --features s3d --objective own_objective:RatedSigmoid
    vlalign-evaluate --dataset mine --trust own_objective

The temperature and the bias are learned with the model;
``--parameter-groups "own.*:lr=10,decay=0"`` gives them a learning rate of their own.
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor
from vlalign.train import Batch, CaptionColumn, Objective, ObjectiveModules, PairModel
from vlalign.train.losses import LearnedTemperature, sigmoid_loss


@dataclass(frozen=True, kw_only=True)
class RatedSigmoid(Objective):
    """The sigmoid loss of all pairs of a batch, weighted by the rating of each caption."""

    name: ClassVar[str] = "rated-sigmoid"
    description: ClassVar[str] = "sigmoid loss (SigLIP, Eq. 1), weighted by the captions' ratings"
    loss_terms: ClassVar[tuple[str, ...]] = ("sigmoid",)
    ignored_settings: ClassVar[frozenset[str]] = frozenset({"temperature", "tokens_of_interest", "num_fusion_layers"})
    extra: ClassVar = {"rating": CaptionColumn("rating")}

    def make_modules(self, width: int, num_labels: int) -> ObjectiveModules:
        """Add what this objective learns; the loss finds it as ``model.own``, and the run saves it."""
        return ObjectiveModules(own=LearnedTemperature(0.1, bias=-10.0, min_temperature=0.0))

    def compute_loss(self, model: PairModel, batch: Batch) -> dict[str, Tensor]:
        """Compare all texts and videos of the batch, those of other processes among them."""
        text_BD, video_BD = batch.all_vectors(self, model)
        rating_B = batch.workers.gather(batch.texts.extra["rating"])
        assert model.own is not None, "make_modules made it"
        logits_BB = model.own(text_BD @ video_BD.T)
        return {"sigmoid": sigmoid_loss(logits_BB, weights_R=rating_B / rating_B.mean())}
