"""A skipped test says what is missing, and CONTRIBUTING.md says which tests need it."""

import re
from pathlib import Path

import pytest
from helpers.needs import DATA, KINDS, need, skip_without

TESTS = Path(__file__).parent


def test_tests_are_skipped_by_one_helper_alone():
    """So that every reason begins with one of ``KINDS``."""
    skipping = re.compile(r"\b(pytest\.skip|mark\.skip(if)?|importorskip|skipTest)\(")
    found = {path.relative_to(TESTS).as_posix() for path in TESTS.rglob("*.py") if skipping.search(path.read_text())}
    assert found == {"helpers/needs.py"}


def test_a_reason_names_what_is_missing():
    with pytest.raises(pytest.skip.Exception, match=f"^{DATA}: data/nobody, data/nothing$"):
        need(DATA, iter(["data/nobody", "data/nothing"]))
    need(DATA, [])
    assert skip_without(DATA, []).args == (False,)
    mark = skip_without(DATA, ["data/nobody"])
    assert mark.args == (True,) and mark.kwargs == {"reason": f"{DATA}: data/nobody"}


def test_every_reason_is_explained_to_contributors():
    _, _, table = (TESTS.parent / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("\n| reason |")
    rows = table.partition("\n\n")[0].splitlines()[2:]
    assert [row.split("|")[1].strip() for row in rows] == list(KINDS)
