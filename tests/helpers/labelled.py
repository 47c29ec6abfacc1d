"""Data sets whose clips have labels: questions with answers, and segments that show steps."""

from pathlib import Path

import numpy as np
from vlalign.storage import Caption, IdfEntry, VideoFeatures, Weights, write_shard
from vlalign.storage.captions.files import write_captions_about, write_part
from vlalign.storage.captions.idf import write_idf
from vlalign.storage.captions.word_vectors import WordVectors, write_word_vectors
from vlalign.storage.dataset.folder import DatasetFolder
from vlalign.storage.profiles import PROFILES

THINGS, ACTS = ["onion", "bread", "fish", "rice"], ["cut", "fry", "wash"]
DIRECTIONS = {word: np.random.default_rng(n).normal(size=2048) for n, word in enumerate(THINGS + ACTS)}


def write_dataset(
    root: Path, name: str, task: str, captions: list[Caption], videos: list[VideoFeatures]
) -> DatasetFolder:
    dataset = DatasetFolder(root, name)
    write_shard(
        dataset.features("resnet152"),
        PROFILES["resnet152"],
        Weights(name="made", sha256="0" * 64),
        videos,
        made_with={},
    )
    write_part(dataset.captions, 0, captions, {})
    write_captions_about(dataset.captions, {"protocol": "", "task": task})
    write_idf(
        dataset.idf,
        [
            IdfEntry(word=word, part_of_speech="NOUN", document_count=2, idf=1.0, token_count=2, token_idf=1.0)
            for word in THINGS + ACTS
        ],
    )
    words = [*THINGS, *ACTS, "what", "is", "being", "done"]
    table = np.random.default_rng(1).normal(size=(len(words), 20)).astype(np.float32)
    write_word_vectors(dataset.word_vectors, WordVectors(words, table, {"file": "made"}))
    return dataset


def video_of(video_id: str, rows: np.ndarray) -> VideoFeatures:
    starts, number = np.arange(len(rows), dtype=float), len(rows)
    times = {
        "start_seconds": starts,
        "end_seconds": starts + 1,
        "valid_frames": np.ones(number, int),
        "duration_seconds": float(number),
    }
    return VideoFeatures(video_id=video_id, features=rows, **times)


def make_questions(root: Path, *, num_videos: int = 60, name: str = "asked") -> DatasetFolder:
    """Each video shows a thing and an act: a question about each. A test question has an answer that no training
    question has."""
    rng, captions, videos = np.random.default_rng(0), [], []
    for number in range(num_videos):
        thing, act = rng.choice(THINGS), rng.choice(ACTS)
        rows = rng.normal(size=(4, 2048)) + DIRECTIONS[thing] + DIRECTIONS[act]
        videos.append(video_of(f"v{number:03d}", rows))
        split = ("train", "train", "train", "validation", "test")[number % 5]
        for question, answer, kind in (
            (f"what is being {act}", thing, "what"),
            (f"what is done with {thing}", act, None),
        ):
            answer = "nothing" if number == num_videos - 1 and not kind else str(answer)
            captions.append(
                Caption(video_id=f"v{number:03d}", caption=question, split=split, answer=answer, question_type=kind)
            )
    return write_dataset(root, name, "vqa", captions, videos)


STEPS = {7: "cut the bread", 8: "fry the fish", 12: "cut the bread"}
"""As in COIN, numbers are not all there, and two steps have the same words."""


def make_segments(root: Path, *, num_videos: int = 16) -> DatasetFolder:
    rng, captions, videos = np.random.default_rng(0), [], []
    directions = {step: np.random.default_rng(100 + step).normal(size=2048) for step in STEPS}
    for number in range(num_videos):
        rows, start = 0.3 * rng.normal(size=(45, 2048)), 2
        for step in rng.permutation(list(STEPS)).tolist():
            length = int(rng.integers(5, 10))
            rows[start : start + length] += directions[step]
            split = ("train", "train", "validation", "test")[number % 4]
            times = {"start_seconds": float(start), "end_seconds": float(start + length)}
            captions.append(
                Caption(video_id=f"v{number:02d}", caption=STEPS[step], split=split, task="Cook", step=step, **times)
            )
            start += length + 4
        videos.append(video_of(f"v{number:02d}", rows))
    return write_dataset(root, "segmented", "segmentation", captions, videos)


def make_steps(root, *, num_videos=12, name="made", features="resnet152") -> DatasetFolder:
    """Videos of two tasks with three and two steps, of which the second has one that is never shown; a row a second."""
    rng, dataset = np.random.default_rng(0), DatasetFolder(root, name)
    steps = {"Make Tea": ["boil water", "pour water", "stir tea"], "Cut Bread": ["cut bread", "eat bread"]}
    profile = PROFILES[features]
    directions = {text: rng.normal(size=profile.dimension) for texts in steps.values() for text in texts}
    captions, videos = [], []
    for number in range(num_videos):
        title = list(steps)[number % 2]
        rows = 0.3 * rng.normal(size=(20, profile.dimension))
        for step, text in enumerate(steps[title][: 3 if number % 2 == 0 else 1], start=1):
            start = 5 * step - 3 + number % 3
            rows[start : start + 3] += directions[text]
            words = text.split()
            captions.append(
                Caption(
                    video_id=f"v{number}",
                    caption=text,
                    split=("train", "test")[number >= num_videos // 2],
                    start_seconds=float(start),
                    end_seconds=start + 3.0,
                    words=words,
                    word_starts=[0, len(words[0]) + 1],
                    pos_tags=["VERB", "NOUN"],
                    task=title,
                    step=step,
                )
            )
        times = {"start_seconds": np.arange(20), "end_seconds": np.arange(20) + 1, "valid_frames": np.ones(20, int)}
        videos.append(VideoFeatures(video_id=f"v{number}", features=rows, duration_seconds=20.0, **times))
    write_shard(dataset.features(features), profile, Weights(name="made", sha256="0" * 64), videos, made_with={})
    write_part(dataset.captions, 0, captions, {})
    write_captions_about(dataset.captions, {"protocol": "official", "task": "steps", "steps": steps})
    write_idf(
        dataset.idf,
        [
            IdfEntry(word=w, part_of_speech="VERB", document_count=1, idf=1.0, token_count=1, token_idf=1.0)
            for w in ("boil", "pour", "stir", "cut")
        ],
    )
    return dataset
