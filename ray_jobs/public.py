"""The public names of ``vlalign.ray_jobs``, as ``__init__`` gives them at their first use."""

from .extraction import WorkerOptions as WorkerOptions
from .extraction import extract_on_cluster as extract_on_cluster
from .indexing import build_index_on_cluster as build_index_on_cluster
from .preprocessing import prepare_captions_on_cluster as prepare_captions_on_cluster
from .training import train_on_cluster as train_on_cluster
