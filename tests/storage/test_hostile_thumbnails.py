"""Thumbnails from elsewhere: what is in them goes into a report that is shown around."""

import re
import signal
from pathlib import Path

import h5py
import numpy as np
import pytest
from helpers.stores import jpeg
from vlalign.storage.common.errors import UserError
from vlalign.storage.dataset.folder import DatasetFolder
from vlalign.storage.stores.thumbnails import (
    MAX_THUMBNAILS,
    ROW_IN_FILE,
    THUMBNAIL_ROW,
    Thumbnail,
    ThumbnailStore,
    write_thumbnails,
)
from vlalign.storage.untrusted.hdf5 import VlenReader

SECRET = b"what nobody should see"
PICTURES = h5py.vlen_dtype(np.uint8)


def write(path: Path, pictures, *, num_rows: int = 1, video_id: str = "a", source: str = "s") -> None:
    """A shard of which ``pictures(file)`` makes the pictures."""
    with h5py.File(path, "w") as file:
        file.create_dataset("thumbnails", data=np.array([(video_id, 1.0, source)] * num_rows, THUMBNAIL_ROW))
        pictures(file)


def outside(secret: Path):
    def pictures(file: h5py.File) -> None:
        file.create_dataset("jpegs", shape=(1, len(SECRET)), dtype="u1", external=[(str(secret), 0, len(SECRET))])

    return pictures


def virtual(secret: Path):
    def pictures(file: h5py.File) -> None:
        layout = h5py.VirtualLayout(shape=(1, len(SECRET)), dtype="u1")
        layout[:] = h5py.VirtualSource(str(secret), "bytes", shape=(1, len(SECRET)))
        file.create_virtual_dataset("jpegs", layout)

    return pictures


def link(secret: Path):
    def pictures(file: h5py.File) -> None:
        file["jpegs"] = h5py.ExternalLink(str(secret), "pictures")

    return pictures


HOW = {
    "external storage": (outside, "'jpegs'"),
    "a virtual data set": (virtual, "'jpegs'"),
    "an external link": (link, "'jpegs'"),
}


@pytest.mark.parametrize("how", HOW)
def test_a_link_to_a_local_file_is_not_shown_as_a_thumbnail(tmp_path, how):
    pictures, complaint = HOW[how]
    secret, folder = tmp_path / "secret", tmp_path / "thumbnails"
    folder.mkdir()
    if how == "external storage":
        secret.write_bytes(SECRET)
    else:
        with h5py.File(secret, "w") as file:
            file["bytes"] = np.frombuffer(SECRET, "u1")[None]
            file.create_dataset("pictures", shape=1, dtype=PICTURES)[0] = np.frombuffer(SECRET, "u1")
    write(folder / "1.h5", pictures(secret))
    with pytest.raises(UserError) as refused:
        ThumbnailStore(folder).get("a")
    assert str(refused.value).startswith(f"{folder / '1.h5'}: ") and complaint in str(refused.value)


NO_JPEGS = {
    "a text": SECRET,
    "a page": b"<script>alert(1)</script>",
    "another picture": jpeg(form="PNG"),
    "a huge picture": jpeg(size=(3000, 10)),
    "a long one": jpeg() + bytes(2 << 20),
    "nothing": b"",
    "a beginning": jpeg()[:10],
}


@pytest.mark.parametrize("what", NO_JPEGS)
def test_thumbnails_that_are_not_small_jpegs_are_left_out_and_reported(tmp_path, what, capsys):
    good = Thumbnail("a", 1.0, jpeg(), "s")
    write_thumbnails(
        tmp_path, [Thumbnail("a", 0.0, NO_JPEGS[what], "s"), good, Thumbnail("b", 0.0, NO_JPEGS[what], "s")]
    )
    store = ThumbnailStore(tmp_path)
    assert store.get("a") == [good] and store.get("b") == []
    [shard] = tmp_path.iterdir()
    error = capsys.readouterr().err
    assert error.startswith(f"warning: {shard}: ") and "'a'" in error and error.count("\n") == 1


def test_a_picture_shared_by_a_million_rows_is_read_a_few_times(tmp_path):
    def pictures(file: h5py.File) -> None:
        file.create_dataset("jpegs", shape=100_000, dtype=PICTURES)[0] = np.frombuffer(jpeg(), "u1")

    write(tmp_path / "1.h5", pictures, num_rows=100_000)
    signal.alarm(30)
    assert len(ThumbnailStore(tmp_path).get("a")) <= MAX_THUMBNAILS
    signal.alarm(0)


OTHER = {
    "no pictures": lambda file: None,
    "a group": lambda file: file.create_group("jpegs"),
    "fewer pictures than rows": lambda file: file.create_dataset("jpegs", shape=0, dtype=PICTURES),
    "numbers": lambda file: file.create_dataset("jpegs", data=[1]),
    "texts": lambda file: file.create_dataset("jpegs", shape=1, dtype=h5py.string_dtype()),
    "a lone value": lambda file: file.create_dataset("jpegs", data=1),
}


@pytest.mark.parametrize("what", OTHER)
def test_a_file_that_is_not_a_thumbnail_file_is_one_line(tmp_path, what):
    write(tmp_path / "1.h5", OTHER[what])
    with pytest.raises(UserError, match=r"1\.h5: ") as refused:
        ThumbnailStore(tmp_path).get("a")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "table",
    [
        np.zeros(1, [("video_id", "i4"), ("seconds", "f8"), ("source", "i4")]),
        np.zeros(1, [("video_id", "S4"), ("seconds", "S4"), ("source", "S4")]),
        np.array([(b"\xff", 0.0, b"")], [("video_id", "S4"), ("seconds", "f8"), ("source", "S4")]),
        np.zeros((1, 1), [("video_id", "S4"), ("seconds", "f8"), ("source", "S4")]),
        np.array([(b"a" * 5000, 0.0, b"")], [("video_id", "S5000"), ("seconds", "f8"), ("source", "S4")]),
        np.zeros(1),
        np.float64(1),
    ],
)
def test_a_thumbnail_table_of_another_type_is_one_line(tmp_path, table):
    with h5py.File(tmp_path / "1.h5", "w") as file:
        file["thumbnails"] = table
        file.create_dataset("jpegs", shape=1, dtype=PICTURES)
    with pytest.raises(UserError, match=r"1\.h5: ") as refused:
        ThumbnailStore(tmp_path)
    assert "\n" not in str(refused.value)


def test_values_are_read_as_hdf5_reads_them(tmp_path):
    chance = np.random.default_rng(0)
    sizes = [0, 1, 7, 8, 9, 4000, 4096, 300_000, *chance.integers(1, 9000, size=200)]
    names = ["", "ä", "視頻", "x" * 5000, *(f"v{n}" for n in range(len(sizes) - 4))]
    write_thumbnails(
        tmp_path,
        [Thumbnail(name, 1.5, chance.bytes(size), name[::-1]) for name, size in zip(names, sizes, strict=True)],
    )
    (shard,) = tmp_path.glob("*.h5")
    with shard.open("rb") as content, h5py.File(content) as file:
        reader = VlenReader(file, content)
        table, jpegs = reader.rows(file["thumbnails"], ROW_IN_FILE), reader.rows(file["jpegs"], VlenReader.REFERENCE)
        for row, expected in zip(table, file["thumbnails"][()], strict=True):
            found = reader.value(row["video_id"], 1 << 20), float(row["seconds"]), reader.value(row["source"], 1 << 20)
            assert found == expected.item()
        for reference, expected in zip(jpegs, file["jpegs"][()], strict=True):
            assert reader.value(reference, 1 << 20) == expected.tobytes()
        with pytest.raises(ValueError, match=r"\b100\b"):
            reader.value(jpegs[7], 100)


@pytest.mark.parametrize("length", [0, 15, 1 << 40, (1 << 64) - 1])
def test_an_endless_hdf5_heap_is_refused(tmp_path, length):
    write_thumbnails(tmp_path, [Thumbnail("v", 0.0, b"x", "s")])
    (shard,) = tmp_path.glob("*.h5")
    content = bytearray(shard.read_bytes())
    heap = content.index(b"GCOL")
    at = heap + 16
    while int.from_bytes(content[at : at + 2], "little"):  # to what is free, whose length HDF5 goes on by
        at += 16 + -(-int.from_bytes(content[at + 8 : at + 16], "little") // 8) * 8
    content[at + 8 : at + 16] = length.to_bytes(8, "little")
    shard.write_bytes(content)
    with pytest.raises(UserError, match=re.escape(f"{shard}: ")):
        ThumbnailStore(tmp_path)


@pytest.mark.parametrize("outside", ["file", "folder"])
def test_a_file_that_is_a_link_is_refused(tmp_path, outside):
    theirs, dataset = tmp_path / "theirs", DatasetFolder(tmp_path / "root", "evil")
    write_thumbnails(theirs, [Thumbnail("a", 1.0, jpeg(8), "s")])
    dataset.path.mkdir(parents=True)
    if outside == "folder":
        dataset.thumbnails.symlink_to(theirs)
    else:
        dataset.thumbnails.mkdir()
        (dataset.thumbnails / "1.h5").symlink_to(next(theirs.glob("*.h5")))
    with pytest.raises(UserError, match=re.escape(str(tmp_path))) as refused:
        ThumbnailStore(dataset.thumbnails)
    assert str(dataset.thumbnails) in str(refused.value)
