"""How often the 95 % intervals of metrics hold the truth: ``python tests/benchmarks/intervals.py [--sets 2000]``.

A test set has some videos with some captions each. The right pair's score is higher by as much as the video is easy,
which its captions share; all else is noise. The truth is the mean of a metric over all sets that are drawn. A
difference is that of two models which find the same videos easy.
"""

import argparse
from collections import defaultdict

import numpy as np
from vlalign.train.intervals import paired_bootstrap
from vlalign.train.metrics import MEASURES, Ranking, text_intervals, text_metrics, video_intervals, video_metrics

SIZES = [(50, 1), (50, 5), (200, 1), (200, 5), (1000, 1)]
"""(videos, captions of each)"""
EASE, SPREAD, GAIN = 1.5, 1.0, 0.2


def draw(rng: np.random.Generator, videos: int, captions: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the scores of two models [texts, videos], and each text's video."""
    right = np.repeat(np.arange(videos), captions)
    ease = EASE + SPREAD * rng.standard_normal(videos)[right]
    sides = rng.standard_normal((2, len(right), videos)).astype(np.float32)
    sides[:, np.arange(len(right)), right] += ease + np.array([[0.0], [GAIN]])
    return sides[0], sides[1], right


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--sets", type=int, default=2000)
    args = parser.parse_args()
    ways = ("text_to_video", "video_to_text")
    print(f"{'videos x captions':<18}{'':<15}" + "".join(f"{name.replace('_', ' '):>12}" for name in MEASURES))
    for videos, captions in SIZES:
        rng, found = np.random.default_rng(0), defaultdict[tuple[str, str], list[tuple[float, float, float]]](list)
        for _ in range(args.sets):
            first, second, right = draw(rng, videos, captions)
            ranking, own = Ranking(right, videos, "average"), np.arange(videos)
            texts, clips = ranking.of_texts(0, first), ranking.of_videos(0, first)
            metrics = text_metrics(ranking, texts), video_metrics(ranking, clips)
            intervals = text_intervals(ranking, texts, own), video_intervals(ranking, clips, own)
            for way, of_way, ends in zip(ways, metrics, intervals, strict=True):
                for name in MEASURES:
                    found[way, name].append((of_way[name], *ends[name]))
            better = ranking.of_texts(0, second)
            hits = [100.0 * (1 + counts.above + counts.tied / 2 < 2) for counts in (texts, better)]
            difference = paired_bootstrap(*hits, right, num_resamples=1000)
            found["difference", "R@1"].append((difference.difference, difference.low, difference.high))
        for way in (*ways, "difference"):
            cells = []
            for name in MEASURES:
                values = np.array(found.get((way, name), np.zeros((0, 3))))
                truth = values[:, 0].mean() if len(values) else 0.0
                held = np.mean((values[:, 1] <= truth) & (truth <= values[:, 2])) if len(values) else None
                cells.append("-" if held is None else f"{100 * held:.1f} %")
            print(
                f"{f'{videos} x {captions}':<18}{way.replace('_', ' '):<15}" + "".join(f"{c:>12}" for c in cells),
                flush=True,
            )


if __name__ == "__main__":
    main()
