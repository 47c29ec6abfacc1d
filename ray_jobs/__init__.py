"""The steps of the other folders on a Ray cluster. A worker here is a Ray actor or task on one of its machines."""

from typing import TYPE_CHECKING, Any

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


def __getattr__(name: str) -> Any:
    # Imported on first use: each needs Ray and the folder of its step.
    if name in ("WorkerOptions", "extract_on_cluster"):
        from . import extraction

        return getattr(extraction, name)
    if name == "build_index_on_cluster":
        from .indexing import build_index_on_cluster

        return build_index_on_cluster
    if name == "prepare_captions_on_cluster":
        from .preprocessing import prepare_captions_on_cluster

        return prepare_captions_on_cluster
    if name == "train_on_cluster":
        from .training import train_on_cluster

        return train_on_cluster
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
