"""Reads the records of a data set, tags them, and writes ``captions/``, ``idf.parquet`` and, where it lists any, ``videos.jsonl``."""

import hashlib
import importlib.metadata
import json
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from ..storage.captions import read_captions, read_captions_about, write_captions, write_idf
from ..storage.console import Problems, UserError, progress, say
from ..storage.files import write_json
from ..storage.layout import DatasetFolder
from ..storage.records import Caption, VideoRecord
from .idf import idf_table
from .tag import installed_model, tag_captions


def prepare(dataset: DatasetFolder, records: Iterable[VideoRecord | Caption], *, spacy_model: str, problems: Problems) -> list[Caption]:
    """Returns the tagged captions; those on disk where they were made from the same records with the same model before."""
    listed = list(records)
    videos = [record for record in listed if isinstance(record, VideoRecord)]
    captions = [record for record in listed if isinstance(record, Caption)]
    if not captions:
        raise UserError(f"{dataset.name}: no caption is left; see the lines above")
    model, model_version = installed_model(spacy_model)
    about = {
        "records_sha256": hashlib.sha256(json.dumps([asdict(record) for record in listed]).encode()).hexdigest(),
        "spacy_model": f"{model} {model_version}",
        "spacy": importlib.metadata.version("spacy"),
    }
    summary_file = dataset.captions / "summary.json"
    if videos and dataset.read_videos() != videos:
        dataset.write_videos(videos)
    if read_captions_about(dataset.captions) == about and dataset.idf.exists() and summary_file.exists():
        say(f"{dataset.captions}: made from the same captions before; nothing to do")
        tagged = read_captions(dataset.captions)
    else:
        tagged = list(progress(tag_captions(captions, spacy_model), total=len(captions), what="tagging", unit="captions"))
        write_idf(dataset.idf, idf_table(tagged))
        write_json(summary_file, summary(tagged))
        write_captions(dataset.captions, tagged, about)  # last: its presence says that all of it is there
    report_missing_videos(dataset, tagged, problems)
    return tagged


def report_missing_videos(dataset: DatasetFolder, captions: list[Caption], problems: Problems) -> None:
    known = {video.video_id for video in dataset.read_videos()}
    if not known:
        return
    for video_id in sorted({c.video_id for c in captions} - known):
        problems.add(
            f"captions of video {video_id!r}: {dataset.videos_file} lists no such video; expected its id as vlalign-extract gave it"
        )


def summary(captions: list[Caption]) -> dict[str, dict[str, Any]]:
    """Per split: videos, clips, captions, words, nouns, verbs, adjectives."""
    table = {}
    for split in sorted({c.split for c in captions}, key=("train", "validation", "test").index):
        mine = [c for c in captions if c.split == split]
        tags = [tag for c in mine for tag in c.pos_tags]
        table[split] = {
            "videos": len({c.video_id for c in mine}),
            "clips": len({c.clip_id for c in mine}),
            "captions": len(mine),
            "words": len(tags) - tags.count("PUNCT"),
            "nouns": tags.count("NOUN"),
            "verbs": tags.count("VERB"),
            "adjectives": tags.count("ADJ"),
        }
    return table


def format_summary(table: dict[str, dict[str, Any]]) -> str:
    columns = list(next(iter(table.values())))
    lines = [f"{'split':<12}" + "".join(f"{column:>12}" for column in columns)]
    lines += [f"{split:<12}" + "".join(f"{row[column]:>12,}" for column in columns) for split, row in table.items()]
    return "\n".join(lines)
