"""The answers of the page's addresses, as JSON."""

from pydantic import BaseModel

from ...storage.dataset.media_types import Shown
from ..search.moments import FoundBy, Moment, ScoreCurve


class CurveAnswer(BaseModel):
    """How well a query fits a video over its time."""

    start_seconds: list[float]
    end_seconds: list[float]
    scores: list[float]

    @classmethod
    def of(cls, curve: ScoreCurve) -> "CurveAnswer":
        """Return a curve as plain lists."""
        return cls(
            start_seconds=curve.start_seconds.tolist(),
            end_seconds=curve.end_seconds.tolist(),
            scores=curve.scores.tolist(),
        )


class WordAnswer(BaseModel):
    """How well a word of a query fits a video over its time."""

    word: str
    curve: CurveAnswer


class MomentAnswer(BaseModel):
    """A part of a video that was found."""

    video_id: str
    start_seconds: float
    end_seconds: float
    duration_seconds: float
    """Duration of the whole video."""
    score: float
    percentile: float | None
    """Percent of all windows that fit less well; null if only captions were searched."""
    found_by: FoundBy
    """Means by which it was found: what is seen (picture), words of a caption, or both."""
    said: str | None
    """The caption whose words found it."""
    stages: dict[str, float]
    captions: list[str]
    """Captions of the video that are about a time in the moment; at most three."""
    shown: Shown
    """How browsers show the video: by ``/media/video`` (file), by ``/media/clip`` (clips), or by ``/media/picture``."""
    curve: CurveAnswer
    """Over the time of the moment."""

    @classmethod
    def of(cls, moment: Moment, duration_seconds: float, captions: list[str], shown: Shown) -> "MomentAnswer":
        """Return a moment with what the page shows beside it."""
        return cls(
            video_id=moment.video_id,
            start_seconds=moment.start_seconds,
            end_seconds=moment.end_seconds,
            duration_seconds=duration_seconds,
            score=moment.score,
            percentile=moment.percentile,
            found_by=moment.found_by,
            said=moment.said,
            stages=moment.stages,
            captions=captions,
            shown=shown,
            curve=CurveAnswer.of(moment.curve),
        )


class SearchAnswer(BaseModel):
    """Results of a search, the best first."""

    moments: list[MomentAnswer]
    num_videos: int
    """Videos that were searched, after filters."""
    remarks: list[str]
    """Sentences to show beside the moments, such as words that the model does not know."""


class DatasetAnswer(BaseModel):
    """A data set of the page."""

    name: str
    num_videos: int
    num_windows: int
    splits: list[str]


class AboutAnswer(BaseModel):
    """Data sets that are searched, and the model."""

    model: str
    """Name of the features or of the run."""
    note: str | None
    datasets: list[DatasetAnswer]
    """The first is searched if none is named."""
