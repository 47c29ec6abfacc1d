"""The command vlalign-preprocess and a user's own captions, as tests call and write them."""

import csv
import io
import json

from vlalign.preprocess.cli import main

SMALL = "en_core_web_sm"


def caption_file(folder, rows, kind="csv", *, mark=False):
    """Write a user's captions. Row n is line n + 2 of a CSV, which has a header, and line n + 1 of a JSONL."""
    path = folder / f"captions.{kind}"
    text = io.StringIO(newline="")
    if kind == "csv":
        writer = csv.DictWriter(text, fieldnames=list(dict.fromkeys(name for row in rows for name in row)))
        writer.writeheader()
        writer.writerows(rows)
    else:
        text.writelines(json.dumps(row) + "\n" for row in rows)
    path.write_text(text.getvalue(), encoding="utf-8-sig" if mark else "utf-8", newline="")
    return path


def call(root, *more):
    return main(["--root", str(root), *map(str, more)])
