"""The responses of the page's API, as JSON."""

from typing import Literal

from pydantic import BaseModel, ConfigDict

from ...storage.dataset.media_types import Shown
from ..search.moments import Moment, ScoreCurve
from ..search.query_checks import SearchBy


class Answer(BaseModel):
    """A JSON object. Docstrings of its fields are part of the API's description."""

    model_config = ConfigDict(use_attribute_docstrings=True)


class CurveResponse(Answer):
    """The scores of a query over the time of a video."""

    start_seconds: list[float]
    end_seconds: list[float]
    scores: list[float]

    @classmethod
    def of(cls, curve: ScoreCurve) -> "CurveResponse":
        """Return a curve as plain lists."""
        return cls(
            start_seconds=curve.start_seconds.tolist(),
            end_seconds=curve.end_seconds.tolist(),
            scores=curve.scores.tolist(),
        )


class WordCurveResponse(Answer):
    """The scores of a word of a query over the time of a video."""

    word: str
    curve: CurveResponse


class OccurrenceResponse(Answer):
    """One of the moments of a video that fit."""

    start_seconds: float
    end_seconds: float
    best_seconds: float
    score: float


class MomentResponse(Answer):
    """A part of a video that was found."""

    video_id: str
    file_name: str | None
    """Name of the video's file, without its folder, if the id differs, for example after a rename; else null."""
    start_seconds: float
    end_seconds: float
    best_seconds: float
    """The second that fits the query best: the middle of the highest window of ``curve``. Its picture is
    ``/media/picture``."""
    duration_seconds: float
    """Duration of the whole video."""
    score: float
    percentile: float | None
    """Percent of all search windows that fit less well; null if only captions were searched."""
    percent_of_captions: float | None
    """Percent of held-out captions of these videos whose best moment scores lower; null if that is not known."""
    found_by: SearchBy
    """The source of the match: the video, the text of a caption, or both."""
    caption: str | None
    """The caption or subtitle whose text matched the query; null if only the video matched."""
    stages: dict[str, float]
    captions: list[str]
    """Captions of the video that overlap the moment; at most three."""
    shown: Shown
    """How browsers show it: "file" (the video's own file, ``/media/video``), "clips" (``/media/clip``), or "thumbnails"
    alone (``/media/picture``)."""
    curve: CurveResponse
    """Scores over the time of the moment; empty for moments in ``similar``."""
    similar: list["MomentResponse"]
    """Moments of other videos that look nearly the same and are not returned on their own; empty without ``fold``."""
    occurrences: list[OccurrenceResponse]
    """Moments of the video that fit, by time, this one among them; empty without ``group``."""

    @classmethod
    def of(
        cls,
        moment: Moment,
        file_name: str | None,
        duration_seconds: float,
        captions: list[str],
        shown: Shown,
        similar: "list[MomentResponse]",
        curve: ScoreCurve,
    ) -> "MomentResponse":
        """Return a moment with the further fields that the page shows."""
        return cls(
            video_id=moment.video_id,
            file_name=file_name,
            start_seconds=moment.start_seconds,
            end_seconds=moment.end_seconds,
            best_seconds=moment.best_seconds,
            duration_seconds=duration_seconds,
            score=moment.score,
            percentile=moment.percentile,
            percent_of_captions=moment.percent_of_captions,
            found_by=moment.found_by,
            caption=moment.caption,
            stages=moment.stages,
            captions=captions,
            shown=shown,
            curve=CurveResponse.of(curve),
            similar=similar,
            occurrences=[OccurrenceResponse.model_validate(m, from_attributes=True) for m in moment.occurrences],
        )


class SearchResponse(Answer):
    """Results of a search, the best first."""

    moments: list[MomentResponse]
    has_more: bool
    """Whether there are more moments (with ``group``, videos) after these: ask with ``offset``."""
    num_videos: int
    """Videos that were searched, after filters."""
    warnings: list[str]
    """Sentences to show beside the moments, such as words that the model does not know."""
    nothing_fits: str | None
    """Why no moment fits the text; ``moments`` are then the nearest ones. Null if one fits, if that is not known, and
    with an ``offset``."""


class DatasetResponse(Answer):
    """A data set of the page."""

    name: str
    num_videos: int
    num_windows: int
    splits: list[str]
    folders: list[str]
    """Folders of the videos' files that ``folder`` can name, sorted; at most 200."""
    languages: list[str]
    """Languages of the captions that ``caption_language`` can name, such as "de"; the most common first."""
    suggestions: list[str]
    """Short captions, as examples of what can be asked; at most four."""


class AboutResponse(Answer):
    """Data sets that are searched, and the model."""

    model: str
    """Name of the features or of the run."""
    note: str | None
    datasets: list[DatasetResponse]
    """The first is searched if none is named."""
    version: int
    """Version of these data sets, as ``SyncResponse.version``; 0 if the page follows no folders."""


class VideoResponse(Answer):
    """A searchable video."""

    video_id: str
    file_name: str | None
    """As ``MomentResponse.file_name``."""
    duration_seconds: float
    shown: Shown
    """As ``MomentResponse.shown``."""
    middle_seconds: float
    """The second of its picture (``/media/picture``)."""
    caption: str | None
    """Its first caption; null without one."""


class VideosResponse(Answer):
    """Videos of a data set, the newest first where that is known."""

    videos: list[VideoResponse]
    num_videos: int
    """Number of all videos that pass the filters."""
    warnings: list[str]
    """Sentences to show beside them, such as how many have no known date."""


class PictureResponse(Answer):
    """A picture that was taken as an example."""

    picture: str
    """Its id: ``/media/example`` shows it."""


class SyncResponse(Answer):
    """The folders of videos that the page follows, and how far they are read."""

    following: list[str]
    """Names of the folders; none if the page follows none."""
    state: Literal["idle", "working", "failed"]
    done: int | None = None
    """Units of the work that are done; null if that is not known."""
    total: int | None = None
    what: str
    """A short sentence, such as "extracting: 3 of 12 videos"."""
    rate: float | None = None
    """Units a second."""
    seconds_left: float | None = None
    problems: list[str] = []
    """Lines about files and folders that could not be read."""
    version: int
    """Rises whenever the searchable videos change: earlier requests should then be repeated."""
