"""Where things are on disk: ``<root>/<dataset>/...``."""

import os
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path

from .common.errors import UserError
from .files import read_jsonl, write_jsonl
from .records import DATASET_NAME, VideoRecord


@dataclass(frozen=True)
class DatasetFolder:
    root: Path
    name: str
    protocol: str = ""
    """Which splits and captions; empty: the usual ones. All protocols of a data set share its features."""

    def __post_init__(self) -> None:
        if not DATASET_NAME.fullmatch(self.name):
            raise UserError(
                f"data set name {self.name!r}: expected letters, digits, '.', '_' and '-' only; pass another --dataset"
            )
        if self.protocol and not DATASET_NAME.fullmatch(self.protocol):
            raise UserError(
                f"protocol {self.protocol!r}: expected letters, digits, '.', '_' and '-' only; pass another --protocol"
            )

    @property
    def path(self) -> Path:
        return self.root / self.name

    @property
    def videos_file(self) -> Path:
        return self.path / "videos.jsonl"

    @property
    def thumbnails(self) -> Path:
        return self.path / "thumbnails"

    @property
    def captions(self) -> Path:
        return self.path / "captions" / self.protocol

    @property
    def idf(self) -> Path:
        return (self.captions if self.protocol else self.path) / "idf.parquet"

    @property
    def word_vectors(self) -> Path:
        return self.idf.with_name("word_vectors.npz")

    @property
    def runs(self) -> Path:
        return self.path / "runs"

    def problems(self, command: str) -> Path:
        """Where a command lists what it left out."""
        return self.path / "problems" / f"{command}.txt"

    def features(self, features: str) -> Path:
        return self.path / "features" / features

    def read_videos(self) -> list[VideoRecord]:
        """What ``videos.jsonl`` lists; empty where there is none."""
        try:
            return [VideoRecord(**row) for row in read_jsonl(self.videos_file)]
        except (TypeError, ValueError) as error:
            raise UserError(f"{self.videos_file}: {error}; expected video_id and path on every line") from None

    def write_videos(self, videos: list[VideoRecord]) -> None:
        write_jsonl(self.videos_file, ({k: v for k, v in asdict(video).items() if v is not None} for video in videos))

    def video_path(self, video: VideoRecord) -> Path:
        """Raises ``UserError`` for a relative path that leads out of the data set's folder: lists come from anywhere."""
        return Path(self.video_file(video))

    def video_file(self, video: VideoRecord) -> str:
        """``video_path`` as text: of a million videos, making paths would take a minute."""
        if not os.path.isabs(video.path) and ".." in video.path.split("/"):
            raise UserError(
                f"{self.videos_file}: video {video.video_id!r} has the path {video.path!r}, which leads out of {self.path}"
            )
        return os.path.join(self._absolute, video.path)

    @cached_property
    def _absolute(self) -> str:
        return str(self.path.absolute())


def find_dataset(root: Path, name: str | None, *, having: str, hint: str) -> DatasetFolder:
    """The data set called ``name``, or the only one under ``root`` that has the folder ``having``. ``hint``: what makes that."""
    prepared = sorted(folder.name for folder in root.glob("*") if (folder / having).is_dir())
    if name is None:
        if len(prepared) != 1:
            found = f"{len(prepared)} are there ({', '.join(prepared)})" if prepared else "there is none"
            raise UserError(
                f"which data set? {found} with {having} under {root}; "
                + ("pass --dataset" if prepared else f"run {hint} first")
            )
        name = prepared[0]
    dataset = DatasetFolder(root, name)
    if not (dataset.path / having).is_dir():
        raise UserError(f"{dataset.path / having}: not found; run {hint} first, or pass --root")
    return dataset
