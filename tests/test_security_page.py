"""SECURITY.md: whatever it promises names the tests that try it."""

import ast
import re
from pathlib import Path

import pytest

TOP = Path(__file__).parent.parent
TEXT = (TOP / "SECURITY.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^## ([^\n]+)\n(.*?)(?=^## |\Z)", TEXT, re.MULTILINE | re.DOTALL))
TESTS = {
    int(number): re.findall(r"`([\w/]+\.py)`:((?:\s*`test_\w+`,?)+)", entry)
    for number, entry in re.findall(r"^(\d+)\. (.*?)(?=^\d+\. |\Z)", SECTIONS["Tests"], re.MULTILINE | re.DOTALL)
}
PROMISES = TEXT[: TEXT.index("## Known gaps")]
NAMED_BY = re.compile(r" (\[\d+\])+(?=[.|\s]|$)")


def test_the_numbers_are_those_of_the_list():
    used = {int(number) for number in re.findall(r"\[(\d+)\]", PROMISES)}
    assert used == set(TESTS) == set(range(1, len(TESTS) + 1))


@pytest.mark.parametrize("number", TESTS)
def test_the_tests_exist(number):
    assert TESTS[number]
    for file, names in TESTS[number]:
        tree = ast.parse((TOP / file).read_text(encoding="utf-8"))
        there = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
        assert not set(re.findall(r"test_\w+", names)) - there, file


@pytest.mark.parametrize(
    "row", re.findall(r"^\| (?!what |---).*\|$", PROMISES, re.MULTILINE), ids=lambda row: row[2:30]
)
def test_each_row_names_its_tests(row):
    assert NAMED_BY.search(row.split("|")[-2])


@pytest.mark.parametrize(
    "bullet", re.findall(r"^- .*?(?=^- |^$)", PROMISES, re.MULTILINE | re.DOTALL), ids=lambda b: b[2:30]
)
def test_each_point_names_its_tests(bullet):
    assert NAMED_BY.search(bullet)


@pytest.mark.parametrize("section", ["Installed packages", "The current folder"])
def test_each_paragraph_names_its_tests(section):
    for paragraph in SECTIONS[section].strip().split("\n\n"):
        assert NAMED_BY.search(paragraph), paragraph
