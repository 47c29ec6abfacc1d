"""The files of a data set: ``<root>/<dataset>/...``."""

import os
from dataclasses import asdict, dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING

from ..common.errors import UserError, refuse_unreadable
from ..common.files import read_jsonl, write_jsonl
from ..common.plugins import is_plugin_name
from ..common.validation import DATASET_NAME
from ..common.writing import restrict_writes
from ..records import VideoRecord
from .trusted_folders import refuse_link_out

if TYPE_CHECKING:
    from ..stores.opening import StoreSource


@dataclass(frozen=True)
class DatasetFolder:
    """The folder of a data set, and the paths in it.

    Example:
        >>> from pathlib import Path
        >>> from vlalign.storage import DatasetFolder
        >>> dataset = DatasetFolder(Path("vlalign_data"), "demo")
        >>> dataset.features("s3d").as_posix()
        'vlalign_data/demo/features/s3d'
        >>> [video.path for video in dataset.read_videos()]
        ['videos/demo0000.mp4', 'videos/demo0005.avi']
    """

    root: Path
    """Folder of all data sets."""
    name: str
    """Name of the data set and of its folder."""
    protocol: str = ""
    """The choice of splits and captions; empty for the usual one. All protocols of a data set share its features."""
    stores: "StoreSource | None" = field(default=None, compare=False, repr=False)
    """The user's custom stores (``stores.opening``); None if the features are in the data set's folder."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "root", Path(self.root))  # callers from Python may pass a text
        if not DATASET_NAME.fullmatch(self.name):
            todo = "pass the name of its folder" if is_plugin_name(self.name) else "pass another --dataset"
            raise UserError(f"data set name {self.name!r}: expected letters, digits, '.', '_' and '-'; {todo}")
        if self.protocol and not DATASET_NAME.fullmatch(self.protocol):
            raise UserError(
                f"protocol {self.protocol!r}: expected letters, digits, '.', '_' and '-'; pass another --protocol"
            )
        restrict_writes(self.path, partial(refuse_link_out, self))

    @property
    def path(self) -> Path:
        """Folder of the data set."""
        return self.root / self.name

    @property
    def real_path(self) -> str:
        """Real path of the data set's folder."""
        return os.path.realpath(self.path)

    @property
    def videos_file(self) -> Path:
        """List of the videos."""
        return self.path / "videos.jsonl"

    @property
    def thumbnails(self) -> Path:
        """Folder of the thumbnails."""
        return self.path / "thumbnails"

    @property
    def captions(self) -> Path:
        """Folder of the caption table."""
        return self.path / "captions" / self.protocol

    @property
    def idf(self) -> Path:
        """The IDF table."""
        return (self.captions if self.protocol else self.path) / "idf.parquet"

    @property
    def word_vectors(self) -> Path:
        """Vectors of the words in the captions."""
        return self.idf.with_name("word_vectors.npz")

    @property
    def word_times(self) -> Path:
        """Folder of the times of spoken words (``storage.captions.word_times``), which a user may put there."""
        return self.path / "word_times"

    @property
    def transcripts(self) -> Path:
        """Folder of the transcripts of speech (``storage.captions.transcripts``)."""
        return self.path / "transcripts"

    @property
    def text_in_frames(self) -> Path:
        """Folder of the transcripts of text in frames, in the format of ``transcripts``."""
        return self.path / "text_in_frames"

    @property
    def pairs(self) -> Path:
        """Folder of the cached clips and their captions, which training maps."""
        return self.path / "pairs" / self.protocol

    @property
    def runs(self) -> Path:
        """Folder of the runs."""
        return self.path / "runs"

    @property
    def comparisons(self) -> Path:
        """Folder of tables and pages that compare runs."""
        return self.path / "comparisons"

    def problems(self, command: str) -> Path:
        """Return the file in which a command lists the inputs that it skipped.

        Args:
            command: Name of the command without ``vlalign-``, such as "extract".
        """
        return self.path / "problems" / f"{command}.txt"

    def features(self, features: str) -> Path:
        """Return the folder of a feature store.

        Args:
            features: Name of the features, such as "s3d".
        """
        return self.path / "features" / features

    def read_videos(self) -> list[VideoRecord]:
        """Return the videos that ``videos.jsonl`` lists; none if it is missing.

        Raises:
            UserError: A line is not valid.
        """
        todo = "expected video_id and path on every line"
        with refuse_unreadable(self.videos_file, "not a valid list of videos", todo, (TypeError, ValueError)):
            return [VideoRecord(**row) for row in read_jsonl(self.videos_file)]

    def write_videos(self, videos: list[VideoRecord]) -> None:
        """Write ``videos.jsonl``.

        Args:
            videos: All videos of the data set. They replace the list.
        """
        write_jsonl(self.videos_file, ({k: v for k, v in asdict(video).items() if v is not None} for video in videos))

    def video_path(self, video: VideoRecord) -> Path:
        """Return the path of a video.

        Args:
            video: A line of the list.

        Raises:
            UserError: A relative path leads out of the data set's folder.
        """
        return Path(self.video_file(video))

    def video_file(self, video: VideoRecord) -> str:
        """Return ``video_path`` as text. Making a million ``Path`` objects would take a minute.

        Args:
            video: A line of the list.

        Raises:
            UserError: As for ``video_path``.
        """
        if not os.path.isabs(video.path) and ".." in video.path.split("/"):
            raise UserError(
                f"{self.videos_file}: video {video.video_id!r} has the path {video.path!r}, which leads out of "
                f"{self.path}; expected a path inside it, or an absolute path"
            )
        return os.path.join(self._absolute, video.path)

    @cached_property
    def _absolute(self) -> str:
        return str(self.path.absolute())


def dataset_at(folder: Path | str, protocol: str = "") -> DatasetFolder:
    """Return the data set of a folder ``<root>/<data set>``, as passed by callers from Python.

    Raises:
        UserError: The folder's name is not valid for a data set.
    """
    path = Path(folder)
    if path.name in ("", ".."):  # such as "."
        path = Path(os.path.abspath(path))
    return DatasetFolder(path.parent, path.name, protocol)


def find_prepared(folder: Path | str, having: str, hint: str) -> DatasetFolder:
    """Return the data set in a folder, if it has been prepared.

    Args:
        folder: ``<root>/<data set>``.
        having: Folder that the data set must have, "captions" or "features".
        hint: Command that makes this folder.

    Raises:
        UserError: There is no such data set.
    """
    dataset = dataset_at(folder)
    if not (dataset.path / having).is_dir():
        raise UserError(f"{dataset.path / having}: not found; run {hint} first, or pass another --root")
    return dataset


def guard_around(folder: Path) -> None:
    """Refuse writes through links that lead out of the data set that contains the store or run ``folder``.

    Its path is ``<root>/<data set>/features/<store>`` or ``<root>/<data set>/runs/<run>``.
    """
    home = Path(os.path.abspath(folder)).parent
    if home.name in ("features", "runs") and DATASET_NAME.fullmatch(home.parent.name):
        DatasetFolder(home.parent.parent, home.parent.name)


def find_dataset(root: Path, name: str | None, *, having: str, hint: str) -> DatasetFolder:
    """Return an existing data set.

    Args:
        root: Folder of all data sets.
        name: Name of the data set; None for the only one under ``root`` that has the folder ``having``.
        having: Folder that the data set must have.
        hint: Command that makes this folder.

    Raises:
        UserError: There is no such data set, or several and no name.
    """
    prepared = sorted(folder.name for folder in root.glob("*") if (folder / having).is_dir())
    if name is None:
        if not prepared:
            found = (
                f"has no data set with {having}"
                if Path(root).is_dir()
                else f"no such folder; expected data sets with {having}"
            )
            raise UserError(f"{root}: {found}; run {hint} first, or pass another --root")
        if len(prepared) > 1:
            raise UserError(
                f"{root}: {len(prepared)} data sets have {having} ({', '.join(prepared)}); pass --dataset with one"
            )
        name = prepared[0]
    return find_prepared(DatasetFolder(root, name).path, having, hint)
