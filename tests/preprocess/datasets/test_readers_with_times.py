"""What the readers of captions with times have in common."""

import json

import pytest
from helpers.annotation_files import GOOD_FILES
from helpers.readers import (
    captions_of,
    refused,
    write,
)
from vlalign.preprocess.datasets import activitynet, coin, crosstask, howto100m, youcook2

READERS = {
    "activitynet": activitynet,
    "coin": coin,
    "crosstask": crosstask,
    "howto100m": howto100m,
    "youcook2": youcook2,
}


EVERY_READER = pytest.mark.parametrize("name", READERS)


@EVERY_READER
def test_files_can_be_in_subfolders_and_have_a_byte_order_mark(tmp_path, name):
    for path, content in GOOD_FILES[name].items():
        text = content if isinstance(content, str) else json.dumps(content)
        write(tmp_path / "as" / "unpacked", {path: text.encode("utf-8-sig")})
    captions, problems = captions_of(READERS[name], tmp_path)
    assert captions and problems.count == 0


@EVERY_READER
def test_missing_files_are_listed_with_their_sources(tmp_path, name):
    message = refused(READERS[name], tmp_path)
    for file in GOOD_FILES[name]:
        file = file.split("/")[0]
        assert f"{file} ({READERS[name].DATASET.published[file]})" in message
    assert "--annotations" in message


@EVERY_READER
def test_damaged_files_are_rejected_in_one_line(tmp_path, name):
    """Each file in turn: another encoding, truncated, or another structure."""
    for number, (path, content) in enumerate(GOOD_FILES[name].items()):
        whole = content if isinstance(content, str) else json.dumps(content)
        for wrong in (
            "caf\xe9 \xff".encode("latin-1"),
            *(
                []
                if path.endswith((".csv", ".txt"))
                else (b"", whole[: len(whole) // 2], "[1, 2]", '{"a": 5}', '{"a": {"b": []}}', "3")
            ),
            *((whole.strip()[:-1].rsplit(",", 1)[0],) if path.endswith(".csv") else ()),
        ):
            folder = write(tmp_path / f"{number}-{hash(wrong)}", GOOD_FILES[name] | {path: wrong})
            message = refused(READERS[name], folder)
            assert message.startswith(str(folder / path)) and len(message) > len(f"{folder / path}: "), message
