"""Preparing the captions of a data set: read them, tag them, and write ``captions/``, ``idf.parquet`` and
``videos.jsonl``.

Captions are tagged in parts of fixed size, by any number of processes. The result does not depend on the number of
processes or on interruptions. A part that is on disk from the same captions and the same tagger is not made again.
"""

import importlib.metadata
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ..storage.common.errors import SettingError, UserError
from ..storage.common.files import sha256_of
from ..storage.common.locks import folder_lock
from ..storage.common.problems import Problems
from ..storage.common.process_pool import OrderedMap, map_in_processes
from ..storage.common.progress import Listener, report_progress_to
from ..storage.common.system import available_cores
from ..storage.common.terminal import number_of, say
from ..storage.common.writing import check_folders
from ..storage.dataset.folder import DatasetFolder
from .caption_source import CaptionSource, Origin, choose_source
from .chunks import ChunkedRecords, Read, in_one_process
from .corpus_statistics import CaptionStatistics, CorpusCounter
from .first_pass import BYTES_PER_PROCESS, LOG_NAME, FirstPass, code_hash, open_first_pass_log, run_first_pass
from .language import in_other_languages, model_of_language
from .tables import Preparation, make_tables
from .tag import Tagger, installed_model
from .word_vectors import WordVectorSummary, prepare_word_vectors

PART_CAPTIONS = 5000
"""About 20 seconds of work for a core. A stopped command repeats at most this much per process."""
LOCK_NAME = "preprocess.lock"
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
    """The first problems: inputs that were skipped, and captions of videos that the data set does not list. If there
    are many, ``dataset.problems("preprocess")`` lists all."""


def prepare_captions(
    name: str,
    *,
    root: Path | str = "vlalign_data",
    annotations: Path | str | None = None,
    protocol: str | None = None,
    spacy_model: str = SPACY_MODEL,
    language: str | None = None,
    word_vectors: Path | str | None = None,
    seed: int = 0,
    strict: bool = False,
    num_processes: int | None = None,
    in_order: OrderedMap | None = None,
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
        language: Language of the captions, such as "de", instead of ``spacy_model``: spaCy's own pipeline of it tags,
            and of several subtitle files of a video the one in this language is read.
        word_vectors: word2vec (binary or text), GloVe or npz file; keeps the vectors of the captions' words.
        seed: Decides the demo's scenes, and the splits of your own captions if they have none.
        strict: Raise an error at the first row that cannot be used, instead of skipping it.
        num_processes: Processes that read and tag (default: one for each available core). The result does not depend
            on it.
        in_order: Reads and tags elsewhere, such as on a cluster, instead of in ``num_processes`` processes.
        on_progress: Called with the progress of each stage.

    Raises:
        UserError: The data set, its files or a setting cannot be used. The message says what to do.
    """
    if num_processes is None:
        num_processes = available_cores()
    if num_processes < 1:
        raise SettingError("num_processes", num_processes, "expected 1 or more")
    if language is not None:
        if spacy_model != SPACY_MODEL:
            raise SettingError("language", language, f"spacy_model {spacy_model!r} decides it; pass one of the two")
        spacy_model = model_of_language(language)
    with report_progress_to(on_progress):
        source = choose_source(
            Path(root), name, annotations=_as_path(annotations), protocol=protocol, seed=seed, language=language
        )
        with Problems(strict=strict, file=source.dataset.problems("preprocess")) as problems:
            statistics = prepare_records(
                source.dataset,
                source.chunks,
                spacy_model=spacy_model,
                problems=problems,
                num_processes=num_processes,
                in_order=in_order,
                origin=source.origin,
            )
            return _with_word_vectors(source, statistics, _as_path(word_vectors), problems)


def _with_word_vectors(
    source: CaptionSource, statistics: CaptionStatistics | None, word_vectors: Path | None, problems: Problems
) -> PreparedCaptions:
    """Prepare the word vectors, if there are captions, and return what was done."""
    vectors = None
    if statistics is not None:
        if word_vectors is not None:
            vectors = prepare_word_vectors(source.dataset, word_vectors)
        listed = f"; {number_of(problems.count, 'problems')}, {problems.where}" if problems.count else ""
        say(f"{source.dataset.captions}: {number_of(statistics.num_captions, 'captions')}{listed}")
    return PreparedCaptions(
        dataset=source.dataset,
        statistics=statistics,
        origin=source.origin,
        word_vectors=vectors,
        num_problems=problems.count,
        problems=list(problems.messages),
    )


def _as_path(path: Path | str | None) -> Path | None:
    return None if path is None else Path(path)


def prepare_records(
    dataset: DatasetFolder,
    records: Read | ChunkedRecords,
    *,
    spacy_model: str,
    problems: Problems,
    num_processes: int = 1,
    in_order: OrderedMap | None = None,
    origin: Origin | None = None,
) -> CaptionStatistics | None:
    """Tag the captions among some records, and write the tables of the data set.

    Args:
        dataset: Where to write.
        records: Read once to look through all of them, so that errors appear before any work is done, and again if
            anything is left to tag.
        spacy_model: Installed spaCy pipeline.
        problems: Receives inputs that are skipped.
        num_processes: Processes of this machine that read and tag.
        in_order: Reads and tags elsewhere.
        origin: What else decides the captions.

    Returns:
        The statistics that are also on disk. None, with nothing written, if no caption names a video that the data
        set lists.

    Raises:
        UserError: There is no caption, the spaCy pipeline is not installed, or another process prepares the captions.
    """
    check_folders(dataset.captions, dataset.captions / "counts")
    model = installed_model(spacy_model)
    preparation = Preparation(
        dataset=dataset,
        chunks=records if isinstance(records, ChunkedRecords) else in_one_process(records),
        tagger=Tagger(spacy_model, f"{model.package} {model.version}, spaCy {importlib.metadata.version('spacy')}"),
        settings=(origin or Origin()).to_json(),
        problems=problems,
        num_processes=num_processes,
        in_order=in_order,
    )
    with folder_lock(dataset.captions / LOCK_NAME, "prepares captions"):
        first_pass = _first_pass(preparation)
        if not first_pass.keys:
            raise UserError(f"{dataset.name}: no caption can be used; see the lines above")
        if not _names_listed_videos(dataset, first_pass, problems):
            return None
        if first_pass.videos and dataset.read_videos() != first_pass.videos:
            dataset.write_videos(first_pass.videos)
        statistics = make_tables(preparation, first_pass)
    if statistics.other_languages:
        say(f"note: {in_other_languages(statistics.other_languages, spacy_model)}")
    report_missing_videos(dataset, first_pass.counter, problems)
    return statistics


def _first_pass(preparation: Preparation) -> FirstPass:
    """Look through all captions; continue what an earlier call found in the same file."""
    chunks, tagger = preparation.chunks, preparation.tagger
    look = partial(run_first_pass, chunks, tagger.identity, preparation.problems, part_captions=PART_CAPTIONS)
    if chunks.source is None:
        return look(in_order=partial(map_in_processes, num_processes=1))
    about = {
        "file": sha256_of(chunks.source),
        "name": str(chunks.source),
        "code": code_hash(),
        "tagger": tagger.identity,
        "part_captions": PART_CAPTIONS,
        **preparation.settings,
    }
    in_order = preparation.runner(max_processes=1 + chunks.source.stat().st_size // BYTES_PER_PROCESS)
    with open_first_pass_log(preparation.dataset.captions / LOG_NAME, about) as log:
        return look(in_order=in_order, log=log)


def _names_listed_videos(dataset: DatasetFolder, first_pass: FirstPass, problems: Problems) -> bool:
    """Return whether a caption names a listed video, or no videos are listed. Report it if not."""
    listed = {video.video_id for video in first_pass.videos or dataset.read_videos()}
    named = first_pass.counter.video_ids()
    if not listed or listed & named:
        return True
    problems.add(
        f"{dataset.videos_file}: lists none of the {len(named):,} videos that captions name, such as {min(named)!r}; "
        f"it has {len(listed):,}, such as {min(listed)!r}; nothing is written; expected ids as vlalign-extract "
        "assigned them"
    )
    return False


def report_missing_videos(dataset: DatasetFolder, counter: CorpusCounter, problems: Problems) -> None:
    """Report each video that captions name and the data set does not list, if it lists any."""
    listed = {video.video_id for video in dataset.read_videos()}
    for video_id in sorted(counter.video_ids() - listed) if listed else ():
        problems.add(
            f"captions of video {video_id!r}: {dataset.videos_file} does not list it; expected its id as "
            "vlalign-extract assigned it"
        )
