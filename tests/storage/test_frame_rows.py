"""Stores whose rows are frames: bytes, in shards of a schema of their own."""

import ctypes
import io
import json
import mmap
import os
import re
import tarfile
import zlib
from dataclasses import replace

import h5py
import numpy as np
import pytest
from helpers.needs import SYSTEM, need
from helpers.stores import WEIGHTS, write
from vlalign.storage import FeatureStore, MemoryStore, UserError, VideoFeatures
from vlalign.storage.cli.store import main
from vlalign.storage.common.problems import Problems
from vlalign.storage.exchange.imports import import_features
from vlalign.storage.profiles import CLIP, FRAME_PROFILES, frames_of
from vlalign.storage.records import Profile
from vlalign.storage.shards.format import FIRST_LINE, Provenance
from vlalign.storage.stores import maintenance
from vlalign.storage.stores.checked_store import CheckedStore
from vlalign.storage.stores.shard_writer import ShardWriter

SIDE = 8
PROFILE = frames_of(replace(CLIP, short_side_px=SIDE, crop_px=SIDE, window=2), "tiny_frames")
BYTES = 2 * SIDE * SIDE * 3


def frames(video_id: str, num_rows: int, seed: int = 0, profile: Profile = PROFILE) -> VideoFeatures:
    rng, rows = np.random.default_rng(seed), np.arange(num_rows)
    return VideoFeatures(
        video_id=video_id,
        features=rng.integers(0, 256, (num_rows, profile.dimension), dtype=np.uint8),
        start_seconds=rows * 1.0,
        end_seconds=rows + 1.0,
        valid_frames=np.full(num_rows, profile.window),
        duration_seconds=float(num_rows),
        source=f"source of {video_id}",
    )


def write_frames(folder, *videos):
    return write(folder, *videos, profile=PROFILE, dtype="uint8")


def edit_first_block(path, change) -> None:
    """Changes what a shard states, with checksums that fit."""
    content = path.read_bytes()
    first = FIRST_LINE.match(content)
    line, about = change(first[0].decode(), json.loads(content[first.end() : int(first[2])]))
    rest = json.dumps(about).encode().ljust(int(first[2]) - first.end())
    line = re.sub(r"[0-9a-f]{8}\n", f"{zlib.crc32(rest):08x}\n", line).encode()
    path.write_bytes(line + rest + content[int(first[2]) :])


@pytest.mark.portable
def test_bytes_come_back_as_they_were_given(tmp_path):
    given = [frames("a", 5), frames("b", 1, seed=1)]
    path = write_frames(tmp_path, *given)
    written = FeatureStore(tmp_path, check_rows=True)
    for store in (written, MemoryStore(PROFILE, WEIGHTS, given), CheckedStore(MemoryStore(PROFILE, WEIGHTS, given))):
        for video in given:
            found = store.get(video.video_id, dtype=None)
            assert found.features.dtype == np.uint8 and np.array_equal(found.features, video.features)
            assert not found.features.flags.writeable
            assert store.checksum(video.video_id) == written.checksum(video.video_id)
        clip = store.get("a", start_seconds=1.2, end_seconds=2.5, dtype=None).features
        assert np.array_equal(
            clip.reshape(-1, *PROFILE.frame_shape)[0, 1], given[0].features[1, BYTES // 2 :].reshape(8, 8, 3)
        )
        assert store.get("a").features.dtype == np.float32 and (store.get("a").features == given[0].features).all()
    with h5py.File(path) as file:  # other programs
        assert file["features"].dtype == np.uint8 and np.array_equal(file["features"][:5], given[0].features)
        assert file.attrs["schema"] == 2


@pytest.mark.portable
def test_other_types_of_rows_are_refused_in_both_kinds_of_store(tmp_path):
    floats = replace(frames("a", 2), features=np.zeros((2, BYTES), np.float32))
    for dtype in ("float16", "float32"):
        with pytest.raises(ValueError, match=rf"a: tiny_frames is stored as uint8, not as {dtype}"):
            write(tmp_path, frames("a", 2), profile=PROFILE, dtype=dtype)
        with pytest.raises(ValueError, match=r"a: .*uint8"):
            ShardWriter(tmp_path).write(
                [frames("a", 2)], Provenance(profile=PROFILE, weights=WEIGHTS, made_with={}), dtype=dtype
            )
    with pytest.raises(ValueError, match=r"a: frames must be uint8, got float32"):
        write_frames(tmp_path, floats)
    features = replace(CLIP, dimension=BYTES)
    with pytest.raises(ValueError, match=r"a: clip_vit_b32 is stored as float16 or float32, not as uint8"):
        write(tmp_path, frames("a", 2), profile=features, dtype="uint8")
    assert not list(tmp_path.iterdir())


def test_an_older_version_refuses_frames_by_their_schema_and_leaves_them_alone(tmp_path):
    """It reads the number in the first line, and raises ``OtherSchema`` for any but 1; so does this one for others."""
    path = write_frames(tmp_path, frames("a", 2))
    assert path.read_bytes().startswith(b"vlalign feature shard, schema 2,")
    path.write_bytes(path.read_bytes().replace(b"schema 2,", b"schema 3,", 1))
    (damage,) = maintenance.verify(tmp_path)
    assert damage.foreign and re.search(r"schema 3, this vlalign reads 1 and 2", damage.message)
    assert "not changed" in maintenance.repair(tmp_path)[0].message and path.exists()


@pytest.mark.parametrize(
    "change",
    [
        lambda line, about: (line.replace("schema 2", "schema 1"), about),
        lambda line, about: (line, about | {"dtype": "<f2"}),
        lambda line, about: (line, about | {"dtype": "|i1"}),
        lambda line, about: (
            line,
            about
            | {"attributes": about["attributes"] | {"profile": about["attributes"]["profile"].replace("384", "380")}},
        ),
    ],
    ids=["schema of features", "halves", "signed", "another size"],
)
def test_shards_that_contradict_themselves_are_refused(tmp_path, change):
    path = write_frames(tmp_path, frames("a", 2))
    edit_first_block(path, lambda line, about: (line, about))
    assert FeatureStore(tmp_path).profile == PROFILE, "the edit alone breaks nothing"
    edit_first_block(path, change)
    with pytest.raises(UserError, match="not a readable feature shard") as refused:
        FeatureStore(tmp_path)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "wrong", [{"dimension": 5}, {"crop_px": None}, {"window": 3}], ids=["dimension", "no common size", "window"]
)
def test_a_profile_of_frames_has_the_size_of_its_frames(wrong):
    with pytest.raises(ValueError, match=r"tiny_frames.*(dimension|crop_px)"):
        replace(PROFILE, **wrong)


def test_squeezed_frames_are_squares_though_nothing_is_cut():
    squeezed = frames_of(replace(CLIP, crop_px=None, resize="bicubic, torchvision, to a square"), "s_frames")
    assert squeezed.frame_shape == (1, 224, 224, 3) and squeezed.crop_px is None


@pytest.mark.portable
def test_stores_of_frames_are_verified_repaired_compacted_and_merged(tmp_path):
    first, second = (
        write_frames(tmp_path / "a", frames("a", 3), frames("b", 2)),
        write_frames(tmp_path / "a", frames("a", 4, seed=2)),
    )
    write_frames(tmp_path / "b", frames("c", 2, seed=3))
    assert maintenance.verify(tmp_path / "a") == []
    assert len(maintenance.merge([tmp_path / "b"], tmp_path / "a")) == 1
    maintenance.compact(tmp_path / "a")
    store = FeatureStore(tmp_path / "a", check_rows=True)
    assert len(store.shards) == 1 and not first.exists() and not second.exists()
    for video in (frames("a", 4, seed=2), frames("b", 2), frames("c", 2, seed=3)):
        assert np.array_equal(store.get(video.video_id, dtype=None).features, video.features)
    [path] = [shard.path for shard in store.shards]
    content = bytearray(path.read_bytes())
    content[store.shards[0].offsets["features"] + 3] ^= 1
    path.write_bytes(content)
    (damage,) = maintenance.verify(tmp_path / "a")
    assert len(damage.index_rows) == 1
    maintenance.repair(tmp_path / "a")
    assert len(FeatureStore(tmp_path / "a")) == 2
    maintenance.remove(tmp_path / "a", ["c"])
    assert "c" not in FeatureStore(tmp_path / "a")


def test_exports_keep_bytes_or_are_refused(tmp_path, capsys):
    folder = tmp_path / "frames"
    write_frames(folder, frames("a", 3))
    for form in ("npy", "npz", "webdataset"):
        assert main(["export", str(folder), str(tmp_path / form), "--form", form]) == 0
    assert np.array_equal(np.load(tmp_path / "npy" / "a.npy"), frames("a", 3).features)
    assert np.array_equal(np.load(tmp_path / "npz" / "a.npz")["features"], frames("a", 3).features)
    [tar] = (tmp_path / "webdataset").glob("*.tar")
    with tarfile.open(tar) as file:
        rows = np.load(io.BytesIO(file.extractfile("a.features.npy").read()))
    assert np.array_equal(rows, frames("a", 3).features)
    capsys.readouterr()
    for form in ("parquet", "hub"):
        assert main(["export", str(folder), str(tmp_path / form), "--form", form]) == 2
        message = capsys.readouterr().err
        assert "its rows are frames" in message and "npy, npz, webdataset" in message
        assert not (tmp_path / form).exists()


def test_frames_are_not_imported(tmp_path):
    (tmp_path / "theirs").mkdir()
    np.save(tmp_path / "theirs" / "a.npy", frames("a", 3).features)
    with Problems() as problems, pytest.raises(UserError, match="frames are not imported"):
        import_features(tmp_path / "theirs", tmp_path / "ours", PROFILE, problems=problems)
    assert not (tmp_path / "ours").exists()


def test_info_says_what_the_rows_are(tmp_path, capsys):
    write_frames(tmp_path, frames("a", 3))
    assert main(["info", str(tmp_path)]) == 0
    told = capsys.readouterr().out
    assert "uint8" in told and "schema 2" in told and "frames, RGB, before normalisation" in told


# Reading of a few frames of many


def resident_pages(path) -> np.ndarray:
    """Which pages of a file are in memory, bool."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mincore.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p
    size = path.stat().st_size
    with path.open("rb") as file, mmap.mmap(file.fileno(), size, access=mmap.ACCESS_COPY) as memory:
        pages = np.zeros(-(-size // mmap.PAGESIZE), np.uint8)
        address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        assert libc.mincore(address, size, pages.ctypes.data) == 0
    return (pages & 1).astype(bool)


def drop_from_memory(path) -> None:
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)


def test_only_the_frames_that_are_used_are_read_from_the_disk(tmp_path):
    """12 of 300 frames of CLIP's size: 1.8 of 45 MB, and the index."""
    if not hasattr(os, "posix_fadvise"):
        need(SYSTEM, ["files that can be dropped from memory"])
    profile = FRAME_PROFILES["clip_vit_b32_frames"]
    path = write(tmp_path, frames("a", 300, profile=profile), profile=profile, dtype="uint8")
    chosen = np.linspace(0, 299, 12).astype(int)
    drop_from_memory(path)
    if resident_pages(path).mean() > 0.05:
        need(SYSTEM, ["a disk whose files can be dropped from memory"])

    store = FeatureStore(tmp_path)
    clip = store.get("a", dtype=None).features
    looked_at = clip[chosen]
    by_look = resident_pages(path)

    drop_from_memory(path)
    store = FeatureStore(tmp_path)
    asked = np.concatenate(store.get_rows([("a", row, row + 1) for row in chosen.tolist()]))
    by_rows = resident_pages(path)
    assert np.array_equal(looked_at, asked) and np.array_equal(
        asked, frames("a", 300, profile=profile).features[chosen]
    )
    for pages in (by_look, by_rows):
        rest = pages[len(pages) // 4 :]  # at the beginning of a file, the system reads ahead once
        assert 0.03 < rest.mean() < 0.05 and pages.mean() < 0.3
