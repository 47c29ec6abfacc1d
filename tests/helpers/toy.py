"""A data set that is made in a moment: captions of a few words, and clips whose rows are made of their words' vectors
and noise."""

from dataclasses import replace
from pathlib import Path

import numpy as np
from vlalign.storage import Caption, IdfEntry, VideoFeatures, Weights, write_shard
from vlalign.storage.captions.files import write_captions_about, write_part
from vlalign.storage.captions.idf import write_idf
from vlalign.storage.captions.word_vectors import WordVectors, write_word_vectors
from vlalign.storage.dataset.folder import DatasetFolder
from vlalign.storage.profiles import PROFILES

NOUNS = ["onion", "tomato", "pan", "egg", "salt", "rice", "bowl", "oven", "fish", "bread"]
VERBS = ["cut", "stir", "fry", "boil", "peel", "mix", "bake", "serve"]


def make_toy(root: Path, *, num_videos: int = 24, seed: int = 0, name: str = "toy", prefix: str = "v") -> DatasetFolder:
    """Half of the videos for training, a quarter for validation, a quarter for test; a caption each, 2 to 9 rows of
    ``s3d``."""
    rng, dataset = np.random.default_rng(seed), DatasetFolder(root, name)
    vectors = {word: np.random.default_rng(number).normal(size=1024) for number, word in enumerate(NOUNS + VERBS)}
    captions, videos = [], []
    for number in range(num_videos):
        video_id = f"{prefix}{number:03d}"
        words = [
            rng.choice(VERBS),
            "the",
            rng.choice(NOUNS),
            *(["and", "the", rng.choice(NOUNS)] if number % 3 else []),
        ]
        tags = {"the": "DET", "and": "CCONJ", **dict.fromkeys(NOUNS, "NOUN"), **dict.fromkeys(VERBS, "VERB")}
        starts = [sum(len(word) + 1 for word in words[:place]) for place in range(len(words))]
        split = "train" if number < num_videos // 2 else ("validation", "test")[number % 2]
        texts = {
            "words": [str(word) for word in words],
            "word_starts": starts,
            "pos_tags": [tags[word] for word in words],
        }
        captions.append(Caption(video_id=video_id, caption=" ".join(words), split=split, **texts))
        rows = rng.normal(size=(rng.integers(2, 10), 1024))
        rows += sum(vectors[word] * (rng.random(len(rows)) < 0.7)[:, None] for word in words if word in vectors)
        times = {
            "start_seconds": np.arange(len(rows)),
            "end_seconds": np.arange(len(rows)) + 1,
            "duration_seconds": float(len(rows)),
        }
        videos.append(VideoFeatures(video_id=video_id, features=rows, valid_frames=np.ones(len(rows), int), **times))
    write_shard(dataset.features("s3d"), PROFILES["s3d"], Weights(name="toy", sha256="0" * 64), videos, made_with={})
    write_part(dataset.captions, 0, captions, {})
    write_captions_about(dataset.captions, {"protocol": "toy"})
    entries = [
        IdfEntry(word=w, part_of_speech="NOUN", document_count=2, idf=2.0, token_count=2, token_idf=2.0) for w in NOUNS
    ]
    entries += [
        IdfEntry(word=w, part_of_speech="VERB", document_count=4, idf=1.0, token_count=4, token_idf=1.0) for w in VERBS
    ]
    bread = next(entry for entry in entries if entry.word == "bread")  # in other captions it would be a verb
    entries[entries.index(bread)] = replace(bread, token_count=5, token_idf=1.2)
    write_idf(dataset.idf, entries)
    known = [*vectors, "the", "and"]
    table = np.random.default_rng(1).normal(size=(len(known), 20)).astype(np.float32)
    write_word_vectors(dataset.word_vectors, WordVectors(known, table, {"file": "toy"}))
    return dataset
