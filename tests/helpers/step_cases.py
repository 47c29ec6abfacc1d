"""Every way to train, with a data set for each."""

from vlalign.storage.dataset.folder import DatasetFolder
from vlalign.train.loop.trainer import Trainer

from helpers.training import PAIR_CASES, TASK_CASES, trainer

WHOLE = {name: {"objective": name} for name in ("taco", "toco", "toco-mlm")} | PAIR_CASES | TASK_CASES


def made(datasets: dict[str, DatasetFolder], case: str, folder, device: str = "cpu", **settings) -> Trainer:
    dataset = datasets.get(case, datasets["toy"])
    features = "resnet152" if case in datasets else "s3d"
    return trainer(dataset, folder, device=device, dataset=dataset.name, features=features, **settings)
