"""The public names of ``vlalign.train``, as ``__init__`` gives them at their first use."""

from .comparison.seeds import SeedRuns as SeedRuns
from .comparison.seeds import train_seeds as train_seeds
from .data.clip_dataset import ClipDataset as ClipDataset
from .evaluation.evaluate import EvaluationSettings as EvaluationSettings
from .evaluation.evaluate import evaluate as evaluate
from .evaluation.task import EvaluationRequest as EvaluationRequest
from .evaluation.task import Task as Task
from .evaluation.task import TaskResult as TaskResult
from .loop.training import TrainedRun as TrainedRun
from .loop.training import train as train
from .models.base import ModelPlan as ModelPlan
from .models.base import ObjectiveModules as ObjectiveModules
from .models.base import PairModel as PairModel
from .models.tokens import TextTokens as TextTokens
from .models.tokens import VideoTokens as VideoTokens
from .objectives import Objective as Objective
from .objectives.batch import Batch as Batch
from .search.build import build_index as build_index
from .search.search import open_search as open_search
from .search.search_source import SearchSource as SearchSource
from .settings import CaptionColumn as CaptionColumn
from .settings import EncoderTraits as EncoderTraits
from .settings import FeatureRows as FeatureRows
from .settings import ModelSettings as ModelSettings
