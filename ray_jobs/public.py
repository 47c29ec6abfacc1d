"""The public names of ``vlalign.ray_jobs``, as ``__init__`` gives them at their first use."""

from .extract_howto100m import WorkerOptions as WorkerOptions
from .extract_howto100m import extract_on_cluster as extract_on_cluster
from .index import build_index_on_cluster as build_index_on_cluster
from .preprocess import prepare_captions_on_cluster as prepare_captions_on_cluster
from .train import train_on_cluster as train_on_cluster
from .transcribe import transcribe_dataset_on_cluster as transcribe_dataset_on_cluster
