#!/usr/bin/env python3
"""Write every message of the five folders in other words, so that the tests show which of them pin a sentence.

    git clone . ../reworded && cd ../reworded && python3.12 .ci/reword.py && make fast-tests

It changes the checkout that it lies in: use a copy. It needs Python 3.12, which knows where the parts of f-strings are.
Words of errors and of printed lines are spelt backwards; options, commands, names of settings, values, file names and
places in files stay. A test that fails then checks a sentence rather than the kind, the place and the value of what
went wrong. Few may: those whose words are a promise, such as a page's headings.
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

TOP = Path(__file__).resolve().parents[1]
FOLDERS = ("storage", "extract", "preprocess", "train", "ray_jobs")
SPEAKERS = {"say", "warn", "show", "note_once", "add", "drop", "skip", "report", "error"}
"""Functions and methods that print or collect a line."""
PHRASES = {"problem", "hint", "lack", "why", "advice", "reason", "damage", "remedy", "message", "line"}
"""Variables that hold a part of a message."""
PLACES = {"line", "record", "entry", "sentence", "segment", "question"}
"""Words for a place in a file, as in "FILE, line 3": the place of an error is checked."""
WORD = re.compile(r"(?<![\w/.:\-`'\"<{])[a-z]{4,}(?![\w/:\-`'\"=>}(]|\.\w)")


def names_of_code() -> set[str]:
    """Return the names of options and settings, and the words of the package's own tables: messages name them."""
    texts = [path.read_text(encoding="utf-8") for folder in FOLDERS for path in (TOP / folder).rglob("*.py")]
    keys = {name for text in texts for name in re.findall(r'^ +"([a-z]+)": ', text, re.MULTILINE)}
    settings = {name for text in texts for name in re.findall(r"^    ([a-z]+): .* = setting\(", text, re.MULTILINE)}
    return PLACES | keys | settings | {name for text in texts for name in re.findall(r"--([a-z]+)\b", text)}


def messages(tree: ast.AST) -> Iterator[ast.Constant]:
    """Yield the strings of a module that are parts of messages."""
    for node in ast.walk(tree):
        values: list[ast.AST] = []
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            values = [*node.exc.args]
        elif isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            values = [*node.args] if name in SPEAKERS or name.endswith("Error") else []
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            values = [node.value] if node.targets[0].id.lower() in PHRASES else []
        for value in values:
            yield from (n for n in ast.walk(value) if isinstance(n, ast.Constant) and isinstance(n.value, str))


def main() -> None:
    if sys.version_info < (3, 12) or "reworded" not in TOP.name:
        sys.exit(f"{TOP}: expected a copy in a folder named 'reworded', and Python 3.12")
    kept, changed = names_of_code(), 0
    for path in sorted(path for folder in FOLDERS for path in (TOP / folder).rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        lines = text.encode().split(b"\n")
        found = {
            (n.lineno, n.col_offset, n.end_lineno or n.lineno, n.end_col_offset or 0) for n in messages(ast.parse(text))
        }
        for first, start, last, end in sorted(found, reverse=True):
            for number in range(first, last + 1):
                line = lines[number - 1]
                a, b = (start if number == first else 0), (end if number == last else len(line))
                old = line[a:b].decode()
                new = WORD.sub(lambda m: m[0] if m[0] in kept else m[0][::-1], old)
                changed += new != old
                lines[number - 1] = line[:a] + new.encode() + line[b:]
        result = b"\n".join(lines).decode()
        ast.parse(result)
        path.write_text(result, encoding="utf-8")
    print(f"{changed:,} lines of messages are in other words now")


if __name__ == "__main__":
    main()
