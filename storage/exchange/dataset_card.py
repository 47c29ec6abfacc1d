"""Write a folder for dataset hubs: Parquet files, and a card that describes how the features were made."""

import json
from collections.abc import Iterable
from pathlib import Path

from ..common.files import write_json, write_text
from ..common.problems import Problems
from ..common.writing import make_folder
from ..records import UNKNOWN, VideoFeatures
from ..stores.store import Store
from .parquet import export_parquet

DATA_FOLDER, CARD_FILE, PROFILE_FILE = "data", "README.md", "profile.json"


def export_hub(store: Store, target: Path, videos: Iterable[VideoFeatures], problems: Problems) -> int:
    """Write ``data/*.parquet``, ``profile.json`` and a card (``README.md``); return the number of videos."""
    make_folder(target / DATA_FOLDER)
    num_videos = export_parquet(store, target / DATA_FOLDER, videos, problems)
    write_json(target / PROFILE_FILE, json.loads(store.profile.to_json()))
    write_text(target / CARD_FILE, card(store, num_videos))
    return num_videos


def card(store: Store, num_videos: int) -> str:
    """Return the card of a store: metadata for hubs, then text for people."""
    profile, weights = store.profile, store.weights
    plural = "" if profile.fps == 1 else "s"
    rate = "rows spread evenly over each video" if profile.fps is None else f"{profile.fps:g} frame{plural} a second"
    rate = "each row is a shot, and has its times" if profile.is_shots else rate
    window = f"{profile.window} frames, a new one every {profile.stride}" if profile.window > 1 else "1 frame"
    size = f"short side {profile.short_side_px} px ({profile.resize})" if profile.short_side_px else profile.resize
    cut = f", {profile.crop_px} px cut from the centre" if profile.crop_px else ""
    unknown = set(profile.unknown)
    if "fps" in unknown:
        rate = "unknown; each row has its times"
    elif "stride" in unknown and profile.fps is not None:
        rate = f"{profile.fps:g} rows a second"
    facts = {
        "model": profile.model,
        "weights": f"{weights.name}, SHA-256 {weights.sha256 or 'unknown'}",
        "frame rate": rate,
        "window": UNKNOWN if "window" in unknown else window,
        "frames": UNKNOWN if "short_side_px" in unknown else f"{size}{cut}",
        "values": UNKNOWN
        if "mean" in unknown
        else f"{profile.value_range}, mean {list(profile.mean)}, standard deviation {list(profile.std)}",
        "last window": profile.tail,
        "layer": profile.layer,
        "numbers a row": f"{profile.dimension:,}",
        "computed in": profile.precision,
        "profile": f"{profile.hash} (all fields: {PROFILE_FILE})",
    }
    table = "\n".join(f"| {name} | {value} |" for name, value in facts.items())
    return f"""---
license: other
tags: [video, features, vlalign]
configs:
- config_name: default
  data_files: {DATA_FOLDER}/*.parquet
---

# Features `{profile.name}` of {num_videos:,} videos

A row is one window of a video: `video_id`, `start_seconds`, `end_seconds`, `valid_frames` (frames of the window that
are real, not filled in), `duration_seconds` of the video, `partial` (missing parts of the video), and `embedding`.

```python
from datasets import load_dataset
rows = load_dataset("parquet", data_files="{DATA_FOLDER}/*.parquet", split="train")
print(rows[0]["video_id"], rows[0]["start_seconds"], len(rows[0]["embedding"]))
```

To import them as a store of vlalign, into a data set of any name:
`vlalign-store import {DATA_FOLDER} --profile {PROFILE_FILE} --dataset NAME`.

## How they were made

| | |
|---|---|
{table}

## Licence

The terms of the authors of the weights and of the videos apply. Before you publish this, name their licences here and
replace `other` above.
"""
