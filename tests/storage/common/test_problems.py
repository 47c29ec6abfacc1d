"""Problems with single items: a few are printed, all are listed and counted."""

import pytest
from vlalign.storage.common.problems import Problems


@pytest.mark.parametrize("num", [0, 1, Problems.MAX_LINES, Problems.MAX_LINES + 1, 10 * Problems.MAX_LINES])
def test_problems_print_a_few_lines_and_list_and_count_all(tmp_path, capsys, num):
    file = tmp_path / "mine" / "problems" / "test.txt"
    for call in ("a", "b"):  # the second takes the place of the first
        with Problems(file=file) as problems:
            for number in range(num):
                problems.add(f"row {call}{number}")
        shown = min(num, Problems.MAX_LINES)
        expected = [f"warning: row {call}{number}" for number in range(shown)]
        if num > shown:
            assert file.read_text().splitlines() == [f"row {call}{number}" for number in range(num)]
        out, err = capsys.readouterr()
        lines = err.splitlines()
        assert lines[:shown] == expected and len(lines) == shown + 2 * (num > shown) and out == ""
        if num > shown:
            assert lines[-2].startswith("warning: ") and lines[-1].startswith(f"{num:,} ")
            assert str(file) in lines[-2] and str(file) in lines[-1]
        assert problems.count == num and problems.exit_code() == (1 if num else 0)
        assert file.exists() == (num > shown)


def test_problems_are_counted_whatever_ends_the_command(tmp_path, capsys):
    file = tmp_path / "problems.txt"
    with pytest.raises(OSError, match="disk"), Problems(file=file) as problems:
        for number in range(30):
            problems.add(f"row\n{number}")
        raise OSError("disk")
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("30 ") and str(file) in last
    assert file.read_text().splitlines()[-1] == r"row\n29"


def test_all_problems_are_printed_if_they_cannot_be_listed(tmp_path, capsys):
    (tmp_path / "file").touch()
    with Problems(file=tmp_path / "file" / "problems.txt") as problems:
        for number in range(30):
            problems.add(f"row {number}")
    said = capsys.readouterr().err.splitlines()
    assert [line for line in said if "row" in line] == [f"warning: row {number}" for number in range(30)]
    assert (
        said[20].startswith("note: ")
        and str(tmp_path / "file") in said[20]
        and said[-1].startswith("30 ")
        and len(said) == 32
    )
