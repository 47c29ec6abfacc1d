"""The public names of ``vlalign.storage``, as ``__init__`` gives them at their first use."""

from .captions.files import read_captions as read_captions
from .captions.idf import IdfEntry as IdfEntry
from .captions.idf import read_idf as read_idf
from .captions.idf import write_idf as write_idf
from .common.errors import UserError as UserError
from .common.errors import VlalignError as VlalignError
from .dataset.folder import DatasetFolder as DatasetFolder
from .records import Caption as Caption
from .records import Failure as Failure
from .records import Profile as Profile
from .records import StoredVideo as StoredVideo
from .records import VideoFeatures as VideoFeatures
from .records import VideoRecord as VideoRecord
from .records import Weights as Weights
from .shards import Provenance as Provenance
from .shards import write_shard as write_shard
from .stores.feature_store import FeatureStore as FeatureStore
from .stores.memory_store import MemoryStore as MemoryStore
from .stores.opening import open_store as open_store
from .stores.opening import open_writer as open_writer
from .stores.store import RowTimes as RowTimes
from .stores.store import Store as Store
from .stores.store import StoreWriter as StoreWriter
from .stores.store import WritableStore as WritableStore
from .stores.thumbnails import ThumbnailStore as ThumbnailStore
