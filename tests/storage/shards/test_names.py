"""Which of two shards with the same video counts: the one that was written later, as its name says, if that can be."""

import os
import re
import time

import pytest
from helpers.stores import PROFILE, WEIGHTS, video, write
from hypothesis import given
from hypothesis import strategies as st
from vlalign.storage import FeatureStore
from vlalign.storage.cli.store import main
from vlalign.storage.shards.format import Provenance
from vlalign.storage.shards.names import AHEAD_NS, NewShardNames, shard_path, sort_shard_names, stamp_of, written_at_ns
from vlalign.storage.stores import maintenance
from vlalign.storage.stores.shard_writer import ShardWriter
from vlalign.storage.stores.thumbnails import Thumbnail, ThumbnailStore, write_thumbnails

DAY_NS = 24 * 3600 * 10**9
IMPOSSIBLE = [
    "9" * 20 + "-00000000.h5",
    "9" * 21 + "-00000000.h5",
    "9" * 20 + ".h5",
    "zzzz.h5",
    f"{2**63:020d}-00000000.h5",
    "٩" * 20 + "-00000000.h5",
]


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_a_shard_name_with_an_impossible_time_does_not_win(tmp_path, name, capsys):
    write(tmp_path / "made", video("a", 3, base=500)).rename(tmp_path / name)
    assert FeatureStore(tmp_path).get("a").features[0, 0] == 500, "alone, it is read"
    assert re.search(rf"{re.escape(str(tmp_path))}: 1 .*{re.escape(ascii(name))}", capsys.readouterr().err)
    later = write(tmp_path, video("a", 3, base=0))
    assert FeatureStore(tmp_path).get("a").features[0, 0] == 0
    assert stamp_of(later.name) <= time.time_ns() and written_at_ns(tmp_path / name) == 0


def test_new_shards_follow_names_from_a_fast_clock(tmp_path):
    ahead = time.time_ns() + 30 * DAY_NS
    write(tmp_path / "made", video("a", 3, base=500)).rename(tmp_path / f"{ahead:020d}-00000000.h5")
    assert stamp_of(write(tmp_path, video("a", 3)).name) == ahead + 1
    assert FeatureStore(tmp_path).get("a").features[0, 0] == 0
    assert written_at_ns(tmp_path / f"{ahead:020d}-00000000.h5") == 0, "nobody knows when"


def test_compacted_shards_keep_the_oldest_position(tmp_path, capsys):
    for number, name in enumerate(IMPOSSIBLE[:4]):
        write(tmp_path / "made", video("a", 3, base=100 * number), video(f"b{number}", 1)).rename(tmp_path / name)
    before = FeatureStore(tmp_path).get("a").features[0, 0]
    assert maintenance.remove(tmp_path, ["b0", "b1", "b2", "b3"]) == []
    assert FeatureStore(tmp_path).get("a").features[0, 0] == before
    write(tmp_path, video("a", 3, base=7))
    assert FeatureStore(tmp_path).get("a").features[0, 0] == 7
    assert main(["compact", str(tmp_path)]) == 0
    assert FeatureStore(tmp_path).get("a").features[0, 0] == 7


def test_thumbnail_files_follow_the_same_order(tmp_path):
    write_thumbnails(tmp_path, [Thumbnail("a", 0.0, b"theirs", "x")])
    next(tmp_path.glob("*.h5")).rename(tmp_path / IMPOSSIBLE[0])
    write_thumbnails(tmp_path, [Thumbnail("a", 0.0, b"ours", "y")])
    assert ThumbnailStore(tmp_path).source("a") == "y"


@given(
    st.lists(
        st.integers(0, 10**20 - 1) | st.integers(0, 2 * AHEAD_NS).map(lambda ahead: time.time_ns() - AHEAD_NS + ahead),
        max_size=20,
    )
)
def test_a_new_name_follows_all_that_are_there(tmp_path_factory, stamps):
    folder = tmp_path_factory.mktemp("names")
    names = [f"{stamp:020d}-{number:08x}.h5" for number, stamp in enumerate(stamps)]
    for name in names:
        (folder / name).touch()
    new = shard_path(folder).name
    assert sort_shard_names([new, *names])[-1] == new and stamp_of(new) > 0


def test_a_writer_lists_its_folder_once(tmp_path, monkeypatch):
    profile = Provenance(profile=PROFILE, weights=WEIGHTS)
    write(tmp_path / "store", video("v", 3))
    writer, names, listed = ShardWriter(tmp_path / "store"), NewShardNames(tmp_path / "thumbnails"), []
    for name in ("listdir", "scandir"):
        real = getattr(os, name)
        monkeypatch.setattr(os, name, lambda path, real=real: listed.append(os.path.basename(str(path))) or real(path))
    for number in range(5):
        writer.write([video(f"v{number}", 3)], profile)
        write_thumbnails(names.folder, [Thumbnail("a", 0.0, b"x", str(number))], names)
    assert listed.count("store") <= 2 and listed.count("thumbnails") <= 1
    assert len(FeatureStore(tmp_path / "store")) == 6 and ThumbnailStore(names.folder).source("a") == "4"
