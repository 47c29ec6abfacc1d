"""The public names of ``vlalign.train``, as ``__init__`` gives them at their first use."""

from .comparison.seeds import SeedRuns as SeedRuns
from .comparison.seeds import train_seeds as train_seeds
from .data.clip_dataset import ClipDataset as ClipDataset
from .evaluation.evaluate import evaluate as evaluate
from .loop.training import TrainedRun as TrainedRun
from .loop.training import train as train
from .search.build import build_index as build_index
from .search.search import open_search as open_search
from .search.search_source import SearchSource as SearchSource
