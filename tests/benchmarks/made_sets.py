"""Six data sets of made captions and features, for comparing models: ``python tests/benchmarks/made_sets.py FOLDER
[--text-encoder ENCODER]``. Nothing is needed besides this package; a set is made once.

A video shows a topic: people, actions, a few things, a colour and a place, each with a strength of its own. A caption
names some of them, in one of several sentences, with synonyms, plurals and words that cannot be seen. Frequencies are
Zipf's, and some things are rare. The features of a row are the sum of the directions of what it shows, a few directions
of the video that mean nothing, and white noise; then, in some sets, two random layers with ReLU, so that no row is a
sum of its words.

| set | what is hard |
|---|---|
| ``made-few`` | 100 training videos |
| ``made-one`` | one caption a video, every word in all rows |
| ``made-twenty`` | twenty captions a video, and two layers over the features |
| ``made-long`` | videos of 60 to 120 rows, each word in two of them |
| ``made-wide`` | 2,048 numbers a row, every word in all rows, much noise |
| ``made-meaning`` | a video looks like the meaning of its sentences: their vectors by ENCODER (only with it) |
"""

import argparse
import csv
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from zlib import crc32

import numpy as np
from planted import NAME, PROFILE, SHARD_VIDEOS, WEIGHTS, at, call, unit
from vlalign.storage import VideoFeatures, write_shard
from vlalign.storage.dataset.folder import DatasetFolder

SEED = 0
NUM_VALIDATION, NUM_TEST = 100, 400
NUISANCES = 4
HIDDEN = 2
"""The random layers are this many times as wide as the features."""
TOPICS = {
    "kitchen": ("onion pan knife garlic pepper bowl oven butter salad noodle sauce spoon", "chop fry stir bake peel"),
    "football": (
        "ball goal stadium referee striker pitch whistle jersey crowd net coach boot",
        "kick pass score run save",
    ),
    "music": (
        "guitar drum piano stage microphone violin singer band concert trumpet chorus amplifier",
        "sing play strum hum tune",
    ),
    "car": (
        "engine wheel road driver tyre mirror bonnet garage truck highway brake headlight",
        "drive race park overtake repair",
    ),
    "beach": (
        "wave sand surfboard umbrella shell towel ocean lifeguard boat seagull swimmer lagoon",
        "swim surf dive float splash",
    ),
    "office": (
        "laptop desk printer keyboard meeting chair monitor notebook phone manager whiteboard stapler",
        "type write print discuss present",
    ),
    "garden": (
        "flower shovel soil rose fence tomato lawn mower seed hedge watering-can greenhouse",
        "plant dig water prune mow",
    ),
    "animal": ("dog cat horse puppy kitten rabbit leash parrot hamster goat collar stable", "bark chase feed pet jump"),
    "dance": (
        "dancer ballet tango partner studio costume ballroom choreography tutu turn waltz heel",
        "dance spin leap bow twirl",
    ),
    "news": (
        "anchor camera reporter interview election minister screen headline map podium journalist flag",
        "report speak announce debate ask",
    ),
    "game": (
        "console controller player level sword dragon castle monster pixel wizard quest shield",
        "shoot fight craft explore win",
    ),
    "snow": (
        "ski slope mountain snowboard helmet lift sledge glove avalanche ice skier pole",
        "slide ski carve fall climb",
    ),
    "school": (
        "teacher pupil blackboard lesson pencil book classroom exam globe ruler backpack chalk",
        "teach learn read explain draw",
    ),
    "baby": (
        "baby crib toy bottle blanket diaper cradle rattle stroller mother nursery teddy",
        "crawl laugh sleep cry hug",
    ),
    "paint": (
        "canvas brush palette portrait easel watercolour sketch artist museum frame sculpture mural",
        "paint sketch colour frame blend",
    ),
    "fitness": (
        "dumbbell treadmill trainer mat muscle bench rope gym squat barbell kettlebell push-up",
        "lift stretch jog exercise squat",
    ),
    "train": (
        "station platform locomotive rail conductor ticket tunnel carriage bridge signal steam subway",
        "arrive depart wait travel board",
    ),
    "science": (
        "laboratory microscope chemist tube experiment liquid robot magnet planet telescope molecule rocket",
        "measure mix observe launch test",
    ),
    "fashion": (
        "dress model runway jacket lipstick designer handbag shoe necklace hairstyle perfume scarf",
        "walk pose wear braid apply",
    ),
    "farm": (
        "tractor cow barn hay farmer field sheep chicken harvest plough pig windmill",
        "milk plough harvest herd collect",
    ),
    "city": (
        "street building traffic bicycle skyline taxi pedestrian skyscraper market lamp bus fountain",
        "cross cycle shop visit photograph",
    ),
    "war": (
        "soldier tank uniform helicopter rifle bunker parachute general trench medal cannon convoy",
        "march salute attack guard defend",
    ),
    "wedding": (
        "bride groom ring cake bouquet church veil guest priest aisle champagne veranda",
        "marry kiss celebrate toast cheer",
    ),
    "tool": (
        "hammer drill wood screw carpenter saw plank workshop nail ladder sandpaper glue",
        "build saw hammer sand assemble",
    ),
}
PEOPLE = ("man woman boy girl person child couple", "guy lady kid teenager someone toddler pair")
"""Words, and their synonyms."""
SYNONYMS = {
    "pan": "skillet",
    "ball": "football",
    "road": "street",
    "laptop": "computer",
    "dog": "hound",
    "puppy": "dog",
    "truck": "lorry",
    "ocean": "sea",
    "boat": "ship",
    "mountain": "hill",
    "pupil": "student",
    "baby": "infant",
    "picture": "image",
    "rifle": "gun",
    "jacket": "coat",
    "bicycle": "bike",
    "building": "house",
    "stage": "scene",
    "chop": "cut",
    "bake": "cook",
    "fry": "cook",
    "speak": "talk",
    "run": "sprint",
    "jump": "leap",
    "build": "make",
    "repair": "fix",
    "walk": "stroll",
    "discuss": "talk",
    "explain": "describe",
    "celebrate": "party",
    "drive": "steer",
}
COLOURS = ["red", "blue", "green", "yellow", "black", "white", "brown", "pink", "grey", "orange", "purple", "golden"]
PLACES = ["room", "park", "outside", "field", "hall", "home", "stadium", "street", "theatre", "yard", "shop", "village"]
TEMPLATES = (
    "a {person} is {verb}ing a {colour} {noun} in the {place}",
    "the {person} {verb}s the {noun} with a {noun2}",
    "{person} and {person2} {verb} near some {noun}s",
    "there is a {colour} {noun} next to a {noun2}",
    "a video about {noun}s where a {person} {verb}s",
    "in the {place} somebody {verb}s a {noun} and then they {verb2}",
    "this clip shows how to {verb} a {noun}",
    "a {colour} {noun} and a {noun2} while a {person} is {verb}ing",
)
SEEN = ("person", "verb", "verb2", "noun", "noun2", "colour", "place")


@dataclass(frozen=True)
class MadeSet:
    """The sizes of a set, and what its features are like."""

    num_train: int
    captions: int
    """Captions of a training video; a test video has one."""
    num_rows: tuple[int, int]
    shown: str
    """The rows that show a word: "third", "two" or "all"."""
    strength: float
    """Mean strength of what is shown, against noise of 1 in each number."""
    width: int = 128
    nuisance: float = 6.0
    layers: bool = False
    meaning: bool = False


SETS = {
    "made-few": MadeSet(100, 5, (10, 30), "third", 9.0),
    "made-one": MadeSet(1500, 1, (10, 30), "all", 5.0),
    "made-twenty": MadeSet(800, 20, (10, 30), "third", 12.0, layers=True),
    "made-long": MadeSet(800, 3, (60, 120), "two", 14.0),
    "made-wide": MadeSet(1500, 5, (10, 30), "all", 4.0, width=2048),
    "made-meaning": MadeSet(1200, 5, (10, 30), "all", 3.0, width=512, meaning=True),
}


@dataclass(frozen=True)
class Video:
    """What a video shows: {kind: word}, some kinds with a second one."""

    video_id: str
    split: str
    facts: dict[str, str]
    captions: tuple[str, ...]


def zipf(rng: np.random.Generator, words: list[str]) -> str:
    shares = 1 / np.arange(1, len(words) + 1)
    return words[int(rng.choice(len(words), p=shares / shares.sum()))]


def rare_form(rng: np.random.Generator, noun: str) -> str:
    """One noun in twelve is of a rare kind: a word of its own, which looks like the noun and a little like itself."""
    if rng.random() > 1 / 12:
        return noun
    endings = ("maker", "shop", "club", "lover", "collection", "contest", "seller", "case", "repair", "exhibition")
    return noun + endings[int(rng.integers(len(endings)))]


def make_facts(rng: np.random.Generator) -> dict[str, str]:
    nouns, verbs = TOPICS[zipf(rng, list(TOPICS))]
    people = PEOPLE[0].split()
    others = TOPICS[zipf(rng, list(TOPICS))][0] if rng.random() < 0.2 else nouns
    return {
        "noun": rare_form(rng, zipf(rng, nouns.split())),
        "noun2": rare_form(rng, zipf(rng, others.split())),
        "verb": zipf(rng, verbs.split()),
        "verb2": zipf(rng, verbs.split()),
        "person": zipf(rng, people),
        "person2": zipf(rng, people),
        "colour": zipf(rng, COLOURS),
        "place": zipf(rng, PLACES),
    }


def sentence(rng: np.random.Generator, facts: dict[str, str]) -> str:
    said = dict(facts)
    for kind, word in facts.items():
        other = SYNONYMS.get(word)
        if kind.startswith("person"):
            other = dict(zip(PEOPLE[0].split(), PEOPLE[1].split(), strict=True))[word]
        if other is not None and rng.random() < 0.3:
            said[kind] = other
    if rng.random() < 0.5:
        said["noun"], said["noun2"] = said["noun2"], said["noun"]
    return TEMPLATES[int(rng.integers(len(TEMPLATES)))].format(**said)


def make_videos(name: str) -> Iterator[Video]:
    made = SETS[name]
    sizes = {"train": made.num_train, "validation": NUM_VALIDATION, "test": NUM_TEST}
    for split, size in sizes.items():
        for number in range(size):
            rng = np.random.default_rng([SEED, crc32(f"{name} {split} {number}".encode())])
            facts = make_facts(rng)
            count = made.captions if split == "train" else 1
            captions = tuple(sentence(rng, facts) for _ in range(count))
            yield Video(f"{split}{number:05d}", split, facts, captions)


def direction(word: str, width: int) -> np.ndarray:
    return unit(np.random.default_rng([SEED, crc32(word.encode())]).standard_normal(width))


def look(word: str, width: int) -> np.ndarray:
    """A rare form looks like its noun, and a little like itself."""
    nouns = (noun for of_topic, _ in TOPICS.values() for noun in of_topic.split())
    stem = next((noun for noun in nouns if word.startswith(noun) and word != noun), None)
    own = direction(word, width)
    return own if stem is None else unit(0.8 * direction(stem, width) + 0.6 * own)


def random_layers(width: int) -> tuple[np.ndarray, np.ndarray]:
    rng, hidden = np.random.default_rng([SEED, 1]), HIDDEN * width
    return rng.standard_normal((width, hidden)) / width**0.5, rng.standard_normal((hidden, width)) / hidden**0.5


def make_features(made: MadeSet, video: Video, meaning: np.ndarray | None) -> VideoFeatures:
    rng = np.random.default_rng([SEED, 2, crc32(video.video_id.encode())])
    num_rows = int(rng.integers(made.num_rows[0], made.num_rows[1] + 1))
    x = rng.standard_normal((num_rows, made.width))
    x += (made.nuisance * rng.standard_normal(NUISANCES)) @ unit(rng.standard_normal((NUISANCES, made.width)))
    if meaning is not None:
        x += made.strength * meaning
    else:
        for word in sorted({video.facts[kind] for kind in SEEN}):
            strength = rng.gamma(2, made.strength / 2)
            for rows in shown_rows(rng, made.shown, num_rows):
                x[rows] += strength * look(word, made.width)
    if made.layers:
        for layer in random_layers(made.width):
            x = np.maximum(x @ layer, 0)
    starts = np.arange(num_rows, dtype=np.float64)
    return VideoFeatures(
        video_id=video.video_id,
        features=x.astype(np.float16),
        start_seconds=starts,
        end_seconds=starts + 1,
        valid_frames=np.ones(num_rows, np.int32),
        duration_seconds=float(num_rows),
        source=NAME,
        decoder=NAME,
    )


def shown_rows(rng: np.random.Generator, shown: str, num_rows: int) -> list[slice]:
    if shown == "all":
        return [slice(None)]
    if shown == "third":
        first = int(rng.integers(num_rows - num_rows // 3 + 1))
        return [slice(first, first + num_rows // 3)]
    first = int(rng.integers(num_rows - 1))
    return [slice(first, first + 2)]


def oracle_recall(name: str) -> str:
    """R@1, in percent, of somebody who knows the directions of words, and features before the random layers.

    A word fits a video by its largest mean over as many rows as show a word; a caption by the sum of its words.
    """
    made = SETS[name]
    if made.meaning:
        return ""
    videos = [video for video in make_videos(name) if video.split == "test"]
    known = sorted({word for video in videos for kind, word in video.facts.items() if kind in SEEN})
    directions = np.stack([look(word, made.width) for word in known], axis=1)
    fits = []
    for video in videos:
        x = np.asarray(make_features(replace(made, layers=False), video, None).features, dtype=np.float64)
        # The video's own directions that mean nothing are taken out, as its rows share them.
        length = {"all": len(x), "third": len(x) // 3, "two": 2}[made.shown]
        sums = np.cumsum(np.concatenate([np.zeros((1, x.shape[1])), x]), axis=0)
        means = (sums[length:] - sums[:-length]) / length
        fits.append((means @ directions).max(axis=0))
    fits_VW = np.stack(fits)
    fits_VW = (fits_VW - fits_VW.mean(axis=0)) / fits_VW.std(axis=0)
    index = {word: number for number, word in enumerate(known)}
    said = [[index[word] for word in seen_words(video)] for video in videos]
    scores = np.stack([fits_VW[:, words].sum(axis=1) for words in said])
    own = scores.diagonal()[:, None]
    return f"{100 * ((scores > own).sum(axis=1) < 1).mean():.1f}"


def seen_words(video: Video) -> list[str]:
    """The words of a test video that its caption names, also by a synonym or another form."""
    people = dict(zip(PEOPLE[0].split(), PEOPLE[1].split(), strict=True))
    forms = {word: {word, SYNONYMS.get(word, word), people.get(word, word)} for word in video.facts.values()}
    said = video.captions[0].replace("ing ", " ").split()
    is_said = {w: any(part in (form, f"{form}s") for form in of for part in said) for w, of in forms.items()}
    return [word for word in dict.fromkeys(video.facts[kind] for kind in SEEN) if is_said[word]]


def meanings(videos: list[Video], encoder: str, width: int) -> np.ndarray:
    """The mean of the vectors of each video's sentences, less that of all, turned at random into ``width`` numbers."""
    from sentence_vectors import sentence_vectors

    of_video = np.stack([sentence_vectors(encoder, video.captions).mean(axis=0) for video in videos])
    turned = np.linalg.qr(np.random.default_rng([SEED, 3]).standard_normal((width, of_video.shape[1])))[0]
    return unit(of_video - of_video.mean(axis=0)) @ turned.T


def make_set(root: Path, name: str, encoder: str | None) -> None:
    """Make a data set with captions and features; do nothing if it is there."""
    dataset, made, videos = DatasetFolder(root, name), SETS[name], list(make_videos(name))
    if made.meaning and encoder is None:
        print(f"{name} is left out: pass --text-encoder")
        return
    if not dataset.captions.exists():
        path = root / f"{name}.csv"
        with path.open("w", newline="", encoding="utf-8") as file:
            rows = ((video.video_id, video.split, caption) for video in videos for caption in video.captions)
            csv.writer(file).writerows([("video_id", "split", "caption"), *rows])
        call("preprocess.cli", [*at(dataset), "--annotations", str(path)], root / f"{name}.log")
    if dataset.features(NAME).exists():
        return
    of_videos = meanings(videos, encoder, made.width) if made.meaning and encoder else [None] * len(videos)
    partial = dataset.features(NAME).with_name(f"{NAME}.partial")
    profile = replace(PROFILE, dimension=made.width)
    made_of = [make_features(made, video, meaning) for video, meaning in zip(videos, of_videos, strict=True)]
    for first in range(0, len(videos), SHARD_VIDEOS):
        write_shard(partial, profile, WEIGHTS, made_of[first : first + SHARD_VIDEOS], made_with={"seed": str(SEED)})
    partial.rename(dataset.features(NAME))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--text-encoder", help="folder of a text encoder, for made-meaning")
    parser.add_argument("--sets", default=",".join(SETS))
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    for name in args.sets.split(","):
        make_set(args.folder, name, args.text_encoder)


if __name__ == "__main__":
    main()
