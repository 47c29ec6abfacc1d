"""Preparing the captions of a data set: read them, tag them, and write ``captions/``, ``idf.parquet`` and
``videos.jsonl``.

Captions are tagged in parts of fixed size, by any number of processes. The result does not depend on the number of
processes or on interruptions. A part that is on disk from the same captions and the same tagger is not made again.
"""

from collections.abc import Callable
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
from ..storage.dataset.media_types import SOUND_SUFFIXES
from .caption_source import CaptionSource, choose_source, subtitles_beside
from .corpus_statistics import CaptionStatistics, CorpusCounter
from .datasets.file_names import why_unmatched
from .first_pass import BYTES_PER_PROCESS, LOG_NAME, FirstPass, code_hash, open_first_pass_log, run_first_pass
from .language import in_other_languages, model_of_language
from .settings import CaptionProvenance, PreprocessingSettings
from .tables import Preparation, make_tables
from .word_vectors import WordVectorSummary, prepare_word_vectors

PART_CAPTIONS = 5000
"""Captions of a part: about 20 seconds of work for a core. A stopped command repeats at most this much per process."""
LOCK_NAME = "preprocess.lock"
NUM_NAMED = 3
"""Videos that a note names."""


@dataclass(frozen=True, kw_only=True)
class PreparedCaptions:
    """The result of ``prepare_captions``.

    Example:
        >>> import csv
        >>> from vlalign.preprocess import PreprocessingSettings, prepare_captions
        >>> with open("captions.csv", "w", newline="") as file:
        ...     csv.writer(file).writerows(
        ...         [["video_id", "caption", "split"], ["v0", "a man cooks rice", "train"], ["v1", "dogs run", "test"]]
        ...     )
        >>> settings = PreprocessingSettings("vlalign_data/mine", annotations="captions.csv")
        >>> prepared = prepare_captions(settings, num_processes=1)
        >>> prepared.dataset.name, prepared.num_problems
        ('mine', 0)
    """

    dataset: DatasetFolder
    """Folder of the captions and tables."""
    statistics: CaptionStatistics | None
    """None if nothing was written, because no caption names a video that the data set lists. ``problems`` has the
    details."""
    provenance: CaptionProvenance
    """The settings that decided the captions; ``about.json`` has them."""
    word_vectors: WordVectorSummary | None
    """None unless word vectors were asked for."""
    num_problems: int
    """Number of problems."""
    problems: list[str]
    """The first problems: inputs that were skipped, and captions of videos that the data set does not list. If there
    are many, ``dataset.problems("preprocess")`` lists all."""


def prepare_captions(
    settings: PreprocessingSettings,
    *,
    num_processes: int | None = None,
    parallel_map: OrderedMap | None = None,
    on_progress: Listener | None = None,
) -> PreparedCaptions:
    """Read and tag the captions of a data set, and write its caption and IDF tables.

    Work that an earlier call did with the same captions and tagger is not repeated, so a stopped call can be resumed.

    Args:
        settings: The captions, and how to prepare them.
        num_processes: Processes that read, tag and encode captions (default: one for each available core). The result
            does not depend on it.
        parallel_map: Reads, tags and encodes captions elsewhere, such as on a cluster, instead of in ``num_processes``
            processes.
        on_progress: Called with the progress of each stage.

    Returns:
        The data set's folder, statistics of the captions, and the inputs that were skipped.

    Raises:
        UserError: The data set, its files or a setting cannot be used. The message says what to do.

    Example:
        >>> import csv
        >>> from vlalign.preprocess import PreprocessingSettings, prepare_captions
        >>> with open("captions.csv", "w", newline="") as file:
        ...     csv.writer(file).writerows(
        ...         [["video_id", "caption", "split"], ["v0", "a man cooks rice", "train"], ["v1", "dogs run", "test"]]
        ...     )
        >>> settings = PreprocessingSettings("vlalign_data/mine", annotations="captions.csv")
        >>> prepared = prepare_captions(settings, num_processes=1)
        >>> prepared.statistics.num_captions
        2
    """
    return _prepare(settings, lambda: choose_source(settings), num_processes, parallel_map, on_progress, None)


def prepare_subtitles(
    settings: PreprocessingSettings,
    problems: Problems,
    *,
    num_processes: int | None = None,
    on_progress: Listener | None = None,
) -> PreparedCaptions:
    """Prepare the subtitles beside a data set's videos as captions of the protocol ``cues``.

    Other captions of the data set are not changed.

    >>> prepare_subtitles(PreprocessingSettings("vlalign_data/mine"), Problems())  # doctest: +SKIP

    Args:
        settings: The data set, and how to prepare its subtitles; ``annotations`` and ``protocol`` are ignored.
        problems: Receives skipped inputs, except links to untrusted folders, which ``find_beside`` reports.
        num_processes: As for ``prepare_captions``.
        on_progress: As for ``prepare_captions``.

    Raises:
        UserError: There are no subtitles, or a setting cannot be used.
    """
    return _prepare(settings, lambda: subtitles_beside(settings), num_processes, None, on_progress, problems)


def prepare_again(settings: PreprocessingSettings, problems: Problems) -> PreparedCaptions:
    """Prepare captions as ``prepare_captions`` does, but give ``problems`` what is skipped.

    Raises:
        UserError: As for ``prepare_captions``.
    """
    return _prepare(settings, lambda: choose_source(settings), None, None, None, problems)


def _prepare(
    settings: PreprocessingSettings,
    open_source: Callable[[], CaptionSource],
    num_processes: int | None,
    parallel_map: OrderedMap | None,
    on_progress: Listener | None,
    problems: Problems | None,
) -> PreparedCaptions:
    if num_processes is None:
        num_processes = available_cores()
    if num_processes < 1:
        raise SettingError("num_processes", num_processes, "expected 1 or more")
    spacy_model = settings.spacy_model if settings.language is None else model_of_language(settings.language)
    with report_progress_to(on_progress):
        source = open_source()
        if problems is None:
            problems = Problems(strict=settings.strict, file=source.dataset.problems("preprocess"))
        with problems:
            preparation = Preparation(
                dataset=source.dataset,
                chunks=source.chunks,
                spacy_model=spacy_model,
                provenance=source.provenance,
                problems=problems,
                num_processes=num_processes,
                parallel_map=parallel_map,
            )
            statistics = prepare_records(preparation)
            return _with_word_vectors(source, statistics, settings.word_vectors, problems)


def _with_word_vectors(
    source: CaptionSource, statistics: CaptionStatistics | None, word_vectors: Path | str | None, problems: Problems
) -> PreparedCaptions:
    """Prepare the word vectors if there are captions, and return the result."""
    vectors = None
    if statistics is not None:
        if word_vectors is not None:
            vectors = prepare_word_vectors(source.dataset, Path(word_vectors))
        listed = f"; {number_of(problems.count, 'problems')}, {problems.where}" if problems.count else ""
        say(f"{source.dataset.captions}: {number_of(statistics.num_captions, 'captions')}{listed}")
    return PreparedCaptions(
        dataset=source.dataset,
        statistics=statistics,
        provenance=source.provenance,
        word_vectors=vectors,
        num_problems=problems.count,
        problems=list(problems.messages),
    )


def prepare_records(preparation: Preparation) -> CaptionStatistics | None:
    """Tag the captions among the records of a data set, and write its tables.

    All records are first read once, so that errors appear before any work is done, and then again if anything is left
    to tag.

    Returns:
        The statistics that are also on disk. None, with nothing written, if no caption names a video that the data
        set lists.

    Raises:
        UserError: There is no caption, the spaCy pipeline is not installed, or another process prepares the captions.
    """
    dataset, problems = preparation.dataset, preparation.problems
    check_folders(dataset.captions, dataset.captions / "counts")
    _ = preparation.tagger  # raises before any work is done
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
        say(f"note: {in_other_languages(statistics.other_languages, preparation.spacy_model)}")
    report_missing_videos(dataset, first_pass.counter, problems)
    if not problems.deferred:  # a sync: most videos of a folder may have no subtitles
        _note_videos_without_captions(dataset, first_pass.counter)
    return statistics


def _first_pass(preparation: Preparation) -> FirstPass:
    """Read all captions once; resume from the findings of an earlier call on the same file."""
    chunks, tagger = preparation.chunks, preparation.tagger
    look = partial(run_first_pass, chunks, tagger.identity, preparation.problems, part_captions=PART_CAPTIONS)
    if chunks.source is None:
        return look(parallel_map=partial(map_in_processes, num_processes=1))
    about = {
        "file": sha256_of(chunks.source),
        "name": str(chunks.source),
        "code": code_hash(),
        "tagger": tagger.identity,
        "part_captions": PART_CAPTIONS,
        **({"videos": chunks.videos_sha256} if chunks.videos_sha256 else {}),
        **preparation.provenance.to_json(),
    }
    parallel_map = preparation.mapper(max_processes=1 + chunks.source.stat().st_size // BYTES_PER_PROCESS)
    with open_first_pass_log(preparation.dataset.captions / LOG_NAME, about) as log:
        return look(parallel_map=parallel_map, log=log)


def _names_listed_videos(dataset: DatasetFolder, first_pass: FirstPass, problems: Problems) -> bool:
    """Return whether a caption names a listed video, or no videos are listed. Report it if not."""
    listed = {video.video_id for video in first_pass.videos or dataset.read_videos()}
    named = first_pass.counter.video_ids()
    if not listed or listed & named:
        return True
    for video_id, reason in why_unmatched(sorted(named), listed).items():
        problems.add(f"captions of video {video_id!r}: {dataset.videos_file} {reason}")
    problems.add(
        f"{dataset.videos_file}: lists none of the {len(named):,} videos that captions name, such as {min(named)!r}; "
        f"it has {len(listed):,}, such as {min(listed)!r}; nothing is written; expected ids as vlalign-extract "
        "assigned them, or the name of exactly one listed file, without its suffix"
    )
    return False


def report_missing_videos(dataset: DatasetFolder, counter: CorpusCounter, problems: Problems) -> None:
    """Report each video that captions name and the data set does not list, if it lists any; first those that listed
    videos resemble."""
    listed = {video.video_id for video in dataset.read_videos()}
    missing = sorted(counter.video_ids() - listed) if listed else []
    reasons = why_unmatched(missing, listed)
    unlisted = "does not list it; expected its id as vlalign-extract assigned it"
    for video_id in sorted(missing, key=lambda video_id: video_id not in reasons):
        problems.add(f"captions of video {video_id!r}: {dataset.videos_file} {reasons.get(video_id, unlisted)}")


def _note_videos_without_captions(dataset: DatasetFolder, counter: CorpusCounter) -> None:
    """Print the number of listed videos that no caption names, except sound recordings, which may be captions."""
    named = counter.video_ids()
    videos = [video for video in dataset.read_videos() if not video.path.lower().endswith(SOUND_SUFFIXES)]
    if without := sorted(video.video_id for video in videos if video.video_id not in named):
        names = ", ".join(map(repr, without[:NUM_NAMED]))
        which = f", such as {names}" if len(without) > NUM_NAMED else f": {names}"
        say(f"note: {len(without):,} of {number_of(len(videos), 'listed videos')} have no captions{which}")
