"""The demo data set: a small grammar of scenes in which every noun, verb and adjective can be seen.

Nothing is downloaded and nothing is drawn here: the reader plans the scenes and writes their captions; ``vlalign-extract``
renders the videos that the plan names (``extract/render.py``), as it would fetch those of another data set.
"""

import hashlib
import itertools
import json
import random
from collections.abc import Iterator
from pathlib import Path

from ...storage.common.errors import UserError
from ...storage.common.problems import Problems
from ...storage.records import Caption, VideoRecord

SIZES = ("small", "large")
COLOURS = ("red", "green", "blue", "yellow", "white", "purple")
SHAPES = ("circle", "square", "triangle", "star", "cross")
RELATIONS = ("behind", "in front of", "beside")
VERBS = {  # what the object does -> third person, -ing form
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
    """Whether this combination is kept for validation and test: a third of all, each colour, shape and verb among both."""
    return (COLOURS.index(colour) + SHAPES.index(shape) + list(VERBS).index(verb)) % 3 == 0


def plan_scenes(seed: int, split_sizes: dict[str, int] | None = None) -> list[tuple[str, dict]]:
    """(split, scene) pairs. The main objects of validation and test show combinations that training never does.

    No scene is planned twice, so that every caption has one right video.
    """
    rng = random.Random(seed)
    everything = [
        dict(zip(("size", "colour", "shape", "verb", "relation", "other_colour", "other_shape"), words, strict=True))
        for words in itertools.product(SIZES, COLOURS, SHAPES, VERBS, RELATIONS, COLOURS, SHAPES)
        # A turning circle cannot be told from a still one; an object and its neighbour must differ in colour and shape.
        if words[1] != words[5] and words[2] != words[6] and (words[2], words[3]) != ("circle", "spin")
    ]
    rng.shuffle(everything)
    seen = (scene for scene in everything if not held_out(scene["colour"], scene["shape"], scene["verb"]))
    unseen = (scene for scene in everything if held_out(scene["colour"], scene["shape"], scene["verb"]))
    planned = []
    for split, num_videos in (split_sizes or SPLIT_SIZES).items():
        for scene in itertools.islice(seen if split == "train" else unseen, num_videos):
            planned.append((split, scene | _recording(rng)))
    return planned


def _recording(rng: random.Random) -> dict:
    """How a scene is filmed: what varies between videos of the world, and must not matter."""
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


def scene_captions(scene: dict) -> list[str]:
    does, doing = VERBS[scene["verb"]]
    return [template.format(**scene, does=does, doing=doing) for template in TEMPLATES]


def read(annotations: Path | None, seed: int, problems: Problems) -> Iterator[VideoRecord | Caption]:
    del problems
    if annotations is not None:
        raise UserError(
            f"--annotations {annotations}: the demo makes its captions; leave it out, or name your --dataset otherwise"
        )
    yield from records(plan_scenes(seed))


def records(planned: list[tuple[str, dict]]) -> Iterator[VideoRecord | Caption]:
    for number, (split, scene) in enumerate(planned):
        video_id = f"demo{number:04d}"
        # Another scene is another file: what was rendered from another seed is never taken for it.
        digest = hashlib.sha256(json.dumps(scene).encode()).hexdigest()[:8]
        yield VideoRecord(video_id=video_id, path=f"videos/{video_id}-{digest}.mp4", scene=scene)
        for caption in scene_captions(scene):
            yield Caption(video_id=video_id, caption=caption, split=split)
