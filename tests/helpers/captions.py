"""The command vlalign-preprocess and a user's own captions, as tests call and write them."""

import csv
import hashlib
import io
import json
from pathlib import Path

from vlalign.preprocess.cli import main
from vlalign.preprocess.first_pass import LOG_NAME
from vlalign.storage.captions.files import CACHE_NAME
from vlalign.storage.common.tensor_files import FIRST_BYTE

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


def tables(folder: Path) -> dict[str, str]:
    """Return a hash of each file, but for the log of the first pass, and for the header of the file that is mapped,
    which has the times at which parts were written."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(
            path.read_bytes()[FIRST_BYTE if path.name == CACHE_NAME else 0 :]
        ).hexdigest()
        for path in folder.rglob("*")
        if path.is_file() and path.name != LOG_NAME
    }
