"""Nothing lost and nothing twice: what the steps wrote is compared with what the data set was made of."""

from collections import Counter
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import numpy as np
from vlalign.storage.captions.files import part_path, read_table
from vlalign.storage.captions.idf import read_idf
from vlalign.storage.common.errors import UserError
from vlalign.storage.common.files import read_jsonl
from vlalign.storage.dataset.folder import DatasetFolder
from vlalign.storage.shards.format import COLUMNS, checksum
from vlalign.storage.stores.feature_store import FeatureStore
from vlalign.storage.stores.maintenance import verify
from vlalign.train.runs.files import EVENTS_FILE, METRICS_FILE, QUERIES_FILE
from vlalign.train.search.index import open_index_shards

from .synthetic import FEATURES, HELD_OUT_NAME, TAGS, SyntheticDataset, SyntheticVideo, rows_of

LEAST_SECONDS = 5.0
"""The shortest clip, as in SSML, section 5.1."""


def check_features(dataset: DatasetFolder, made: SyntheticDataset) -> str:
    """Compare the store with the pictures: each video once in all shards, with the right rows.

    Raises:
        UserError: As the other checks here: something is lost, twice or wrong.
    """
    store = FeatureStore(dataset.features(FEATURES))
    written = Counter(chain.from_iterable(shard.videos["video_id"].tolist() for shard in store.shards))
    _expect("videos in all shards, repetitions included", written.total(), made.num_videos)
    for video in made:
        columns = rows_of(video)
        _expect(
            f"checksum of {video.video_id}",
            int(store.locate(video.video_id)[1]["checksum"]),
            checksum([columns[name] for name in COLUMNS]),
        )
    _expect("damaged shards", len(verify(store.folder)), 0)
    num_rows = sum(shard.num_rows for shard in store.shards)
    return f"features: {made.num_videos:,} videos once each, {num_rows:,} rows with the checksums of their pictures"


def check_captions(dataset: DatasetFolder, made: SyntheticDataset) -> str:
    """Compare the table of captions with the file, in order, with words and tags; and the counts of words."""
    rows, counts, num_captions = _stored_captions(dataset), Counter[tuple[str, str]](), 0
    for video in made:
        for expected in _captions_of(video):
            _expect(f"caption {num_captions:,}", next(rows, None), expected)
            counts.update({(word, TAGS[word[0]]) for word in expected[3].split()})
            num_captions += 1
    _expect("caption after the last one", next(rows, None), None)
    idf = {(entry.word, entry.part_of_speech): entry.document_count for entry in read_idf(dataset.idf)}
    _expect("words with other counts", len(dict(idf.items() ^ counts.items())), 0)
    return f"captions: {num_captions:,} once each and in order, with words and tags; {len(idf):,} words counted"


def _captions_of(video: SyntheticVideo) -> Iterator[tuple[str, float, float, str, list[str], list[str]]]:
    for clip in video.clips:
        start, end = clip.start_seconds, clip.end_seconds
        if end - start < LEAST_SECONDS:
            start = max(start - (LEAST_SECONDS - (end - start)) / 2, 0.0)
            end = start + LEAST_SECONDS
        words = clip.text.split()
        yield video.video_id, start, end, clip.text, words, [TAGS[word[0]] for word in words]


def _stored_captions(dataset: DatasetFolder) -> Iterator[tuple]:
    for number in range(len(list(dataset.captions.glob("part-*.parquet")))):
        columns = ["video_id", "start_seconds", "end_seconds", "caption", "words", "pos_tags"]
        table = read_table(part_path(dataset.captions, number), columns)
        yield from zip(*(table[name].to_pylist() for name in columns), strict=True)


def check_index(dataset: DatasetFolder, made: SyntheticDataset, run: str) -> str:
    """Check that the index has each video once."""
    parts = open_index_shards(dataset.path / "index" / run)
    indexed = Counter(chain.from_iterable(part.video_ids for part in parts))
    _expect("videos in all parts of the index, repetitions included", indexed.total(), made.num_videos)
    _expect("videos in the index", len(indexed.keys() & {video.video_id for video in made}), made.num_videos)
    num_windows = sum(len(part.vectors) for part in parts)
    if not all(np.isfinite(part.vectors).all() for part in parts):
        raise UserError("index: vectors that are not finite")
    return f"index: {made.num_videos:,} videos once each, {num_windows:,} windows in {len(parts):,} parts"


def check_run(folder: Path, num_steps: int, num_held_out: int) -> str:
    """Check that each step of the training was made once, and that the evaluation asked about all captions."""
    steps = [event["step"] for event in read_jsonl(folder / EVENTS_FILE) if "step" in event]
    _expect("steps of the training", steps, list(range(1, num_steps + 1)))
    asked = folder / "on" / HELD_OUT_NAME
    if not (asked / METRICS_FILE).exists():
        raise UserError(f"howto100m: {asked / METRICS_FILE} is missing")
    _expect(
        "captions of the evaluation", sum("caption" in row for row in read_jsonl(asked / QUERIES_FILE)), num_held_out
    )
    return f"training: {num_steps:,} steps, each once; evaluation: {num_held_out:,} captions"


def _expect(what: str, found: object, expected: object) -> None:
    if found != expected:
        raise UserError(f"howto100m: {what}: {found!s:.300}, expected {expected!s:.300}")
