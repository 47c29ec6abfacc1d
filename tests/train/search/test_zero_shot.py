"""Search without training on the data set: what a CLIP that learned the demo's words finds in scenes it never saw."""

import hashlib
import inspect
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from helpers import clips_of_text, small_clip
from helpers.videos import encode_frames
from vlalign.extract.cli.extract import main as extract_main
from vlalign.extract.videos import demo as render
from vlalign.extract.videos.demo import scene_background, scene_frame
from vlalign.preprocess.chunks import in_one_process
from vlalign.preprocess.datasets import demo
from vlalign.preprocess.prepare import prepare_records
from vlalign.preprocess.settings import SPACY_MODEL
from vlalign.preprocess.tables import Preparation
from vlalign.storage.common.problems import Problems
from vlalign.storage.dataset.folder import DatasetFolder
from vlalign.storage.records import VideoRecord
from vlalign.train import open_search

pytestmark = pytest.mark.slow

FEATURES = "clip_vit_b32"
NUM_TEST = 110
NUM_LONG, SCENES_OF_LONG, SECONDS_OF_SCENE, FPS = 5, 20, 3, 8


@pytest.fixture(scope="module")
def clip(request) -> Path:
    """The trained model; kept between runs of the tests."""
    made_by = "".join(inspect.getsource(module) for module in (small_clip, clips_of_text, demo, render))
    folder = request.config.cache.mkdir("small-clip") / hashlib.sha256(made_by.encode()).hexdigest()[:16]
    if not (folder / "tokenizer_config.json").exists():
        small_clip.train_clip(folder)
    return folder


def held_out_scenes(count: int) -> list[demo.Scene]:
    return [scene for split, scene in demo.plan_scenes(0) if split == "test"][:count]


def extract(dataset: DatasetFolder, clip: Path, *more: str) -> None:
    """Extract the videos of a data set with the model."""
    at = ["--root", str(dataset.root), "--dataset", dataset.name]
    assert extract_main([*at, "--features", FEATURES, "--weights", str(clip), *more]) == 0


def temporal_iou(start: float, end: float, other: tuple[float, float]) -> float:
    shared = max(min(end, other[1]) - max(start, other[0]), 0.0)
    return shared / (max(end, other[1]) - min(start, other[0]))


def test_the_videos_of_captions_are_found_25_times_as_often_as_by_chance(tmp_path, clip):
    records = list(demo.records([("test", scene) for scene in held_out_scenes(NUM_TEST)]))
    dataset = DatasetFolder(tmp_path, "demo")
    chunks = in_one_process(lambda _: iter(records))
    prepare_records(Preparation(dataset=dataset, chunks=chunks, spacy_model=SPACY_MODEL, problems=Problems()))
    extract(dataset, clip)
    search = open_search(dataset.path, features=FEATURES, weights=clip)
    asked = [record for record in records if not isinstance(record, VideoRecord)]
    found = [search(of.caption, by="video", num_results=1)[0].video_id for of in asked]
    recall = np.mean([video_id == of.video_id for video_id, of in zip(found, asked, strict=True)])
    print(f"R@1 {100 * recall:.1f} of {len(asked)} captions and {NUM_TEST} videos; chance {100 / NUM_TEST:.1f}")
    assert recall * NUM_TEST >= 25


def frames_of(scenes: list[demo.Scene]) -> Iterator[np.ndarray]:
    """Yield the frames of a video that shows one scene after the other, 3 seconds each."""
    count = SECONDS_OF_SCENE * FPS
    for scene in scenes:
        background = scene_background(scene, 320, 240)
        yield from (scene_frame(scene, index / count, background) for index in range(count))


def test_the_right_three_seconds_of_long_videos_stand_first(tmp_path, clip):
    scenes = held_out_scenes(NUM_LONG * SCENES_OF_LONG)
    videos = {
        f"long{number}": scenes[number * SCENES_OF_LONG : (number + 1) * SCENES_OF_LONG] for number in range(NUM_LONG)
    }
    folder = tmp_path / "long videos"
    folder.mkdir()
    for video_id, of_video in videos.items():
        encode_frames(folder / f"{video_id}.mp4", frames_of(of_video), FPS)
    dataset = DatasetFolder(tmp_path, "mine")
    extract(dataset, clip, "--videos", str(folder))
    search = open_search(dataset.path, features=FEATURES, weights=clip)
    is_first, is_highest = [], []
    for video_id, of_video in videos.items():
        for number, scene in enumerate(of_video):
            right = float(number * SECONDS_OF_SCENE), float((number + 1) * SECONDS_OF_SCENE)
            for caption in demo.scene_captions(scene):
                [moment] = search(caption, by="video", num_results=1)
                span = moment.start_seconds, moment.end_seconds
                is_first.append(moment.video_id == video_id and temporal_iou(*span, right) >= 0.5)
                if is_first[-1]:
                    curve = search.score_curve(caption, video_id)
                    is_highest.append(right[0] <= curve.center_seconds[np.argmax(curve.scores)] <= right[1])
    print(f"first {np.mean(is_first):.3f} of {len(is_first)} queries; curve's maximum inside {np.mean(is_highest):.3f}")
    assert np.mean(is_first) >= 0.5
    assert np.mean(is_highest) >= 0.9
