"""The demo data set: short generated scenes whose captions follow a small grammar.

Every noun, verb and adjective of a caption can be seen in its video. Nothing is downloaded. The reader plans the
scenes and writes their captions; ``vlalign-extract`` renders the planned videos (``extract/videos/demo.py``).
"""

import hashlib
import itertools
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ...storage.common.errors import SettingError
from ...storage.common.problems import Problems
from ...storage.records import Caption, VideoRecord

Scene = dict[str, Any]
"""A scene as JSON: size, colour, shape and verb of the main object, its relation to another object, and how it is
filmed. See ``VideoRecord.scene``."""

SIZES = ("small", "large")
COLOURS = ("red", "green", "blue", "yellow", "white", "purple")
SHAPES = ("circle", "square", "triangle", "star", "cross")
RELATIONS = ("behind", "in front of", "beside")
VERBS = {  # verb -> third person, -ing form
    "fall": ("falls", "falling"),
    "rise": ("rises", "rising"),
    "spin": ("spins", "spinning"),
    "grow": ("grows", "growing"),
    "shrink": ("shrinks", "shrinking"),
    "bounce": ("bounces", "bouncing"),
}
TEMPLATES = (
    "a {size} {colour} {shape} {does} {relation} a {other_colour} {other_shape}",
    "{relation} a {other_colour} {other_shape}, a {size} {colour} {shape} is {doing}",
    "the {colour} {shape} that {does} {relation} the {other_colour} {other_shape} is {size}",
    "there is a {other_colour} {other_shape}, and a {size} {colour} {shape} {does} {relation} it",
    "we see a {size} {colour} {shape} {doing} {relation} a {other_colour} {other_shape}",
)
SPLIT_SIZES = {"train": 180, "validation": 20, "test": 110}
FRAME_SIZES = ((320, 240), (240, 320), (256, 256), (384, 288), (320, 200), (480, 360))
FRAME_RATES = ("24000/1001", "25", "30000/1001", "30", "50")


def held_out(colour: str, shape: str, verb: str) -> bool:
    """Return whether this combination is reserved for validation and test.

    A third of all combinations is. Each colour, shape and verb occurs both in training and in the reserved
    combinations.
    """
    return (COLOURS.index(colour) + SHAPES.index(shape) + list(VERBS).index(verb)) % 3 == 0


def plan_scenes(seed: int, split_sizes: dict[str, int] | None = None) -> list[tuple[str, Scene]]:
    """Return a list of (split, scene).

    No scene is planned twice, so that each caption describes exactly one video. The main objects of validation and test
    show combinations of colour, shape and verb that never occur in training.

    Args:
        seed: Decides the scenes.
        split_sizes: Number of videos of each split; by default ``SPLIT_SIZES``.
    """
    rng = random.Random(seed)
    scenes = [
        dict(zip(("size", "colour", "shape", "verb", "relation", "other_colour", "other_shape"), words, strict=True))
        for words in itertools.product(SIZES, COLOURS, SHAPES, VERBS, RELATIONS, COLOURS, SHAPES)
        # A spinning circle looks like a still one; an object and its neighbour must differ in colour and shape.
        if words[1] != words[5] and words[2] != words[6] and (words[2], words[3]) != ("circle", "spin")
    ]
    rng.shuffle(scenes)
    seen = (scene for scene in scenes if not held_out(scene["colour"], scene["shape"], scene["verb"]))
    unseen = (scene for scene in scenes if held_out(scene["colour"], scene["shape"], scene["verb"]))
    planned = []
    for split, num_videos in (split_sizes or SPLIT_SIZES).items():
        for scene in itertools.islice(seen if split == "train" else unseen, num_videos):
            planned.append((split, scene | _filming(rng)))
    return planned


def _filming(rng: random.Random) -> Scene:
    """Return how a scene is filmed: properties that vary between real videos and should not matter."""
    width, height = rng.choice(FRAME_SIZES)
    return {
        "width": width,
        "height": height,
        "fps": rng.choice(FRAME_RATES),
        "duration_seconds": round(rng.uniform(0.7, 1.6), 2),
        "variable_rate": rng.random() < 0.12,
        "rotation_degrees": rng.choice((90, 180, 270)) if rng.random() < 0.12 else 0,
        "side": rng.choice((-1, 1)),
        "noise_seed": rng.randrange(2**31),
    }


def scene_captions(scene: Scene) -> list[str]:
    """Return the captions of a scene: one for each template."""
    does, doing = VERBS[scene["verb"]]
    return [template.format(**scene, does=does, doing=doing) for template in TEMPLATES]


def read(annotations: Path | None, seed: int, problems: Problems) -> Iterator[VideoRecord | Caption]:
    """Yield the videos and captions of the demo.

    Args:
        annotations: Must be None.
        seed: Decides the scenes.
        problems: Not used.

    Raises:
        UserError: ``annotations`` is given.
    """
    del problems
    if annotations is not None:
        raise SettingError(
            "annotations",
            annotations,
            "the demo generates its captions; remove it, or choose another data set",
        )
    yield from records(plan_scenes(seed))


def records(planned: list[tuple[str, Scene]]) -> Iterator[VideoRecord | Caption]:
    """Yield the videos of planned scenes, each followed by its captions."""
    for number, (split, scene) in enumerate(planned):
        video_id = f"demo{number:04d}"
        # The file name depends on the scene, so that a video rendered from another seed is never used for it.
        digest = hashlib.sha256(json.dumps(scene).encode()).hexdigest()[:8]
        yield VideoRecord(video_id=video_id, path=f"videos/{video_id}-{digest}.mp4", scene=scene)
        for caption in scene_captions(scene):
            yield Caption(video_id=video_id, caption=caption, split=split)
