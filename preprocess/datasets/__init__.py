"""The data sets whose official files are read. A user's own captions (``own``) and the demo (``demo``) are read otherwise."""

from . import youcook2
from .sources import Dataset

DATASETS: dict[str, Dataset] = {
    "youcook2": youcook2.DATASET,
}
