"""Small files on which a reader's time or memory would grow with the square of their size."""

import pytest
from helpers.deadlines import in_time
from vlalign.preprocess.chunks import MAX_CAPTION_CHARACTERS, captions_among
from vlalign.preprocess.datasets import custom, subtitles
from vlalign.preprocess.tag import load_pipeline, tag_captions
from vlalign.storage.common.errors import UserError
from vlalign.storage.common.problems import Problems
from vlalign.storage.records import Caption, VideoRecord

MAX_SECONDS = 10
CUE = "00:00:0%d,000 --> 00:00:0%d,900\n"
TABLE, TIMED = "video_id,caption\n", "video_id,caption,start,end\nv,c,"
FILES = {
    "lines that cues repeat.srt": "".join(CUE % (n, n) + "a\n" * 60_000 + f"b{n}\n\n" for n in range(5)),
    "number of a character.srt": CUE % (1, 2) + "&#" + "1" * 100_000 + "; salt",
    "tags.srt": CUE % (1, 2) + "<a" * 100_000,
    "elements around a text.ttml": "<tt><p begin='1s' end='2s'>salt"
    + "<span>" * 20_000
    + "x"
    + "</span>" * 20_000
    + "</p></tt>",
    "segments.json": '{"segments":' + "[" * 100_000,
    "digits of a time.csv": TIMED + "1" * 200_000 + "x,2\n",
    "digits of a number.csv": TIMED + "1" * 200_000 + ",2\n",
    "digits of no time.csv": "video_id,caption,timecode\nv,c," + "1" * 200_000 + "x\n",
    "folders.csv": TABLE + "a/" * 100_000 + ",c\n",
    "columns.csv": ",".join(f"c{n}" for n in range(60_000)) + ",video_id,caption\nv,c\n",
    "rows of one value.csv": ",".join(f"c{n}" for n in range(400)) + ",video_id,caption\n" + "a\n" * 100_000,
    "keys.jsonl": "".join(f'{{"k{n}":1}}\n' for n in range(50_000)),
}


@pytest.mark.parametrize("name", FILES)
def test_a_small_file_is_read_or_refused_soon(tmp_path, name):
    path, problems = tmp_path / name, Problems(quiet=True)
    path.write_text(FILES[name])
    known = [VideoRecord(video_id="a/" * 20_000 + "b", path="x")]
    with in_time(MAX_SECONDS):
        try:
            if path.suffix in subtitles.SUFFIXES:
                read = list(subtitles.read(path, "cues", 0, problems))
            else:
                read = list(custom.read(path, 0, problems, known))
        except UserError as error:
            assert len(str(error)) < 1000 and str(path) in str(error)
        else:
            assert read or problems.count
    assert all(len(message) < 2100 for message in problems.messages)


def caption(text: str) -> Caption:
    return Caption(video_id="v", caption=text, split="train")


def test_a_long_caption_is_cut_and_counted():
    problems = Problems(quiet=True)
    long, short = captions_among([caption("a " * 600_000), caption("a pan")], problems)
    assert long.caption == ("a " * 600_000)[:MAX_CAPTION_CHARACTERS].rstrip() and short.caption == "a pan"
    assert dict(problems.changed) == {"longer than 20,000 characters, cut there": 1}


@pytest.mark.parametrize("text", ["(" * 3000, "x('" * 1000, "put the onion " * 1000, "the " + "$." * 200 + " pan"])
def test_words_of_a_text_without_blanks_are_found_soon(text):
    load_pipeline("en_core_web_sm")
    with in_time(MAX_SECONDS):
        (tagged,) = tag_captions([caption(text)], "en_core_web_sm")
    spans = zip(tagged.word_starts, tagged.words, strict=True)
    assert all(text[start : start + len(word)] == word for start, word in spans)
    assert "".join(tagged.words) == text.replace(" ", "")


def test_texts_are_tagged_alike_alone_and_with_long_ones():
    texts = ["the cook stirs", "a pan (hot)", "it's " * 5000, "stir the onions"]
    alone = [next(iter(tag_captions([caption(text)], "en_core_web_sm"))) for text in texts]
    assert list(tag_captions(map(caption, texts), "en_core_web_sm")) == alone
