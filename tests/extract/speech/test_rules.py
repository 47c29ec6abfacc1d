"""The pure parts of a transcription: windows, what is kept, and segments."""

import json
import random
from dataclasses import asdict, replace
from itertools import pairwise

import pytest
from vlalign.extract.decoding.messages import InvalidMessage
from vlalign.extract.speech.cues import MAX_SECONDS, segments_of
from vlalign.extract.speech.messages import Loaded, RecognisedPart, RecognisedWindow, encode_answer, parse_answer
from vlalign.extract.speech.suppression import NOT_ENGLISH, REPEATED, UNSURE, keep_speech
from vlalign.extract.speech.windows import Span, SpeechWindow, plan_windows, settled_spans


def test_words_are_put_back_where_the_silence_was():
    window = SpeechWindow([Span(100, 150), Span(300, 400), Span(900, 920)])
    places = [*range(100, 150), *range(300, 400), *range(900, 920)]  # the sample that each one of the window was
    for at in range(window.num_samples - 4):
        start, end = window.original(at, at + 2)
        assert abs(start - places[at]) <= 2 or abs(end - places[at + 2]) <= 2
        assert places[at] - 2 <= end and start <= places[at + 2] + 2
    assert window.original(0, 10) == (100, 110)
    assert window.original(148, 151) == (398, 400)  # cut at the end of its span
    assert window.original(150, 170) == (900, 920)


def test_windows_hold_all_spans_in_order_and_no_more_than_fits():
    drawn = random.Random(0)
    for _ in range(200):
        spans, at = [], 0
        for _ in range(drawn.randint(0, 12)):
            at += drawn.randint(1, 50)
            spans.append(Span(at, at + drawn.randint(1, 30)))
            at = spans[-1].end
        windows = plan_windows(spans, 30)
        assert [span for window in windows for span in window.spans] == spans
        assert all(window.num_samples <= 30 for window in windows)
        for window, following in pairwise(windows):
            assert window.num_samples + following.spans[0].end - following.spans[0].start > 30


@pytest.mark.parametrize(
    ("spans", "is_last", "expected"),
    [
        ([(10, 50), (60, 100)], False, ([(10, 50)], 60)),
        ([(10, 50), (60, 100)], True, ([(10, 50), (60, 100)], 100)),
        ([(10, 50), (60, 97)], False, ([(10, 50), (60, 97)], 97)),
        ([(10, 50)], False, ([(10, 50)], 90)),
        ([], False, ([], 90)),
        ([(0, 100)], False, ([(0, 100)], 100)),
    ],
)
def test_speech_at_the_end_of_a_part_waits_for_the_next(spans, is_last, expected):
    settled, done = settled_spans([Span(*span) for span in spans], 100, 10, is_last=is_last)
    assert ([tuple(span) for span in settled], done) == expected


SURE = RecognisedWindow(10.0, -0.2, 1.5, [(" cut", 1.0, 1.5, 0.9), (" it.", 1.5, 2.0, 0.9)])


def kept(*windows, is_multilingual=False, language="en"):
    return keep_speech([(100.0, RecognisedPart(1, language, 0.8, windows))], is_multilingual=is_multilingual)


def test_what_the_model_is_sure_of_is_kept_with_times_of_the_video():
    speech = kept(SURE)
    assert speech.words == [(" cut", 101.0, 101.5, 0.9), (" it.", 101.5, 102.0, 0.9)]
    assert (speech.languages, speech.left_out, speech.language_probability) == ({"en": 10.0}, {}, None)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"compression_ratio": 3.0}, REPEATED),
        ({"log_probability": -0.75}, UNSURE),
        ({"words": [(" thank", 0.0, 1.0, 0.4), (" you", 1.0, 2.0, 0.6)]}, UNSURE),
    ],
)
def test_text_that_is_likely_invented_is_left_out(change, reason):
    speech = kept(SURE, SURE, replace(SURE, **change))
    assert speech.left_out == {reason: 10.0} and len(speech.words) == 4


def test_a_video_of_which_an_english_model_understands_little_is_not_english():
    unsure = replace(SURE, log_probability=-0.9)
    speech = kept(SURE, unsure, unsure)
    assert (speech.words, speech.languages, speech.left_out) == ([], {}, {NOT_ENGLISH: 30.0})
    assert len(kept(SURE, unsure).words) == 2


def test_models_of_many_languages_are_judged_by_whispers_own_limits():
    speech = kept(replace(SURE, log_probability=-0.9), is_multilingual=True, language="de")
    assert (speech.languages, speech.language_probability) == ({"de": 10.0}, 0.8)
    assert kept(replace(SURE, log_probability=-1.1), is_multilingual=True).left_out == {UNSURE: 10.0}


def spoken(text, gap=0.0, seconds=0.4, start=0.0):
    words = []
    for word in text.split():
        words.append((f" {word}", start, start + seconds, 0.5))
        start += seconds + gap
    return words


def test_segments_end_with_sentences_pauses_and_after_some_seconds():
    words = spoken("We cut it now. OK. Then we add oil.") + spoken("And stir", start=10.0)
    assert [segment.text for segment in segments_of(words)] == ["We cut it now.", "OK. Then we add oil.", "And stir"]
    long = segments_of(spoken(" ".join(map(str, range(100)))))
    assert all(segment.end_seconds - segment.start_seconds <= MAX_SECONDS + 0.01 for segment in long)
    assert " ".join(segment.text for segment in long) == " ".join(map(str, range(100)))
    assert segments_of([]) == []


def test_segments_of_no_length_get_one():
    [segment] = segments_of([(" Oh", 3.0, 3.0, 0.7)])
    assert (segment.start_seconds, segment.confidence) == (3.0, 0.7) and segment.end_seconds > 3


PART = RecognisedPart(200_000, "en", 1.0, [SURE])


def test_answers_arrive_as_they_were_sent():
    for answer in (PART, Loaded(True), None):
        received = parse_answer(encode_answer(answer), 320_000, 16_000)
        assert json.dumps(received and asdict(received)) == json.dumps(answer and asdict(answer))
    assert parse_answer(encode_answer(problem="no model"), 1, 16_000) == "no model"


@pytest.mark.parametrize(
    "change",
    [
        {"num_done": 0},
        {"num_done": 900},
        {"num_done": 320_001},
        {"num_done": True},
        {"language": "../x"},
        {"language_probability": 1.5},
        {"windows": None},
        {"windows": [{}]},
        {"windows": [asdict(SURE)] * 5000},
        {"windows": [asdict(SURE) | {"speech_seconds": 1e9}]},
        {"windows": [asdict(SURE) | {"log_probability": float("nan")}]},
        {"windows": [asdict(SURE) | {"log_probability": 10**400}]},
        {"windows": [asdict(SURE) | {"words": [["a", 0, 1, 0.5]] * 1000}] * 2},
        {"windows": [asdict(SURE) | {"words": [["a", 0, 22.0, 0.5]]}]},
        {"windows": [asdict(SURE) | {"words": [["a", 2, 1, 0.5]]}]},
        {"windows": [asdict(SURE) | {"words": [["a", 0, 1, -0.5]]}]},
        {"windows": [asdict(SURE) | {"words": [["a" * 1000, 0, 1, 0.5]]}]},
        {"windows": [asdict(SURE) | {"words": [["a", 0, 1]]}]},
        {"windows": [asdict(SURE) | {"words": [["a", 0, 1, 0.5]] * 2000}]},
    ],
)
def test_answers_that_no_recogniser_gives_are_refused(change):
    with pytest.raises(InvalidMessage):
        parse_answer(json.dumps(asdict(PART) | change).encode(), 320_000, 16_000)


@pytest.mark.parametrize("content", [b"", b"\xff", b"[]", b"3", b'{"x": 1}', b"[" * 100_000])
def test_answers_that_are_something_else_are_refused(content):
    with pytest.raises(InvalidMessage):
        parse_answer(content, 100, 16_000)
