"""The index: what is added, outdated, removed and refused; and that a stopped build goes on."""

import json
import multiprocessing
import os
import re
import shutil
from concurrent.futures import ProcessPoolExecutor

import numpy as np
import pytest
from helpers.clips_of_text import new_clip, save_clip, word_tokenizer
from helpers.toy import make_toy
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from vlalign.storage import FeatureStore, UserError, VideoFeatures, Weights, write_shard
from vlalign.storage.common.files import sha256_of
from vlalign.storage.common.packages import EXTRAS, install_command
from vlalign.storage.dataset.folder import DatasetFolder
from vlalign.storage.profiles import PROFILES
from vlalign.storage.stores.maintenance import remove
from vlalign.train import SearchSource, build_index, open_search
from vlalign.train.cli.index import main as index_main
from vlalign.train.cli.train import main as train_main
from vlalign.train.search import build, coded_search, window_encoding
from vlalign.train.search.duplicates import find_duplicates
from vlalign.train.search.exact_search import half_products
from vlalign.train.search.index import (
    IndexFolder,
    WindowIndex,
    clips_of,
    index_folder,
    open_index_shards,
    plan_search_windows,
    read_index_shard,
    shard_files,
    write_index_shard,
)

SECONDS = 21
WINDOWS = len(plan_search_windows(float(SECONDS)))


@pytest.fixture(scope="module")
def clip(tmp_path_factory):
    tokenizer = word_tokenizer(["red ball"])
    return save_clip(new_clip(tokenizer), tokenizer, tmp_path_factory.mktemp("clip") / "small-clip")


def add(dataset, clip, ids, seed):
    """Write videos of random rows, all of one seed the same."""
    rng = np.random.default_rng(seed)
    rows, starts = rng.normal(size=(SECONDS, 512)), np.arange(float(SECONDS))
    weights = Weights(name="small-clip", sha256=sha256_of(clip / "model.safetensors"))
    times = {"start_seconds": starts, "end_seconds": starts + 1, "valid_frames": np.ones(SECONDS, int)}
    videos = [VideoFeatures(video_id=v, features=rows, duration_seconds=float(SECONDS), **times) for v in ids]
    write_shard(dataset.features("clip_vit_b32"), PROFILES["clip_vit_b32"], weights, videos, made_with={})


@pytest.fixture
def dataset(tmp_path, clip):
    dataset = DatasetFolder(tmp_path, "mine")
    for number in range(4):
        add(dataset, clip, [f"v{number}"], number)
    return dataset


def options(clip):
    return {"features": "clip_vit_b32", "weights": clip}


def source(dataset, clip):
    return SearchSource(dataset.path, **options(clip))


def folder(dataset):
    return index_folder(dataset, "clip_vit_b32")


def test_videos_are_added_changed_and_removed_without_a_rebuild(dataset, clip):
    first = build_index(source(dataset, clip))
    assert (first.num_videos, first.num_windows, first.num_added) == (4, 4 * WINDOWS, 4)
    [shard] = shard_files(folder(dataset))
    add(dataset, clip, ["new"], 9)
    add(dataset, clip, ["v1"], 8)  # in place of the old rows
    again = build_index(source(dataset, clip))
    assert (again.num_videos, again.num_added, again.num_outdated) == (5, 2, 1)
    assert shard in shard_files(folder(dataset)), "what was there is not written again"
    opened = open_search(dataset.path, **options(clip))
    rows = opened.index.rows_of("v1")
    expected = opened.encoder.encode_clips(clips_of("v1", plan_search_windows(float(SECONDS))))
    np.testing.assert_allclose(opened.index.vectors_of(rows), expected, atol=1e-3)
    remove(dataset.features("clip_vit_b32"), ["v0", "v2", "v3"])
    opened = open_search(dataset.path, **options(clip))
    assert {moment.video_id for moment in opened("red ball")} == {"v1", "new"}
    last = build_index(source(dataset, clip))
    assert (last.num_videos, last.num_added, last.num_outdated) == (2, 0, 4)
    assert shard not in shard_files(folder(dataset)), "nothing of it counts any more"
    assert build_index(source(dataset, clip)).num_outdated == 0


def test_a_stopped_build_goes_on(dataset, clip, monkeypatch):
    monkeypatch.setattr(window_encoding, "WINDOWS_PER_SHARD", WINDOWS)
    written = []

    def stop(*args):
        if len(written) == 2:
            raise KeyboardInterrupt
        written.append(write(*args))

    write = window_encoding.write_index_shard
    monkeypatch.setattr(window_encoding, "write_index_shard", stop)
    with pytest.raises(KeyboardInterrupt):
        build_index(source(dataset, clip))
    monkeypatch.setattr(window_encoding, "write_index_shard", write)
    built = build_index(source(dataset, clip))
    assert (built.num_videos, built.num_added) == (4, 2)
    assert len(shard_files(folder(dataset))) == 4


def test_large_data_sets_are_indexed_first(dataset, clip, monkeypatch, capsys):
    monkeypatch.setattr(window_encoding, "MAX_WINDOWS_ADDED_BY_SEARCH", WINDOWS)
    with pytest.raises(UserError, match=r" 4 .*vlalign-index --dataset mine"):
        open_search(dataset.path, **options(clip))
    call = ["--root", str(dataset.root), "--dataset", "mine", "--features", "clip_vit_b32", "--weights", str(clip)]
    assert index_main(call) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert re.findall(r"\d+", first.rpartition(": ")[2]) == [str(4 * WINDOWS), "4"]
    assert re.findall(r"\d+", second) == ["4", "0"], "added, and no longer counted"
    add(dataset, clip, ["x0", "x1"], 9)
    opened = open_search(dataset.path, **options(clip))
    assert re.search(r" 2 .*vlalign-index --dataset mine", capsys.readouterr().err)
    assert opened.index.num_windows == 4 * WINDOWS


def test_a_large_index_gets_codes_that_searches_use_and_say_if_they_lack(dataset, clip, monkeypatch, capsys):
    expected = open_search(dataset.path, **options(clip))("red ball")
    monkeypatch.setattr(coded_search, "EXACT_WINDOWS", WINDOWS)
    assert open_search(dataset.path, **options(clip)).coded_index is None
    assert re.search(rf" {4 * WINDOWS} .*vlalign-index --dataset mine", capsys.readouterr().err)
    assert build_index(source(dataset, clip)).num_coded == 4 * WINDOWS
    search = open_search(dataset.path, **options(clip))
    assert search.coded_index is not None
    assert capsys.readouterr().err == ""
    found = search("red ball")
    assert [(m.video_id, m.window) for m in found] == [(m.video_id, m.window) for m in expected]
    assert [m.score for m in found] == pytest.approx([m.score for m in expected], abs=1e-5)
    assert build_index(source(dataset, clip)).num_coded == 0
    for module in (build, coded_search, window_encoding):
        monkeypatch.setattr(module, "has_faiss", lambda: False)
    assert open_search(dataset.path, **options(clip)).coded_index is None
    err = capsys.readouterr().err
    assert install_command(*EXTRAS["index"]) in err and "vlalign-index --dataset mine" in err
    call = ["--root", str(dataset.root), "--dataset", "mine", "--features", "clip_vit_b32", "--weights", str(clip)]
    assert index_main(call) == 0
    assert install_command(*EXTRAS["index"]) in capsys.readouterr().out


def by_other_processes(call, items):
    """Run calls in other processes, as a cluster does; the last is done first."""
    with ProcessPoolExecutor(2, multiprocessing.get_context("fork")) as pool:
        yield from reversed(list(pool.map(call, items)))


def test_shards_that_other_processes_make_are_the_same(dataset, clip, monkeypatch):
    monkeypatch.setattr(window_encoding, "WINDOWS_PER_SHARD", WINDOWS + 1)
    monkeypatch.setattr(coded_search, "EXACT_WINDOWS", WINDOWS)
    monkeypatch.setattr(coded_search, "NUM_PROBES", 100)
    copy = DatasetFolder(dataset.root / "elsewhere", "mine")
    shutil.copytree(dataset.path, copy.path)
    plain = build_index(source(dataset, clip))
    progress = []
    spread = build_index(source(copy, clip), parallel_map=by_other_processes, on_progress=progress.append)
    assert (spread.num_windows, spread.num_coded) == (plain.num_windows, plain.num_coded) == (4 * WINDOWS, 4 * WINDOWS)
    assert {(told.what, told.done, told.total) for told in progress} >= {
        ("indexing", 4 * WINDOWS, 4 * WINDOWS),
        ("coding", 4 * WINDOWS, 4 * WINDOWS),
    }
    made = [sorted(open_index_shards(folder(at)), key=lambda shard: shard.video_ids) for at in (dataset, copy)]
    for of_plain, of_spread in zip(*made, strict=True):
        assert of_plain.video_ids == of_spread.video_ids
        np.testing.assert_array_equal(of_plain.vectors, of_spread.vectors)
    found, expected = (open_search(at.path, **options(clip))("red ball") for at in (copy, dataset))
    assert [(m.video_id, m.start_seconds, m.score) for m in found] == [
        (m.video_id, m.start_seconds, m.score) for m in expected
    ]


def test_processes_of_another_folder_find_the_run(tmp_path, monkeypatch):
    toy = make_toy(tmp_path)
    call = ["--root", str(toy.root), "--dataset", "toy", "--features", "s3d", "--num-steps", "2", "--run-name", "r"]
    assert train_main(call) == 0
    monkeypatch.chdir(toy.path)

    def in_another_folder(call, items):
        with ProcessPoolExecutor(1, multiprocessing.get_context("fork"), os.chdir, ("/",)) as pool:
            yield from pool.map(call, items)

    assert build_index(SearchSource(run="runs/r"), parallel_map=in_another_folder).num_videos == 24


def test_processes_that_live_on_see_what_was_added(dataset, clip, monkeypatch):
    """The encoder that a process keeps is that of one call."""
    monkeypatch.setattr(coded_search, "EXACT_WINDOWS", 10**9)
    for num_videos in (4, 5):
        built = build_index(source(dataset, clip), parallel_map=map)
        assert built.num_videos == num_videos
        add(dataset, clip, ["new"], 9)


def test_windows_of_another_model_do_not_count(dataset, clip):
    build_index(source(dataset, clip))
    key = open_index_shards(folder(dataset))[0].key
    # Any more would make indexes of earlier versions again.
    assert set(json.loads(key)) == {"weights_sha256", "profile_hash", "window_seconds"}
    index = IndexFolder.of(open_search(dataset.path, **options(clip)).encoder)
    other = IndexFolder(index.encoder, index.path, key.replace("4.0", "5.0"))
    assert (other.open().num_windows, len(other.open().state.other)) == (0, 1)


def test_near_duplicates_are_found(dataset, clip, capsys):
    add(dataset, clip, ["copy-a", "copy-b"], 2)
    groups = find_duplicates(open_search(dataset.path, **options(clip)))
    assert [group.video_ids for group in groups] == [["copy-a", "copy-b", "v2"]]
    assert groups[0].lowest_cosine == pytest.approx(1, abs=1e-3)
    call = ["--root", str(dataset.root), "--dataset", "mine", "--features", "clip_vit_b32", "--weights", str(clip)]
    assert index_main([*call, "--duplicates", "0.98"]) == 0
    assert capsys.readouterr().out.endswith("copy-a copy-b v2\n")
    assert index_main([*call, "--duplicates", "7"]) == 2
    assert "--duplicates 7.0: " in capsys.readouterr().err


@pytest.fixture(scope="module")
def shard(tmp_path_factory, clip):
    dataset = DatasetFolder(tmp_path_factory.mktemp("root"), "mine")
    add(dataset, clip, ["v0", "v1"], 0)
    build_index(source(dataset, clip))
    [path] = shard_files(folder(dataset))
    return path


def test_a_cut_file_is_refused_in_one_line(shard, tmp_path):
    whole = shard.read_bytes()
    for length in (0, 5, 8, 40, 300, len(whole) // 2, len(whole) - 1):
        path = tmp_path / "cut.safetensors"
        path.write_bytes(whole[:length])
        with pytest.raises(UserError, match=f"{re.escape(str(path))}.*vlalign-index") as refused:
            read_index_shard(path)
        assert "\n" not in str(refused.value)


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_a_changed_file_is_refused_or_read(shard, tmp_path, data):
    """Whatever the bytes are, reading ends with a shard whose columns fit, or with one line."""
    content = bytearray(shard.read_bytes())
    header = 8 + int.from_bytes(content[:8], "little")
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, header - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path / "changed.safetensors"
    path.write_bytes(content)
    try:
        read = read_index_shard(path)
    except UserError as error:
        assert "\n" not in str(error)
        return
    assert len(read.vectors) == len(read.spans) == len(read.video)
    assert read.video.max(initial=0) < max(len(read.video_ids), 1)


def test_values_that_are_no_numbers_come_last(shard):
    """Vectors are not checked when an index is opened, which would read all of them."""
    read = read_index_shard(shard)
    vectors = np.array(read.vectors)
    vectors[0] = np.nan
    scores = half_products(vectors, vectors[1].astype(np.float32))
    assert np.isnan(scores[0]) and np.isfinite(scores[1:]).all()


def test_the_store_and_its_index_stay_apart(shard):
    assert FeatureStore(shard.parents[2] / "features" / "clip_vit_b32").video_ids() == ["v0", "v1"]


def test_the_windows_of_some_videos_are_those_of_each(tmp_path):
    rng = np.random.default_rng(0)
    for ids in (["a", "b", "c"], ["d", "b"]):
        vectors = [rng.normal(size=(n + 1, 4)) for n in range(len(ids))]
        write_index_shard(
            tmp_path, "key", dict.fromkeys(ids, 1), [np.sort(rng.random((len(v), 2))) for v in vectors], vectors
        )
    index = WindowIndex(open_index_shards(tmp_path), "key", dict.fromkeys(["b", "c", "d", "none"], 1))
    for chosen in ([], ["c"], ["d", "b"], ["none", "a", "unknown"], ["b", "c", "d", "none"]):
        rows = [int(row) for video_id in chosen for row in index.rows_of(video_id)]
        assert index.rows_of_all(chosen).tolist() == sorted(rows)
    for video_id in ("b", "c", "d", "none", "unknown"):
        rows = index.rows_of(video_id)
        spans, found = index.of_video(video_id)
        np.testing.assert_array_equal(spans, index.spans_of(rows))
        np.testing.assert_array_equal(found, index.halves_of(rows))
