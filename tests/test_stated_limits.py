"""Limits that pages state are the constants of the code."""

from pathlib import Path

import pytest
from vlalign.extract.decoding import clip_file, container, decode, probe, sampling, webm_clip
from vlalign.extract.pipeline import download, failure_budget
from vlalign.extract.speech import cues
from vlalign.train.evaluation import retrieval
from vlalign.train.export import timelines
from vlalign.train.page import app, concurrency, example_pictures, exports, guard, pictures, serve
from vlalign.train.search import caption_scores, coded_search, grouping, search, shot_windows, window_encoding

DOCS = Path(__file__).resolve().parents[1] / "docs"
STATED = {
    "http": (
        f"the content takes longer than {app.UPLOAD_SECONDS:.0f} s",
        f"path and parameters are longer than {guard.MAX_URL_BYTES:,} bytes",
        f"or a search of more than {app.SEARCH_SECONDS:.0f} s",
        f"up to {concurrency.MAX_WAITING} more wait, for at most {concurrency.WAIT_SECONDS:.0f} s",
        f"at most {serve.MAX_CONNECTIONS} connections",
        f"one whose request does not arrive within {serve.REQUEST_SECONDS:.0f} s",
        f"as WebM, of at most {webm_clip.MAX_CLIP_SECONDS:.0f} s and {webm_clip.MAX_SIDE_PX} px a side",
        f"a part of at most {exports.MAX_CUT_SECONDS / 60:.0f} minutes as a file to keep",
        f"The latest {example_pictures.MAX_PICTURES} are",
        f"may be repeated, up to {app.MAX_EXAMPLES} times",
    ),
    "page": (
        f"cannot be decoded within {pictures.DECODE_SECONDS:.0f} s",
        f"at most {webm_clip.MAX_SIDE_PX} px and {webm_clip.MAX_FPS} frames a second",
    ),
    "search": (
        f"builds an index of up to {window_encoding.MAX_WINDOWS_ADDED_BY_SEARCH:,} windows itself",
        f"Up to {coded_search.EXACT_WINDOWS:,} windows, a search compares all",
        f"{coded_search.NUM_SUBVECTORS // 2} bytes of codes for each window",
        f"searches once for up to {caption_scores.MAX_CAPTIONS} captions",
        f"With fewer than {caption_scores.MIN_CAPTIONS} captions",
        f"minus {search.WITHOUT_WEIGHT} times the score of the `--without` text",
        f"with up to {search.MAX_OCCURRENCES} of its moments",
        f"the best {search.MAX_ALL:,}, and a line says so",
        f"covers the next {grouping.FOLD_AHEAD} moments",
        f"compared with the {grouping.MAX_COMPARED:,} best. After {grouping.MAX_IN_A_ROW} near-duplicates in a row",
        f"A shot longer than {shot_windows.MAX_WINDOW_SECONDS:.0f} s is divided",
    ),
    "evaluation": (f"A score matrix of more than {retrieval.MAX_BYTES >> 30} GiB is not held in memory",),
    "export": (
        f"A clip has at most {clip_file.MAX_CLIP_BYTES >> 30} GiB",
        f"More than {timelines.MAX_EVENTS} moments of a rate are refused",
    ),
    "extraction": (f"thumbnails of one video have at most {decode.MAX_DENSE_BYTES >> 20} MiB",),
    "speech": (f"or after {cues.MAX_SECONDS:.0f} s",),
    "videos": (
        f"longer than {sampling.MAX_VIDEO_SECONDS // 3600} hours",
        f"more than {container.MAX_PIXELS // 1_000_000} million pixels a frame",
        f"a frame lasts more than {probe.MAX_FRAME_SECONDS // 60} minutes",
        f"or more than {download.MAX_BYTES >> 30} GiB",
        f"before {failure_budget.MIN_FAILURES} failures",
        f"sends less than {download.MIN_BYTES_PER_SECOND:,} bytes a second over a minute",
    ),
}


@pytest.mark.parametrize("page", STATED)
def test_pages_state_the_limits_of_the_code(page):
    text = " ".join((DOCS / f"{page}.md").read_text(encoding="utf-8").split())
    assert [stated for stated in STATED[page] if stated not in text] == []
