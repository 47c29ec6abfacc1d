"""The addresses of the page. ``/api/openapi.json`` describes all of them."""

import asyncio
import math
import os
import threading
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

from fastapi import Depends, FastAPI, HTTPException, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse
from starlette.staticfiles import StaticFiles
from starlette.types import Receive, Scope, Send

from ...storage.common.errors import UserError
from ...storage.common.terminal import one_line
from ...storage.records import SPLITS
from ..export.export import about_search
from ..export.source_videos import Part
from ..search.caption_index import NO_CURVE
from ..search.caption_terms import CaptionTerms
from ..search.moments import Moment
from ..search.query_checks import (
    MAX_OFFSET,
    MAX_QUERY_CHARACTERS,
    ExampleQuery,
    SearchBy,
    SearchGroup,
    SearchTimeout,
    VideoSpan,
    parse_span,
    time_limit,
)
from ..search.search import Search
from ..search.video_filters import VideoFacts, VideoFilters
from .browser_clips import ClipCache
from .concurrency import AddressQueue, Busy, client_gone, one_at_a_time
from .example_pictures import ExamplePictures
from .exports import MAX_LISTED, CutError, ExportForm, PageExports
from .exports import MEDIA_TYPES as EXPORT_TYPES
from .folder_sync import FolderSync
from .guard import PICTURES, UPLOADS, Access, Guard, Upload
from .library import NotFound, VideoLibrary
from .parameters import PROBLEM_RESPONSE, check_parameters, wrong_value
from .pictures import FrameCache
from .responses import (
    AboutResponse,
    CurveResponse,
    DatasetResponse,
    MomentResponse,
    PictureResponse,
    SearchResponse,
    SyncResponse,
    VideoResponse,
    VideosResponse,
    WordCurveResponse,
)
from .video_list import VideoList

STATIC = Path(__file__).parent / "static"
SEARCHES = ("/api/search", "/api/like")
SEARCH_SECONDS = 20.0
"""Time limit of a search, and of waiting for the searches before it."""
MISSING_HEADER = "Moments-Missing"
"""Header of an export: the number of moments that are not in it."""
SOURCE_HEADER, SECONDS_HEADER = "Picture-Source", "Picture-Seconds"
"""Headers of a frame's response."""
UPLOAD_SECONDS = 30.0
"""Time limit for the content of a request to arrive."""
MAX_UPLOADS, MAX_UPLOADS_OF_ADDRESS = 16, 2
"""Maximum number of uploads in memory at once: of all addresses (more are refused), and of one address (more wait)."""
MAX_RESULTS, MAX_RANGE_CHARACTERS = 60, 100
MAX_ID_CHARACTERS = 4096
"""The longest path on Linux, since ids of a user's own videos are paths."""
MAX_FOLDERS, MAX_FOLDER_CHARACTERS = 200, 4096
MAX_EXAMPLES, MAX_EXAMPLE_CHARACTERS = 20, MAX_ID_CHARACTERS + 50
UPLOADED = "picture:"
"""Prefix of an example image that was uploaded to this page."""

UPLOAD_BODY = {"requestBody": {"required": True, "content": {"image/*": {}, "application/octet-stream": {}}}}
"""Part of the API's description: the bytes of an image file."""

QueryText = Annotated[str, Query(min_length=1, max_length=2000)]
VideoId = Annotated[str, Query(min_length=1, max_length=MAX_ID_CHARACTERS)]
OneVideo = Annotated[
    str | None,
    Query(min_length=1, max_length=MAX_ID_CHARACTERS, description="only this video; the filters are ignored"),
]
OptionalText = Annotated[str, Query(max_length=MAX_QUERY_CHARACTERS, description="what to find, in words")]
Without = Annotated[
    str, Query(max_length=MAX_QUERY_CHARACTERS, description="rank moments lower that show what this text names")
]
By = Annotated[SearchBy, Query(description="compare the text with the videos, with captions and subtitles, or both")]
Examples = Annotated[
    list[Annotated[str, Query(min_length=1, max_length=MAX_EXAMPLE_CHARACTERS)]],
    Query(
        max_length=MAX_EXAMPLES,
        default_factory=list,
        description="examples: VIDEO@START-END in seconds, VIDEO, or picture:ID of an uploaded image",
    ),
]
NumResults = Annotated[int, Query(ge=1, le=MAX_RESULTS)]
NumExported = Annotated[int, Query(ge=1, le=MAX_LISTED, description="moments, or videos with group")]
Exact = Annotated[bool, Query(description="encode again, exact to the frame; else copy from the key frame before")]
Offset = Annotated[int, Query(ge=0, le=MAX_OFFSET, description="moments, or videos with group, to skip")]
Group = Annotated[SearchGroup | None, Query(description="the best moment of each video, with all that fit")]
Fold = Annotated[bool, Query(description="return near duplicates only in `similar` of the best of them")]
VideoOffset = Annotated[int, Query(ge=0, le=10**9, description="videos to skip")]
PictureId = Annotated[str, Query(min_length=1, max_length=100)]
Seconds = Annotated[float, Query(ge=0, le=1e7, allow_inf_nan=False)]
MaxSeconds = Annotated[float | None, Query(ge=0, le=1e7, allow_inf_nan=False)]
Split = Annotated[
    str | None,
    Query(
        max_length=100,
        description="only videos whose captions are in this split",
        json_schema_extra={"enum": [*SPLITS, None]},
    ),
]
DatasetName = Annotated[
    str | None,
    Query(
        alias="dataset",
        min_length=1,
        max_length=255,
        description="name of a data set of this page (default: the first)",
    ),
]
HasCaption = Annotated[bool | None, Query(description="only videos with (true) or without (false) a known caption")]


FolderName = Annotated[
    str | None, Query(max_length=MAX_FOLDER_CHARACTERS, description="only videos whose files are in this folder")
]
Since = Annotated[
    str | None, Query(max_length=100, description="only videos whose files were changed on this day, or later")
]
Until = Annotated[
    str | None, Query(max_length=100, description="only videos whose files were changed on this day, or before")
]
CaptionText = Annotated[
    str | None, Query(max_length=MAX_QUERY_CHARACTERS, description="only videos with a caption that has these words")
]
Language = Annotated[str | None, Query(max_length=100, description="only videos whose captions are in this language")]


def video_filters(
    split: Split = None,
    has_caption: HasCaption = None,
    min_seconds: Seconds = 0,
    max_seconds: MaxSeconds = None,
    folder: FolderName = None,
    since: Since = None,
    until: Until = None,
    caption: CaptionText = None,
    caption_language: Language = None,
) -> VideoFilters:
    """Return the filters of videos, which several addresses take as parameters; an empty text is no filter."""
    longest = math.inf if max_seconds is None else max_seconds
    texts = (text or None for text in (folder, since, until, caption, caption_language))
    return VideoFilters(split or None, has_caption, min_seconds, longest, *texts)


Filters = Annotated[VideoFilters, Depends(video_filters)]


class OpenFileResponse(FileResponse):
    """A response with a file that is already open, or a range of it: the file cannot be replaced after its check."""

    def __init__(self, descriptor: int, path: Path, media_type: str, headers: Mapping[str, str]) -> None:
        """Take the file's descriptor, which is closed after the response. Windows opens the file by its name again."""
        self._descriptor = descriptor
        opened = f"/dev/fd/{descriptor}" if os.path.exists("/dev/fd") else path
        super().__init__(opened, media_type=media_type, headers=headers, stat_result=os.fstat(descriptor))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            os.close(self._descriptor)


@dataclass(frozen=True)
class PageDataset:
    """A data set of the page."""

    search: Search
    library: VideoLibrary
    facts: VideoFacts
    """The facts that filters use; for one thread at a time."""
    about: DatasetResponse

    @classmethod
    def of(cls, search: Search, library: VideoLibrary) -> "PageDataset":
        """Return a data set with the facts that the page shows about it."""
        facts = VideoFacts(search, library.split_of, library.videos)
        try:
            folders = facts.folders[:MAX_FOLDERS]
        except UserError:  # the next sync reports the problem of its record
            folders = []
        about = DatasetResponse(
            name=search.encoder.dataset.name,
            num_videos=len(search.index.video_ids),
            num_windows=search.index.num_windows,
            splits=library.splits,
            folders=folders,
            languages=facts.languages,
            suggestions=library.suggestions,
        )
        return cls(search, library, facts, about)

    @cached_property
    def videos(self) -> VideoList:
        """The searchable videos, for a page without a query."""
        return VideoList(self.search, self.library)

    def is_content_word(self, word: str) -> bool:
        """Return whether a word is not a stop word of the captions' languages, or of English without captions."""
        captions = self.search.caption_index
        return bool(CaptionTerms([]).of_query(word)) if captions is None else captions.has_content_words(word)

    def respond(
        self,
        moments: list[Moment],
        videos: set[str] | None,
        has_more: bool,
        warnings: Sequence[str] = (),
        nothing_fits: str | None = None,
    ) -> SearchResponse:
        """Return moments with their clips, thumbnails and captions.

        Args:
            moments: The moments found. Those whose features were removed meanwhile are skipped.
            videos: Ids of the videos that were searched; None for all.
            has_more: There are more moments after these.
            warnings: Sentences to show beside them.
            nothing_fits: Why none of them fits; None if one does.
        """
        return SearchResponse(
            moments=[shown for moment in moments if (shown := self._response(moment)) is not None],
            has_more=has_more,
            num_videos=len(self.search.index.video_ids if videos is None else videos),
            warnings=list(warnings),
            nothing_fits=nothing_fits,
        )

    def _response(self, moment: Moment, with_curve: bool = True) -> MomentResponse | None:
        try:
            duration_seconds = self.search.encoder.duration_seconds(moment.video_id)
        except KeyError:
            return None
        similar = (self._response(other, with_curve=False) for other in moment.similar)
        return MomentResponse.of(
            moment,
            self.library.other_file_name(moment.video_id),
            duration_seconds,
            self.library.captions_at(moment.video_id, moment.start_seconds, moment.end_seconds),
            self.library.how_shown(moment.video_id),
            [other for other in similar if other is not None],
            moment.curve if with_curve else NO_CURVE,
        )

    def listed(
        self, videos: set[str] | None, offset: int, num_results: int, warnings: Sequence[str] = ()
    ) -> VideosResponse:
        """Return some of the searchable videos.

        Args:
            videos: Ids of those that pass the filters; None for all.
            offset: Videos to skip.
            num_results: Most videos to return.
            warnings: Sentences to show beside them.
        """
        found, num_videos = self.videos.part(offset, num_results, videos)
        shown = [
            VideoResponse(
                video_id=video_id,
                file_name=self.library.other_file_name(video_id),
                duration_seconds=seconds,
                shown=self.library.how_shown(video_id),
                middle_seconds=seconds / 2,
                caption=self.library.first_caption(video_id),
            )
            for video_id, seconds in found.items()
        ]
        return VideosResponse(videos=shown, num_videos=num_videos, warnings=list(warnings))


class NothingYet(Exception):
    """No video of the data set was read yet. The message reports the progress."""


def selected_dataset(request: Request, name: DatasetName = None) -> PageDataset:
    """Return the page's data set with this name, or its first data set if the name is None."""
    datasets: dict[str, PageDataset] = request.app.state.datasets
    sync: FolderSync | None = request.app.state.sync
    if sync is not None and sync.dataset_name not in datasets and name in (None, sync.dataset_name):
        raise NothingYet(sync.why_nothing_yet)
    found = next(iter(datasets.values())) if name is None else datasets.get(name)
    if found is None:
        raise NotFound(f"dataset {one_line(str(name))}: not on this page; expected one of {', '.join(datasets)}")
    return found


SelectedDataset = Annotated[PageDataset, Depends(selected_dataset)]


def known_id(dataset: SelectedDataset, video_id: VideoId) -> str:
    """Return the id of a video, with accents written as in the data set."""
    return dataset.search.id_of(video_id)


KnownId = Annotated[str, Depends(known_id)]


def make_app(searches: Sequence[Search], access: Access) -> FastAPI:
    """Return the application of a page.

    Args:
        searches: One for each data set of the page.
        access: Who may send requests.
    """
    urls = {"openapi_url": "/api/openapi.json", "docs_url": None, "redoc_url": None}
    every = {"dependencies": [Depends(check_parameters)], "responses": {422: PROBLEM_RESPONSE}}
    app = FastAPI(title="vlalign", lifespan=_life, **every, **urls)
    app.state.clips, app.state.frames, app.state.pictures = ClipCache(), FrameCache(), ExamplePictures()
    app.state.exports = PageExports()
    app.state.datasets, app.state.sync = {}, None
    app.state.version, app.state.changing = 0, threading.Lock()
    for search in searches:
        add_search(app, search)
    app.add_middleware(Guard, access=access)
    _add_errors(app)
    _add_about(app)
    _add_searches(app)
    _add_media(app)
    _add_examples(app)

    @app.get("/", include_in_schema=False)
    def page() -> FileResponse:
        """Return the page itself; its script reads the rest of the address."""
        return FileResponse(STATIC / "index.html")

    app.mount("/static", StaticFiles(directory=STATIC))
    return app


@asynccontextmanager
async def _life(app: FastAPI) -> AsyncIterator[None]:
    """Remove the page's stored files when the server ends, even if the command was stopped."""
    yield
    remove_kept(app)


def remove_kept(app: FastAPI) -> None:
    """Remove the files that a page stored: clips and uploaded images."""
    app.state.pictures.close()
    app.state.clips.close()


def add_search(app: FastAPI, search: Search) -> None:
    """Add a data set to a page, or replace a data set's search. Requests in progress keep the old search."""
    dataset = search.encoder.dataset
    library = VideoLibrary(dataset, app.state.clips, app.state.frames)
    added = PageDataset.of(search, library)
    if app.state.sync is not None:
        _ = added.videos  # sorting a million videos takes seconds, and no request should wait for it
    with app.state.changing:
        app.state.datasets[dataset.name] = added
        app.state.version += app.state.sync is not None


def take_search(app: FastAPI, search: Search | None) -> None:
    """Show the search that a page's sync opened; with None, remove its data set, which has no videos any more."""
    if search is not None:
        add_search(app, search)
        return
    with app.state.changing:
        app.state.version += app.state.datasets.pop(app.state.sync.dataset_name, None) is not None


def follow(app: FastAPI, sync: FolderSync) -> None:
    """Let a page show the progress of a folder sync. Until the sync opens a search, its data set is empty."""
    app.state.sync = sync


def _add_errors(app: FastAPI) -> None:
    @app.exception_handler(UserError)
    async def user_error(_: Request, error: Exception) -> JSONResponse:
        return JSONResponse({"detail": app.state.pictures.without_paths(str(error))}, 422)

    @app.exception_handler(RequestValidationError)
    async def wrong_request(_: Request, error: Any) -> JSONResponse:
        return JSONResponse({"detail": str(wrong_value(error.errors()[0]))}, 422)

    @app.exception_handler(NothingYet)
    async def nothing_yet(request: Request, error: Exception) -> JSONResponse:
        warnings = [str(error)]
        if request.url.path == "/api/videos":
            return JSONResponse(VideosResponse(videos=[], num_videos=0, warnings=warnings).model_dump())
        if request.url.path not in SEARCHES:
            return JSONResponse({"detail": str(error)}, 404)
        nothing = SearchResponse(moments=[], has_more=False, num_videos=0, warnings=warnings, nothing_fits=None)
        return JSONResponse(nothing.model_dump())

    @app.exception_handler(SearchTimeout)
    async def timeout(_: Request, error: Exception) -> JSONResponse:
        return JSONResponse({"detail": str(error)}, 503)

    @app.exception_handler(Busy)
    async def busy(_: Request, error: Exception) -> JSONResponse:
        return JSONResponse({"detail": str(error)}, 503, {"Retry-After": "5"})

    @app.exception_handler(CutError)
    async def not_cut(_: Request, error: Exception) -> JSONResponse:
        return JSONResponse({"detail": f"no clip can be made of this moment: {error}"}, 404)

    @app.exception_handler(NotFound)
    async def not_found(_: Request, error: Exception) -> JSONResponse:
        return JSONResponse({"detail": str(error)}, 404)


def _add_about(app: FastAPI) -> None:
    @app.get("/api/about")
    def about() -> AboutResponse:
        """Return the data sets that can be searched, and the model."""
        with app.state.changing:
            datasets: list[PageDataset] = list(app.state.datasets.values())
            version: int = app.state.version
        sync: FolderSync | None = app.state.sync
        if not datasets and sync is not None:
            empty: dict[str, list[str]] = {"splits": [], "folders": [], "languages": [], "suggestions": []}
            nothing = DatasetResponse(name=sync.dataset_name, num_videos=0, num_windows=0, **empty)
            return AboutResponse(model=sync.model, note=None, datasets=[nothing], version=version)
        return AboutResponse(
            model=datasets[0].search.encoder.name,
            note=datasets[0].search.encoder.note,
            datasets=[dataset.about for dataset in datasets],
            version=version,
        )

    @app.get("/api/sync")
    def sync() -> SyncResponse:
        """Return the folders of videos that the page follows, and how far they are read."""
        followed: FolderSync | None = app.state.sync
        if followed is None:
            return SyncResponse(following=[], state="idle", what="this server follows no folders", version=0)
        return followed.state(app.state.version)


def _add_searches(app: FastAPI) -> None:
    search_lock, queue = threading.Lock(), [Depends(AddressQueue("searches"))]

    @contextmanager
    def one_search() -> Iterator[None]:
        """Run one search at a time, since models are not thread-safe, and limit its time."""
        with one_at_a_time(search_lock, "searches"), time_limit(SEARCH_SECONDS, client_gone()):
            yield

    @app.get("/api/videos", dependencies=[Depends(AddressQueue("lists of videos"))])
    def videos(
        dataset: SelectedDataset,
        filters: Filters,
        video_id: OneVideo = None,
        offset: VideoOffset = 0,
        num_results: NumResults = 12,
    ) -> VideosResponse:
        """Return the searchable videos: the newest first if file times are known, else in the order of the index."""
        if video_id is not None:
            return dataset.listed({dataset.search.id_of(video_id)}, offset, num_results)
        if filters == VideoFilters():
            return dataset.listed(None, offset, num_results)
        with one_search():
            passing, warnings = filters.videos(dataset.facts), filters.warnings(dataset.facts)
        return dataset.listed(passing, offset, num_results, warnings)

    @app.get("/api/search", dependencies=queue)
    def search(
        request: Request,
        dataset: SelectedDataset,
        filters: Filters,
        like: Examples,
        q: OptionalText = "",
        without: Without = "",
        num_results: NumResults = 12,
        offset: Offset = 0,
        by: By = "both",
        group: Group = None,
        fold: Fold = True,
    ) -> SearchResponse:
        """Find moments that fit a text, look like examples, or both, and do not show what another text names."""
        examples = [_example(request, dataset.search, text) for text in like]
        with one_search():
            videos = filters.videos(dataset.facts)
            moments, has_more = dataset.search.part(
                q,
                like=examples,
                without=without,
                num_results=num_results,
                offset=offset,
                videos=videos,
                by=by,
                group=group,
                fold=fold,
            )
            warnings = [*filters.warnings(dataset.facts), *dataset.search.warnings(q, by, without, bool(examples))]
            is_text = not examples and not without.strip() and not offset
            reason = dataset.search.why_nothing_fits(q, moments, videos) if is_text else None
            return dataset.respond(moments, videos, has_more, warnings, reason)

    @app.get("/api/export", dependencies=[Depends(AddressQueue("exports"))], response_class=Response)
    def export(
        request: Request,
        dataset: SelectedDataset,
        filters: Filters,
        like: Examples,
        form: ExportForm,
        q: OptionalText = "",
        without: OptionalText = "",
        num_results: NumExported = 12,
        by: SearchBy = "both",
        group: Group = None,
        fold: Fold = True,
    ) -> Response:
        """Return the moments that a search finds as a file: a list, a file of an editor, or a contact sheet.

        Chapters and subtitles of several videos come as a ZIP. Files are named without their folders.
        """
        examples = [_example(request, dataset.search, text) for text in like]
        with one_search():
            videos = filters.videos(dataset.facts)
            options = {"like": examples, "without": without, "by": by, "group": group, "fold": fold}
            moments, _ = dataset.search.part(q, num_results=num_results, videos=videos, **options)
        exports: PageExports = app.state.exports
        about, library = about_search(dataset.search, q), dataset.library
        name, content, problems = exports.file(form, moments, library.dataset, library.by_id, about)
        headers = {"Content-Disposition": f'attachment; filename="{name}"', MISSING_HEADER: str(len(problems))}
        return Response(content, media_type=EXPORT_TYPES.get(name.rpartition(".")[2], "text/plain"), headers=headers)

    @app.get("/api/like", dependencies=queue)
    def like(
        dataset: SelectedDataset,
        video_id: KnownId,
        start: Seconds,
        end: Seconds,
        filters: Filters,
        num_results: NumResults = 12,
        offset: Offset = 0,
        fold: Fold = False,
    ) -> SearchResponse:
        """Find moments that look like a part of a video."""
        with one_search():
            videos = filters.videos(dataset.facts)
            like = VideoSpan(video_id, start, end)
            shown = {"num_results": num_results, "offset": offset, "fold": fold}
            moments, has_more = dataset.search.part(like=like, videos=videos, **shown)
            return dataset.respond(moments, videos, has_more, filters.warnings(dataset.facts))

    @app.get("/api/score_curve", dependencies=queue)
    def score_curve(dataset: SelectedDataset, q: QueryText, video_id: KnownId) -> CurveResponse:
        """Return how well a text fits a video over its whole time."""
        with one_search():
            return CurveResponse.of(dataset.search.score_curve(q, video_id))

    @app.get("/api/word_curves", dependencies=queue)
    def word_curves(dataset: SelectedDataset, q: QueryText, video_id: KnownId) -> list[WordCurveResponse]:
        """Return how well each word fits a video over its time. Stop words are left out if there are other words; the
        list is empty if the run does not score words."""
        with one_search():
            curves = dataset.search.word_curves(q, video_id)
            words = [word for word in curves if dataset.is_content_word(word)] or curves
            return [WordCurveResponse(word=word, curve=CurveResponse.of(curves[word])) for word in words]


def _example(request: Request, search: Search, text: str) -> ExampleQuery:
    """Return the example that a client's text names, a part of a video or an uploaded image; never any other file."""
    span = parse_span(text, search.has_video)
    if not text.startswith(UPLOADED) or search.has_video(span.video_id):
        return span
    pictures: ExamplePictures = request.app.state.pictures
    return pictures.path(text.removeprefix(UPLOADED))


def _add_media(app: FastAPI) -> None:
    caching = {"Cache-Control": "private, max-age=3600"}

    def check_range(request: Request) -> None:
        """Refuse several ranges, which would make a long response to a short request."""
        wanted = request.headers.get("range", "")
        if "," in wanted or len(wanted) > MAX_RANGE_CHARACTERS:
            raise HTTPException(416, "Range: expected a single range of bytes")

    in_ranges = {"response_class": FileResponse, "responses": {206: {"description": "a range of bytes"}}}

    @app.get("/media/video", dependencies=[Depends(check_range)], **in_ranges)
    def video(dataset: SelectedDataset, video_id: KnownId) -> Any:
        """Return the file of a video, or one range of its bytes."""
        return OpenFileResponse(*dataset.library.file(video_id), caching)

    @app.get("/media/clip", dependencies=[Depends(check_range), Depends(AddressQueue("clips"))], **in_ranges)
    def clip(dataset: SelectedDataset, video_id: KnownId, start: Seconds, end: Seconds) -> Any:
        """Return a part of a video as WebM, or one range of its bytes: at most 30 seconds and 640 px a side."""
        return FileResponse(dataset.library.clip(video_id, start, end), media_type="video/webm", headers=caching)

    @app.get("/media/cut", dependencies=[Depends(AddressQueue("clips"))], response_class=FileResponse)
    def cut(dataset: SelectedDataset, video_id: KnownId, start: Seconds, end: Seconds, exact: Exact = True) -> Any:
        """Return a part of a video as a file to keep, at most two minutes: encoded again as MP4, exact to the frame, or
        copied from the key frame before. The file's name contains the second at which it begins."""
        part, library = Part(video_id, start, end), dataset.library
        name, descriptor, media_type = app.state.exports.clip(part, exact, library.dataset, library.by_id)
        headers = {"Content-Disposition": f'attachment; filename="{name}"', "Cache-Control": "no-store"}
        return OpenFileResponse(descriptor, Path(name), media_type, headers)

    picture_headers = {
        SOURCE_HEADER: {"description": "frame, or thumbnail", "schema": {"type": "string"}},
        SECONDS_HEADER: {"description": "the second that it shows", "schema": {"type": "number"}},
    }
    jpeg = {"content": {"image/jpeg": {}}, "headers": picture_headers}

    @app.get(
        "/media/picture",
        dependencies=[Depends(AddressQueue("images"))],
        response_class=Response,
        responses={200: jpeg},
    )
    def picture(dataset: SelectedDataset, video_id: KnownId, seconds: Seconds = 0) -> Response:
        """Return the frame that a video shows at a second, or, where its file cannot be read, the nearest thumbnail."""
        found = dataset.library.picture(video_id, seconds)
        headers = {SOURCE_HEADER: found.source, SECONDS_HEADER: f"{found.seconds:.3f}"}
        headers |= caching if found.source == "frame" else {"Cache-Control": "no-store"}  # the file may come back
        return Response(found.jpeg, media_type="image/jpeg", headers=headers)


def _add_examples(app: FastAPI) -> None:
    pictures: ExamplePictures = app.state.pictures
    places = asyncio.Semaphore(MAX_UPLOADS)

    async def content_in_memory(request: Request) -> AsyncIterator[bytes]:
        if places.locked():
            raise Busy("images")
        async with places:
            yield await read_content(request, UPLOADS[PICTURES])

    in_order = [AddressQueue("images", MAX_UPLOADS_OF_ADDRESS), content_in_memory, AddressQueue("images")]

    @app.post(PICTURES, dependencies=[Depends(each) for each in in_order], openapi_extra=UPLOAD_BODY)
    def add_picture(content: Annotated[bytes, Depends(content_in_memory)]) -> PictureResponse:
        """Take an image as an example for a search; return its id."""
        if not content:
            raise UserError("the request is empty; send the bytes of a JPEG, PNG, WebP or AVIF image")
        return PictureResponse(picture=pictures.add(content))

    @app.get("/media/example", response_class=Response, responses={200: {"content": {"image/jpeg": {}}}})
    def example(picture: PictureId) -> Response:
        """Return an image that was taken as an example, as JPEG of at most 640 px a side."""
        headers = {"Cache-Control": "private, max-age=3600"}
        return Response(pictures.jpeg(picture), media_type="image/jpeg", headers=headers)


async def read_content(request: Request, upload: Upload) -> bytes:
    """Return the content of a request; refuse it while it arrives if it is too large or too slow."""
    try:
        return await asyncio.wait_for(_read(request, upload), UPLOAD_SECONDS)
    except asyncio.TimeoutError:
        raise HTTPException(408, f"{upload.what} did not arrive in time; send it again") from None


async def _read(request: Request, upload: Upload) -> bytes:
    content = bytearray()
    async for part in request.stream():
        content += part
        if len(content) > upload.max_bytes:
            raise HTTPException(413, upload.too_large)
    return bytes(content)
