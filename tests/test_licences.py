"""The page on licences lists every pinned package."""

import importlib.metadata
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_every_pinned_package_is_listed_under_one_licence():
    pinned = {
        normalized(name)
        for name in re.findall(r"^([\w.-]+)==", (ROOT / "constraints.txt").read_text(), flags=re.MULTILINE)
    }
    rows = re.findall(r"^\| [^|]+ \| ([^|]+) \|$", (ROOT / "docs" / "licences.md").read_text(), flags=re.MULTILINE)
    named = [name for row in rows[1:] for name in row.split(", ")]
    assert len(named) == len(set(named)) and set(named) == pinned


@pytest.mark.parametrize(
    "words, row",
    [
        ("GPL|General Public", "LGPL or GPL, some only in parts"),
        ("MPL|Mozilla", "MPL-2.0"),
        ("NVIDIA(?! C)", "NVIDIA proprietary"),
    ],
)
def test_copyleft_and_proprietary_packages_are_listed_as_such(words, row):
    said = {}
    for installed in importlib.metadata.distributions():
        about = installed.metadata
        classifiers = [each for each in about.get_all("Classifier", []) if each.startswith("License ::")]
        said[normalized(about["Name"])] = " ".join(
            [about.get("License-Expression") or "", (about.get("License") or "")[:80], *classifiers]
        )
    found = {name for name, licence in said.items() if re.search(words, licence)}
    page = re.search(
        rf"^\| {re.escape(row)} \| (.+) \|$", (ROOT / "docs" / "licences.md").read_text(), flags=re.MULTILINE
    )[1]
    pinned = (ROOT / "constraints.txt").read_text()
    assert {name for name in found if re.search(rf"^{name}==", pinned, flags=re.MULTILINE)} <= set(page.split(", "))
