"""The command vlalign-preprocess and a user's own captions, as tests call and write them."""

import csv
import io
import json

from vlalign.preprocess.cli import main

SMALL = "en_core_web_sm"


def caption_file(folder, rows, kind="csv", *, mark=False):
    """``rows`` as a file of somebody's own; line 1 of a CSV is its header, so row n is line n + 2 there and n + 1 in JSONL."""
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
