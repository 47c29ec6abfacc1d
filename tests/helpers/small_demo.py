"""A data set with a run, named like the demo, whose pages show how programs ask for searches; made in seconds."""

import re
from fractions import Fraction
from pathlib import Path

from vlalign.storage.dataset.folder import DatasetFolder
from vlalign.storage.records import VideoRecord
from vlalign.train.cli.train import main as train_main

from helpers.numbered import write_video
from helpers.toy import make_toy

RUN = "words-s3d-seed0"
TRAIN = ["--objective", "taco", "--features", "s3d", "--num-steps", "2", "--batch-size", "4", "--num-negatives", "2"]


def make_small_demo(root: Path) -> DatasetFolder:
    """24 videos, demo0000 to demo0023. The files of two are there: browsers play demo0000, and not demo0005."""
    dataset = make_toy(root, name="demo", prefix="demo0")
    assert train_main(["--root", str(root), "--dataset", "demo", *TRAIN, "--run-name", RUN, "--quiet"]) == 0
    (dataset.path / "videos").mkdir()
    write_video(dataset.path / "videos" / "demo0000.mp4", range(96), Fraction(1, 24))
    write_video(dataset.path / "videos" / "demo0005.avi", range(96), Fraction(1, 24), container="avi", codec="mpeg4")
    files = {"demo0000": "videos/demo0000.mp4", "demo0005": "videos/demo0005.avi"}
    dataset.write_videos([VideoRecord(video_id=video_id, path=path) for video_id, path in files.items()])
    return dataset


def blocks_of(page: Path, language: str) -> list[str]:
    """Return the blocks of code of a page in a language."""
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def differences(shown: object, real: object, where: str = "") -> list[str]:
    """Return where an answer has another form than a page shows: other keys, kinds of values, or texts.

    A text that ends with "..." stands for any that begins so. Of numbers only the kind counts, and of lists as many
    values as are shown.
    """
    if isinstance(shown, dict) and isinstance(real, dict):
        own = [f"{where}: keys {sorted(real)}, not {sorted(shown)}"] if shown.keys() != real.keys() else []
        pairs = [(shown[key], real[key], f"{where}.{key}") for key in shown if key in real]
        return own + [line for pair in pairs for line in differences(*pair)]
    if isinstance(shown, list) and isinstance(real, list):
        own = [f"{where}: {len(real)} values, not {len(shown)}"] if len(shown) > len(real) else []
        pairs = [(*pair, f"{where}[{number}]") for number, pair in enumerate(zip(shown, real, strict=False))]
        return own + [line for pair in pairs for line in differences(*pair)]
    if isinstance(shown, str) and isinstance(real, str):
        same = real.startswith(shown[:-3]) if shown.endswith("...") else real == shown
    elif isinstance(shown, (int, float)) and isinstance(real, (int, float)):
        same = isinstance(shown, bool) == isinstance(real, bool)
    else:
        same = shown == real
    return [] if same else [f"{where}: {real!r}, not {shown!r}"]
