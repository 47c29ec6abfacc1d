"""Tables of results in each format; hostile texts stay texts."""

import csv
import io
import statistics

import pytest
from vlalign.train.comparison.table import (
    FORMATS,
    Column,
    Number,
    ResultsTable,
    as_csv,
    as_latex,
    as_markdown,
    as_text,
    mean_of,
)

COLUMNS = (Column("run", is_text=True), Column("R@1"), Column("clips"), Column("detail", only_in_csv=True))
TABLE = ResultsTable(
    COLUMNS,
    (
        ("a", Number(31.55, 1.25), 1200, "x"),
        ("longer", Number(-2.0, is_difference=True), None, "y"),
    ),
    ("a note",),
)


def test_text_is_aligned():
    assert as_text(TABLE).splitlines() == [
        "run            R@1  clips",
        "a       31.6 ± 1.2  1,200",
        "longer        -2.0      -",
        "note: a note",
    ]


def test_csv_has_all_digits_and_a_column_for_the_deviation():
    rows = list(csv.reader(io.StringIO(as_csv(TABLE))))
    assert rows == [
        ["run", "R@1", "R@1 deviation", "clips", "detail"],
        ["a", "31.55", "1.25", "1200", "x"],
        ["longer", "-2.0", "", "", "y"],
    ]


def test_markdown_and_latex():
    assert as_markdown(TABLE).splitlines()[1:3] == ["| --- | ---: | ---: |", "| a | 31.6 ± 1.2 | 1,200 |"]
    assert r"a & 31.6 $\pm$ 1.2 & 1,200 \\" in as_latex(TABLE).splitlines()


HOSTILE = [
    "=HYPERLINK(1)",
    "a|b",
    "\\input{/etc/passwd}",
    "<script>x</script>",
    "line\nbreak",
    "\x1b[31m",
    "$x$_&%#~^{}",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_texts_stay_texts(text):
    table = ResultsTable((Column("run", is_text=True), Column("n")), ((text, 1),), (text,))
    for name, write in FORMATS.items():
        written = write(table)
        assert all(line.isprintable() for line in written.splitlines()), name
    assert len(as_text(table).splitlines()) == 3
    [_, row] = csv.reader(io.StringIO(as_csv(table)))
    assert len(row) == 2 and not row[0].startswith(("=", "+", "-", "@"))
    assert "<script" not in as_markdown(table).replace("\\<", "")
    cells = as_latex(table).splitlines()[4]
    assert "\\input" not in cells and cells.count("&") - cells.count("\\&") == 1


def test_a_name_of_a_column_is_no_formula():
    """Data sets and tasks name columns"""
    table = ResultsTable((Column("=HYPERLINK(1)"), Column("+1")), ((Number(1.0, 0.5), "a"),))
    assert as_csv(table).splitlines()[0] == "'=HYPERLINK(1),'=HYPERLINK(1) deviation,'+1"


def test_a_mean_has_the_sample_deviation():
    values = [30.0, 31.5, 36.0]
    found = mean_of(values)
    assert found.value == pytest.approx(statistics.mean(values))
    assert found.deviation == pytest.approx(statistics.stdev(values))
    assert mean_of([30.0]) == Number(30.0)
