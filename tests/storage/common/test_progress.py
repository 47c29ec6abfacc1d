"""Progress: a bar on a terminal, a few lines in a log."""

import io
import re
import sys

import pytest
from vlalign.storage.common.progress import progress


@pytest.mark.parametrize("items", [[], [7], list(range(100))], ids=["none", "one", "many"])
def test_progress_in_a_log_gives_all_items_and_is_quiet_when_quick(capsys, items):
    assert list(progress(iter(items), total=len(items), what="testing", unit="items")) == items
    assert capsys.readouterr() == ("", "")


def test_progress_in_a_log_says_rate_and_time_left(capsys, monkeypatch):
    monkeypatch.setattr("vlalign.storage.common.progress.LOG_EVERY_SECONDS", 0)
    assert list(progress("abcd", total=4, what="testing", unit="items")) == list("abcd")
    out, err = capsys.readouterr()
    lines = err.splitlines()
    assert [line.split()[:3] for line in lines] == [["testing:", f"{25 * n}%", f"{n}/4"] for n in (1, 2, 3, 4)]
    assert all(re.search(r" \[\d\d:\d\d<\d\d:\d\d, .* items/s\]", line) for line in lines), err
    assert out == ""


def test_progress_consumes_items_lazily():
    taken = []
    items = progress((taken.append(n) or n for n in range(5)), total=5, what="testing", unit="items")
    assert taken == []
    assert next(items) == 0 and taken == [0]
    assert next(items) == 1 and taken == [0, 1]


def test_progress_on_a_terminal_is_a_bar(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    assert list(progress("abc", total=3, what="testing", unit="items")) == list("abc")
    assert "testing: 100%" in terminal.getvalue() and "3/3" in terminal.getvalue()
    assert "\r" in terminal.getvalue()
