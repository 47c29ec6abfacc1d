"""Find subtitle files and the video of each."""

import os
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from ....storage.common.errors import UserError
from ....storage.common.files import check_regular
from ....storage.common.problems import Problems
from ....storage.common.terminal import number_of
from ....storage.dataset.folder import DatasetFolder
from ....storage.dataset.trusted_folders import how_to_allow, outside_of_folders
from ....storage.records import VideoRecord
from ..custom.ids import MEDIA_SUFFIXES, match_ids
from ..encodings import Note

SUFFIXES = (".json", ".vtt", ".srt", ".ttml", ".dfxp")
"""In order of preference: Whisper and WhisperX write the first three, and JSON has the exact times."""
OTHER_SUFFIXES = (".ass", ".ssa", ".sub", ".sbv", ".smi", ".lrc", ".stl")
"""Subtitle formats that are not read. The ffmpeg program converts most of them to SubRip."""
LANGUAGE = re.compile(r"(?P<name>.+)\.(?P<language>[a-z]{2,3}(?:-[A-Za-z0-9]+)*)", re.DOTALL)
"""A name such as ``cooking.en`` or ``cooking.pt-BR``."""


@dataclass(frozen=True)
class SubtitleFile:
    """A file of subtitles."""

    path: Path
    video_id: str
    language: str
    """The language in its name, such as "en"; empty if there is none."""

    def rank(self, wanted: str | None) -> tuple[int, str, int, str]:
        """Return the order of preference: the file of a video with the lowest rank is read.

        Args:
            wanted: The language that comes first. Next come files without a language, then English ones, then others.
        """
        code = self.language.split("-")[0]
        first = 0 if wanted and code == wanted else 1 if not code else 2 if code == "en" else 3
        return first, self.language, SUFFIXES.index(self.path.suffix.lower()), str(self.path)


def find_files(
    annotations: Path, videos: Sequence[VideoRecord], wanted: str | None, problems: Problems, note: Note
) -> list[list[SubtitleFile]]:
    """Return the files of each video in order of preference, the videos in the order of their ids.

    Args:
        annotations: A file, or a folder that is searched recursively. Hidden files and folders are skipped.
        videos: Known videos; empty if none is known yet.
        wanted: The language that is preferred, such as "de".
        problems: Receives entries that are named like subtitles but are not files.
        note: Reports what is not read, with counts.

    Raises:
        UserError: There is no such file.
    """
    check_regular(annotations)
    if annotations.is_dir():
        paths = _below(annotations, problems, note)
        names = [path.relative_to(annotations).with_suffix("").as_posix() for path in paths]
        if not paths:
            known = f"{', '.join(SUFFIXES[:3])} files, or TTML"
            raise UserError(f"{annotations}: no subtitles in this folder; expected {known}")
    else:
        paths, names = [annotations], [annotations.stem]
    names = [unicodedata.normalize("NFC", name) for name in names]  # as the ids of videos are
    of_video: dict[str, list[SubtitleFile]] = {}
    for path, (video_id, language) in zip(paths, video_ids(names, videos), strict=True):
        of_video.setdefault(video_id, []).append(SubtitleFile(path, video_id, language))
    return [sorted(of_video[video_id], key=lambda file: file.rank(wanted)) for video_id in sorted(of_video)]


def find_beside(
    dataset: DatasetFolder, videos: Sequence[VideoRecord], wanted: str | None, problems: Problems
) -> list[list[SubtitleFile]]:
    """Return the subtitle files beside videos, as ``find_files`` does, but matched by file names instead of ids.

    A file belongs to the video of the same name, with or without the video's suffix and a language: ``onion.srt``,
    ``onion.en.vtt`` and ``onion.mp4.json`` to ``onion.mp4``. Hidden files are skipped.

    Args:
        dataset: The data set of the videos.
        videos: Its videos; videos on servers are skipped.
        wanted: The language that is preferred, such as "de".
        problems: Receives links to files that the data set may not read, and entries that are named like subtitles but
            are not files.
    """
    in_folder: dict[Path, dict[str, str]] = defaultdict(dict)
    for video in videos:
        if not video.url:
            path = dataset.video_path(video)
            in_folder[path.parent] |= {_composed(path.name): video.video_id}
    of_video: dict[str, list[SubtitleFile]] = defaultdict(list)
    for folder, id_of_file in in_folder.items():
        id_of = {os.path.splitext(name)[0]: video_id for name, video_id in reversed(id_of_file.items())} | id_of_file
        for path in _named_as_subtitles(folder):
            name = _composed(path.stem)
            match = LANGUAGE.fullmatch(name)
            language = ""
            if name not in id_of and match is not None:
                name, language = match["name"], match["language"]
            if name in id_of:
                if os.path.isfile(path):
                    of_video[id_of[name]].append(SubtitleFile(path, id_of[name], language))
                elif os.path.exists(path) and not os.path.isdir(path):
                    problems.add(f"{path}: {_kind_of(path)}, expected a file of subtitles; skipped")
    outside = _outside(dataset, [file.path for files in of_video.values() for file in files], problems)
    inside = {
        video_id: [file for file in files if str(file.path) not in outside] for video_id, files in of_video.items()
    }
    return [sorted(files, key=lambda file: file.rank(wanted)) for _, files in sorted(inside.items()) if files]


def _outside(dataset: DatasetFolder, paths: Sequence[Path], problems: Problems) -> Collection[str]:
    """Return the files that the data set may not read: links to untrusted folders; report them in one line."""
    outside = outside_of_folders(dataset, [VideoRecord(video_id=str(path), path=str(path)) for path in paths])
    if outside:
        path, real_path = next(iter(outside.items()))
        problems.add(
            f"{number_of(len(outside), 'subtitle files')} outside of the trusted folders skipped, such as {path} "
            f"(a link to {real_path}); if you trust these links, {how_to_allow(map(os.path.dirname, outside.values()))}"
        )
    return outside


def _composed(name: str) -> str:
    return unicodedata.normalize("NFC", name)


def _named_as_subtitles(folder: Path) -> list[Path]:
    """Return the files of a folder that are named like subtitles; empty if the folder cannot be listed."""
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for entry in entries if entry.name.lower().endswith(SUFFIXES)]
    except OSError:
        return []
    return [folder / name for name in sorted(names) if not name.startswith(".") and name.isprintable()]


def _below(folder: Path, problems: Problems, note: Note) -> list[Path]:
    paths: list[Path] = []
    num_skipped: Counter[str] = Counter()
    for parent, folders, names in os.walk(folder):
        num_skipped["linked folders"] += sum(Path(parent, name).is_symlink() for name in folders)
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for path in (Path(parent, name) for name in sorted(names)):
            suffix = path.suffix.lower()
            if suffix in OTHER_SUFFIXES:
                num_skipped[f"{suffix} files"] += 1
            elif suffix not in SUFFIXES:
                continue
            elif path.name.startswith("."):
                num_skipped["hidden files"] += 1
            elif path.is_file():
                paths.append(path)
            else:
                problems.add(f"{path}: {_kind_of(path)}, expected a file of subtitles; skipped")
    if counts := [number_of(count, what) for what, count in num_skipped.items() if count]:
        formats = ", ".join((*SUFFIXES[1:], SUFFIXES[0]))
        note(f"not read: {', '.join(counts)}; expected {formats} in the folder itself or below")
    return paths


def _kind_of(path: Path) -> str:
    return "a broken link" if path.is_symlink() and not path.exists() else "a pipe, a socket or a device"


def video_ids(names: Sequence[str], videos: Sequence[VideoRecord]) -> list[tuple[str, str]]:
    """Return (video id, language) for names of files without their suffix.

    The end of a name is read as a language if the rest is a known video, or, if no videos are known, if it has the form
    of a language.

    Args:
        names: Paths inside the folder, such as "kitchen/onion.en".
        videos: Known videos; empty if none is known yet.
    """
    matches = [LANGUAGE.fullmatch(name) for name in names]
    shorter = [match["name"] if match else "" for match in matches]
    known = {video.video_id for video in videos}
    matched = match_ids([*names, *filter(None, shorter)], videos) if videos else {}
    result = []
    for name, match, short in zip(names, matches, shorter, strict=True):
        is_whole = name in known or name in matched
        if match is None or is_whole:
            result.append((matched.get(name, name), ""))
            continue
        is_short = short in known or short in matched if videos else f".{match['language']}" not in MEDIA_SUFFIXES
        result.append((matched.get(short, short), match["language"]) if is_short else (name, ""))
    return result
