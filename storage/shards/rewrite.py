"""Write new shards with videos of existing shards, and check the rows."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..common.errors import UserError
from .format import Shard
from .names import path_after
from .read import ShardRows
from .write import VideoRows, write_rows


@dataclass(frozen=True, eq=False)
class ShardPart:
    """Some videos of a shard."""

    shard: Shard
    selected: np.ndarray
    """Row numbers in the shard's index."""

    @property
    def videos(self) -> np.ndarray:
        """The selected rows of the shard's index."""
        return self.shard.videos[self.selected]

    @property
    def is_whole(self) -> bool:
        """True if all videos of the shard are selected."""
        return len(self.selected) == len(self.shard.videos)


def rewrite(folder: Path, parts: Sequence[ShardPart]) -> Path | None:
    """Write one shard with the videos of ``parts``. Its name directly follows the name of their last shard.

    Rows are compared with their checksums: damage is never copied under a new checksum.

    Args:
        folder: Folder of the store.
        parts: Videos of shards with the same provenance and type.

    Returns:
        The path of the shard; None if there are no videos.

    Raises:
        UserError: Rows are damaged.
    """
    parts = [part for part in parts if len(part.selected)]
    if not parts:
        return None
    tables = [part.videos for part in parts]
    widest = _widest(tables)
    table = np.concatenate([table.astype(widest) for table in tables])
    table["first_row"] = np.cumsum(table["num_rows"]) - table["num_rows"]
    sources: list[tuple[ShardRows, int]] = []
    for part in parts:
        rows = ShardRows(part.shard)
        sources += [(rows, index) for index in part.selected.tolist()]

    def rows_of(index: int) -> VideoRows:
        rows, row = sources[index]
        if rows.is_damaged(row):
            video_id = rows.shard.videos["video_id"][row].decode()
            raise UserError(
                f"{rows.shard.path}: the rows of {video_id!r} are damaged; run vlalign-store repair {folder} first"
            )
        return VideoRows(rows.rows_of(row), int(rows.shard.videos["checksum"][row]))

    first, last = parts[0].shard, parts[-1].shard
    return write_rows(path_after(folder / last.path.name), first, first.dtype.str, table, rows_of)


def _widest(tables: Sequence[np.ndarray]) -> np.dtype:
    """Return a row type that is wide enough for the texts of all tables."""
    names = tables[0].dtype.names or ()
    return np.dtype(
        [(name, max((table.dtype[name] for table in tables), key=lambda kind: kind.itemsize)) for name in names]
    )
