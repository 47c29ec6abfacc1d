"""Somebody else's features against ours, and how theirs were made: ``vlalign-extract --verify-against``."""

import copy
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import numpy as np
import torch

from ...storage.common.errors import UserError
from ...storage.common.exits import EXIT_DONE, EXIT_INCOMPLETE
from ...storage.common.terminal import show
from ...storage.exchange.foreign import read_features
from ...storage.feature_store import FeatureStore
from ...storage.layout import DatasetFolder
from ...storage.records import VideoFeatures, VideoRecord
from ..decoding.backends import LIBSWSCALE, LIBSWSCALE_BICUBIC, PILLOW
from ..decoding.decode import Finished, Started, Wanted
from ..decoding.messages import Nonsense, PictureFollows, RowFollows
from ..decoding.probe import VideoError
from ..decoding.process import DecodeProcess
from ..engine import wanted_of
from ..extractor import Extractor
from .compare import Alternatives, Comparison, Hypothesis, compare

OTHER_VIDEOS, OTHER_ROWS = 64, 4
"""How many videos, and rows of each, stand for unrelated rows."""
BATCH = 4
RATES = (1, 2, 3, 4, 5, 8, 10, 12, 15, 16, 20, 24, 25, 30, 32, 50, 60)
"""Frames a second that people take."""

IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
KINETICS = ((110.6, 103.2, 96.3), (1.0, 1.0, 1.0))
ACTIVITYNET = ((114.7748, 107.7354, 99.4750), (1.0, 1.0, 1.0))
CLIP = ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))
IG65M = ((0.43216, 0.394666, 0.37645), (0.22803, 0.22145, 0.216989))
HARA_2020 = ((0.4345, 0.4051, 0.3775), (0.2768, 0.2713, 0.2737))
NOTHING = ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
NORMALISATIONS = {
    "values 0..1, nothing subtracted": ("0..1", *NOTHING),
    "values 0..255, nothing subtracted": ("0..255", *NOTHING),
    "values -1..1": ("0..1", (0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
    "ImageNet's mean and std": ("0..1", *IMAGENET),
    "values 0..255 minus Kinetics' mean": ("0..255", *KINETICS),
    "values 0..255 minus ActivityNet's mean": ("0..255", *ACTIVITYNET),
    "the mean and std of Hara 2020": ("0..1", *HARA_2020),
    "CLIP's mean and std": ("0..1", *CLIP),
    "the mean and std of R(2+1)D on IG-65M": ("0..1", *IG65M),
}
FILLS = {
    "black frames": lambda frames, valid: np.zeros_like(frames[valid:]),
    "its frames again from the first": lambda frames, valid: frames[np.arange(valid, len(frames)) % valid],
    "its last frame again and again": lambda frames, valid: np.repeat(
        frames[valid - 1 : valid], len(frames) - valid, axis=0
    ),
}
"""{what fills a last window that is not full: (frames, how many are real) -> the others}."""


def read_windows(
    path: Path, wanted: list[Wanted], places: Sequence[int]
) -> tuple[list[dict[int, np.ndarray]], list[int]]:
    """For each of ``wanted`` {place: frames of that row, uint8 [T, H, W, 3] or [H, W, 3]}, and how many rows there are in all.
    Raises ``VideoError``."""
    process = DecodeProcess()
    windows, counts = [], []
    try:
        process.start(path, wanted)
        while True:
            message = process.receive()
            if isinstance(message, Started):
                windows, counts = [{} for _ in wanted], [0] * len(wanted)
            elif isinstance(message, RowFollows):
                message.check(wanted[: len(counts)])
                frames, which = np.empty(message.shape, dtype=np.uint8), message.wanted
                process.receive_into(frames)
                if counts[which] in places:
                    windows[which][counts[which]] = frames
                counts[which] += 1
            elif isinstance(message, PictureFollows):
                process.receive_bytes()
            elif isinstance(message, Finished):
                return windows, counts
    except Nonsense as error:
        raise process.refused(error) from None
    finally:
        process.close()


class Recipes:
    """The other ways in which an extractor's rows may have been made, of those that are often met."""

    def __init__(self, extractor: Extractor) -> None:
        self.extractor = extractor
        self.found: list[str] = []
        """Those that explained a video alone: the next video's are looked for among them first."""

    @cached_property
    def in_bf16(self) -> Extractor:
        network = copy.deepcopy(self.extractor.network).to(torch.bfloat16)
        return replace(self.extractor, network=network, profile=replace(self.extractor.profile, precision="bf16"))

    def of(self, path: Path, ours: VideoFeatures, embedded: bool = False) -> Alternatives:
        """Decodes the video once, in every size and at every rate that fits. ``embedded``: rows are those of ``video_embedding``."""

        def alternatives(places: Sequence[int], num_rows: int) -> Iterator[Hypothesis]:
            profile, wanted = self.extractor.profile, wanted_of(self.extractor.profile)
            kernels = [kernel for kernel in (LIBSWSCALE, LIBSWSCALE_BICUBIC, PILLOW) if kernel != profile.resize]
            rates = [
                r for r in RATES if r != profile.fps and abs(ours.duration_seconds * r / profile.stride - num_rows) < 2
            ]
            asked = [
                wanted,
                *(replace(wanted, resize=kernel) for kernel in kernels),
                *(replace(wanted, fps=rate) for rate in rates),
            ]
            windows, counts = read_windows(path, asked, places)
            if counts[0] != len(ours.valid_frames):
                raise VideoError(
                    "changed", f"its file gives {counts[0]:,} rows now, and {len(ours.valid_frames):,} are in the store"
                )
            frames = [windows[0][place] for place in places]
            tried = {name: (extractor, pictures) for name, extractor, pictures in self.other_inputs(frames)}
            rate_names = [f"{rate} frames a second" for rate in rates]
            names = [f"the kernel {kernel!r}" for kernel in kernels] + rate_names
            for name, made, count in zip(names, windows[1:], counts[1:], strict=True):
                if count == num_rows or name not in rate_names:
                    tried[name] = self.extractor, [made[place] for place in places]
            valid = int(ours.valid_frames[-1])
            if places[-1] == counts[0] - 1 == num_rows - 1 and valid < profile.window:
                for name, fill in FILLS.items():
                    last = np.concatenate([frames[-1][:valid], fill(frames[-1], valid)])
                    if not np.array_equal(last, frames[-1]):
                        tried[f"a last window filled with {name}"] = self.extractor, [*frames[:-1], last]
            if profile.precision == "fp32":
                yield Hypothesis("our recipe, computed in bf16", self.rows(self.in_bf16, frames, embedded), ours=True)
            for name in sorted(tried, key=lambda name: name not in self.found):
                yield Hypothesis(name, self.rows(*tried[name], embedded), another_rate=name in rate_names)

        return alternatives

    def other_inputs(self, frames: list[np.ndarray]) -> Iterator[tuple[str, Extractor, list[np.ndarray]]]:
        profile = self.extractor.profile
        swapped = [np.ascontiguousarray(picture[..., ::-1]) for picture in frames]
        yield "red and blue swapped", self.extractor, swapped
        for name, values in NORMALISATIONS.items():
            if values == (profile.value_range, profile.mean, profile.std):
                continue
            value_range, mean, std = values
            variant = replace(self.extractor, profile=replace(profile, value_range=value_range, mean=mean, std=std))
            yield name, variant, frames
            yield f"{name}, red and blue swapped", variant, swapped

    def rows(self, extractor: Extractor, frames: list[np.ndarray], embedded: bool) -> np.ndarray:
        batches = [np.stack(frames[i : i + BATCH]) for i in range(0, len(frames), BATCH)]
        rows = np.concatenate([extractor.features(batch).numpy() for batch in batches])
        return self.embedded(rows) if embedded else rows

    def embedded(self, rows: np.ndarray) -> np.ndarray:
        """512 values instead of 1,024, of networks that have such an embedding."""
        network = self.extractor.network
        like = next(network.parameters())
        with torch.inference_mode():
            return network.video_embedding(torch.from_numpy(rows).to(like.device, like.dtype)).float().cpu().numpy()


def rows_of_videos(store: FeatureStore) -> dict[str, np.ndarray]:
    """A few rows of a few videos, [rows, D] each."""
    found = {}
    for video_id in sorted(store.video_ids())[:OTHER_VIDEOS]:
        rows = store.get(video_id).features
        found[video_id] = rows[np.unique(np.linspace(0, len(rows) - 1, OTHER_ROWS).astype(int))].astype(np.float32)
    return found


def verify(dataset: DatasetFolder, videos: Sequence[VideoRecord], extractor: Extractor, files: dict[str, Path]) -> int:
    """Prints a line a video and what was found; 0 where all rows are the same."""
    store, recipes = FeatureStore(dataset.features(extractor.profile.name)), Recipes(extractor)
    sample = rows_of_videos(store)
    show(f"{'video':<28}{'rows':>8}{'theirs':>8}{'distance':>10}{'largest':>9}  verdict")
    num_same = 0
    for video in videos:
        if video.video_id not in store:
            show(f"{video.video_id:<28}  no features of ours")
            continue
        try:
            found = _verified(dataset, video, store, sample, recipes, read_features(files[video.video_id]))
        except (UserError, VideoError) as error:
            show(f"{video.video_id:<28}  {error}")
            continue
        num_same += found.same
        recipes.found += [found.cause] if found.cause and found.cause not in recipes.found else []
        show(
            f"{video.video_id:<28}{found.rows:>8,}{found.their_rows:>8,}{found.distance:>10.4f}{found.largest:>9.4f}  "
            f"{found.verdict}{': ' if found.remarks else ''}{'; '.join(found.remarks)}"
        )
    show("distance: between rows that belong together; 1 is that of rows of different videos")
    show(f"{num_same:,} of {len(videos):,} videos have the same rows")
    return EXIT_DONE if num_same == len(videos) else EXIT_INCOMPLETE


def _verified(
    dataset: DatasetFolder,
    video: VideoRecord,
    store: FeatureStore,
    sample: dict[str, np.ndarray],
    recipes: Recipes,
    theirs: np.ndarray,
) -> Comparison:
    ours, network = store.get(video.video_id), recipes.extractor.network
    others = np.concatenate(
        [np.empty((0, ours.features.shape[1])), *(rows for v, rows in sample.items() if v != video.video_id)]
    )
    embedded = theirs.shape[-1] == 512 != ours.features.shape[1] and hasattr(network, "video_embedding")
    if embedded:
        ours = replace(ours, features=recipes.embedded(ours.features.astype(np.float32)))
        others = recipes.embedded(others.astype(np.float32))
    if network is None:
        alternatives = lambda *_: ()  # noqa: E731 (of sound, none is known)
    elif video.url:
        alternatives = None
    else:
        alternatives = recipes.of(dataset.video_path(video), ours, embedded)
    return compare(ours, theirs, others, alternatives, recipes.found)
