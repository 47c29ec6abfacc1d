"""Moments for video editors: a timeline of clips, one after the other, as OpenTimelineIO, EDL or FCPXML.

A clip has the frames from the one shown at the moment's start up to, but without, the one shown at its end. Editors
count frames from the timecode of the file's first frame, at a constant rate:

    file at 25 frames a second that begins at 01:00:00:00, moment 2.5 s to 4 s  ->  01:00:02:12 to 01:00:04:00

A rate is a ratio, such as 24000/1001 for "23.976". Timecode of 29.97 and 59.94 may be drop-frame (SMPTE ST 12-1):
it is written as in the file, or, if the file states no timecode, as editors count, which is drop-frame.
"""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from ...storage.common.errors import UserError
from ...storage.common.packages import missing_package_message
from ...storage.common.progress import progress
from ..search.moments import moment_values
from .results import Result, safe_name
from .source_videos import SourceError, SourceVideos
from .text_files import problem_of

if TYPE_CHECKING:
    from opentimelineio.schema import Clip, Timeline

    from ...extract.decoding.span import SpanProbed

NTSC = Fraction(1000, 1001)
STANDARD_RATES = (24 * NTSC, *map(Fraction, (24, 25)), 30 * NTSC, *map(Fraction, (30, 48, 50)), 60 * NTSC, Fraction(60))
"""Frames a second for which there is timecode."""
DROPPING_RATES = (30 * NTSC, 60 * NTSC)
SAME_RATE, NEAR_RATE = 0.0004, 0.003
"""Largest relative differences of two rates that are the same; 24 and 24000/1001 differ by 0.001. If a file's times are
in milliseconds, the rate computed from them is only near the true one."""
STEP_SECONDS = 0.0025
"""Frames of a constant rate may differ in duration by this much: times are often in milliseconds."""
TIMECODE = re.compile(r"\d\d:\d\d:\d\d[:;.]\d\d")
MAX_EVENTS = 999
"""Maximum number of events of an EDL: its numbers have three digits."""
EDL_EVENT = re.compile(r"^(\d{3}  \S+ +)V +C", re.MULTILINE)
EDL_CHANNELS = {0: "V", 1: "B", 2: "AA/V"}
"""{number of sound channels: channels of an EDL event}. B: video and the first channel; AA/V: video and the first two.
"""
REEL_CHARACTERS = 8
MAX_CLIP_NAME_CHARACTERS = 80


@dataclass(frozen=True)
class EditClip:
    """A moment as a clip of a timeline."""

    result: Result
    name: str
    """Name of the file, in one line."""
    url: str
    rate: Fraction
    """Frames a second of the file, as editors count them."""
    drops: bool | None
    """Whether the timecode is drop-frame; None if the file states no timecode, or has a rate without drop-frame."""
    file_start: int
    """Number of the file's first frame by its timecode."""
    num_file_frames: int
    first: int
    """Number of the first frame by the file's timecode."""
    num_frames: int
    best: int
    """Number of the frame of the best second, counted as ``first``."""
    facts: "SpanProbed"


def edit_clips(results: Sequence[Result], videos: SourceVideos) -> tuple[list[EditClip], list[str], list[str]]:
    """Return (clips of the moments, reasons for missing ones, notes on the others).

    Args:
        results: The moments.
        videos: Their files, which are probed.
    """
    clips: list[EditClip] = []
    problems, notes = [], {}
    for each in progress(results, total=len(results), what="reading times of frames", unit="moments"):
        try:
            clip, note = _edit_clip(each, videos)
        except SourceError as error:
            problems.append(problem_of(each, error))
            continue
        except ArithmeticError:  # the rate and the times from the decoder give no number
            problems.append(problem_of(each, SourceError("its frames have impossible times")))
            continue
        clips.append(clip)
        if note:
            notes.setdefault(each.moment.video_id, f"{each.moment.video_id}: {note}")
    return clips, problems, list(notes.values())


def _edit_clip(result: Result, videos: SourceVideos) -> tuple[EditClip, str]:
    from opentimelineio import opentime

    moment, facts = result.moment, videos.probe(result.moment)
    rate, is_exact = edit_rate(facts)
    note = (
        ""
        if is_exact
        else f"its frame rate is not constant, or unknown to editors; its times are counted at {shown_rate(rate)}"
    )
    file_start, drops = 0, None if rate in DROPPING_RATES else False
    if TIMECODE.fullmatch(facts.timecode):
        label = facts.timecode.replace(".", ";")
        try:
            file_start = int(opentime.from_timecode(label, float(rate)).value)
            drops = ";" in label and rate in DROPPING_RATES
        except ValueError:
            note = f"its timecode {facts.timecode} does not exist at {shown_rate(rate)}; its frames are counted from 0"
    first = max(round(Fraction(facts.start_seconds - facts.zero_seconds) * rate), 0)
    num_frames = max(round(Fraction(facts.end_seconds - facts.start_seconds) * rate), 1)
    best = first + int((moment.best_seconds - facts.start_seconds) * float(rate) + 1e-6)
    name = videos.file_name(moment.video_id).rpartition("/")[2] or moment.video_id
    length = max(round(Fraction(facts.duration_seconds - facts.zero_seconds) * rate), first + num_frames)
    return (
        EditClip(
            result=result,
            name="".join(c if c.isprintable() else "_" for c in name)[:MAX_CLIP_NAME_CHARACTERS],
            url=videos.url(moment.video_id),
            rate=rate,
            drops=drops,
            file_start=file_start,
            num_file_frames=length,
            first=file_start + first,
            num_frames=num_frames,
            best=file_start + min(max(best, first), first + num_frames - 1),
            facts=facts,
        ),
        note,
    )


def edit_rate(facts: "SpanProbed") -> tuple[Fraction, bool]:
    """Return the rate at which editors count a file's frames, and whether all of its frames are at that rate.

    A constant rate without timecode is counted at the lowest rate with timecode that is a multiple of it (15 at 30).
    If there is none, or the rate is variable, the nearest rate with timecode is taken.
    """
    stated = Fraction(facts.rate_numerator, facts.rate_denominator or 1)
    is_constant = facts.longest_seconds - facts.shortest_seconds <= STEP_SECONDS
    seen = Fraction(facts.num_frames / (facts.end_seconds - facts.start_seconds)).limit_denominator(100_000)
    for rate, allowed in ((stated, SAME_RATE), (seen, NEAR_RATE)):
        near = _nearest(rate or seen)
        if is_constant and abs(near / (rate or seen) - 1) <= allowed:
            return near, True
    rate = stated or seen
    if is_constant:
        for standard in STANDARD_RATES:
            if standard > rate and abs(standard / rate - round(standard / rate)) <= SAME_RATE:
                return standard, False
    return _nearest(rate), False


def _nearest(rate: Fraction) -> Fraction:
    return min(STANDARD_RATES, key=lambda standard: abs(standard - rate))


def shown_rate(rate: Fraction) -> str:
    """Return a rate as editors name it.

    >>> shown_rate(Fraction(24000, 1001)), shown_rate(Fraction(25))
    ('23.976 frames a second', '25 frames a second')
    """
    return f"{_number(rate)} frames a second"


def _number(rate: Fraction) -> str:
    return f"{float(rate):.3f}".rstrip("0").rstrip(".")


def require_editors() -> None:
    """Raise ``UserError`` if a package of the extra ``editors`` is missing."""
    for name in ("opentimelineio", "otio_cmx3600_adapter"):
        if find_spec(name) is None:
            raise UserError(str(missing_package_message(ModuleNotFoundError(name=name))))


def timeline_of(clips: Sequence[EditClip], name: str) -> "Timeline":
    """Return a timeline of OpenTimelineIO: one track of video with the clips, one after the other.

    Each has its rate, its file with the timecode, and a marker with its label at the best second.
    """
    from opentimelineio import schema

    timeline = schema.Timeline(name=name)
    track = schema.Track(name="moments", kind=schema.TrackKind.Video)
    track.extend([_otio_clip(clip, float(clip.rate)) for clip in clips])
    timeline.tracks.append(track)
    return timeline


def _otio_clip(clip: EditClip, rate: float) -> "Clip":
    from opentimelineio import opentime, schema

    def span(first: int, count: int) -> opentime.TimeRange:
        return opentime.TimeRange(opentime.RationalTime(first, rate), opentime.RationalTime(count, rate))

    moment = clip.result.moment
    marker = schema.Marker(name=clip.result.label, marked_range=span(clip.best, 1), color=schema.MarkerColor.GREEN)
    return schema.Clip(
        name=clip.name,
        source_range=span(clip.first, clip.num_frames),
        media_reference=schema.ExternalReference(clip.url, span(clip.file_start, clip.num_file_frames)),
        markers=[marker],
        metadata={"vlalign": {name: value for name, value in moment_values(moment).items() if name != "window"}},
    )


def otio_text(clips: Sequence[EditClip], name: str) -> str:
    """Return clips as a file of OpenTimelineIO."""
    return timeline_of(clips, name).to_json_string(indent=2) + "\n"


def edl_texts(clips: Sequence[EditClip], name: str) -> dict[str, str]:
    """Return clips as CMX3600 EDLs, one for each rate and counting: {text added to the file's name: content}.

    An EDL has one rate, and timecode that is drop-frame or not. Its record side begins at 00:00:00:00. Reels have
    eight characters: the start of the file's name and a number. Each clip's comments have the whole name and the
    address of the file. Markers (LOC) have record times. A video's sound is included: its first channel, or the first
    two.

    Raises:
        UserError: There are too many clips for an EDL.
    """
    groups: dict[tuple[Fraction, bool], list[EditClip]] = {}
    for clip in clips:
        stated = {each.drops for each in clips if each.rate == clip.rate} - {None}
        drops = clip.rate in DROPPING_RATES and (stated != {False} if clip.drops is None else clip.drops)
        groups.setdefault((clip.rate, drops), []).append(clip)
    if len(groups) == 1:
        [((rate, drops), _)] = groups.items()
        return {"": _edl_text(clips, name, rate, drops)}
    return {
        f"-{_number(rate)}{'df' if drops else ''}": _edl_text(of_rate, name, rate, drops)
        for (rate, drops), of_rate in groups.items()
    }


def _edl_text(clips: Sequence[EditClip], name: str, exact_rate: Fraction, drops: bool) -> str:
    from opentimelineio import adapters, opentime, schema

    if len(clips) > MAX_EVENTS:
        raise UserError(
            f"an EDL has at most {MAX_EVENTS} events, got {len(clips):,}; export .otio or .fcpxml, or fewer events"
        )
    # OpenTimelineIO writes drop-frame at each rate that has it. Non-drop-frame numbers are those of the whole rate:
    # 30 for 29.97.
    rate = float(exact_rate) if drops else float(round(exact_rate))
    timeline = schema.Timeline(name=name)
    track = schema.Track(name="moments", kind=schema.TrackKind.Video)
    reels, record = _reels(clips), 0
    for clip in clips:
        made = _otio_clip(clip, rate)
        made.metadata["cmx_3600"] = {"reel": reels[clip.url]}
        made.markers[0].marked_range = opentime.TimeRange(
            opentime.RationalTime(record + clip.best - clip.first, rate), opentime.RationalTime(1, rate)
        )
        track.append(made)
        record += clip.num_frames
    timeline.tracks.append(track)
    text = adapters.write_to_string(timeline, "cmx_3600", rate=rate)
    sounds = iter([EDL_CHANNELS[min(clip.facts.num_channels, 2)] for clip in clips])
    text = EDL_EVENT.sub(lambda event: f"{event[1]}{next(sounds):6}C", text)  # the adapter writes pictures only
    title, _, events = text.partition("\n\n")
    return f"{title}\nFCM: {'DROP FRAME' if drops else 'NON-DROP FRAME'}\n\n{events}"


def _reels(clips: Sequence[EditClip]) -> dict[str, str]:
    """Return {address of a file: its reel}: letters of its name, and a number if other reels would be the same."""
    reels: dict[str, str] = {}
    for clip in clips:
        if clip.url in reels:
            continue
        start = re.sub(r"[^A-Z0-9]", "", safe_name(clip.name).upper()) or "VIDEO"
        reel, number = start[:REEL_CHARACTERS], 1
        while reel in reels.values():
            number += 1
            reel = f"{start[: REEL_CHARACTERS - len(str(number))]}{number}"
        reels[clip.url] = reel
    return reels


# FCPXML. OpenTimelineIO's adapter writes rounded rates, and starts ffprobe on each video, which may come from a
# stranger: so it is written here, and that adapter reads it in tests.


def fcpxml_text(clips: Sequence[EditClip], name: str) -> str:
    """Return clips as FCPXML 1.8: a library with an event and a project.

    The project's sequence has the frame rate that most clips have. All times are whole frames, as ratios of seconds.
    Where a clip has another rate, its place in the sequence is in frames of the sequence, as Final Cut Pro wants it.
    """
    root = ElementTree.Element("fcpxml", version="1.8")
    resources = ElementTree.SubElement(root, "resources")
    formats: dict[tuple[Any, ...], str] = {}
    rate = Counter(clip.rate for clip in clips).most_common(1)[0][0]
    leading = next(clip for clip in clips if clip.rate == rate)
    main_format = _format(resources, formats, leading)
    assets = _assets(resources, formats, clips)
    event = ElementTree.SubElement(ElementTree.SubElement(root, "library"), "event", name=_xml(name))
    project = ElementTree.SubElement(event, "project", name=_xml(name))
    drops = rate in DROPPING_RATES and all(clip.drops is not False for clip in clips if clip.rate == rate)
    sequence = ElementTree.SubElement(project, "sequence", format=main_format, tcStart="0s", tcFormat=_counting(drops))
    spine = ElementTree.SubElement(sequence, "spine")
    place = 0
    for clip in clips:
        num_frames = max(round(clip.num_frames / clip.rate * rate), 1)
        element = ElementTree.SubElement(
            spine,
            "asset-clip",
            ref=assets[clip.url],
            name=_xml(clip.name),
            offset=_seconds(place, rate),
            start=_seconds(clip.first, clip.rate),
            duration=_seconds(num_frames, rate),
            format=_format(resources, formats, clip),
            tcFormat=_counting(bool(clip.drops if clip.drops is not None else clip.rate in DROPPING_RATES)),
        )
        ElementTree.SubElement(element, "note").text = _xml(clip.result.label)
        ElementTree.SubElement(
            element,
            "marker",
            start=_seconds(clip.best, clip.rate),
            duration=_seconds(1, clip.rate),
            value=_xml(clip.result.label),
        )
        place += num_frames
    sequence.set("duration", _seconds(place, rate))
    ElementTree.indent(root, "    ")
    text = ElementTree.tostring(root, encoding="unicode")
    return f'<?xml version="1.0" encoding="UTF-8"?>\n<!DOCTYPE fcpxml>\n{text}\n'


def _assets(
    resources: ElementTree.Element, formats: dict[tuple[Any, ...], str], clips: Sequence[EditClip]
) -> dict[str, str]:
    """Add the files; return {address: id}."""
    assets: dict[str, str] = {}
    for clip in clips:
        if clip.url in assets:
            continue
        assets[clip.url] = f"a{len(assets) + 1}"
        about = {
            "id": assets[clip.url],
            "name": _xml(clip.name),
            "src": clip.url,
            "start": _seconds(clip.file_start, clip.rate),
            "duration": _seconds(clip.num_file_frames, clip.rate),
            "hasVideo": "1",
            "format": _format(resources, formats, clip),
        }
        if clip.facts.num_channels:
            sound = {"hasAudio": "1", "audioSources": "1", "audioChannels": str(clip.facts.num_channels)}
            about |= sound | {"audioRate": str(clip.facts.sample_rate)}
        ElementTree.SubElement(resources, "asset", about)
    return assets


def _format(resources: ElementTree.Element, formats: dict[tuple[Any, ...], str], clip: EditClip) -> str:
    """Return the id of a clip's format, which is added if it is new."""
    key = clip.rate, clip.facts.width, clip.facts.height
    if key not in formats:
        formats[key] = f"r{len(formats) + 1}"
        about = {"id": formats[key], "frameDuration": _seconds(1, clip.rate)}
        about |= {"width": str(clip.facts.width), "height": str(clip.facts.height)}
        resources.insert(len(formats) - 1, ElementTree.Element("format", about))
    return formats[key]


def _seconds(frames: int, rate: Fraction) -> str:
    """Return the time of some frames as FCPXML writes it.

    >>> _seconds(48, Fraction(24000, 1001)), _seconds(0, Fraction(25))
    ('48048/24000s', '0s')
    """
    return f"{frames * rate.denominator}/{rate.numerator}s" if frames else "0s"


def _counting(drops: bool) -> str:
    return "DF" if drops else "NDF"


def _xml(text: str) -> str:
    """Return a text without the characters that XML cannot have."""
    return "".join(c if c.isprintable() else "_" for c in text)
