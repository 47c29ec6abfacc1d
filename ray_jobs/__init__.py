"""The steps of the other folders on a Ray cluster. A worker here is a Ray actor or task on one of its machines."""

from typing import TYPE_CHECKING

from ..storage.common.lazy import names_from

if TYPE_CHECKING:
    from .extraction import WorkerOptions, extract_on_cluster
    from .indexing import build_index_on_cluster
    from .preprocessing import prepare_captions_on_cluster
    from .training import train_on_cluster

__all__ = [
    "WorkerOptions",
    "build_index_on_cluster",
    "extract_on_cluster",
    "prepare_captions_on_cluster",
    "train_on_cluster",
]

# Each needs Ray and the folder of its step.
__getattr__ = names_from(
    __name__,
    {
        "WorkerOptions": "extraction",
        "build_index_on_cluster": "indexing",
        "extract_on_cluster": "extraction",
        "prepare_captions_on_cluster": "preprocessing",
        "train_on_cluster": "training",
    },
)
