#!/usr/bin/env python3
"""Show words of two versions side by side, chosen at random: docstrings, error messages and paragraphs.

    python .ci/words.py OLDER               twenty docstrings, twenty messages, ten paragraphs
    python .ci/words.py OLDER --seed 1      others

Docstrings and messages are those of functions and classes whose name both versions have once. A paragraph of the older
README stands beside the paragraph of today's README and pages that shares most words with it.
"""

import argparse
import ast
import random
import re
from difflib import SequenceMatcher
from pathlib import Path

FOLDERS = ("extract", "preprocess", "ray_jobs", "storage", "train")
NUM_DOCSTRINGS, NUM_MESSAGES, NUM_PARAGRAPHS = 20, 20, 10
SHORTEST_PARAGRAPH = 120
Words = dict[str, list[tuple[str, list[str]]]]
"""{name: [(docstring, error messages)] of each function or class that has it}"""


def words_of(top: Path) -> Words:
    """Return the docstrings and error messages of a checkout."""
    found: Words = {}
    for path in sorted(path for folder in FOLDERS for path in (top / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                summary = (ast.get_docstring(node) or "").split("\n\n")[0].replace("\n", " ")
                raised = [each.exc for each in ast.walk(node) if isinstance(each, ast.Raise) and each.exc is not None]
                messages = [said for said in map(ast.unparse, raised) if "Error(" in said]
                is_class = isinstance(node, ast.ClassDef)
                found.setdefault(node.name, []).append((summary, [] if is_class else messages))
    return found


def paragraphs_of(text: str) -> list[str]:
    """Return the longer paragraphs of a page, without tables, headings and code."""
    blocks = (block.replace("\n", " ") for block in re.split(r"\n\s*\n", text))
    return [b for b in blocks if len(b) > SHORTEST_PARAGRAPH and not b.startswith(("|", "```", "#", "    "))]


def show(title: str, old: str, new: str) -> None:
    """Print one pair."""
    print(f"{title}\n    old: {old}\n    new: {'the same' if new == old else new}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("older", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    rng, top = random.Random(args.seed), Path(__file__).resolve().parents[1]
    before, after = words_of(args.older), words_of(top)
    once = [name for name in before if len(before[name]) == len(after.get(name, [])) == 1]
    summaries = [n for n in once if before[n][0][0] and after[n][0][0] and not n.startswith("_")]
    for name in rng.sample(summaries, NUM_DOCSTRINGS):
        show(name, before[name][0][0], after[name][0][0])
    for name in rng.sample([n for n in once if before[n][0][1] and after[n][0][1]], NUM_MESSAGES):
        old = rng.choice(before[name][0][1])
        show(name, old, max(after[name][0][1], key=lambda new, old=old: SequenceMatcher(None, old, new).ratio()))
    pages = [top / "README.md", *(top / "docs").glob("*.md")]
    new_paragraphs = [p for page in pages for p in paragraphs_of(page.read_text(encoding="utf-8"))]
    sets = {paragraph: set(paragraph.lower().split()) for paragraph in new_paragraphs}
    for old in rng.sample(paragraphs_of((args.older / "README.md").read_text(encoding="utf-8")), NUM_PARAGRAPHS):
        said = set(old.lower().split())
        show("README", old, max(sets, key=lambda p, said=said: len(sets[p] & said) / (10 + len(sets[p]))))


if __name__ == "__main__":
    main()
