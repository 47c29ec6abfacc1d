"""Files with the times of spoken words."""

import re

import pytest
from vlalign.storage.captions.word_times import SpokenWord, checksum_of, read_word_times, words_at
from vlalign.storage.common.errors import UserError

LONG = """File type = "ooTextFile"
Object class = "TextGrid"

xmin = 0
xmax = 1.5
tiers? <exists>
size = 2
item []:
    item [1]:
        class = "IntervalTier"
        name = "speaker - phones"
        xmin = 0
        xmax = 1.5
        intervals: size = 1
        intervals [1]:
            xmin = 0
            xmax = 1.5
            text = "AH0"
    item [2]:
        class = "IntervalTier"
        name = "speaker - words"
        xmin = 0
        xmax = 1.5
        intervals: size = 3
        intervals [1]:
            xmin = 0
            xmax = 0.25
            text = ""
        intervals [2]:
            xmin = 0.25
            xmax = 0.8
            text = "A ""big"" man 7"
        intervals [3]:
            xmin = 0.8
            xmax = 1.5
            text = "Juggling"
"""
SHORT = """File type = "ooTextFile"
Object class = "TextGrid"

0
1.5
<exists>
1
"IntervalTier"
"words"
0
1.5
2
0
0.5
"<eps>"
0.5
1.5
"juggling"
"""
MFA = "Begin,End,Label,Type,Speaker\n0.0,0.4,he,words,s\n0.4,0.9,Runs,words,s\n0.0,0.1,HH,phones,s\n"
PLAIN = "word,start_seconds,end_seconds\nruns,0.4,0.9\nhe,0,0.4\n"
HE_RUNS = [SpokenWord("he", 0.0, 0.4), SpokenWord("runs", 0.4, 0.9)]


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("a.TextGrid", LONG.encode(), [SpokenWord('a "big" man 7', 0.25, 0.8), SpokenWord("juggling", 0.8, 1.5)]),
        ("a.TextGrid", SHORT.encode(), [SpokenWord("juggling", 0.5, 1.5)]),
        ("a.TextGrid", SHORT.replace("juggling", "café").encode("utf-16"), [SpokenWord("café", 0.5, 1.5)]),
        ("a.csv", MFA.encode(), HE_RUNS),
        ("a.csv", PLAIN.encode(), HE_RUNS),
        ("b.csv", PLAIN.encode(), []),
    ],
)
def test_words_and_their_times_are_read(tmp_path, name, content, expected):
    (tmp_path / "audio").mkdir()
    (tmp_path / "audio" / name).write_bytes(content)
    assert read_word_times(tmp_path, "audio/a") == expected


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("a.TextGrid", "nothing", "TextGrid"),
        ("a.TextGrid", SHORT.replace("words", "phones"), "no tier named 'words'"),
        ("a.TextGrid", SHORT[: SHORT.index('"<eps>"')], "not a file of word times"),
        ("a.csv", "word,at\nhe,1\n", "word, at"),
        ("a.csv", PLAIN.replace("0.9", "late"), "late"),
        ("a.csv", PLAIN.replace("0.9", "0.1"), "'runs' lasts from 0.4 to 0.1 s"),
    ],
)
def test_files_without_times_of_words_are_refused_in_one_line(tmp_path, name, content, why):
    (tmp_path / name).write_text(content)
    with pytest.raises(UserError, match=re.escape(str(tmp_path / name))) as refused:
        read_word_times(tmp_path, "a")
    assert why in str(refused.value) and "\n" not in str(refused.value)


def test_the_id_of_a_recording_does_not_lead_out_of_the_folder(tmp_path):
    (tmp_path / "secret.csv").write_text(PLAIN)
    (tmp_path / "in").mkdir()
    assert read_word_times(tmp_path / "in", "../secret") == []


def test_a_time_has_the_word_that_is_spoken_then(tmp_path):
    assert words_at(HE_RUNS, [0.0, 0.39, 0.4, 0.9]) == ["he", "he", "runs", ""]
    assert checksum_of(tmp_path / "none") == ""
    (tmp_path / "a.csv").write_text(MFA)
    before = checksum_of(tmp_path)
    (tmp_path / "b.csv").write_text(PLAIN)
    assert len(before) == 16 and checksum_of(tmp_path) != before
