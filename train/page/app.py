"""The addresses of the page. Everything that can be asked for is in ``/api/openapi.json``, too."""

import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from fastapi import Depends, FastAPI, HTTPException, Query, Request, Response
from fastapi.responses import FileResponse, JSONResponse
from starlette.staticfiles import StaticFiles
from starlette.types import Receive, Scope, Send

from ...storage.common.errors import UserError
from ..search.limits import OutOfTime, SearchBy, time_limit
from ..search.moments import Moment
from ..search.search import Search
from .browser_clips import Clips
from .concurrency import WAIT_SECONDS, Busy, Turns
from .guard import Access, Guard
from .library import Library, Missing
from .responses import AboutAnswer, CurveAnswer, DatasetAnswer, MomentAnswer, SearchAnswer, WordAnswer

STATIC = Path(__file__).parent / "static"
SEARCH_SECONDS = 20.0
"""How long a search may compute; those after it wait as long at most."""
MOST_RESULTS, MOST_ID_CHARACTERS, MOST_RANGE_CHARACTERS = 60, 1024, 100

Words = Annotated[str, Query(min_length=1, max_length=2000)]
VideoId = Annotated[str, Query(min_length=1, max_length=MOST_ID_CHARACTERS)]
Count = Annotated[int, Query(ge=1, le=MOST_RESULTS)]
Seconds = Annotated[float, Query(ge=0, le=1e7, allow_inf_nan=False)]
Split = Annotated[str | None, Query(pattern="^(train|validation|test)$")]
DatasetName = Annotated[
    str | None, Query(alias="dataset", max_length=255, description="name of a data set of this page; the first if none")
]
Known = Annotated[bool | None, Query(description="only videos with (true) or without (false) a known caption")]


@dataclass(frozen=True)
class Filters:
    """Filters of videos: parameters of several addresses."""

    split: Split = None
    caption_known: Known = None
    shortest: Seconds = 0
    longest: Seconds = 1e7


class OpenFileResponse(FileResponse):
    """An answer with a file that is open, or a range of it. What its name stands for by then does not matter."""

    def __init__(self, descriptor: int, path: Path, media_type: str, headers: Mapping[str, str]) -> None:
        """Take the file's descriptor, which is closed after the answer. Windows opens the file by its name again."""
        self._descriptor = descriptor
        opened = f"/dev/fd/{descriptor}" if os.path.exists("/dev/fd") else path
        super().__init__(opened, media_type=media_type, headers=headers, stat_result=os.fstat(descriptor))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the answer."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            os.close(self._descriptor)


@dataclass(frozen=True)
class Served:
    """A data set of the page."""

    search: Search
    library: Library

    def chosen(self, filters: Filters) -> set[str] | None:
        """Return the videos that pass the filters; None for all."""
        if filters == Filters():
            return None
        split, known, split_of = filters.split, filters.caption_known, self.library.split_of
        return {
            video_id
            for video_id in self.search.index.video_ids
            if (split is None or split_of(video_id) == split)
            and (known is None or (split_of(video_id) is not None) == known)
            and filters.shortest <= self.search.encoder.duration_seconds(video_id) <= filters.longest
        }

    def answer(self, moments: list[Moment], videos: set[str] | None, remarks: list[str]) -> SearchAnswer:
        """Return moments with what is shown beside them."""
        answers = [
            MomentAnswer.of(
                moment,
                self.search.encoder.duration_seconds(moment.video_id),
                self.library.captions_at(moment.video_id, moment.start_seconds, moment.end_seconds),
                self.library.how_shown(moment.video_id),
            )
            for moment in moments
        ]
        num_videos = len(self.search.index.video_ids if videos is None else videos)
        return SearchAnswer(moments=answers, num_videos=num_videos, remarks=remarks)


def served(request: Request, dataset: DatasetName = None) -> Served:
    """Return a data set of the page by its name; without one, the first."""
    datasets: dict[str, Served] = request.app.state.datasets
    found = next(iter(datasets.values())) if dataset is None else datasets.get(dataset)
    if found is None:
        raise Missing(f"no such data set on this page; expected one of {', '.join(datasets)}")
    return found


Of = Annotated[Served, Depends(served)]


def make_app(searches: Sequence[Search], access: Access) -> FastAPI:
    """Return the application of a page.

    Args:
        searches: What is asked, one search for each data set.
        access: Who may ask.
    """
    app = FastAPI(title="vlalign", openapi_url="/api/openapi.json", docs_url=None, redoc_url=None)
    clips = Clips()
    app.state.datasets = {search.dataset.name: Served(search, Library(search.dataset, clips)) for search in searches}
    app.add_middleware(Guard, access=access)
    _add_errors(app)
    _add_about(app)
    _add_searches(app)
    _add_media(app)

    @app.get("/", include_in_schema=False)
    def page() -> FileResponse:
        """Return the page itself; its script reads the rest of the address."""
        return FileResponse(STATIC / "index.html")

    app.mount("/static", StaticFiles(directory=STATIC))
    return app


def _add_errors(app: FastAPI) -> None:
    @app.exception_handler(UserError)
    async def user_error(_: Request, error: Exception) -> JSONResponse:
        return JSONResponse({"detail": str(error)}, 422)

    @app.exception_handler(OutOfTime)
    async def out_of_time(_: Request, error: Exception) -> JSONResponse:
        return JSONResponse({"detail": str(error)}, 503)

    @app.exception_handler(Busy)
    async def busy(_: Request, error: Exception) -> JSONResponse:
        return JSONResponse({"detail": str(error)}, 503, {"Retry-After": "5"})

    @app.exception_handler(Missing)
    async def missing(_: Request, error: Exception) -> JSONResponse:
        return JSONResponse({"detail": str(error)}, 404)


def _add_about(app: FastAPI) -> None:
    @app.get("/api/about")
    def about() -> AboutAnswer:
        """Say what is searched."""
        everything: list[Served] = list(app.state.datasets.values())
        return AboutAnswer(
            model=everything[0].search.name,
            note=everything[0].search.note,
            datasets=[
                DatasetAnswer(
                    name=of.search.dataset.name,
                    num_videos=len(of.search.index.video_ids),
                    num_windows=of.search.num_windows,
                    splits=of.library.splits,
                )
                for of in everything
            ],
        )


def _add_searches(app: FastAPI) -> None:
    one_search, turn = threading.Lock(), [Depends(Turns("searches"))]

    @contextmanager
    def in_turn() -> Iterator[None]:
        """Let one search compute at a time: a model is not made for several threads."""
        if not one_search.acquire(timeout=WAIT_SECONDS):
            raise Busy("too many searches at once; try again")
        try:
            with time_limit(SEARCH_SECONDS):
                yield
        finally:
            one_search.release()

    @app.get("/api/search", dependencies=turn)
    def find(
        of: Of, q: Words, filters: Annotated[Filters, Depends()], num: Count = 12, by: SearchBy = "both"
    ) -> SearchAnswer:
        """Find moments that fit some words."""
        with in_turn():
            videos = of.chosen(filters)
            moments = [] if videos == set() else of.search(q, num_results=num, videos=videos, by=by)
            return of.answer(moments, videos, of.search.remarks(q, by))

    @app.get("/api/like", dependencies=turn)
    def like(
        of: Of,
        video_id: VideoId,
        start: Seconds,
        end: Seconds,
        filters: Annotated[Filters, Depends()],
        num: Count = 12,
    ) -> SearchAnswer:
        """Find moments that look like a part of a video."""
        with in_turn():
            videos = of.chosen(filters)
            moments = [] if videos == set() else of.search.like(video_id, start, end, num_results=num, videos=videos)
            return of.answer(moments, videos, [])

    @app.get("/api/curve", dependencies=turn)
    def curve(of: Of, q: Words, video_id: VideoId) -> CurveAnswer:
        """Return how well some words fit a video over its whole time."""
        with in_turn():
            return CurveAnswer.of(of.search.score_curve(q, video_id))

    @app.get("/api/words", dependencies=turn)
    def words(of: Of, q: Words, video_id: VideoId) -> list[WordAnswer]:
        """Return how well each word fits a video over its time; nothing if the run has no such scores."""
        with in_turn():
            curves = of.search.word_curves(q, video_id)
            return [WordAnswer(word=word, curve=CurveAnswer.of(curve)) for word, curve in curves.items()]


def _add_media(app: FastAPI) -> None:
    kept = {"Cache-Control": "private, max-age=3600"}

    def check_range(request: Request) -> None:
        """Refuse several ranges, which would make a long answer of a short request."""
        wanted = request.headers.get("range", "")
        if "," in wanted or len(wanted) > MOST_RANGE_CHARACTERS:
            raise HTTPException(416, "expected one range of bytes")

    in_ranges = {"response_class": FileResponse, "responses": {206: {"description": "a range of bytes"}}}

    @app.get("/media/video", dependencies=[Depends(check_range)], **in_ranges)
    def video(of: Of, video_id: VideoId) -> Any:
        """Return the file of a video, or one range of its bytes."""
        return OpenFileResponse(*of.library.file(video_id), kept)

    @app.get("/media/clip", dependencies=[Depends(check_range), Depends(Turns("clips"))], **in_ranges)
    def clip(of: Of, video_id: VideoId, start: Seconds, end: Seconds) -> Any:
        """Return a part of a video as WebM, or one range of its bytes: at most 30 seconds and 640 px a side."""
        return FileResponse(of.library.clip(video_id, start, end), media_type="video/webm", headers=kept)

    @app.get("/media/picture", response_class=Response, responses={200: {"content": {"image/jpeg": {}}}})
    def picture(of: Of, video_id: VideoId, seconds: Seconds = 0) -> Response:
        """Return the thumbnail of a video nearest to a time."""
        return Response(of.library.picture(video_id, seconds), media_type="image/jpeg")
