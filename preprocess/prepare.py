"""Preparing the captions of a data set: read them, tag them, and write ``captions/``, ``idf.parquet`` and
``videos.jsonl``.

Captions are tagged in parts of fixed size, by any number of processes. The result does not depend on the number of
processes or on interruptions. A part that is on disk from the same captions and the same tagger is not made again.
"""

import hashlib
import importlib.metadata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ..storage.captions import ABOUT_NAME, part_path, read_captions_about, read_part_about, write_captions_about
from ..storage.common.errors import SettingError, UserError
from ..storage.common.problems import Problems
from ..storage.common.processes import available_cores
from ..storage.common.progress import Listener, progress, report_progress_to
from ..storage.common.signals import keeping
from ..storage.common.terminal import say
from ..storage.files import read_json, write_json
from ..storage.idf import read_counts, write_idf
from ..storage.layout import DatasetFolder
from ..storage.records import SPLITS, Caption, VideoRecord
from .census import CaptionStatistics, Census, LeftOut
from .datasets.sources import Record
from .idf import idf_table
from .parts import MakeParts, Part, is_made, make_parts_in_processes, part_key
from .plot import plot_idf
from .readers import Origin, Read, Reader, choose_reader
from .tag import batched, installed_model
from .vectors import WordVectorSummary, prepare_word_vectors

PART_CAPTIONS = 5000
"""About 20 seconds of work for a core. A stopped command repeats at most this much per process."""
SUMMARY_NAME = "summary.json"
SPACY_MODEL = "en_core_web_sm"


@dataclass(frozen=True, kw_only=True)
class PreparedCaptions:
    """The result of ``prepare_captions``."""

    dataset: DatasetFolder
    """Folder of the captions and tables."""
    statistics: CaptionStatistics | None
    """None if nothing was written, because no caption names a video that the data set lists. ``problems`` has the
    details."""
    origin: Origin
    word_vectors: WordVectorSummary | None
    """None unless word vectors were asked for."""
    num_problems: int
    problems: list[str]
    """The first problems: inputs that were left out, and captions of videos that the data set does not list. If there
    are many, ``dataset.problems("preprocess")`` lists all."""


def prepare_captions(
    name: str,
    *,
    root: Path | str = "vlalign_data",
    annotations: Path | str | None = None,
    protocol: str | None = None,
    spacy_model: str = SPACY_MODEL,
    word_vectors: Path | str | None = None,
    seed: int = 0,
    strict: bool = False,
    num_processes: int | None = None,
    make_parts: MakeParts | None = None,
    on_progress: Listener | None = None,
) -> PreparedCaptions:
    """Read and tag the captions of a data set, and write its caption and IDF tables.

    Nothing is done again that an earlier call did with the same captions and tagger; a call that was stopped can be
    repeated.

    Args:
        name: Name of a data set, such as "youcook2"; "demo"; or any other name for your own captions.
        root: Folder of all data sets.
        annotations: Folder with the official files (default: ``annotations/`` in the data set's folder), or the file
            with your own captions.
        protocol: Choice of splits and captions (default: the data set's first).
        spacy_model: Installed spaCy pipeline.
        word_vectors: word2vec (binary or text), GloVe or npz file; keeps the vectors of the captions' words.
        seed: Decides the demo's scenes, and the splits of your own captions if they have none.
        strict: Raise an error at the first row that cannot be used, instead of leaving it out.
        num_processes: Processes that tag (default: one for each available core). The result does not depend on it.
        make_parts: Tags parts elsewhere, such as on a cluster, instead of in ``num_processes`` processes.
        on_progress: Called with the progress of each stage.

    Raises:
        UserError: The data set, its files or a setting cannot be used. The message says what to do.
    """
    if num_processes is None:
        num_processes = available_cores()
    if num_processes < 1:
        raise SettingError("num_processes", num_processes, "expected 1 or more")
    with report_progress_to(on_progress):
        reader = choose_reader(Path(root), name, annotations=_as_path(annotations), protocol=protocol, seed=seed)
        with Problems(strict=strict, file=reader.dataset.problems("preprocess")) as problems:
            statistics = prepare_records(
                reader.dataset,
                reader.read,
                spacy_model=spacy_model,
                problems=problems,
                num_processes=num_processes,
                make_parts=make_parts,
                origin=reader.origin,
            )
            return _conclude(reader, statistics, _as_path(word_vectors), problems)


def _conclude(
    reader: Reader, statistics: CaptionStatistics | None, word_vectors: Path | None, problems: Problems
) -> PreparedCaptions:
    """Prepare the word vectors, if there are captions, and return what was done."""
    vectors = None
    if statistics is not None:
        if word_vectors is not None:
            vectors = prepare_word_vectors(reader.dataset, word_vectors)
        listed = f"; {problems.count:,} problems, {problems.where}" if problems.count else ""
        say(f"{reader.dataset.captions}: {statistics.num_captions:,} captions{listed}")
    return PreparedCaptions(
        dataset=reader.dataset,
        statistics=statistics,
        origin=reader.origin,
        word_vectors=vectors,
        num_problems=problems.count,
        problems=list(problems.messages),
    )


def _as_path(path: Path | str | None) -> Path | None:
    return None if path is None else Path(path)


@dataclass(frozen=True)
class _Survey:
    """The result of the first pass over the records."""

    census: Census
    videos: list[VideoRecord]
    keys: list[str]
    """Keys of all parts, in order."""
    sizes: list[int]
    """Number of captions of each part."""


def prepare_records(
    dataset: DatasetFolder,
    read: Read,
    *,
    spacy_model: str,
    problems: Problems,
    num_processes: int = 1,
    make_parts: MakeParts | None = None,
    origin: Origin | None = None,
) -> CaptionStatistics | None:
    """Tag the captions among the records that ``read`` yields, and write the tables of the data set.

    Args:
        dataset: Where to write.
        read: Called once to look through all records, so that errors appear before any work is done, and again if
            anything is left to tag.
        spacy_model: Installed spaCy pipeline.
        problems: Receives inputs that are left out.
        num_processes: Processes of this machine that tag.
        make_parts: Tags the parts elsewhere.
        origin: What else decides the captions.

    Returns:
        The statistics that are also on disk. None, with nothing written, if no caption names a video that the data
        set lists.

    Raises:
        UserError: There is no caption, or the spaCy pipeline is not installed.
    """
    model = installed_model(spacy_model)
    tagger = f"{model.package} {model.version}, spaCy {importlib.metadata.version('spacy')}"
    survey = _survey(read(problems), tagger, problems)
    if not survey.keys:
        raise UserError(f"{dataset.name}: no caption can be used; see the lines above")
    if not _names_listed_videos(dataset, survey, problems):
        return None
    if survey.videos and dataset.read_videos() != survey.videos:
        dataset.write_videos(survey.videos)
    captions_sha256 = hashlib.sha256("".join(survey.keys).encode()).hexdigest()
    about = {"tagger": tagger, "captions_sha256": captions_sha256, **(origin or Origin()).to_json()}
    folder, summary_file = dataset.captions, dataset.captions / SUMMARY_NAME
    left = {i: survey.sizes[i] for i, key in enumerate(survey.keys) if not is_made(folder, i, key)}
    if not left and read_captions_about(folder) == about and dataset.idf.exists() and summary_file.exists():
        say(f"{folder}: already made from the same captions; nothing to do")
        statistics = CaptionStatistics.from_json(read_json(summary_file))
    else:
        (folder / ABOUT_NAME).unlink(missing_ok=True)  # marks the folder as incomplete until everything is written
        if left:
            quiet = Problems(quiet=True)
            captions = _captions_among(read(quiet), quiet)
            in_processes = partial(make_parts_in_processes, num_processes=min(num_processes, len(left)))
            _tag(folder, captions, survey.keys, left, spacy_model, make_parts or in_processes)
        statistics = _finish(dataset, survey, about, problems)
    report_missing_videos(dataset, survey.census, problems)
    return statistics


def _survey(records: Iterable[Record], tagger: str, problems: Problems) -> _Survey:
    survey = _Survey(Census(), [], [], [])
    for captions in batched(_captions_among(records, problems, survey.videos), PART_CAPTIONS):
        for caption in captions:
            survey.census.add(caption)
        survey.keys.append(part_key(captions, tagger))
        survey.sizes.append(len(captions))
    return survey


def _captions_among(
    records: Iterable[Record], problems: Problems, videos: list[VideoRecord] | None = None
) -> Iterator[Caption]:
    """Yield the captions that belong to a split; append the videos to the list, if there is one."""
    for record in records:
        if isinstance(record, VideoRecord):
            if videos is not None:
                videos.append(record)
        elif record.split in SPLITS:
            yield record
        else:
            problems.add(f"caption of video {record.video_id!r}: split {record.split!r}; expected {', '.join(SPLITS)}")


def _names_listed_videos(dataset: DatasetFolder, survey: _Survey, problems: Problems) -> bool:
    """Return whether a caption names a listed video, or no videos are listed. Report it if not."""
    listed = {video.video_id for video in survey.videos or dataset.read_videos()}
    named = survey.census.video_ids()
    if not listed or listed & named:
        return True
    problems.add(
        f"{dataset.videos_file}: lists none of the {len(named):,} videos that captions name, such as {min(named)!r}; "
        f"it has {len(listed):,}, such as {min(listed)!r}; nothing is written; expected ids as vlalign-extract "
        "assigned them"
    )
    return False


def _tag(
    folder: Path,
    captions: Iterator[Caption],
    keys: list[str],
    left: Mapping[int, int],
    spacy_model: str,
    make_parts: MakeParts,
) -> None:
    """Tag the parts in ``left``, which maps the index of each to its number of captions."""
    parts = ((index, part) for index, part in enumerate(batched(captions, PART_CAPTIONS)) if index in left)
    made = make_parts(Part(folder, index, part, keys[index], spacy_model) for index, part in parts)
    num_tagged = 0
    with keeping(lambda: f"{num_tagged:,} captions tagged by this call are kept" if num_tagged else ""):
        for count in progress(made, total=sum(left.values()), what="tagging", unit="captions", size=int):
            num_tagged += count


def _finish(dataset: DatasetFolder, survey: _Survey, about: dict[str, Any], problems: Problems) -> CaptionStatistics:
    """Write what is made of all parts: the IDF table, the statistics and, last, the note that everything is
    complete."""
    folder, census, num_parts = dataset.captions, survey.census, len(survey.keys)
    counts: Counter[tuple[str, str]] = Counter()
    for index in range(num_parts):
        counts.update(read_counts(part_path(folder / "counts", index)))
        for split, tags in read_part_about(part_path(folder, index))["tags"].items():
            census.tags[split].update(tags)
    for path in (*folder.glob("part-*.parquet"), *(folder / "counts").glob("part-*.parquet")):
        if path.name >= part_path(folder, num_parts).name:
            path.unlink()  # from an earlier call with more captions
    idf = idf_table(census.num_captions["train"], counts)
    write_idf(dataset.idf, idf)
    plot_idf(idf, dataset.idf.with_suffix(".png"))
    left_out = LeftOut(count=problems.count, first=problems.messages)
    statistics = census.statistics(changed=problems.changed, left_out=left_out)
    write_json(folder / SUMMARY_NAME, statistics.to_json())
    write_captions_about(folder, about)
    return statistics


def report_missing_videos(dataset: DatasetFolder, census: Census, problems: Problems) -> None:
    """Report each video that captions name and the data set does not list, if it lists any."""
    listed = {video.video_id for video in dataset.read_videos()}
    for video_id in sorted(census.video_ids() - listed) if listed else ():
        problems.add(
            f"captions of video {video_id!r}: {dataset.videos_file} does not list it; expected its id as "
            "vlalign-extract assigned it"
        )
