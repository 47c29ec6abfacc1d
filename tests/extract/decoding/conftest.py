"""Fixtures that the tests of decoding share."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from helpers.decoding import ZOO_SIDE, Ended, ask, want
from helpers.numbered import constant, moving_picture, numbered_picture
from helpers.odd_videos import write_source
from vlalign.extract import load_extractor
from vlalign.extract.decoding.process import DecodeProcess
from vlalign.extract.extractor import Extractor


@pytest.fixture(scope="module")
def with_sound(tmp_path_factory) -> Path:
    return constant(tmp_path_factory.mktemp("sound") / "sound.mp4", 60, "25", sound_seconds=2.4)


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    return write_source(tmp_path_factory.mktemp("source") / "source.rgb", numbered_picture)


@pytest.fixture(scope="module")
def process() -> Iterator[DecodeProcess]:
    """One for many tests: none of them may end it, and what went before must not matter."""
    process = DecodeProcess()
    yield process
    assert process.usable
    process.close()


@pytest.fixture(scope="module")
def zoo(process, zoo_folder) -> Callable[[str], Ended]:
    """What came of a file of the zoo. One child decodes all of them, one after the other."""
    ended = {}

    def look_up(name: str) -> Ended:
        if not ended:
            for path in sorted(p for p in zoo_folder.iterdir() if p.is_file()):
                ended[path.name] = ask(process, path, want(24, ZOO_SIDE))
                assert process.usable, f"{path.name} ended the child"
        return ended[name]

    return look_up


@pytest.fixture(scope="module")
def undamaged(tmp_path_factory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("undamaged")
    how = {
        "mp4": {"container_options": {"movflags": "faststart"}},
        "mkv": {"container": "matroska"},
        "ts": {"container": "mpegts"},
        "webm": {"container": "webm", "codec": "libvpx-vp9"},
        "m4v": {"codec": "mpeg4"},
    }
    return {
        name: constant(folder / f"whole.{name}", 96, 24, picture=moving_picture, g="24", **how[name]) for name in how
    }


@pytest.fixture(scope="module")
def logmel() -> Extractor:
    return load_extractor("logmel")
