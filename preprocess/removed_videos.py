"""Captions of videos that were removed from a data set: made again without them, as far as the data set itself has what
they were made from.
"""

import os
from collections.abc import Collection
from dataclasses import replace

from ..storage.captions.files import named_videos, read_captions_about
from ..storage.common.errors import UserError
from ..storage.common.problems import Problems
from ..storage.common.terminal import number_of, say
from ..storage.common.validation import DATASET_NAME
from ..storage.common.writing import remove_file, remove_tree
from ..storage.dataset.folder import DatasetFolder
from .caption_source import TRANSCRIBED_VIDEOS
from .language import model_of_language
from .prepare import prepare_again
from .settings import SPACY_MODEL, PreprocessingSettings
from .tag import installed_tagger

COUNTS_NAME = "counts"
"""A folder beside those of the protocols."""


def make_captions_without_removed(
    dataset: DatasetFolder, removed: Collection[str], language: str | None, problems: Problems, made_later: str | None
) -> list[str]:
    """Make the captions from transcripts and from text in frames again, where they name videos that are not listed.

    They are removed if nothing is left to make them from, or if they cannot be made again.

    Args:
        dataset: The data set; its list and transcripts no longer have the removed videos.
        removed: Ids of videos that were removed now.
        language: Language of the captions (default: English).
        problems: Receives captions that are skipped.
        made_later: A protocol whose captions the caller makes again itself.

    Returns:
        A line for each folder of other captions that name ``removed``: only the user can change what they are made
        from.
    """
    notes = []
    for protocol in ["", *(each for each in _protocols(dataset) if each != made_later)]:
        captions = replace(dataset, protocol=protocol)
        try:
            named = named_videos(sorted(captions.captions.glob("part-*.parquet")))
            about = read_captions_about(captions.captions) or {}
            if about.get("text_in_frames") or TRANSCRIBED_VIDEOS in about:
                if not named <= {video.video_id for video in dataset.read_videos()}:
                    _make_again(captions, about, language, problems)
            elif gone := sorted(named.intersection(removed)):
                notes.append(
                    f"{captions.captions}: has captions of {number_of(len(gone), 'removed videos')}, such as "
                    f"{gone[0]!r}; remove them from your captions, and run vlalign-preprocess again"
                )
        except UserError as error:
            problems.add(f"captions of removed videos stay in {captions.captions}: {error}")
    return notes


def _protocols(dataset: DatasetFolder) -> list[str]:
    """Return the protocols whose captions are in a folder of their own."""
    paths = sorted(replace(dataset, protocol="").captions.glob("*"))
    names = [path.name for path in paths if path.is_dir() and not path.is_symlink()]
    return [name for name in names if name != COUNTS_NAME and DATASET_NAME.fullmatch(name)]


def _make_again(dataset: DatasetFolder, about: dict[str, object], language: str | None, problems: Problems) -> None:
    seed, protocol = about.get("seed"), dataset.protocol
    settings = PreprocessingSettings(
        dataset.path,
        protocol=protocol or None,
        language=language,
        seed=seed if isinstance(seed, int) else 0,
    )
    try:
        tagger = installed_tagger(SPACY_MODEL if language is None else model_of_language(language)).identity
        if tagger.split(" ")[0] != str(about.get("tagger")).split(" ")[0]:
            raise UserError(f"tagged by {about.get('tagger')}")
        prepare_again(settings, problems)
    except UserError as error:
        _remove(dataset)
        command = f"vlalign-preprocess --dataset {dataset.name}" + (f" --protocol {protocol}" if protocol else "")
        say(
            f"note: {dataset.captions}: had captions of removed videos, and is removed, because it cannot be made "
            f"again here ({error}); to make it again: {command}"
        )
    if os.path.lexists(dataset.word_vectors):
        remove_file(dataset.word_vectors)
        say(f"note: {dataset.word_vectors}: had words of removed videos, and is removed; pass --word-vectors again")


def _remove(dataset: DatasetFolder) -> None:
    """Remove the captions of one protocol, and no others."""
    folder = dataset.captions
    if dataset.protocol:
        remove_tree(folder)
        return
    for path in sorted(folder.iterdir()):
        if path.name == COUNTS_NAME:
            remove_tree(path)
        elif not path.is_dir():
            remove_file(path)
    for path in (dataset.idf, dataset.idf.with_suffix(".png")):
        remove_file(path, missing_ok=True)
