"""Compare features made by others with ours, and find out how theirs were made.

This is the Python call behind ``vlalign-extract --verify-against``.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ...storage.common.errors import SettingError, UserError
from ...storage.common.progress import Listener
from ...storage.dataset.folder import DatasetFolder
from ...storage.exchange.readers import feature_files, read_features
from ...storage.records import VideoRecord
from ...storage.stores.opening import open_store
from ...storage.stores.store import Store
from ..decoding.errors import VideoError
from ..extractor import Extractor, profile_of
from ..pipeline.dataset import ExtractionResult, extract_dataset
from ..pipeline.runner import Runner
from ..pipeline.store_extractor import choose_devices, make_extractor
from ..settings import ExtractionSettings, WorkerSettings
from .compare import Alternatives, Comparison, compare
from .recipes import Recipes

OTHER_VIDEOS, OTHER_ROWS = 64, 4
"""Number of videos, and of vectors of each, that represent unrelated vectors."""


@dataclass(frozen=True)
class VideoVerdict:
    """The comparison's result for one video."""

    video_id: str
    comparison: Comparison | None
    """None if the video could not be compared."""
    failure: str = ""
    """Reason why it could not be compared."""

    @property
    def same(self) -> bool:
        """True if the vectors were made in the same way."""
        return self.comparison is not None and self.comparison.same


@dataclass(frozen=True)
class VerificationResult:
    """The result of the comparison of all videos.

    Example:
        >>> from vlalign.extract import ExtractionResult, VerificationResult
        >>> from vlalign.extract.verification.verify import VideoVerdict
        >>> extraction = ExtractionResult(videos=[], num_tried=0, num_complete=0, num_partial=0, num_problems=0)
        >>> result = VerificationResult(extraction, [VideoVerdict("demo0000", None, "cannot be decoded")])
        >>> result.num_same, result.same
        (0, False)
    """

    extraction: ExtractionResult
    """The result of the extraction for the comparison."""
    verdicts: Sequence[VideoVerdict]
    """The result of each video."""

    @property
    def num_same(self) -> int:
        """Videos whose rows were made in the same way."""
        return sum(verdict.same for verdict in self.verdicts)

    @property
    def same(self) -> bool:
        """True if all rows of all videos were made in the same way."""
        return self.num_same == len(self.verdicts)


def verify_dataset(
    settings: ExtractionSettings,
    *,
    runner: Runner | None = None,
    on_verdict: Callable[[VideoVerdict], None] = lambda _: None,
    on_progress: Listener | None = None,
) -> VerificationResult:
    """Extract the videos with features in ``settings.verify_against``, and compare those features with ours.

    Args:
        settings: What to extract; exactly one kind of features.
        runner: Where to extract (default: in this process).
        on_verdict: Called with each video's verdict when it is known.
        on_progress: Called with the progress of the extraction.

    Returns:
        The result of the extraction, and a verdict for each video.

    Raises:
        UserError: A setting, the list of videos, or the weights cannot be used.

    Example:
        >>> from pathlib import Path
        >>> import numpy as np
        >>> from vlalign.extract import ExtractionSettings, extract_video, load_extractor, verify_dataset
        >>> clip = load_extractor("clip_vit_b32", weights="random")
        >>> theirs = extract_video("vlalign_data/demo/videos/demo0000.mp4", [clip])["clip_vit_b32"]
        >>> Path("theirs").mkdir()
        >>> np.save("theirs/demo0000.npy", theirs.features.astype(np.float16))
        >>> settings = ExtractionSettings(
        ...     dataset="vlalign_data/verified",
        ...     features="clip_vit_b32",
        ...     weights=["random"],
        ...     videos=Path("vlalign_data/demo/videos"),
        ...     verify_against=Path("theirs"),
        ...     device="cpu",
        ... )
        >>> [verdict.video_id for verdict in verify_dataset(settings).verdicts]
        ['demo0000']
    """
    if settings.verify_against is None:
        raise SettingError("verify_against", None, "expected a folder with features made by others")
    for name in settings.store_names:
        profile = profile_of(name, settings.weights_of(name))
        if profile.is_frames or profile.is_shots:
            what = "frames" if profile.is_frames else "shots"
            raise SettingError("features", name, f"{what} are not compared; expected features of a network")
    extraction = extract_dataset(settings, runner=runner, on_progress=on_progress)
    (name,) = settings.store_names
    weights = settings.weights_of(name)
    device = choose_devices(settings, {name: weights})[0]
    worker = WorkerSettings(
        dataset=settings.folder, weights={name: weights}, device=device, precision=settings.precision
    )
    extractor = make_extractor(worker, name)
    verifier = _Verifier(settings.folder, extractor, feature_files(settings.verify_against))
    verdicts = []
    for video in extraction.videos:
        verdicts.append(verifier.verdict(video))
        on_verdict(verdicts[-1])
    return VerificationResult(extraction, verdicts)


class _Verifier:
    """Compares the videos of a data set with files of features."""

    def __init__(self, dataset: DatasetFolder, extractor: Extractor, files: dict[str, Path]) -> None:
        self._dataset, self._files = dataset, files
        self._store = open_store(dataset.features(extractor.profile.name))
        self._recipes = Recipes(extractor)
        self._sample = sample_rows(self._store)

    def verdict(self, video: VideoRecord) -> VideoVerdict:
        if video.video_id not in self._store:
            return VideoVerdict(video.video_id, None, "no features of ours")
        try:
            comparison = self._compare(video, read_features(self._files[video.video_id]))
        except (UserError, VideoError) as error:
            return VideoVerdict(video.video_id, None, str(error))
        if comparison.cause and comparison.cause not in self._recipes.known:
            self._recipes.known.append(comparison.cause)
        return VideoVerdict(video.video_id, comparison)

    def _compare(self, video: VideoRecord, theirs: np.ndarray) -> Comparison:
        ours, recipes = self._store.get(video.video_id), self._recipes
        dimension = ours.features.shape[1]
        others = np.concatenate(
            [np.empty((0, dimension)), *(rows for v, rows in self._sample.items() if v != video.video_id)]
        )
        embedded = theirs.shape[-1] != dimension and theirs.shape[-1] == recipes.embedding_dimension
        if embedded:
            ours = replace(ours, features=recipes.embed(ours.features.astype(np.float32)))
            others = recipes.embed(others.astype(np.float32))
        alternatives: Alternatives | None
        if recipes.extractor.network is None:
            alternatives = lambda *_: ()  # noqa: E731 (for sound, no other recipe is known)
        elif video.url:
            alternatives = None
        else:
            alternatives = recipes.alternatives(self._dataset.video_path(video), ours, embedded)
        return compare(ours, theirs, others, alternatives, recipes.known)


def sample_rows(store: Store) -> dict[str, np.ndarray]:
    """Return a few feature vectors of a few videos, {video id: [rows, D]}."""
    sample = {}
    for video_id in sorted(store.video_ids())[:OTHER_VIDEOS]:
        rows = store.get(video_id).features
        sample[video_id] = rows[np.unique(np.linspace(0, len(rows) - 1, OTHER_ROWS).astype(int))].astype(np.float32)
    return sample
