"""Subtitles: every notation is read to the same cues, and what is odd about a file is treated or said in a line."""

import json
import os
import re

import pytest
from vlalign.preprocess.caption_source import choose_source
from vlalign.preprocess.datasets import custom, howto100m, subtitles
from vlalign.preprocess.datasets.subtitles.cues import plain, read_cues
from vlalign.preprocess.datasets.subtitles.files import video_ids
from vlalign.preprocess.settings import PreprocessingSettings
from vlalign.storage import Caption, VideoRecord
from vlalign.storage.captions.transcripts import Transcript, TranscriptSegment, TranscriptStore
from vlalign.storage.common.errors import UserError
from vlalign.storage.common.problems import Problems
from vlalign.storage.dataset.folder import DatasetFolder

SRT = """1
00:00:01,000 --> 00:00:02,500
<i>Put the dough</i>
into the oven &amp; wait.

2
00:00:02,000 --> 00:00:04,000 X1:10 X2:20
{\\an8}- How hot? 1 < 2

3
100:00:00,5 --> 100:00:01,250
Much later
"""
VTT = """WEBVTT Kind: captions
Language: en

STYLE
::cue { color: red }

NOTE 00:00:00.000 is where it begins

first
00:01.000 --> 00:02.500 align:start position:0%
<v Anna>Put<00:00:01.500><c> the</c><00:00:01.800><c.yellow> dough</c>
into the oven &amp; wait.

00:02.000 --> 00:04.000
- How hot? 1 &lt; 2

100:00:00.500 --> 100:00:01.250
Much later
"""
SEGMENTS = [
    {"id": 0, "start": 1.0, "end": 2.5, "text": " Put the dough into the oven & wait.", "words": [{"word": "Put"}]},
    {"id": 1, "start": 2.0, "end": 4.0, "text": " - How hot? 1 < 2"},
    {"id": 2, "start": 360000.5, "end": 360001.25, "text": " Much later"},
]
CUES = [
    (1.0, 2.5, "Put the dough into the oven & wait."),
    (2.0, 4.0, "- How hot? 1 < 2"),
    (360000.5, 360001.25, "Much later"),
]
YOUTUBE = """WEBVTT
Kind: captions
Language: en

00:00:00.160 --> 00:00:02.070 align:start position:0%
 
so<00:00:00.399><c> today</c><00:00:00.640><c> we</c>

00:00:02.070 --> 00:00:02.080 align:start position:0%
so today we
 

00:00:02.080 --> 00:00:04.150 align:start position:0%
so today we
bake<00:00:02.399><c> bread</c>

00:00:04.150 --> 00:00:04.160 align:start position:0%
bake bread
 

00:00:04.160 --> 00:00:06.000 align:start position:0%
bake bread
in<00:00:04.399><c> the</c><00:00:05.000><c> oven</c>
"""


def read(path, protocol="cues", videos=()):
    problems = Problems()
    captions = list(subtitles.read(path, protocol, 0, problems, videos))
    return [(c.start_seconds, c.end_seconds, c.caption) for c in captions], problems, captions


def write(folder, name, content, encoding="utf-8"):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode(encoding))
    return path


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("onion.srt", SRT),
        ("onion.SRT", SRT.replace("\n", "\r\n")),
        ("onion.vtt", VTT),
        ("onion.json", json.dumps({"text": "...", "segments": SEGMENTS, "language": "en"})),
        ("onion.json", json.dumps({"segments": SEGMENTS, "word_segments": [{"word": "Put"}]})),
    ],
    ids=["SubRip", "SubRip of Windows", "WebVTT", "Whisper", "WhisperX"],
)
def test_all_notations_give_the_same_cues(tmp_path, name, content):
    cues, problems, captions = read(write(tmp_path, name, content))
    assert cues == CUES
    assert {caption.video_id for caption in captions} == {"onion"}
    assert problems.count == 0


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "cp1252"])
def test_encodings(tmp_path, encoding):
    content = "1\n00:00:01,000 --> 00:00:02,000\nDer Käse schmilzt im Öfchen\n"
    assert read(write(tmp_path, "a.srt", content, encoding))[0] == [(1.0, 2.0, "Der Käse schmilzt im Öfchen")]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("<i>a</i> <b>b</b>", "a b"),
        ("<font color='#ff0000'>red</font>", "red"),
        ("a < b and c > d", "a < b and c > d"),
        ("I <3 you", "I <3 you"),
        ("<00:01.500>late<c.x>r</c>", "later"),
        ("{\\an8}{curly}", "{curly}"),
        ("\u200etom &amp;  jerry\u202c", "tom & jerry"),
        ("&lt;i&gt;", "<i>"),
    ],
)
def test_tags_are_removed_and_nothing_else(line, words):
    assert plain(line) == words


def test_rolling_captions_are_read_once_with_their_own_times(tmp_path, capsys):
    cues, problems, _ = read(write(tmp_path, "y.en.vtt", YOUTUBE))
    assert cues == [(0.16, 2.07, "so today we"), (2.08, 4.15, "bake bread"), (4.16, 6.0, "in the oven")]
    assert problems.count == 0


def test_somebody_who_says_something_twice_is_heard_twice(tmp_path):
    times = ["00:00:01,000 --> 00:00:02,000", "00:00:02,000 --> 00:00:03,000", "00:00:03,000 --> 00:00:04,000"]
    words = ["No.", "No.", "Never."]
    content = "\n\n".join(f"{i}\n{t}\n{w}" for i, (t, w) in enumerate(zip(times, words, strict=True), 1))
    assert [text for _, _, text in read(write(tmp_path, "a.srt", content))[0]] == words


@pytest.mark.parametrize(
    ("lines", "kept", "place_and_value"),
    [
        (["00:00:03,000 --> 00:00:01,000", "back"], [], "line 2: .* 3 .* 1 s"),
        (["00:00:03,000 --> 00:00:03,000", "never"], [], "line 2: .* 3 .* 3 s"),
        (["-00:00:03,000 --> -00:00:01,000", "before"], [], "line 2: .* -3 .* -1 s"),
        (["-00:00:01,000 --> 00:00:01,000", "cut"], [(0.0, 1.0, "cut")], None),
        (["00:61:01,000 --> 00:62:01,000", "minutes"], [], r"line 2: .* 61 .*\b60\b"),
        (["00:00:0x,000 --> 00:00:01,000", "letters"], [], "line 2: '00:00:0x,000 --> 00:00:01,000' "),
        (["00:00:01,000 --> 00:00:02,000", "<i></i>", " "], [], None),
        (["00:00:01,000 --> 00:00:02,000", "a --> b"], [(1.0, 2.0, "a --> b")], None),
        (["00:00:01,000 --> 00:00:02,000", "one", "", "two"], [(1.0, 2.0, "one two")], None),
        (["00:00:01,000 --> 00:00:02,000", "year", "1984"], [(1.0, 2.0, "year 1984")], None),
    ],
)
def test_odd_cues(tmp_path, lines, kept, place_and_value):
    good = "00:00:10,000 --> 00:00:11,000\ngood\n"
    for content in ("\n".join(["1", *lines, "", "2", good]), "\n".join(["1", *lines]) + "\n\n2\n" + good):
        cues, problems, _ = read(write(tmp_path, "a.srt", content))
        assert cues == [*kept, (10.0, 11.0, "good")]
        assert problems.count == (place_and_value is not None)
        assert place_and_value is None or re.search(place_and_value, problems.messages[0])


def test_numbers_of_cues_are_not_words_even_without_blank_lines():
    content = "1\n00:00:01,000 --> 00:00:02,000\none\n2\n00:00:02,000 --> 00:00:03,000\ntwo"
    assert [cue.text for cue in read_cues(content, lambda *_: None)] == ["one", "two"]


@pytest.mark.parametrize(
    ("name", "content", "value"),
    [
        ("a.srt", "not subtitles at all\n", " 00:00:01,000 --> 00:00:02,500"),
        ("a.srt", b"PK\x03\x04....", " Excel "),
        ("a.vtt", "", " 00:00:01,000 --> 00:00:02,500"),
        ("a.srt", b"\x00\x01\x02\x00" * 30, " 60 "),
    ],
)
def test_wrong_files_in_a_folder_are_left_out_with_a_line(tmp_path, name, content, value):
    write(tmp_path, name, content)
    write(tmp_path, "good.srt", SRT)
    cues, problems, _ = read(tmp_path)
    assert cues == CUES
    assert problems.count == 1
    assert f"{name}: " in problems.messages[0] and value in problems.messages[0]


def test_a_wrong_json_file_alone_is_an_error_and_in_a_folder_a_note(tmp_path, caplog):
    path = write(tmp_path, "clip.info.json", '{"title": "onion"}')
    with pytest.raises(UserError, match=r"clip\.info\.json: .*'segments'.*\.jsonl"):
        read(path)
    write(tmp_path, "good.srt", SRT)
    with caplog.at_level("INFO", logger="vlalign"):
        cues, problems, _ = read(tmp_path)
    assert cues == CUES
    assert problems.count == 0
    [note] = [record.getMessage() for record in caplog.records if "clip.info.json" in record.getMessage()]
    assert note.startswith("note: ") and " 1 .json " in note


@pytest.mark.parametrize(
    "segment",
    [{"start": "NaN", "end": 2, "text": "a"}, {"end": 2, "text": "a"}, {"start": 1, "end": 2, "text": 3}, 7],
)
def test_segments_that_cannot_be_used_are_left_out(tmp_path, segment):
    cues, problems, _ = read(write(tmp_path, "a.json", json.dumps({"segments": [segment, *SEGMENTS]})))
    assert cues == CUES
    assert problems.count == 1
    assert "segment 1" in problems.messages[0]


def test_half_of_a_surrogate_pair_is_left_out(tmp_path):
    content = json.dumps({"segments": [{"start": 1, "end": 2, "text": "\ud83d"}, *SEGMENTS]})
    cues, problems, _ = read(write(tmp_path, "a.json", content))
    assert cues == CUES
    assert problems.count == 1


def test_names_give_videos_and_languages():
    assert video_ids(["a", "a.en", "b.pt-BR", "c.mp4", "d.part"], []) == [
        ("a", ""),
        ("a", "en"),
        ("b", "pt-BR"),
        ("c.mp4", ""),
        ("d.part", ""),
    ]
    videos = [VideoRecord(video_id=name, path=f"/v/{name}.mp4") for name in ("k/onion", "dr.no", "a")]
    assert video_ids(["onion.en", "dr.no", "a.mp4", "a.mp4.de", "other.fr"], videos) == [
        ("k/onion", "en"),
        ("dr.no", ""),
        ("a", ""),
        ("a", "de"),
        ("other.fr", ""),
    ]


def test_one_file_of_a_video_is_read_and_the_others_are_named(tmp_path, caplog):
    for name in ("on.de.srt", "on.en.srt", "on.en.vtt"):
        write(tmp_path, name, f"WEBVTT\n\n00:01.000 --> 00:02.000\n{name}\n")
    write(tmp_path, "._on.srt", SRT)
    with caplog.at_level("INFO", logger="vlalign"):
        cues, _, _ = read(tmp_path)
    assert cues == [(1.0, 2.0, "on.en.vtt")]
    assert re.search(r" 1 video .*on\.en\.vtt .*on\.en\.srt, on\.de\.srt", caplog.text)


def test_what_is_not_read_in_a_folder_is_named_or_counted(tmp_path, caplog):
    write(tmp_path, "a.srt", SRT)
    for name in ("b.ass", "c.ASS", "d.sub", ".hidden.srt", "film.mp4", "notes.txt"):
        write(tmp_path, name, "x")
    os.mkfifo(tmp_path / "pipe.srt")
    (tmp_path / "gone.vtt").symlink_to("nowhere")
    (tmp_path / "linked").symlink_to(tmp_path)
    with caplog.at_level("INFO", logger="vlalign"):
        cues, problems, _ = read(tmp_path)
    assert cues == CUES and problems.count == 2
    for what in ("2 .ass files", "1 .sub file;", "1 hidden file", "1 linked folder,"):
        assert what in caplog.text
    assert "pipe.srt" in problems.messages[1] and "gone.vtt" in problems.messages[0]


def test_protocols_shape_clips_as_howto100m_does(tmp_path):
    path = write(tmp_path, "onion.srt", SRT)
    clips = [howto100m.TimedText(*cue) for cue in CUES]
    assert read(path, "extended")[0] == [tuple(clip) for clip in howto100m.extend(clips)]
    assert read(path, "merged")[0] == [tuple(clip) for clip in howto100m.merge(clips)]


def test_videos_get_splits_as_captions_without_splits_do(tmp_path):
    for number in range(30):
        write(tmp_path, f"v{number}.srt", SRT)
    _, _, captions = read(tmp_path)
    splits = custom.split_videos(sorted({caption.video_id for caption in captions}), 0)
    assert [caption.split for caption in captions] == [splits[caption.video_id] for caption in captions]
    assert sorted(splits.values()).count("test") == 3


def test_a_folder_without_subtitles_says_what_was_expected(tmp_path):
    with pytest.raises(UserError, match=rf"{re.escape(str(tmp_path))}: .*\.json, \.vtt, \.srt"):
        read(tmp_path)


def test_subtitles_asked_for_by_protocol_stand_beside_other_captions(tmp_path):
    folder = tmp_path / "subtitles"
    write(folder, "v.srt", SRT)
    beside = choose_source(PreprocessingSettings(tmp_path / "mine", folder, protocol="merged"))
    assert beside.dataset == DatasetFolder(tmp_path, "mine", "merged")
    alone = choose_source(PreprocessingSettings(tmp_path / "mine", folder))
    assert alone.dataset == DatasetFolder(tmp_path, "mine")
    assert alone.provenance.to_json() == {"seed": 0, "protocol": "cues", "speech": True}
    first = next(alone.chunks.split(Problems())).content[0]
    assert first == Caption(
        video_id="v", caption=CUES[0][2], split="train", start_seconds=CUES[0][0], end_seconds=CUES[0][1]
    )
    with pytest.raises(UserError, match=r"all: .*cues, extended, merged"):
        choose_source(PreprocessingSettings(tmp_path / "mine", folder, protocol="all"))


TTML = """<?xml version="1.0"{declared}?>
<tt xmlns="http://www.w3.org/ns/ttml" xmlns:ttp="http://www.w3.org/ns/ttml#parameter" xmlns:tts="x"
    ttp:frameRate="25" ttp:tickRate="1000" xml:lang="de"><head><metadata>no cue</metadata></head>
<body begin="10s"><div>
<p begin="00:00:01.500" end="00:00:02:05">Der <span tts:color="red">Käse</span><br/>
   schmilzt &amp; tropft</p>
<p begin="3s" dur="500ms"/>
<p begin="4000t" end="5s">x</p><p begin="99x">kaputt</p>
<p><span begin="6s" end="7s">eins</span> <span begin="7s" end="8s">zwei</span></p>
<p begin="9s">ohne Ende</p>
</div></body></tt>
"""
TTML_CUES = [(11.5, 12.2, "Der Käse schmilzt & tropft"), (14.0, 15.0, "x"), (16.0, 17.0, "eins"), (17.0, 18.0, "zwei")]


@pytest.mark.parametrize("suffix", ["ttml", "dfxp", "TTML"])
@pytest.mark.parametrize(
    ("encoding", "declared"),
    [
        ("utf-8", ""),
        ("utf-8-sig", ' encoding="utf-8"'),
        ("utf-16", ' encoding="utf-16"'),
        ("utf-16-le", ""),
        ("cp1252", ""),
        ("latin-1", ' encoding="ISO-8859-1"'),
        ("cp437", ' encoding="cp437"'),
        ("utf-8", ' encoding="no-such"'),
    ],
)
def test_ttml_is_read_in_the_encoding_that_it_declares_or_has(tmp_path, suffix, encoding, declared):
    content = TTML.format(declared=declared)
    cues, problems, _ = read(write(tmp_path, f"a.{suffix}", content, encoding))
    assert [(round(start, 6), round(end, 6), text) for start, end, text in cues] == TTML_CUES
    assert problems.count == 2 and "99x" in problems.messages[0] and f"a.{suffix}" in problems.messages[1]


@pytest.mark.parametrize(
    "content",
    [
        "<tt><body>",
        "no xml",
        '<!DOCTYPE tt [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;">]><tt><body><p begin="0s" end="1s">&b;</p></body></tt>',
        "<a>" * 100_000,
    ],
)
def test_other_files_named_as_ttml_are_left_out_with_a_line(tmp_path, content):
    write(tmp_path, "a.ttml", content)
    write(tmp_path, "b.ttml", '<tt><body><p begin="0s" end="1s">x</p></body></tt>')
    cues, problems, _ = read(tmp_path)
    assert cues == [(0.0, 1.0, "x")] and problems.count == 1 and "a.ttml" in problems.messages[0]


def test_deep_elements_of_ttml_are_left_out(tmp_path):
    inner = '<p begin="0s" end="1s">x</p>'
    deep = "<div>" * 200_000 + inner + "</div>" * 200_000
    cues, problems, _ = read(write(tmp_path, "a.ttml", f"<tt><body>{inner}{deep}</body></tt>"))
    assert cues == [(0.0, 1.0, "x")] and problems.count == 1 and "a.ttml, div: " in problems.messages[0]


@pytest.mark.parametrize("name", ["a.srt", "a.vtt", "a.ttml"])
@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-be"])
def test_marks_of_writing_direction_are_no_words(tmp_path, name, encoding):
    line = "\u200f\u202bאדם חותך\u202c \u2067בצל\u2069\u061c"
    content = f"1\n00:00:01,000 --> 00:00:02,000\n{line}\n"
    if name == "a.vtt":
        content = f"WEBVTT\n\n00:01.000 --> 00:02.000\n{line}\n"
    if name == "a.ttml":
        content = f'<tt><body><p begin="1s" end="2s">{line}</p></body></tt>'
    assert read(write(tmp_path, name, content, encoding))[0] == [(1.0, 2.0, "אדם חותך בצל")]


def test_of_several_files_the_one_in_the_language_asked_for_is_read(tmp_path):
    for name, text in {"a.srt": "plain", "a.en.srt": "English", "a.de-AT.vtt": "deutsch", "b.en.srt": "only"}.items():
        head = "WEBVTT\n\n" if name.endswith("vtt") else ""
        write(tmp_path, name, f"{head}00:00:01.000 --> 00:00:02.000\n{text}\n")

    def texts(language):
        return [c.caption for c in subtitles.read(tmp_path, "cues", 0, Problems(), [], language)]

    assert texts("de") == ["deutsch", "only"] and texts(None) == ["plain", "only"] == texts("fr")


def test_subtitles_beside_videos_are_found_by_the_names_of_the_files(tmp_path):
    dataset = DatasetFolder(tmp_path, "mine")
    names = ["one/a.mp4", "one/b.webm", "two/a.mp4", "two/é.mp4"]
    videos = [VideoRecord(video_id=f"id {n}", path=str(tmp_path / name)) for n, name in enumerate(names)]
    videos.append(VideoRecord(video_id="far", path="https://example.org/a.mp4"))
    videos.append(VideoRecord(video_id="gone", path=str(tmp_path / "none" / "a.mp4")))
    found = ["one/a.srt", "one/a.en.vtt", "one/b.webm.json", "two/a.de.SRT", "two/e\u0301.srt"]
    for name in (*found, "one/.a.srt", "one/c.srt", "one/a.ass", "two/b.srt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    (tmp_path / "one" / "b.srt").symlink_to("b.srt")
    (tmp_path / "one" / "b.vtt").mkdir()
    problems = Problems()
    of_video = subtitles.find_beside(dataset, videos, None, problems)
    assert {files[0].video_id: [str(file.path.relative_to(tmp_path)) for file in files] for files in of_video} == {
        "id 0": ["one/a.srt", "one/a.en.vtt"],
        "id 1": ["one/b.webm.json"],
        "id 2": ["two/a.de.SRT"],
        "id 3": ["two/e\u0301.srt"],
    }
    [first, *_] = subtitles.find_beside(dataset, videos, "en", problems)
    assert first[0].path.name == "a.en.vtt" and not problems.count


def test_a_correction_without_segments_takes_all_text_of_a_transcript_away(tmp_path, capsys):
    dataset = DatasetFolder(tmp_path, "mine")
    files = dataset.path / "files"
    files.mkdir(parents=True)
    ids = ("music", "talk")
    for video_id in ids:
        (files / f"{video_id}.mp4").touch()
    dataset.write_videos([VideoRecord(video_id=video_id, path=f"files/{video_id}.mp4") for video_id in ids])
    said = "Thanks for watching."
    segments = [TranscriptSegment(1.0, 2.0, said, 0.9)]
    store = TranscriptStore(dataset.transcripts)
    for video_id in ids:
        about = {"source": "12-ab", "model": "0123456789abcdef", "duration_seconds": 3.0}
        store.add(Transcript(video_id=video_id, segments=segments, **about))

    def captions() -> list[tuple[str, str]]:
        problems = Problems()
        found = [(c.video_id, c.caption) for c in subtitles.read_beside(dataset, "cues", 0, problems)]
        assert problems.count == 0
        return found

    assert captions() == [("music", said), ("talk", said)]
    (files / "music.json").write_text(json.dumps({"segments": []}))
    assert captions() == [("talk", said)] and "music.json: no segments in it" in capsys.readouterr().err
    (files / "music.srt").write_text(SRT)  # another file with text is read
    assert ("music", "Much later") in captions()
