"""Search windows of shots: their plan, the index that has them, and a search that finds whole shots."""

from itertools import pairwise

import numpy as np
import pytest
from helpers.clips_of_text import new_clip, save_clip, word_tokenizer
from hypothesis import given
from hypothesis import strategies as st
from vlalign.storage import UserError, VideoFeatures, Weights, write_shard
from vlalign.storage.common.errors import SettingError
from vlalign.storage.common.files import sha256_of
from vlalign.storage.dataset.folder import DatasetFolder
from vlalign.storage.profiles import PROFILES
from vlalign.train import SearchSource, build_index, open_search
from vlalign.train.cli.index import main as index_main
from vlalign.train.search.index import index_folder, plan_search_windows
from vlalign.train.search.shot_windows import (
    FILE_NAME,
    MAX_WINDOW_SECONDS,
    MIN_WINDOW_SECONDS,
    plan_shot_windows,
    read_window_kind,
)

SECONDS = 40
CUTS = [0.0, 6.0, 6.4, 18.0, 39.5]
PLANNED = [[0, 40], [0, 6], [6, 18], [18, 29], [29, 40]]


@pytest.mark.parametrize(
    ("seconds", "cuts", "expected"),
    [
        (40, CUTS, PLANNED),
        (7, [0.0], [[0, 7]]),
        (0.4, [0.0], [[0, 0.4]]),
        (3, [0.0, 0.7, 1.4, 2.1], [[0, 3], [0, 1.4], [1.4, 3]]),
        (3, [0.0, 0.9], [[0, 3]]),
        (32, [0.0], [[0, 32], [0, 16], [16, 32]]),
        (20, [0.0, 25.0], [[0, 20], [0, 10], [10, 20]]),
    ],
)
def test_short_shots_are_joined_and_long_ones_divided(seconds, cuts, expected):
    assert plan_shot_windows(float(seconds), np.array(cuts)) == pytest.approx(np.array(expected, float))


@given(st.floats(0.05, 500), st.lists(st.floats(0, 500), max_size=40))
def test_windows_cover_the_video_and_borders_are_cuts_or_divide_a_long_shot(seconds, later):
    cuts = np.array([0.0, *sorted(later)])
    whole, *parts = plan_shot_windows(seconds, cuts).tolist()
    assert whole == [0.0, seconds]
    if not parts:
        assert seconds <= MAX_WINDOW_SECONDS
        return
    assert parts[0][0] == 0 and parts[-1][1] == seconds
    assert all(end == start for (_, end), (start, _) in pairwise(parts))
    lengths = np.array([end - start for start, end in parts])
    assert lengths.max() <= MAX_WINDOW_SECONDS + 1e-9 and lengths.min() >= min(MIN_WINDOW_SECONDS, seconds) - 1e-9
    borders = np.array([start for start, _ in parts[1:]])
    divided = ~np.isin(borders, cuts)
    assert (lengths[1:][divided] > MAX_WINDOW_SECONDS / 2 - 1e-9).all()


@pytest.fixture(scope="module")
def clip(tmp_path_factory):
    tokenizer = word_tokenizer(["red ball"])
    return save_clip(new_clip(tokenizer), tokenizer, tmp_path_factory.mktemp("clip") / "small-clip")


def add(dataset, clip, video_id, seed):
    """Write a row a second; those of a shot are the same."""
    rng = np.random.default_rng(seed)
    starts = np.arange(float(SECONDS))
    rows = rng.normal(size=(len(CUTS), 512))[np.searchsorted(CUTS, starts + 0.5) - 1]
    weights = Weights(name="small-clip", sha256=sha256_of(clip / "model.safetensors"))
    times = {"start_seconds": starts, "end_seconds": starts + 1, "valid_frames": np.ones(SECONDS, int)}
    video = VideoFeatures(video_id=video_id, features=rows, duration_seconds=float(SECONDS), **times)
    write_shard(dataset.features("clip_vit_b32"), PROFILES["clip_vit_b32"], weights, [video], made_with={})


def add_shots(dataset, video_id, cuts=CUTS):
    starts = np.array(cuts)
    video = VideoFeatures(
        video_id=video_id,
        features=np.zeros((len(cuts), 2)),
        start_seconds=starts,
        end_seconds=np.append(starts[1:], SECONDS),
        valid_frames=np.ones(len(cuts), int),
        duration_seconds=float(SECONDS),
    )
    none = Weights(name="none", sha256="")
    write_shard(dataset.features("shots"), PROFILES["shots"], none, [video], made_with={})


@pytest.fixture
def dataset(tmp_path, clip):
    dataset = DatasetFolder(tmp_path, "mine")
    for number in range(3):
        add(dataset, clip, f"v{number}", number)
        add_shots(dataset, f"v{number}")
    return dataset


def opened(dataset, clip):
    return open_search(dataset.path, features="clip_vit_b32", weights=clip)


def source(dataset, clip):
    return SearchSource(dataset.path, features="clip_vit_b32", weights=clip)


def spans(search, video_id):
    return search.index.spans_of(search.index.rows_of(video_id)).tolist()


def test_an_index_of_shots_is_searched_by_whole_shots_and_stays_so(dataset, clip):
    lengths = build_index(source(dataset, clip))
    built = build_index(source(dataset, clip), windows="shots")
    assert (built.num_windows, built.num_added, built.num_other) == (3 * len(PLANNED), 3, 1)
    search = opened(dataset, clip)
    assert spans(search, "v1") == PLANNED
    moments = search("red ball", num_results=None)
    found = [[moment.start_seconds, moment.end_seconds] for moment in moments]
    assert found and all(span in PLANNED for span in found)
    vectors = search.index.vectors_of(search.index.rows_of("v1"))
    best = max(range(len(PLANNED)), key=lambda number: vectors[number] @ search.encode_query("red ball"))
    [moment] = search("red ball", videos={"v1"}, num_results=1)
    assert [moment.start_seconds, moment.end_seconds] == PLANNED[best]
    add(dataset, clip, "v3", 3)
    add_shots(dataset, "v3", [0.0, 10.0])
    assert spans(opened(dataset, clip), "v3") == [[0, 40], [0, 10], [10, 25], [25, 40]]  # by the search itself
    assert build_index(source(dataset, clip)).num_windows == 3 * len(PLANNED) + 4
    again = build_index(source(dataset, clip), windows="lengths")
    assert again.num_windows == 4 * len(plan_search_windows(float(SECONDS))) > lengths.num_windows
    assert spans(opened(dataset, clip), "v1") == plan_search_windows(float(SECONDS)).tolist()


def test_windows_follow_the_shots(dataset, clip, capsys):
    build_index(source(dataset, clip), windows="shots")
    add_shots(dataset, "v1", [0.0, 12.0, 25.0])
    again = build_index(source(dataset, clip))
    assert (again.num_added, again.num_outdated) == (1, 1)
    assert spans(opened(dataset, clip), "v1") == [[0, 40], [0, 12], [12, 25], [25, 40]]
    assert "without shots" not in capsys.readouterr().err


def test_a_video_without_shots_has_windows_of_fixed_lengths_and_a_line_says_so(dataset, clip, capsys):
    add(dataset, clip, "none", 7)
    options = ["--root", str(dataset.root), "--dataset", "mine", "--features", "clip_vit_b32", "--weights", str(clip)]
    assert index_main([*options, "--windows", "shots"]) == 0
    [line] = [line for line in capsys.readouterr().err.splitlines() if "without shots" in line]
    assert "1 video" in line and "vlalign-extract --dataset mine --features shots" in line
    assert spans(opened(dataset, clip), "none") == plan_search_windows(float(SECONDS)).tolist()
    add_shots(dataset, "none")
    assert index_main(options) == 0
    assert spans(opened(dataset, clip), "none") == PLANNED


def test_what_cannot_be_is_refused_in_one_line(tmp_path, clip):
    dataset = DatasetFolder(tmp_path, "mine")
    add(dataset, clip, "v", 0)
    folder = index_folder(dataset, "clip_vit_b32")
    with pytest.raises(UserError, match=r"vlalign-extract --dataset mine --features shots") as refused:
        build_index(source(dataset, clip), windows="shots")
    assert "\n" not in str(refused.value) and read_window_kind(folder) == "lengths"
    with pytest.raises(SettingError):
        build_index(source(dataset, clip), windows="scenes")  # type: ignore[arg-type]
    folder.mkdir(parents=True, exist_ok=True)
    for content in (b"", b"[]", b'{"windows": "scenes"}', b'{"windows": ["shots"]}', b"\xff" * 70_000):
        (folder / FILE_NAME).write_bytes(content)
        with pytest.raises(UserError, match=FILE_NAME):
            opened(dataset, clip)


def test_shots_are_not_searched_as_features(dataset):
    with pytest.raises(UserError, match="shots"):
        open_search(dataset.path, features="shots")
