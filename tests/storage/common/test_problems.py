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
            expected += [f"warning: more problems follow; they are only listed in {file}"]
            expected += [f"{num:,} problems, all listed in {file}"]
            assert file.read_text().splitlines() == [f"row {call}{number}" for number in range(num)]
        out, err = capsys.readouterr()
        assert err.splitlines() == expected and out == ""
        assert problems.count == num and problems.exit_code() == (1 if num else 0)
        assert file.exists() == (num > shown)


def test_problems_are_counted_whatever_ends_the_command(tmp_path, capsys):
    file = tmp_path / "problems.txt"
    with pytest.raises(OSError, match="disk"), Problems(file=file) as problems:
        for number in range(30):
            problems.add(f"row\n{number}")
        raise OSError("disk")
    assert capsys.readouterr().err.splitlines()[-1] == f"30 problems, all listed in {file}"
    assert file.read_text().splitlines()[-1] == "row 29"


def test_all_problems_are_printed_if_they_cannot_be_listed(tmp_path, capsys):
    (tmp_path / "file").touch()
    with Problems(file=tmp_path / "file" / "problems.txt") as problems:
        for number in range(30):
            problems.add(f"row {number}")
    said = capsys.readouterr().err.splitlines()
    assert [line for line in said if "row" in line] == [f"warning: row {number}" for number in range(30)]
    assert (
        said[20].startswith("note: problems cannot be listed in a file")
        and said[-1] == "30 problems, see above"
        and len(said) == 32
    )
