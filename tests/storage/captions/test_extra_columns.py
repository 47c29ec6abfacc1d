"""Columns of a user's own in caption tables: numbers as written, and tables without them as they always were."""

import math
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from vlalign.preprocess.parts import input_bytes
from vlalign.storage import Caption, read_captions
from vlalign.storage.captions import files
from vlalign.storage.captions.table import TENSOR_TYPES
from vlalign.storage.common.errors import UserError
from vlalign.storage.common.tensor_files import TensorFile

pytestmark = pytest.mark.portable

PLAIN = [Caption(video_id="v", caption=f"c{number}", split="train") for number in range(5)]
RATED = [
    replace(PLAIN[0], extra={"rating": 0.5, "Größe ": 3.0}),
    PLAIN[1],
    replace(PLAIN[2], extra={"Größe ": -1.0}),
    replace(PLAIN[3], extra={"late": 7.25}),
    replace(PLAIN[4], extra={"rating": 4.0}),
]
COLUMNS = ["rating", "Größe ", "late"]


def write(folder, captions, columns):
    files.write_part(folder, 0, captions[:3], {})
    files.write_part(folder, 1, captions[3:], {})
    files.write_captions_about(folder, {files.EXTRA_COLUMNS: columns} if columns else {})


def test_numbers_are_read_as_written_whatever_columns_a_part_has(tmp_path):
    write(tmp_path, RATED, COLUMNS)
    for table in (read_captions(tmp_path), files.caption_table(RATED)):
        assert list(table) == RATED
        assert list(table.take([4, 0]).whole.take([3, 2])) == [RATED[3], RATED[2]]
        for name in COLUMNS:
            expected = [caption.extra.get(name, math.nan) for caption in RATED]
            np.testing.assert_array_equal(table.extra_numbers(name), expected)
            np.testing.assert_array_equal(table.take([3, 1, 0]).extra_numbers(name), [expected[i] for i in (3, 1, 0)])
    of_first = pq.read_table(files.part_path(tmp_path, 0))
    assert of_first["extra.rating"].to_pylist() == [0.5, None, None] and "extra.late" not in of_first.column_names


def test_a_table_without_columns_of_ones_own_is_as_it_always_was(tmp_path):
    write(tmp_path, PLAIN, [])
    assert list(read_captions(tmp_path)) == PLAIN
    assert pq.read_schema(files.part_path(tmp_path, 0)).names == files.CAPTION_SCHEMA.names
    TensorFile(tmp_path / files.CACHE_NAME, TENSOR_TYPES, files.CACHE_FORMAT, "", "")  # has these tensors only
    # As version 1.0 hashed it: another hash would tag all captions again.
    assert input_bytes(PLAIN[0]) == b'["v", "c0", "train", null, null, null, null, null, null, null]'
    assert len({input_bytes(replace(PLAIN[0], query="1", saliency=[score])) for score in (0, 4)}) == 2


def test_a_change_of_a_number_alone_changes_what_a_part_is_known_by():
    known = [input_bytes(replace(PLAIN[0], extra=extra)) for extra in ({}, {"a": 1.0}, {"a": 2.0}, {"b": 1.0})]
    assert len(set(known)) == 4


@pytest.mark.parametrize("extra", [{"": 1.0}, {"a": math.inf}, {"a": "1"}, {"a": True}, {"half \ud800": 1.0}])
def test_what_is_no_number_with_a_name_is_refused(extra):
    with pytest.raises(ValueError, match=r"number|text"):
        replace(PLAIN[0], extra=extra)


def infinite(folder):
    part = pq.read_table(files.part_path(folder, 0))
    place = part.column_names.index("extra.rating")
    numbers = pa.array([math.inf, 0.0, 0.0])
    pq.write_table(part.set_column(place, "extra.rating", numbers), files.part_path(folder, 0))


def textual(folder):
    part = pq.read_table(files.part_path(folder, 0))
    place = part.column_names.index("extra.rating")
    pq.write_table(part.set_column(place, "extra.rating", pa.array(["a"] * 3)), files.part_path(folder, 0))


def twice(folder):
    files.write_captions_about(folder, {files.EXTRA_COLUMNS: ["rating", "rating"]})


def too_many(folder):
    """A cache whose tensor has no number for each column of each caption."""
    read_captions(folder)
    path = folder / files.CACHE_NAME
    path.write_bytes(path.read_bytes().replace(b'"shape": [15]', b'"shape": [14]'))


@pytest.mark.parametrize(
    ("damage", "named"), [(infinite, "inf"), (textual, "part-00000"), (twice, "about.json"), (too_many, None)]
)
def test_damage_is_refused_or_repaired(tmp_path, damage, named):
    write(tmp_path, RATED, COLUMNS)
    damage(tmp_path)
    if named is None:
        assert list(read_captions(tmp_path)) == RATED
        return
    with pytest.raises(UserError, match=named):
        list(read_captions(tmp_path))
