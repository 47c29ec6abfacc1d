"""Lines of text in neighbouring frames become spans."""

import pytest
from vlalign.extract.ocr.lines import Box, TextLine, merge_lines, similarity

PLACE: Box = (0.1, 0.8, 0.5, 0.9)


def line(text: str, confidence: float = 0.9, box: Box = PLACE) -> TextLine:
    return TextLine(text, confidence, box)


def spans(*frames: list[TextLine]) -> list[tuple[str, float, float]]:
    made = merge_lines((float(k), float(k + 1), lines) for k, lines in enumerate(frames))
    return [(span.text, span.start_seconds, span.end_seconds) for span in made]


def test_equal_and_similar_lines_are_one_span_with_the_best_reading():
    frames = [[line("Preheat the 0ven", 0.6)], [line("Preheat the oven", 0.95)], [line("Preheat the oven", 0.85)]]
    [span] = merge_lines((k, k + 1.0, lines) for k, lines in enumerate(frames))
    assert (span.text, span.start_seconds, span.end_seconds) == ("Preheat the oven", 0, 3)
    assert span.confidence == pytest.approx(0.9) and span.box == PLACE


def test_other_lines_are_spans_of_their_own():
    first, second = [line("Chapter one")], [line("Questions?")]
    assert spans(first, first, second) == [("Chapter one", 0, 2), ("Questions?", 2, 3)]
    assert spans([], first, []) == [("Chapter one", 1, 2)]
    assert spans([], []) == [] and spans() == []


def test_a_line_may_be_missed_in_one_frame_and_not_in_two():
    shown = [line("Chapter one")]
    assert spans(shown, [], shown) == [("Chapter one", 0, 3)]
    assert spans(shown, [], [], shown) == [("Chapter one", 0, 1), ("Chapter one", 3, 4)]


def test_a_line_may_move_and_equal_lines_stay_apart():
    upper, lower = (line("OK", box=(0.1, top, 0.2, top + 0.1)) for top in (0.1, 0.7))
    moved = line("OK", box=(0.1, 0.6, 0.2, 0.7))
    made = merge_lines([(0.0, 1.0, [upper, lower]), (1.0, 2.0, [moved])])
    assert [(span.box, span.end_seconds) for span in made] == [(upper.box, 1.0), (lower.box, 2.0)]


def test_similarity_is_of_characters_in_order():
    assert similarity("Chapter 3", "CHAPTER3") == 1
    assert similarity("abcd", "abxd") == 0.75
    assert similarity("abc", "") == 0 and similarity("", "") == 1
