"""The data sets that are read from their authors' files.

To add one, write a module with a ``Dataset`` here and add a row to ``DATASETS``. A user's own caption files
(``custom``) and the generated demo (``demo``) have no official files and are not in the table.
"""

from . import (
    activitynet,
    charades_sta,
    coin,
    crosstask,
    howto100m,
    lsmdc,
    msrvtt,
    msrvtt_qa,
    msvd,
    msvd_qa,
    places,
    qvhighlights,
    smit,
    vatex,
    youcook2,
)
from .sources import Dataset

DATASETS: dict[str, Dataset] = {
    "youcook2": youcook2.DATASET,
    "msrvtt": msrvtt.DATASET,
    "activitynet": activitynet.DATASET,
    "msvd": msvd.DATASET,
    "lsmdc": lsmdc.DATASET,
    "howto100m": howto100m.DATASET,
    "crosstask": crosstask.DATASET,
    "coin": coin.DATASET,
    "msrvtt_qa": msrvtt_qa.DATASET,
    "msvd_qa": msvd_qa.DATASET,
    "places": places.DATASET,
    "smit": smit.DATASET,
    "vatex": vatex.DATASET,
    "charades_sta": charades_sta.DATASET,
    "qvhighlights": qvhighlights.DATASET,
}
