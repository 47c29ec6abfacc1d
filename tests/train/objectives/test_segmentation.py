"""The objective segmentation: its loss against plain loops."""

import numpy as np
import pytest
import torch
from helpers.labelled import make_segments
from helpers.training import SEGMENTS, gradient, trainer
from vlalign.storage.common.errors import SettingError
from vlalign.storage.dataset.folder import DatasetFolder
from vlalign.train.loop.trainer import Trainer


@pytest.fixture(scope="module")
def segmented(tmp_path_factory) -> DatasetFolder:
    return make_segments(tmp_path_factory.mktemp("segmented"))


def made_trainer(dataset: DatasetFolder, folder, **settings) -> Trainer:
    return trainer(dataset, folder, dataset=dataset.name, features="resnet152", **settings)


def test_the_labels_loss_is_that_of_plain_loops(segmented, tmp_path):
    made = made_trainer(segmented, tmp_path, **SEGMENTS)
    inputs = made.make_inputs(0)
    terms, _ = gradient(made)
    assert inputs.texts == {} and set(inputs.labels[inputs.mask].tolist()) == {0, 1, 2, 3}
    with torch.no_grad():
        tokens = made.model.eval().encode_videos(inputs.rows, inputs.mask).tokens_BMD
        losses = []
        for window, row in inputs.mask.nonzero().tolist():
            scores = made.model.head(tokens[window, row])
            losses.append(float(torch.logsumexp(scores, 0) - scores[inputs.labels[window, row]]))
    assert terms["labels"] == pytest.approx(np.mean(losses), rel=1e-4)


def test_labels_of_frames_are_not_shuffled_by_shards(segmented, tmp_path):
    with pytest.raises(SettingError, match=r"^shuffle_shards 2: segmentation .*\d+ .*\d+ .*\b0$"):
        made_trainer(segmented, tmp_path, **SEGMENTS, shuffle_shards=2)
