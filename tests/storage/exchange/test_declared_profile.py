"""What users state: profiles and durations."""

import math
import re
from dataclasses import replace

import pytest
from helpers.feature_files import PROFILE, declared
from vlalign.storage.common.errors import UserError
from vlalign.storage.exchange.declared_profile import declare, read_declared, read_durations
from vlalign.storage.exchange.published_features import PUBLISHED
from vlalign.storage.profiles import PROFILES


def read_profile(text: str):
    return declare(read_declared(text, PUBLISHED)).profile(1)


def test_a_profile_is_given_by_name_or_file(tmp_path):
    assert read_profile("s3d") == PROFILES["s3d"] and read_profile("i3d") == PROFILES["i3d_resnext101"]
    assert read_profile(str(declared(tmp_path))) == PROFILE
    assert read_profile(str(declared(tmp_path, fps=4.0, mean=[0, 0, 0]))).hash == PROFILE.hash
    assert read_profile(str(declared(tmp_path, fps=None, crop_px=None, short_side_px=0))) == replace(
        PROFILE, fps=None, crop_px=None, short_side_px=0
    )
    assert read_profile(str(declared(tmp_path, fps=1 / 0.96))).fps == 1 / 0.96


@pytest.mark.parametrize(
    "changes, complaint",
    [
        ({"frames": 3}, "field 'frames' is "),
        ({"fps": "24"}, "field 'fps' is \"24\""),
        ({"fps": 0}, "field 'fps' is 0"),
        ({"fps": math.inf}, "field 'fps' is Infinity"),
        ({"fps": True}, "field 'fps' is true"),
        ({"window": 1.5}, "field 'window' is 1.5"),
        ({"dimension": -1}, "field 'dimension' is -1"),
        ({"crop_px": "centre"}, "field 'crop_px' is \"centre\""),
        ({"mean": [1, 2]}, "field 'mean' is [1, 2]"),
        ({"layer": None}, "field 'layer' is null"),
        ({"unknown": "window"}, "field 'unknown' is \"window\""),
        ({"unknown": ["dimension"]}, "field 'unknown' is [\"dimension\"]"),
        ({"name": "../up"}, "field 'name' is \"../up\""),
    ],
)
def test_a_wrong_field_is_named(tmp_path, changes, complaint):
    path = declared(tmp_path, **changes)
    with pytest.raises(UserError) as refused:
        read_profile(str(path))
    assert str(refused.value).startswith(f"{path}: ") and complaint in str(refused.value)


def test_all_wrong_fields_are_named_at_once(tmp_path):
    with pytest.raises(UserError) as refused:
        read_profile(str(declared(tmp_path, fps=0, window=0, layer=None, frames=3)))
    assert "\n" not in str(refused.value)
    assert all(f"field {name!r} is " in str(refused.value) for name in ("fps", "window", "layer", "frames"))


@pytest.mark.parametrize("text", ["", "{", "[1]", "[" * 100_000, '"\ud800"', "null"])
def test_a_profile_that_is_no_object_is_refused(tmp_path, text):
    (tmp_path / "profile.json").write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.raises(UserError, match=rf"{re.escape(str(tmp_path / 'profile.json'))}: .* JSON ") as refused:
        read_profile(str(tmp_path / "profile.json"))
    assert "\n" not in str(refused.value)
    with pytest.raises(UserError, match=r"'nothing'.* resnet152, "):
        read_profile("nothing")


@pytest.mark.parametrize(
    "text",
    [
        "video_id,seconds\nx,1.5\ny,2\n",
        "\ufeffvideo_id,seconds\r\nx,1.5\r\n\r\ny,2\r\n",
        "seconds,title,video_id\n1.5,T,x\n2,,y",
    ],
    ids=["plain", "of a spreadsheet", "more columns"],
)
def test_durations_are_read(tmp_path, text):
    (tmp_path / "d.csv").write_text(text, encoding="utf-8", newline="")
    assert read_durations(tmp_path / "d.csv") == {"x": 1.5, "y": 2.0}


@pytest.mark.parametrize(
    "content, named",
    [
        (b"", ["video_id,seconds"]),
        (b"x,1.5\n", [" x,1.5;", "video_id,seconds"]),
        (b"video_id,seconds\nx,1\ny,long\nz\n,3\nx,2\n", ["line 3 (y,long), 4 (z,None), 5 (,3), 6 (x,2): "]),
        (b"video_id,seconds\nx,-1\nx,0\nx,nan\nx,inf\nx,a\nx,b\n", ["6 (x,a) ", " 1 "]),
        (b"video_id,seconds\n\xff,1\n", ["0xff"]),
        (b'video_id,seconds\n"x,1\n', ["unexpected end of data"]),
    ],
)
def test_invalid_durations_are_refused_with_their_lines(tmp_path, content, named):
    (tmp_path / "d.csv").write_bytes(content)
    with pytest.raises(UserError) as refused:
        read_durations(tmp_path / "d.csv")
    assert str(tmp_path / "d.csv") in str(refused.value) and all(each in str(refused.value) for each in named)
    with pytest.raises(UserError, match=r"none\.csv: "):
        read_durations(tmp_path / "none.csv")
