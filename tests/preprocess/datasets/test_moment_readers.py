"""The readers of Charades-STA and QVHighlights."""

import json

import pytest
from helpers.readers import brief, captions_of, left_out, lines, refused, write
from vlalign.preprocess.datasets import charades_sta, qvhighlights

CHARADES = {
    "charades_sta_train.txt": lines("AO8RW 0.0 6.9##a person is putting a book on a shelf."),
    "charades_sta_test.txt": lines(
        "3MSZA 24.3 30.4##person turn a light on.",
        "YSKX3 0.0 14.1##person  fires   up ## the oven.",
        "3MSZA 24.3 30.4##person flipped the light switch near the door.",
    ),
}


def query(qid=1, windows=((4, 8),), **changed):
    clips = sorted({clip for start, end in windows for clip in range(start // 2, end // 2)})
    row = {
        "qid": qid,
        "query": f"query {qid}",
        "duration": 150,
        "vid": "abc_60.0_210.0",
        "relevant_windows": [list(window) for window in windows],
        "relevant_clip_ids": clips,
        "saliency_scores": [[clip % 5, 4, 0] for clip in clips],
    }
    return row | changed


def highlights(train, val, test=None):
    files = {"highlight_train_release.jsonl": train, "highlight_val_release.jsonl": val}
    files |= {} if test is None else {"highlight_test_with_gt.jsonl": test}
    return {name: lines(*map(json.dumps, rows)) for name, rows in files.items()}


def test_charades_sentences_come_by_video(tmp_path):
    captions, problems = captions_of(charades_sta, write(tmp_path, CHARADES))
    assert brief(captions) == [
        ("AO8RW", "train", "a person is putting a book on a shelf.", 0, 6.9),
        ("3MSZA", "test", "person turn a light on.", 24.3, 30.4),
        ("3MSZA", "test", "person flipped the light switch near the door.", 24.3, 30.4),
        ("YSKX3", "test", "person fires up ## the oven.", 0, 14.1),
    ]
    assert problems.count == 0 and all(caption.query is None for caption in captions)


def test_charades_sentences_without_valid_times_are_left_out(tmp_path):
    bad = lines("A 5 2##Backwards.", "B 3 3##No length.", "C x 3##No time.", "D 0 3##", "E 1 2##Good.")
    captions, problems = captions_of(charades_sta, write(tmp_path, CHARADES | {"charades_sta_test.txt": bad}))
    assert [caption.video_id for caption in captions] == ["AO8RW", "E"]
    at = "charades_sta_test.txt, sentence {}:"
    left_out(problems, (at.format(1), "5.0", "2.0"), (at.format(2), "3.0"), (at.format(3), "'x'"), (at.format(4), "''"))


@pytest.mark.parametrize("line", ["A 1 2 a sentence", "A 1##a sentence", "A 1 2 3##a sentence"])
def test_charades_lines_of_another_format_are_refused(tmp_path, line):
    folder = write(tmp_path, CHARADES | {"charades_sta_test.txt": line})
    assert refused(charades_sta, folder).startswith(f"{folder / 'charades_sta_test.txt'}, sentence 1: ")


def test_each_moment_of_a_query_is_a_caption_with_its_saliency(tmp_path):
    two = query(7, [(0, 4), (10, 12)])
    captions, problems = captions_of(qvhighlights, write(tmp_path, highlights([two], [query(8, vid="x_0.0_150.0")])))
    assert brief(captions) == [
        ("abc_60.0_210.0", "train", "query 7", 0, 4),
        ("abc_60.0_210.0", "train", "query 7", 10, 12),
        ("x_0.0_150.0", "validation", "query 8", 4, 8),
    ]
    assert [(c.query, c.saliency) for c in captions] == [
        ("7", [0, 4, 0, 1, 4, 0]),
        ("7", [0, 4, 0]),
        ("8", [2, 4, 0, 3, 4, 0]),
    ]
    assert problems.count == 0


def test_the_test_split_is_read_where_its_moments_are(tmp_path):
    captions, _ = captions_of(qvhighlights, write(tmp_path, highlights([query()], [query(2)], [query(3)])))
    assert {caption.split: caption.query for caption in captions} == {"train": "1", "validation": "2", "test": "3"}


def test_queries_with_invalid_moments_are_left_out(tmp_path):
    rows = [
        query(1, relevant_windows=[[4, 9]]),
        query(2, relevant_clip_ids=[2], saliency_scores=[[1, 2, 3]]),
        query(3, saliency_scores=[[1, 2, 3], [1, 2]]),
        query(4, saliency_scores=[[1, 2, 3], [1, 2, 5]]),
        query(5, relevant_windows=[[8, 4]]),
        query(6, relevant_clip_ids=[2]),
        query(7, query=" "),
        query(8),
    ]
    captions, problems = captions_of(qvhighlights, write(tmp_path, highlights(rows, [])))
    assert [caption.query for caption in captions] == ["8"]
    at = "highlight_train_release.jsonl, line {}:"
    named = ["9 s", "saliency_scores", "saliency_scores", "5", "8.0", "zip", "' '"]
    left_out(problems, *((at.format(number), word) for number, word in enumerate(named, start=1)))


@pytest.mark.parametrize(
    "row", [{}, {"qid": 1}, query(relevant_windows=7), query(relevant_windows=[7]), query(saliency_scores=None), 7, "x"]
)
def test_rows_of_another_structure_are_refused(tmp_path, row):
    folder = write(tmp_path, highlights([query(2), row], []))
    assert refused(qvhighlights, folder).startswith(f"{folder / 'highlight_train_release.jsonl'}, line 2: ")


@pytest.mark.parametrize("reader", [charades_sta, qvhighlights])
def test_missing_files_are_listed_with_their_sources(tmp_path, reader):
    message = refused(reader, tmp_path)
    assert all(f"{name} (http" in message for name in reader.FILES.values()) and "--annotations" in message
