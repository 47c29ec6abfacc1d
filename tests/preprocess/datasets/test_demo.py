"""The demo data set."""

import pytest
from vlalign.preprocess.datasets import demo
from vlalign.storage import Caption, VideoRecord
from vlalign.storage.common.problems import Problems


@pytest.fixture(scope="module")
def planned():
    return demo.plan_scenes(0)


def scene_words(scene):
    return tuple(scene[name] for name in ("size", "colour", "shape", "verb", "relation", "other_colour", "other_shape"))


def main_object(scene):
    return scene["colour"], scene["shape"], scene["verb"]


def test_the_demo_is_large_enough_and_no_scene_comes_twice(planned):
    splits = [split for split, _ in planned]
    assert len(planned) >= 240
    assert splits.count("test") >= 100 and splits.count("validation") >= 10
    assert len({scene_words(scene) for _, scene in planned}) == len(planned)


def test_the_demo_tests_unseen_combinations_of_seen_words(planned):
    objects = {
        split: {main_object(scene) for s, scene in planned if s == split} for split in ("train", "validation", "test")
    }
    assert not objects["train"] & (objects["test"] | objects["validation"])
    for of_split in (objects["train"], objects["test"]):
        assert [set(words) for words in zip(*of_split, strict=True)] == [
            set(demo.COLOURS),
            set(demo.SHAPES),
            set(demo.VERBS),
        ]
    words = {
        split: {
            word.strip(",")
            for s, scene in planned
            if s == split
            for text in demo.scene_captions(scene)
            for word in text.split()
        }
        for split in ("train", "test")
    }
    assert {*demo.COLOURS, *demo.SHAPES, *demo.SIZES} <= words["test"]
    assert {form for forms in demo.VERBS.values() for form in forms} <= words["test"]
    assert words["test"] <= words["train"]


def test_demo_scenes_are_visually_distinct(planned):
    for _, scene in planned:
        assert scene["colour"] != scene["other_colour"] and scene["shape"] != scene["other_shape"]
        assert (scene["shape"], scene["verb"]) != ("circle", "spin")


def test_demo_videos_vary_like_real_ones(planned):
    scenes = [scene for _, scene in planned]
    assert {scene["fps"] for scene in scenes} == set(demo.FRAME_RATES) and len(demo.FRAME_RATES) >= 3
    assert len({(scene["width"], scene["height"]) for scene in scenes}) >= 3
    num_variable = sum(scene["variable_rate"] for scene in scenes)
    num_rotated = sum(scene["rotation_degrees"] != 0 for scene in scenes)
    assert 5 <= num_variable <= len(scenes) / 3
    assert 5 <= num_rotated <= len(scenes) / 3
    assert {scene["rotation_degrees"] for scene in scenes} == {0, 90, 180, 270}


def test_demo_records(planned):
    records = list(demo.read(None, 0, Problems()))
    videos = [r for r in records if isinstance(r, VideoRecord)]
    captions = [r for r in records if isinstance(r, Caption)]
    assert [v.scene for v in videos] == [scene for _, scene in planned]
    assert len({v.video_id for v in videos}) == len({v.path for v in videos}) == len(planned)
    of_video = {v.video_id: [c for c in captions if c.video_id == v.video_id] for v in videos}
    for video, (split, scene) in zip(videos, planned, strict=True):
        mine = of_video[video.video_id]
        assert {c.split for c in mine} == {split}
        assert len(mine) == len(demo.TEMPLATES) >= 2
        for caption in mine:
            assert all(
                scene[name] in caption.caption
                for name in ("size", "colour", "shape", "relation", "other_colour", "other_shape")
            )
            assert any(form in caption.caption.split() for form in demo.VERBS[scene["verb"]])
    assert len({c.caption for c in captions}) == len(captions)  # each caption describes one video


def test_the_seed_decides_the_demo():
    first, again, other = (list(demo.read(None, seed, Problems())) for seed in (0, 0, 1))
    assert first == again
    assert first != other
    paths = [{r.path for r in records if isinstance(r, VideoRecord)} for records in (first, other)]
    assert not paths[0] & paths[1]  # videos of two seeds have different files


@pytest.mark.parametrize("seed", range(1, 6))
def test_other_seeds_reserve_the_same_combinations(seed):
    scenes = demo.plan_scenes(seed)
    seen, unseen = ({main_object(scene) for s, scene in scenes if (s == "train") == train} for train in (True, False))
    assert seen and unseen and not seen & unseen
    assert len({scene_words(scene) for _, scene in scenes}) == len(scenes)
