"""Search results as files: what other programs read in them, and what ids and files cannot do."""

import csv
import dataclasses
import io
import json
import re
import shutil
import subprocess
from fractions import Fraction
from pathlib import Path
from xml.etree import ElementTree

import av
import numpy as np
import opentimelineio as otio
import pytest
from helpers.needs import needs_program
from helpers.numbered import numbered_picture, numbers_of
from helpers.planted_search import open_planted, plant
from opentimelineio.opentime import RationalTime, from_timecode, to_timecode
from vlalign.storage.common.errors import UserError
from vlalign.storage.records import VideoRecord
from vlalign.train import export_clips, export_moments
from vlalign.train.cli import search as search_command
from vlalign.train.export import timelines
from vlalign.train.export.results import results_of, safe_name
from vlalign.train.export.source_videos import SourceVideos
from vlalign.train.export.timelines import edit_clips, edit_rate
from vlalign.train.search.caption_index import NO_CURVE
from vlalign.train.search.moments import Moment

HOSTILE = "../../../x\n\r=cmd()|' --> <b>" + "y" * 300
FILM, PAL, NTSC, DOUBLE = Fraction(24000, 1001), Fraction(25), Fraction(30000, 1001), Fraction(60000, 1001)


def write_at(path: Path, rate: Fraction, timecode: str = "", num_frames: int = 200, channels: str = "") -> Path:
    """A video whose frames have their numbers; with a second of silence if it has channels of sound, such as "mono"."""
    with av.open(str(path), "w") as written:
        if timecode:
            written.metadata["timecode"] = timecode
        if channels:
            sound = written.add_stream("aac", rate=48000, layout=channels)
        video = written.add_stream("libx264", rate=rate, options={"bf": "2", "g": "24", "preset": "ultrafast"})
        video.width, video.height, video.pix_fmt = 64, 48, "yuv420p"
        for number in range(num_frames):
            written.mux(video.encode(av.VideoFrame.from_ndarray(numbered_picture(number), "rgb24")))
        written.mux(video.encode(None))
        if channels:
            silence = np.zeros((1 if channels == "mono" else 2, 48000), np.float32)
            heard = av.AudioFrame.from_ndarray(silence, "fltp", channels)
            heard.sample_rate = 48000
            written.mux(sound.encode(heard))
            written.mux(sound.encode(None))
    return path


def moment(video_id: str, start: float, end: float, **more) -> Moment:
    times = {"start_seconds": start, "end_seconds": end, "window": (start, end)}
    return Moment(video_id=video_id, score=0.5, percentile=99.0, curve=NO_CURVE, **times, **more)


@pytest.fixture
def search(tmp_path):
    root = tmp_path / "root"
    captions = {"a": [(0.0, 3.0, "a dog barks"), (3.5, 7.0, "a cat --> <meows>")], HOSTILE: [(0.0, 2.0, "=1+1")]}
    dataset = plant(root, {"a": [(4, "dog"), (4, "cat")], HOSTILE: [(8, "cat")], "gone": [(8, "sun")]}, captions)
    files = {"a": write_at(root / "a b#1.mov", NTSC, "01:00:00;00"), HOSTILE: write_at(root / "h.mp4", NTSC)}
    files["gone"] = root / "gone.mp4"
    dataset.write_videos([VideoRecord(video_id=name, path=str(path)) for name, path in files.items()])
    return open_planted(dataset)


MOMENTS = [
    moment("a", 1.0, 2.5, caption="a dog barks"),
    moment(HOSTILE, 0.5, 1.5, caption="=1+1\n--> <b>"),
    moment("a", 4.0, 5.0),
]


def exported(search, path: Path, moments=MOMENTS) -> str:
    done = export_moments(search, moments, path, query="dog")
    assert done.num_moments == len(moments) and not done.problems
    return done.paths[0].read_bytes().decode()


# Lists


def test_json_and_csv_have_all_and_run_nothing(search, tmp_path):
    found = json.loads(exported(search, tmp_path / "m.json"))
    assert [each["video_id"] for each in found["moments"]] == [each.video_id for each in MOMENTS]
    assert found["query"] == "dog" and found["moments"][0]["file"].endswith("a b#1.mov")
    rows = list(csv.DictReader(io.StringIO(exported(search, tmp_path / "m.csv").removeprefix("\ufeff"), newline="")))
    assert [float(row["start_seconds"]) for row in rows] == [1.0, 0.5, 4.0]
    assert rows[1]["caption"] == "'=1+1\n'--> <b>" and rows[1]["video_id"] == HOSTILE.replace("=cmd", "'=cmd")
    for start in "=+-@\t\r":
        text = exported(search, tmp_path / f"m{ord(start)}.csv", [moment("a", 0, 1, caption=f"{start}cmd()")])
        assert list(csv.reader(io.StringIO(text)))[1][-1] == f"'{start}cmd()"


@pytest.mark.parametrize("separator", [",", ";", "\t"])
@pytest.mark.parametrize("lead", ["", "a;", "a\t", "a\n", 'a;"', 'a\t""', "\uff1d", "4 - 3;b,"])
def test_no_cell_is_a_formula_whatever_separates_cells(search, tmp_path, separator, lead):
    path = tmp_path / "m.csv"
    text = exported(search, path, [moment("a", 0, 1, caption=f"{lead}=cmd|' /C calc'!A0")]).removeprefix("\ufeff")
    cells = [cell for row in csv.reader(io.StringIO(text, newline=""), delimiter=separator) for cell in row]
    assert not [cell for cell in cells if cell.lstrip('"')[:1] in ("=", "@", "+", "\uff1d")]


def test_no_text_is_the_times_of_a_cue(search, tmp_path):
    texts = ["a ---> b", "00:00:01,000 ----> 00:00:02,000", "x --->-> y"]
    srt = exported(search, tmp_path / "m.srt", [moment("a", n, n + 1, caption=text) for n, text in enumerate(texts)])
    assert srt.count("-->") == len(texts)
    vtt = exported(search, tmp_path / "m.vtt", [moment("a", 0, 1e308, caption="a ---> b")])
    assert vtt.count("-->") == 1


def test_a_playlist_has_a_file_and_its_part_for_each_moment(search, tmp_path):
    lines = exported(search, tmp_path / "m.m3u8").splitlines()
    assert lines[:5] == [
        "#EXTM3U", "#EXTINF:1.500,a dog barks", "#EXTVLCOPT:start-time=1.000", "#EXTVLCOPT:stop-time=2.500",
        (search.encoder.dataset.root / "a b#1.mov").as_uri(),
    ]  # fmt: skip
    assert len(lines) == 13 and lines[4].endswith("a%20b%231.mov")
    done = export_moments(search, [*MOMENTS, moment("unknown", 0, 1)], tmp_path / "n.m3u8")
    assert done.num_moments == 3 and "unknown" in done.problems[0]


def test_paths_lead_through_no_parent_folder(search, tmp_path):
    dataset, path = search.encoder.dataset, search.encoder.dataset.root / "a b#1.mov"
    dataset.write_videos([VideoRecord(video_id="a", path=str(path.parent / "films" / ".." / path.name))])
    (path.parent / "films").mkdir()
    found = json.loads(exported(search, tmp_path / "m.json", [moment("a", 1, 2)]))
    assert found["moments"][0]["file"] == str(path.resolve())
    assert path.resolve().as_uri() in exported(search, tmp_path / "m.m3u8", [moment("a", 1, 2)]).splitlines()


@needs_program
@pytest.mark.parametrize("suffix", [".vtt", ".srt"])
def test_ffmpeg_reads_chapters_and_subtitles_of_each_video(search, tmp_path, suffix):
    done = export_moments(search, MOMENTS, tmp_path / f"m{suffix}", query="the dog")
    assert [path.name[:5] for path in done.paths] == ["m-001", "m-002"] and done.paths[0].name == f"m-001-a{suffix}"
    assert all(path.parent == tmp_path and len(path.name) < 90 for path in done.paths)
    shown = []
    for path in done.paths:
        call = ["ffprobe", "-v", "error", "-show_entries", "packet=pts_time,duration_time", "-of", "json", str(path)]
        packets = json.loads(subprocess.run(call, capture_output=True, check=True).stdout)["packets"]
        shown.append([(float(each["pts_time"]), float(each["duration_time"])) for each in packets])
    assert shown == [[(1.0, 1.5), (4.0, 1.0)], [(0.5, 1.0)]]
    text = subprocess.run(
        ["ffmpeg", "-v", "error", "-i", str(done.paths[1]), "-f", "srt", "-"],
        capture_output=True,
        check=True,
        text=True,
    ).stdout
    assert re.sub(r"[^a-z0-9=+]", "", text.splitlines()[2]).startswith("=1+1b")


# Editors


KNOWN = [
    # Frames and drop-frame timecode of 30000/1001 (SMPTE ST 12-1: 2 numbers a minute are skipped, not each tenth).
    (NTSC, 0, "00:00:00;00"), (NTSC, 1799, "00:00:59;29"), (NTSC, 1800, "00:01:00;02"), (NTSC, 17981, "00:09:59;29"),
    (NTSC, 17982, "00:10:00;00"), (NTSC, 107892, "01:00:00;00"), (NTSC, 2589407, "23:59:59;29"),
    (DOUBLE, 3599, "00:00:59;59"), (DOUBLE, 3600, "00:01:00;04"), (DOUBLE, 35964, "00:10:00;00"),
    (FILM, 86400, "01:00:00:00"), (PAL, 90000, "01:00:00:00"),
]  # fmt: skip


@pytest.mark.parametrize("rate, frame, label", KNOWN)
def test_timecode_of_the_library_is_that_of_the_standard(rate, frame, label):
    """The library counts, here as in files of editors."""
    assert to_timecode(RationalTime(frame, float(rate)), float(rate)) == label
    assert from_timecode(label, float(rate)).value == frame


CASES = [
    (FILM, "", False), (FILM, "01:00:00:00", False), (PAL, "", False), (PAL, "10:20:30:24", False),
    (NTSC, "", True), (NTSC, "01:00:00;00", True), (NTSC, "00:00:59;20", True), (NTSC, "01:00:00:00", False),
    (DOUBLE, "", True), (DOUBLE, "01:00:00;00", True), (Fraction(24), "01:00:00:00", False),
]  # fmt: skip
"""Rate, timecode of the file, and whether numbers are dropped."""
PARTS = [(1.0, 2.0), (0.0, 0.5), (2.5, 3.1)]


def expected_frames(rate: Fraction, timecode: str) -> list[tuple[int, int]]:
    """(first frame, frame behind the last) of ``PARTS`` by counting, with the number of the file's first frame."""
    fields = [int(field) for field in re.split("[:;]", timecode or "0:0:0:0")]
    whole = round(rate)
    first = ((fields[0] * 60 + fields[1]) * 60 + fields[2]) * whole + fields[3]
    if ";" in timecode:
        minutes = fields[0] * 60 + fields[1]
        first -= whole // 15 * (minutes - minutes // 10)
    frames = [Fraction(number) / rate for number in range(200)]
    parts = []
    for start, end in PARTS:
        inside = [n for n, time in enumerate(frames) if time <= Fraction(start)][-1:]
        inside += [n for n, time in enumerate(frames) if n > inside[0] and time < Fraction(end)]
        parts.append((first + inside[0], first + inside[-1] + 1))
    return parts


@pytest.mark.parametrize("rate, timecode, drops", CASES)
def test_adapters_read_the_same_frames(tmp_path, rate, timecode, drops):
    dataset = plant(tmp_path / "root", {"v": [(4, "dog")]})
    path = write_at(dataset.root / "v 1.mov", rate, timecode)
    dataset.write_videos([VideoRecord(video_id="v", path=str(path))])
    search, moments = open_planted(dataset), [moment("v", start, end) for start, end in PARTS]
    for suffix in ("otio", "edl", "fcpxml"):
        assert export_moments(search, moments, tmp_path / f"m.{suffix}", query="dog").notes == []
    expected = expected_frames(rate, timecode)
    lengths = [behind - first for first, behind in expected]

    timeline = otio.adapters.read_from_file(str(tmp_path / "m.otio"))
    clips = list(timeline.find_clips())
    assert [(c.source_range.start_time.value, c.source_range.duration.value) for c in clips] == [
        (first, length) for (first, _), length in zip(expected, lengths, strict=True)
    ]
    assert all(clip.source_range.start_time.rate == float(rate) for clip in clips)
    assert clips[0].media_reference.target_url == path.as_uri() and clips[0].markers[0].name == "dog"
    assert clips[0].available_range().contains(clips[0].source_range)

    text = (tmp_path / "m.edl").read_text()
    assert f"FCM: {'DROP FRAME' if drops else 'NON-DROP FRAME'}" in text and "* FROM CLIP NAME:  v 1.mov" in text
    edl_rate = float(rate) if drops else float(round(rate))
    track = otio.adapters.read_from_string(text, "cmx_3600", rate=edl_rate).tracks[0]
    read = [(c.source_range.start_time.value, c.source_range.duration.value) for c in track.find_clips()]
    assert read == [(first, length) for (first, _), length in zip(expected, lengths, strict=True)]
    records = [line.split()[-4:] for line in text.splitlines() if line[:3].isdigit()]
    ends = np.cumsum([0, *lengths])
    for (first, behind), place, fields in zip(expected, ends.tolist(), records, strict=False):
        frames = [first, behind, place, place + behind - first]
        assert fields == [to_timecode(RationalTime(frame, edl_rate), edl_rate, drop_frame=drops) for frame in frames]
        assert all((";" in field) == drops for field in fields)

    root = ElementTree.parse(tmp_path / "m.fcpxml").getroot()
    assert Fraction(1) / ratio(root.find("resources/format").get("frameDuration")) == rate
    elements = root.findall(".//asset-clip")
    assert [(ratio(e.get("start")) * rate, ratio(e.get("duration")) * rate) for e in elements] == [
        (first, length) for (first, _), length in zip(expected, lengths, strict=True)
    ]
    assert [ratio(e.get("offset")) * rate for e in elements] == ends[:-1].tolist()
    assert {e.get("tcFormat") for e in elements} == {"DF" if drops else "NDF"}
    # The adapter counts 29.97 frames a second as 29, and cuts what is behind the point: its seconds are near.
    [event] = otio.adapters.read_from_file(str(tmp_path / "m.fcpxml"), "fcpx_xml")
    read = [c.source_range for c in event.find_clips()]
    if rate.denominator == 1:
        assert [(r.start_time.value, r.duration.value) for r in read] == [
            (first, length) for (first, _), length in zip(expected, lengths, strict=True)
        ]
    for clip, (first, _) in zip(read, expected, strict=True):
        assert clip.start_time.to_seconds() == pytest.approx(first / float(rate), abs=0.06)


def ratio(seconds: str) -> Fraction:
    return Fraction(seconds.removesuffix("s"))


def test_a_clip_of_an_editor_has_the_frames_of_an_exact_clip(search, tmp_path):
    """The first and last number in the timeline are those of the pictures."""
    with SourceVideos.of(search.encoder.dataset) as videos:
        clips, problems, _ = edit_clips(results_of(MOMENTS), videos)
    assert not problems
    done = export_clips(search, MOMENTS, tmp_path / "clips", exact=True)
    for clip, cut in zip(clips, done.clips, strict=True):
        with av.open(str(cut.path)) as opened:
            numbers = numbers_of([frame.to_ndarray(format="rgb24") for frame in opened.decode(video=0)])
        first = clip.first - clip.file_start
        assert numbers == list(range(first, first + clip.num_frames))


def test_there_is_an_edl_for_each_rate_and_way_to_count(tmp_path):
    dataset = plant(tmp_path / "root", {name: [(4, "dog")] for name in ("film", "drop", "non", "none")})
    rates = {"film": (FILM, ""), "drop": (NTSC, "01:00:00;00"), "non": (NTSC, "01:00:00:00"), "none": (NTSC, "")}
    listed = []
    for name, (rate, timecode) in rates.items():
        path = write_at(dataset.root / f"{name}.mov", rate, timecode, 60)
        listed.append(VideoRecord(video_id=name, path=str(path)))
    dataset.write_videos(listed)
    search, of = open_planted(dataset), {name: moment(name, 0.5, 1.0) for name in rates}
    done = export_moments(search, [*of.values()], tmp_path / "m.edl")
    assert done.num_moments == 4 and done.notes == [
        "an EDL has one frame rate, and is drop-frame or not: 3 EDLs were written"
    ]
    names = {path.name: re.findall(r"FROM CLIP NAME:  (\w+)", path.read_text()) for path in done.paths}
    assert names == {"m-23.976.edl": ["film"], "m-29.97df.edl": ["drop", "none"], "m-29.97.edl": ["non"]}
    for path in done.paths:
        assert ("FCM: DROP" in path.read_text()) == path.name.endswith("df.edl")
        starts = [line.split()[-2] for line in path.read_text().splitlines() if line.startswith("001 ")]
        assert starts[0].startswith("00:00:00")  # each has a record side of its own
    with pytest.raises(UserError, match=r"m-23\.976\.edl"):
        export_moments(search, [*of.values()], tmp_path / "m.edl")
    export_moments(search, [of["none"], of["non"]], tmp_path / "n.edl")
    assert "NON-DROP" in (tmp_path / "n.edl").read_text()
    with pytest.raises(UserError, match="999"):
        timelines.edl_texts([clip_of(search, of["drop"])] * 1000, "m")
    export_moments(search, [*of.values()], tmp_path / "m.fcpxml")  # the sequence has the most common rate
    root = ElementTree.parse(tmp_path / "m.fcpxml").getroot()
    assert {
        (ratio(e.get(name)) * NTSC).denominator for e in root.iter("asset-clip") for name in ("offset", "duration")
    } == {1}


def test_an_edl_takes_the_sound_that_a_video_has(tmp_path):
    channels = {"silent": "", "one": "mono", "two": "stereo"}
    dataset = plant(tmp_path / "root", {name: [(4, "dog")] for name in channels})
    files = {name: write_at(dataset.root / f"{name}.mov", PAL, channels=of) for name, of in channels.items()}
    dataset.write_videos([VideoRecord(video_id=name, path=str(path)) for name, path in files.items()])
    export_moments(open_planted(dataset), [moment(name, 0.5, 1.0) for name in channels], tmp_path / "m.edl")
    tracks = otio.adapters.read_from_file(str(tmp_path / "m.edl"), rate=25).tracks
    heard = {track.name: [clip.name for clip in track.find_clips()] for track in tracks}
    videos = [f"{name}.mov" for name in channels]
    assert heard == {"V": videos, "A1": videos[1:], "A2": videos[2:]}


def clip_of(search, one: Moment):
    with SourceVideos.of(search.encoder.dataset) as videos:
        return edit_clips(results_of([one]), videos)[0][0]


@pytest.mark.parametrize(
    "stated, shortest, longest, expected",
    [
        ((30000, 1001), 1001 / 30000, 1001 / 30000, (NTSC, True)),
        ((2997, 100), 0.033, 0.034, (NTSC, True)),
        ((24, 1), 1 / 24, 1 / 24, (Fraction(24), True)),
        ((15, 1), 1 / 15, 1 / 15, (Fraction(30), False)),
        ((10, 1), 0.1, 0.1, (Fraction(30), False)),
        ((2990, 100), 0.02, 0.06, (NTSC, False)),
        ((1, 1), 1.0, 1.0, (Fraction(24), False)),
    ],
)
def test_the_rate_at_which_editors_count(search, stated, shortest, longest, expected):
    facts = clip_of(search, MOMENTS[0]).facts
    rate = Fraction(*stated)
    facts = dataclasses.replace(facts, rate_numerator=stated[0], rate_denominator=stated[1], shortest_seconds=shortest)
    facts = dataclasses.replace(
        facts, longest_seconds=longest, num_frames=30, start_seconds=0.0, end_seconds=float(30 / rate)
    )
    assert edit_rate(facts) == expected


@pytest.mark.parametrize(
    "lie",
    [
        {"start_seconds": 0.0, "end_seconds": 5e-324, "num_frames": 1 << 50},
        {"rate_numerator": 0, "end_seconds": 9e6, "num_frames": 1},
    ],
)
def test_impossible_times_cost_one_moment(search, tmp_path, monkeypatch, lie):
    """As a decoder that was taken over says them."""
    probe = SourceVideos.probe

    def lying(self, one):
        facts = probe(self, one)
        changed = {"shortest_seconds": 1.0, "longest_seconds": 1.0, **lie}
        return dataclasses.replace(facts, **changed) if one.video_id == "a" else facts

    monkeypatch.setattr(SourceVideos, "probe", lying)
    done = export_moments(search, MOMENTS[:2], tmp_path / "m.otio", query="dog")
    assert done.num_moments == 1 and done.problems == ["moment 1, a: its frames have impossible times"]


def test_hostile_names_stay_text_in_files_of_editors(search, tmp_path):
    for suffix in ("edl", "otio", "fcpxml"):
        text = exported(search, tmp_path / f"m.{suffix}")
        assert "\ncmd()" not in text and "\n=cmd" not in text
    lines = (tmp_path / "m.edl").read_text().splitlines()
    assert all(line[:1] in "T*F0" for line in lines if line)  # no id began a line
    assert ElementTree.parse(tmp_path / "m.fcpxml").find(".//asset") is not None
    for video_id in (HOSTILE, "..", "/etc/passwd", "", "x" * 5000, "CON\0"):
        assert re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,59}", safe_name(video_id))


# Clips


@pytest.mark.parametrize("exact", [True, False])
def test_clips_have_facts_and_captions_beside_them(search, tmp_path, exact):
    done = export_clips(search, [*MOMENTS, moment("gone", 0, 1)], tmp_path / "clips", exact=exact, query="dog")
    assert len(done.clips) == 3 and len(done.problems) == 1 and "gone" in done.problems[0]
    assert all(path.parent == tmp_path / "clips" and path.is_file() for path in (tmp_path / "clips").rglob("*"))
    for clip, one in zip(done.clips, MOMENTS, strict=True):
        about = json.loads(clip.path.with_suffix(".json").read_text())
        assert about["kind"] == ("exact" if exact else "copy") == clip.kind and about["kind"] in clip.path.name
        assert (
            about["got"]["start_seconds"] == clip.start_seconds <= one.start_seconds == about["asked"]["start_seconds"]
        )
        assert f"{clip.start_seconds:.3f}s" in clip.path.name and about["video_id"] == one.video_id
        assert clip.end_seconds >= one.end_seconds - 1e-6 or exact
    last = done.clips[2]
    text = last.path.with_suffix(".srt").read_text()
    expected = max(3.5 - last.start_seconds, 0)
    start = [float(field) for field in re.split("[:,]", re.search(r"\n(\S+) -->.*\n.*meows", text)[1])]
    assert start[2] + start[3] / 1000 == pytest.approx(expected, abs=0.001)
    with pytest.raises(UserError, match="already exists"):
        export_clips(search, MOMENTS, tmp_path / "clips", exact=exact)


def test_captions_of_each_protocol_are_beside_a_clip_once(search, tmp_path):
    """A sync, for example, writes only those of a protocol."""
    usual = tmp_path / "root" / "planted" / "captions"
    shutil.copytree(usual, tmp_path / "cues")
    shutil.move(tmp_path / "cues", usual / "cues")
    [twice] = export_clips(search, MOMENTS[:1], tmp_path / "twice").clips
    for path in [*usual.iterdir()]:
        if path.is_file():
            path.unlink()
    [clip] = export_clips(search, MOMENTS[:1], tmp_path / "clips").clips
    text = clip.path.with_suffix(".srt").read_text()
    assert text.count("a dog barks") == 1 and text == twice.path.with_suffix(".srt").read_text()


def test_nothing_is_written_through_links_or_over_files(search, tmp_path):
    secret = tmp_path / "secret.json"
    secret.write_text("mine")
    (tmp_path / "m.json").symlink_to(secret)
    (tmp_path / "n.csv").write_text("old")
    for name in ("m.json", "n.csv"):
        with pytest.raises(UserError, match="already exists"):
            export_moments(search, MOMENTS, tmp_path / name)
    assert secret.read_text() == "mine" and (tmp_path / "n.csv").read_text() == "old"
    for name, words in (("m.doc", r"\.edl"), ("m", r"\.edl")):
        with pytest.raises(UserError, match=words):
            export_moments(search, MOMENTS, tmp_path / name)
    with pytest.raises(UserError, match="no moments"):
        export_moments(search, [], tmp_path / "x.json")
    shutil.move(search.encoder.dataset.root / "h.mp4", tmp_path / "h.mp4")
    (search.encoder.dataset.root / "h.mp4").symlink_to(tmp_path / "h.mp4")  # leads out of the root
    done = export_moments(search, MOMENTS, tmp_path / "m.otio")
    assert done.num_moments == 2 and "outside the folders that may be read" in done.problems[0]


def test_a_contact_sheet_has_the_frames(search, tmp_path):
    from PIL import Image

    done = export_moments(search, [*MOMENTS, moment("gone", 0, 1)], tmp_path / "m.png")
    assert len(done.problems) == 1
    sheet = np.asarray(Image.open(done.paths[0]))
    numbers = numbers_of([sheet[8:188, 48:288], sheet[8:188, 376:616], sheet[240:420, 48:288]])
    best = [one.best_seconds for one in MOMENTS]
    assert numbers == [int(seconds * 30000 / 1001 + 1e-6) for seconds in best]
    for suffix, kind in ((".jpg", "JPEG"), (".webp", "WEBP")):
        export_moments(search, MOMENTS, tmp_path / f"n{suffix}")
        assert Image.open(tmp_path / f"n{suffix}").format == kind
    with pytest.raises(UserError, match="200"):
        export_moments(search, MOMENTS * 80, tmp_path / "k.png")


# The command


def test_the_command_exports_what_it_shows(search, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(search_command, "source_of", lambda args: None)
    from vlalign.train.search.search import Search

    monkeypatch.setattr(Search, "open", lambda source: search)
    files = [str(tmp_path / name) for name in ("m.json", "m.edl")]
    call = ["dog", "--features", "clip_vit_b32", "--by", "video", "--num-results", "1", "--json"]
    exports = [word for file in files for word in ("--export", file)]
    assert search_command.main([*call, *exports, "--clips", str(tmp_path / "c"), "--exact"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["moments"][0]["video_id"] == "a"
    assert err.count("wrote") == 3 and "exact" in err and len(list((tmp_path / "c").glob("*.mp4"))) == 1
    assert search_command.main([*call, *exports]) == 2 and "already exists" in capsys.readouterr().err
    assert search_command.main([*call, "--exact"]) == 2 and "--clips" in capsys.readouterr().err
    assert search_command.main([*call, "--export", "m.doc"]) == 2 and ".fcpxml" in capsys.readouterr().err
    (search.encoder.dataset.root / "a b#1.mov").unlink()
    assert search_command.main([*call, "--clips", str(tmp_path / "d")]) == 1
    assert "not exported" in capsys.readouterr().err
