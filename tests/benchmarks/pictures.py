"""How many results of a search show the right picture: the ffmpeg program's frame at the moment's best second.

    python tests/benchmarks/pictures.py FOLDER [--videos 40] [--seconds 30] [--real FOLDER_OF_VIDEOS]

FOLDER receives videos with scene changes, of all kinds in ``tests/helpers/scenes.py``, a data set with features of a
small CLIP with random weights, and its index. Each result of a few queries is compared:

    nearest of three    the thumbnail that is nearest to the best second, of those that are made by default
    every 4, 2 s        the same, with ``--thumbnails-every``
    /media/picture      the page's own answer

Two pictures are the same frame if their mean absolute difference is below 6 of 255, after both were scaled to 160 x
90, and the same scene if it is below 40: scenes of the made videos differ by more.
"""

import argparse
import io
import shutil
import sys
import time
from collections import defaultdict
from pathlib import Path

import numpy as np
from PIL import Image

sys.path.append(str(Path(__file__).resolve().parents[1]))
from helpers.clips_of_text import new_clip, save_clip, word_tokenizer
from helpers.scenes import COMPARED, KINDS, SAME_PIXELS, FfmpegFrames, write_scenes
from starlette.testclient import TestClient
from vlalign.extract.cli.extract import main as extract_main
from vlalign.storage.dataset.folder import DatasetFolder
from vlalign.storage.stores.thumbnails import ThumbnailStore
from vlalign.train import open_search
from vlalign.train.page.app import SECONDS_HEADER, SOURCE_HEADER, make_app
from vlalign.train.page.guard import Access

QUERIES = "red ball", "blue", "a dog catches a ball", "green grass"
EVERY = {"nearest of three": None, "every 4 s": "4", "every 2 s": "2"}
HOSTS = ["127.0.0.1"]
SAME_SCENE = 40.0


def make_videos(folder: Path, num_videos: int, seconds: float, real: Path | None) -> list[Path]:
    """Write the videos, and copy the real ones beside them."""
    folder.mkdir(parents=True, exist_ok=True)
    kinds = list(KINDS)
    for number in range(num_videos):
        if not any(folder.glob(f"{number:02d}_*")):
            write_scenes(kinds[number % len(kinds)], folder, seconds=seconds, seed=number)
    for path in sorted(real.iterdir()) if real else []:
        shutil.copy(path, folder / f"real_{path.name}")
    return sorted(folder.iterdir())


def difference(content: bytes, expected: np.ndarray) -> float:
    image = Image.open(io.BytesIO(content)).convert("RGB").resize(COMPARED, Image.Resampling.BOX)
    return float(np.abs(np.asarray(image).astype(int) - expected).mean())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--videos", type=int, default=40)
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--real", type=Path)
    args = parser.parse_args()
    videos = make_videos(args.folder / "videos", args.videos, args.seconds, args.real)
    tokenizer = word_tokenizer(QUERIES)
    clip = save_clip(new_clip(tokenizer), tokenizer, args.folder / "clip")
    stores = {}
    for number, (name, every) in enumerate(EVERY.items()):
        at = ["--root", str(args.folder / "root"), "--dataset", f"every{number}", "--features", "clip_vit_b32"]
        options = ["--weights", str(clip), "--videos", str(args.folder / "videos"), "--allow-folder", str(args.folder)]
        if extract_main([*at, *options, *(["--thumbnails-every", every] if every else [])]):
            return 1
        stores[name] = ThumbnailStore(DatasetFolder(args.folder / "root", f"every{number}").thumbnails)
    search = open_search(args.folder / "root" / "every0", features="clip_vit_b32", weights=clip)
    frames = {path.stem: FfmpegFrames.of(path) for path in videos}
    found: dict[str, list[float]] = defaultdict(list)
    off: dict[str, list[float]] = defaultdict(list)
    is_real, seconds_taken, sources, wrong = [], [], [], []
    with TestClient(make_app([search], Access(HOSTS)), base_url="http://127.0.0.1") as client:
        for query in QUERIES:
            for moment in client.get("/api/search", params={"q": query, "num_results": 60, "fold": False}).json()[
                "moments"
            ]:
                video_id, second = moment["video_id"], moment["best_seconds"]
                expected = frames[video_id].at(second)
                for name, store in stores.items():
                    thumbnail = store.nearest(video_id, second)
                    assert thumbnail is not None
                    found[name].append(difference(thumbnail.jpeg, expected))
                    off[name].append(abs(thumbnail.seconds - second))
                started = time.perf_counter()
                answer = client.get("/media/picture", params={"video_id": video_id, "seconds": second})
                seconds_taken.append(time.perf_counter() - started)
                found["/media/picture"].append(difference(answer.content, expected))
                off["/media/picture"].append(abs(float(answer.headers[SECONDS_HEADER]) - second))
                is_real.append(video_id.startswith("real_"))
                sources.append(answer.headers[SOURCE_HEADER])
                if found["/media/picture"][-1] >= SAME_PIXELS:
                    wrong.append(
                        f"{video_id} at {second:.2f} s: {answer.headers[SOURCE_HEADER]} of "
                        f"{answer.headers[SECONDS_HEADER]} s, {found['/media/picture'][-1]:.1f}"
                    )
    print(f"{len(videos)} videos, {len(sources)} results, {sources.count('frame')} answered with frames")
    print(f"{'picture':18} {'same frame: made':>18} {'real':>12} {'same scene: made':>18} {'farthest':>10}")
    for name, values in found.items():
        of = {kind: [v for v, real in zip(values, is_real, strict=True) if real == kind] for kind in (False, True)}
        shares = [f"{sum(v < SAME_PIXELS for v in of[kind])} of {len(of[kind])}" for kind in (False, True)]
        shares.append(f"{sum(v < SAME_SCENE for v in of[False])} of {len(of[False])}")
        print(f"{name:18} {shares[0]:>18} {shares[1]:>12} {shares[2]:>18} {max(off[name]):>8.2f} s")
    print(
        f"/media/picture differs by {np.median(found['/media/picture']):.1f} (median) and at most "
        f"{max(found['/media/picture']):.1f} of 255"
    )
    p50, p95 = np.percentile(seconds_taken, [50, 95])
    print(f"/media/picture: median {p50:.2f} s, 95th percentile {p95:.2f} s, longest {max(seconds_taken):.2f} s")
    print(*wrong, sep="\n")
    return 0 if not wrong else 1


if __name__ == "__main__":
    sys.exit(main())
