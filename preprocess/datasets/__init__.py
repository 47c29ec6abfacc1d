"""The data sets whose official files are read. A user's own captions (``own``) and the demo (``demo``) are read otherwise."""

from . import activitynet, coin, crosstask, howto100m, lsmdc, msrvtt, msrvtt_qa, msvd, msvd_qa, places, smit, youcook2
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
}
