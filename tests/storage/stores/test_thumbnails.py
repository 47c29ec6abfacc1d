"""Thumbnails are read back as written, the latest of each video."""

import h5py
import numpy as np
import pytest
from helpers.stores import jpeg
from vlalign.storage.common.errors import UserError
from vlalign.storage.stores.thumbnails import (
    MAX_THUMBNAILS,
    Thumbnail,
    ThumbnailStore,
    remove_thumbnails,
    write_thumbnails,
)
from vlalign.storage.untrusted.hdf5 import VlenReader


def test_thumbnails_are_read_back_in_time_order(tmp_path):
    jpegs = {seconds: jpeg(int(10 * seconds)) for seconds in (2.5, 0.5, 1.5)}
    wrote = [Thumbnail("ä", seconds, jpeg, "source of ä") for seconds, jpeg in jpegs.items()]
    write_thumbnails(tmp_path, [wrote[0], Thumbnail("b", 0.0, jpeg(9), "source of b"), *wrote[1:]])
    store = ThumbnailStore(tmp_path)
    assert store.get("ä") == sorted(wrote, key=lambda t: t.seconds)
    assert store.get("b") == [Thumbnail("b", 0.0, jpeg(9), "source of b")]
    assert (store.source("ä"), store.source("b")) == ("source of ä", "source of b")


def test_later_thumbnails_replace_earlier_ones(tmp_path):
    write_thumbnails(
        tmp_path,
        [Thumbnail("a", s, jpeg(1), "old file") for s in (0.0, 1.0, 2.0)] + [Thumbnail("b", 0.0, jpeg(3), "b")],
    )
    write_thumbnails(tmp_path, [Thumbnail("a", 0.5, jpeg(2), "new file")])
    store = ThumbnailStore(tmp_path)
    assert store.get("a") == [Thumbnail("a", 0.5, jpeg(2), "new file")]
    assert store.source("a") == "new file"
    assert store.get("b") == [Thumbnail("b", 0.0, jpeg(3), "b")]


@pytest.mark.parametrize("there", ["no folder", "an empty folder", "an empty shard", "a partial file", "another video"])
def test_a_video_without_thumbnails_has_none(tmp_path, there):
    folder = tmp_path / "thumbnails"
    if there != "no folder":
        folder.mkdir()
    if there == "an empty shard":
        write_thumbnails(folder, [])
    elif there == "a partial file":
        (folder / ".1.h5.99-abc.partial").write_bytes(b"half")
    elif there == "another video":
        write_thumbnails(folder, [Thumbnail("b", 0.0, jpeg(3), "b")])
    store = ThumbnailStore(folder)
    assert store.get("a") == [] and store.source("a") is None


def test_thumbnails_can_be_read_with_h5py_alone(tmp_path):
    write_thumbnails(tmp_path, [Thumbnail("a", 1.5, b"jpeg bytes", "file")])
    [path] = tmp_path.iterdir()
    with h5py.File(path, "r") as file:
        [row] = file["thumbnails"][:]
        assert (row["video_id"], row["seconds"], row["source"]) == (b"a", 1.5, b"file")
        assert file["jpegs"][0].tobytes() == b"jpeg bytes"


def test_a_truncated_thumbnail_file_is_named(tmp_path):
    write_thumbnails(tmp_path, [Thumbnail("a", 1.5, b"jpeg bytes", "file")])
    [path] = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(UserError) as refused:
        ThumbnailStore(tmp_path)
    assert str(path) in str(refused.value) and "\n" not in str(refused.value)


def test_the_nearest_of_many_thumbnails_is_the_only_one_that_is_read(tmp_path, monkeypatch):
    write_thumbnails(tmp_path, [Thumbnail("a", 2.0 * number, jpeg(number % 200), "s") for number in range(1800)])
    store, read = ThumbnailStore(tmp_path), []
    value = VlenReader.value
    monkeypatch.setattr(VlenReader, "value", lambda *given: read.append(1) or value(*given))
    assert store.nearest("a", 1000.7) == Thumbnail("a", 1000.0, jpeg(100), "s")
    assert len(read) == 1 and len(store.seconds("a")) == 1800
    spread = [thumbnail.seconds for thumbnail in store.get("a")]
    assert len(spread) == MAX_THUMBNAILS and (spread[0], spread[-1]) == (0.0, 3598.0)
    assert np.diff(spread).max() < 1.1 * np.diff(spread).min()
    assert [thumbnail.seconds for thumbnail in store.get("a", 9.0, 15.0, max_thumbnails=2)] == [10.0, 14.0]
    assert store.get("a", 9.0, 9.5) == [] and store.nearest("b", 1.0) is None


def test_a_nearest_thumbnail_that_is_no_jpeg_gives_way_to_the_next(tmp_path, capsys):
    good = Thumbnail("a", 4.0, jpeg(1), "s")
    write_thumbnails(tmp_path, [Thumbnail("a", 0.0, b"no", "s"), good, Thumbnail("a", float("nan"), jpeg(2), "s")])
    assert ThumbnailStore(tmp_path).nearest("a", 0.5) == good
    assert "are not JPEGs" in capsys.readouterr().err


def test_removed_thumbnails_are_gone_and_earlier_ones_do_not_come_back(tmp_path):
    write_thumbnails(tmp_path, [Thumbnail("a", 0.0, jpeg(1), "old"), Thumbnail("b", 0.0, jpeg(2), "old")])
    write_thumbnails(tmp_path, [Thumbnail("b", 1.0, jpeg(3), "new"), Thumbnail("c", 0.0, jpeg(4), "c")])
    write_thumbnails(tmp_path, [Thumbnail("d", 0.0, jpeg(5), "d")])
    remove_thumbnails(tmp_path, ["a", "c", "never there"])
    store = ThumbnailStore(tmp_path)
    assert store.get("a") == store.get("c") == []
    assert store.get("b") == [Thumbnail("b", 1.0, jpeg(3), "new")] and len(store.get("d")) == 1
    remove_thumbnails(tmp_path, ["b"])
    assert ThumbnailStore(tmp_path).get("b") == [] and len(ThumbnailStore(tmp_path).get("d")) == 1
    remove_thumbnails(tmp_path / "none", ["b"])


def test_dense_thumbnails_of_other_videos_stay(tmp_path):
    many = [Thumbnail("a", 2.0 * number, jpeg(number), "s") for number in range(3 * MAX_THUMBNAILS)]
    write_thumbnails(tmp_path, [*many, Thumbnail("b", 0.0, jpeg(1), "s")])
    remove_thumbnails(tmp_path, ["b"])
    assert len(ThumbnailStore(tmp_path).seconds("a")) == 3 * MAX_THUMBNAILS
