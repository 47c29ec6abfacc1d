"""Small Parquet files that would unpack to gigabytes: each is refused, and what is honest is read as Arrow reads it."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from vlalign.preprocess.datasets import custom
from vlalign.storage.captions.files import read_table
from vlalign.storage.captions.idf import read_idf
from vlalign.storage.common.errors import UserError
from vlalign.storage.common.problems import Problems
from vlalign.storage.exchange.readers import source_videos
from vlalign.storage.untrusted.parquet import ParquetReader

MB = 1 << 20
MOST_BYTES = 100 * MB
POOLS: list[pa.MemoryPool] = []
"""What was read may still be in them."""


def repeated(text: str, times: int) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(times, np.int32)), pa.array([text]))


def write(path: Path, columns: dict, **options: object) -> None:
    usual = {"use_dictionary": True, "compression": "zstd", "store_schema": False, "dictionary_pagesize_limit": 4 * MB}
    pq.write_table(pa.table(columns), path, row_group_size=1 << 30, **usual | options)


def of_equal_rows(path: Path) -> None:
    write(path, {"video_id": repeated("v", 10**7), "caption": repeated("c", 10**7)})


def of_equal_numbers(path: Path) -> None:
    rows = pa.FixedSizeListArray.from_arrays(pa.array(np.zeros(3 * 10**7, np.float32)), 300)
    write(path, {"video_id": repeated("v", 10**5), "caption": repeated("c", 10**5), "embedding": rows})


def of_a_million_numbers_that_says_two(path: Path) -> None:
    """One row has all numbers of a page; the last block of the file says that there are two."""
    rows = pa.ListArray.from_arrays(pa.array([0, 4 * 10**7], pa.int32()), pa.array(np.zeros(4 * 10**7, np.float32)))
    write(
        path, {"video_id": ["v"], "caption": ["c"], "embedding": rows}, data_page_size=1 << 30, write_batch_size=1 << 30
    )
    content = path.read_bytes()
    many, two = b"\x80\xe8\x92\x26", b"\x84\x80\x80\x00"  # zigzag varints of as many bytes
    last = content.rindex(many)
    path.write_bytes(content[:last] + two + content[last + 4 :])


BOMBS: dict[str, Callable[[Path], None]] = {
    "one text of 1 MB for 3,000 rows": lambda path: write(
        path, {"video_id": repeated("v", 3000), "caption": repeated("x" * MB, 3000)}
    ),
    "a list of 3,000 times the same text": lambda path: write(
        path,
        {
            "video_id": ["v"],
            "caption": ["c"],
            "words": pa.ListArray.from_arrays(pa.array([0, 3000], pa.int32()), repeated("x" * MB, 3000)),
        },
    ),
    "texts that repeat the one before": lambda path: write(
        path,
        {"video_id": ["v"] * 100, "caption": ["x" * MB] * 100},
        use_dictionary=False,
        column_encoding={"video_id": "PLAIN", "caption": "DELTA_BYTE_ARRAY"},
    ),
    "a page that unpacks to 100 MB": lambda path: write(
        path, {"video_id": ["v"], "caption": ["x" * 100 * MB]}, use_dictionary=False
    ),
    "a column of categories": lambda path: write(
        path, {"video_id": repeated("v", 3000), "caption": repeated("x" * MB, 3000)}, store_schema=True
    ),
    "texts in a structure": lambda path: write(
        path,
        {
            "video_id": ["v"] * 200,
            "caption": ["c"] * 200,
            "extra": pa.StructArray.from_arrays([pa.array(["x" * MB] * 200)], ["a"]),
        },
    ),
    "equal rows": of_equal_rows,
    "equal numbers": of_equal_numbers,
    "more numbers than it says": of_a_million_numbers_that_says_two,
}


def refusal(read: Callable[[], object]) -> str:
    """Return why a file is refused, after Arrow took little memory."""
    before = pa.default_memory_pool()
    POOLS.append(pool := pa.proxy_memory_pool(before))
    pa.set_memory_pool(pool)
    try:
        with pytest.raises(UserError) as caught:
            read()
    finally:
        pa.set_memory_pool(before)
    assert (pool.max_memory() or 0) < MOST_BYTES
    return str(caught.value)


@pytest.mark.parametrize("bomb", BOMBS)
def test_a_small_table_takes_little_memory(tmp_path, bomb):
    path = tmp_path / "a.parquet"
    BOMBS[bomb](path)
    assert path.stat().st_size < MB / 2
    line = refusal(lambda: list(custom.read(path, 0, Problems(quiet=True))))
    assert str(path) in line and f"{path.stat().st_size:,}" in line and len(line) < 300


def test_small_features_take_little_memory(tmp_path):
    path = tmp_path / "a.parquet"
    rows = pa.FixedSizeListArray.from_arrays(pa.array(np.zeros(6000, np.float32)), 2)
    write(path, {"video_id": repeated("x" * MB, 3000), "embedding": rows})

    def read() -> None:
        with source_videos(path) as videos:
            videos[0].read()

    assert f"{path.stat().st_size:,}" in refusal(read)
    rows = pa.FixedSizeListArray.from_arrays(pa.array(np.zeros(6 * 10**7, np.float32)), 6 * 10**4)
    write(path, {"video_id": repeated("v", 1000), "embedding": rows})
    assert "column 'embedding'" in refusal(read)


def test_a_small_table_of_words_takes_little_memory(tmp_path):
    path = tmp_path / "idf.parquet"
    word, tag, number = repeated("w", 10**6), repeated("NOUN", 10**6), pa.array(np.ones(10**6, np.int64))
    write(path, {"word": word, "part_of_speech": tag, "document_count": number, "idf": number.cast("float64")})
    assert "its 1,000,000 rows" in refusal(lambda: read_idf(path))


def test_columns_that_lie_over_each_other_are_refused(tmp_path):
    path = tmp_path / "a.parquet"
    write(path, {name: ["x" * 100] * 100 for name in "abc"}, use_dictionary=False, compression="none")
    with ParquetReader(path) as file:
        row_group = file.metadata.row_group(0)
        offsets = [row_group.column(index).data_page_offset for index in range(3)]
    content = path.read_bytes()
    head, last = content[: offsets[2]], content[offsets[2] :]

    def varint(value: int) -> bytes:
        value *= 2
        return (
            bytes([value & 127 | 128, value >> 7 & 127 | 128, value >> 14])
            if value >> 14
            else bytes([value & 127 | 128, value >> 7])
        )

    for offset in offsets[1:]:
        place = varint(offset)
        last = last.replace(place, varint(offsets[0]).ljust(len(place), b"\x00")[: len(place)])
    path.write_bytes(head + last)
    with pytest.raises(UserError, match=r"a\.parquet"):
        read_table(path, list("abc"))


KINDS = {
    "texts": pa.array(["a", None, "", "ü" * 50] * 50),
    "long texts": pa.array(["a", None, "", "b"] * 50, pa.large_string()),
    "bytes": pa.array([b"a", None, b"", b"b"] * 50),
    "categories": pa.array(["a", None, "", "b"] * 50).dictionary_encode(),
    "lists of texts": pa.array([["a", None], None, [], ["b"]] * 50),
    "long lists": pa.array([["a", None], None, [], ["b"]] * 50, pa.large_list(pa.string())),
    "lists of lists": pa.array([[["a"], []], None, [], [["b"]]] * 50),
    "numbers": pa.array([1, None, 3, 4] * 50),
    "lists of numbers": pa.array([[1.5], None, [], [2.5, 3]] * 50),
    "rows": pa.FixedSizeListArray.from_arrays(pa.array(np.arange(400, dtype=np.float16)), 2),
    "structures": pa.array([{"a": "x", "b": [1]}, None, {"a": None, "b": None}, {}] * 50),
    "maps": pa.array([[("a", "b")], None, [], [("c", None)]] * 50, pa.map_(pa.string(), pa.string())),
    "truths": pa.array([True, None, False, True] * 50),
    "decimals": pa.array([1, None, 3, 4] * 50, pa.decimal128(20, 2)),
    "moments": pa.array([1, None, 3, 4] * 50, pa.timestamp("ns")),
}


def test_lists_of_which_only_the_first_texts_stand_in_the_dictionary(tmp_path):
    """Arrow cannot read these as dictionaries."""
    words = pa.array([[f"word {number}", "x" * (number % 50)] for number in range(5000)])
    pq.write_table(
        pa.table({"a": words}), tmp_path / "a.parquet", dictionary_pagesize_limit=1 << 12, data_page_size=512
    )
    with ParquetReader(tmp_path / "a.parquet") as file:
        assert file.read(["a"]).column(0).to_pylist() == words.to_pylist()
    long = pa.array(["x" * 100_000]).take(pa.array(np.zeros(1000, int)))
    texts = pa.concat_arrays([long, pa.array(map(str, range(60_000)))])
    words = pa.ListArray.from_arrays(pa.array([0, 1000, 61_000], pa.int32()), texts)
    write(tmp_path / "a.parquet", {"a": words}, dictionary_pagesize_limit=110_000, data_page_size=512)
    line = refusal(lambda: read_table(tmp_path / "a.parquet", ["a"]))
    assert f"{(tmp_path / 'a.parquet').stat().st_size:,}" in line


@pytest.mark.parametrize("options", [{}, {"data_page_version": "2.0", "data_page_size": 64, "use_dictionary": False}])
@pytest.mark.parametrize("kind", KINDS)
def test_an_honest_file_is_read_as_arrow_reads_it(tmp_path, kind, options):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"a": KINDS[kind], "b": range(200)}), path, row_group_size=90, **options)
    with ParquetReader(path) as file:
        assert file.read(["a", "b"]).to_pydict() == pq.ParquetFile(path).read().to_pydict()
        assert file.read(["a"], [1]).to_pydict() == pq.ParquetFile(path).read_row_group(1, columns=["a"]).to_pydict()
