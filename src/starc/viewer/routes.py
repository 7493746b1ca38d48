"""What the page can ask for. Each method of `Viewer` is one request; `ROUTES` is the list of them.

A video is named by the id the library gave it, a job by the id the queue gave it, a file of the
page by its entry in `STATIC`: no request can name a path. Answers are JSON with `message` where
something is wrong; captions leave here as plain text and are never put together with markup.
"""

from __future__ import annotations

import asyncio
import functools
import json
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from fastapi import HTTPException, Query, Request, Response
from fastapi import Path as InPath
from fastapi.responses import FileResponse, JSONResponse, StreamingResponse
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import ClientDisconnect

from starc.errors import StarcError, VideoError
from starc.media.video import frame_rate
from starc.types import SOURCES, Captioned
from starc.viewer import edits, search
from starc.viewer import library as videos
from starc.viewer.comparison import Comparison
from starc.viewer.jobs import CaptionJob, JobQueue, receive_upload
from starc.viewer.library import Item, Library
from starc.viewer.previews import Previews, peaks, thumbnail
from starc.viewer.security import display_name, disposition, sniff_file

MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
STATIC = {
    file.name: (file.read_bytes(), MEDIA_TYPES[file.suffix])
    for file in sorted((Path(__file__).parent / "static").iterdir())
    if file.suffix in MEDIA_TYPES
}

Id = Annotated[str, InPath(pattern="^[0-9a-f]{16}$")]
Version = Annotated[int | None, Query(ge=0, le=videos.LAST_VERSION)]


class SafeJson(JSONResponse):
    """ASCII only: a file name with broken bytes, or half a surrogate pair, still gets through."""

    def render(self, content: Any) -> bytes:
        return json.dumps(content, allow_nan=False, separators=(",", ":")).encode()


class EventIn(BaseModel):
    model_config = ConfigDict(extra="forbid")
    start: float
    end: float
    caption: str
    times_from: tuple[str, ...] | None = Field(default=None, max_length=len(SOURCES))
    words_from: tuple[str, ...] | None = Field(default=None, max_length=len(SOURCES))


class SaveIn(BaseModel):
    """All events of a video, and the newest version that the editor has seen."""

    model_config = ConfigDict(extra="forbid")
    seen: int = Field(ge=0, le=videos.LAST_VERSION)
    events: list[EventIn] = Field(max_length=edits.MOST_EVENTS)


@dataclass(frozen=True, kw_only=True, slots=True)
class Viewer:
    library: Library
    reference: Comparison | None
    other: Comparison | None
    queue: JobQueue | None
    uploads: Path | None
    """Folder that takes uploaded videos; None if there is none, or no one to caption them."""
    upload_limit: int
    previews: Previews
    exports: Mapping[str, edits.Export]
    """Formats in which a version can be downloaded, by name."""

    # The library

    def open_library(self) -> Response:
        """Every video with its counts, and what this server can do."""
        items = self.library.refresh()
        scores = self.reference.score(items) if self.reference else {}
        return SafeJson(
            {
                "videos": [
                    {**item.as_row(), "score": (s := scores.get(item.id)) and s._asdict()}
                    for item in items
                ],
                "links_out": self.library.links_out,
                "can_caption": self.queue is not None,
                "can_caption_anyway": self._can_caption_anyway,
                "can_upload": self.uploads is not None,
                "upload_limit": self.upload_limit,
            }
        )

    def find_moments(
        self,
        q: Annotated[str, Query(max_length=200)] = "",
        limit: Annotated[int, Query(ge=1, le=200)] = 60,
        skip: Annotated[int, Query(ge=0, le=1_000_000)] = 0,
    ) -> Response:
        """Captions and speech that answer a question, best first; and videos of that title."""
        items = list(self.library.items())
        best, total = search.search(items, q, limit=limit, skip=skip)
        titles = [] if skip else search.by_title(items, q)
        moments = [
            {"id": item.id, "title": item.summary.title, "video": item.video is not None}
            | passage._asdict()
            for item, passage, _ in best
        ]
        named = [
            {"id": item.id, "title": item.summary.title, "video": item.video is not None}
            for item in titles[:limit]
        ]
        words = search.words_of(q)
        return SafeJson({"total": total, "words": words, "titles": named, "moments": moments})

    def export_training(self) -> Response:
        """Annotations of every corrected video, as JSON Lines for `starc train`."""
        corrected = [videos.read_item(item) for item in self.library.refresh() if item.versions]
        lines = [edits.training_line(captioned) for captioned in corrected if captioned]
        return _attachment("".join(lines), self.exports["training"], "corrected.jsonl")

    # One video

    def open_video(self, id: Id, version: Version = None) -> Response:
        """A version of a video's record, with the reference and the second system."""
        item = self._item(id)
        missing = self._missing(item)
        return SafeJson(
            {
                **item.as_row(),
                "video": missing is None,
                "missing": missing,
                "version": item.newest if version is None else version,
                "newest": item.newest,
                "saved": item.versions,
                "dates": edits.saved_at(item),
                "fps": self._frame_rate(item),
                "can_caption": self.queue is not None and not item.captioned,
                "can_caption_anyway": (
                    item.declined and missing is None and self._can_caption_anyway
                ),
                "formats": list(self.exports),
                "record": _draft(item, version).to_json(),
                "reference": _compared(self.reference, item),
                "other": _compared(self.other, item),
            }
        )

    def stream_video(self, id: Id) -> Response:
        """The video itself; answers Range requests in small pieces."""
        path = self.library.open_video(self._item(id))
        if (kind := sniff_file(path)) is None:
            raise HTTPException(415, "this file is not a video that a browser knows")
        return FileResponse(path, media_type=kind[1], headers={"Cache-Control": "no-cache"})

    def show_peaks(self, id: Id) -> Response:
        """How loud the video is from moment to moment."""
        try:
            made = peaks(self.library.open_video(self._item(id)))
        except OSError as error:
            raise HTTPException(404, "the sound cannot be read") from error
        return SafeJson(made)

    def make_preview(self, id: Id) -> Response:
        """Begin a copy that every browser plays; how far it is."""
        preview = self.previews.of(self.library.open_video(self._item(id)), start=True)
        return SafeJson(preview and preview.as_row(), status_code=202)

    def show_preview(self, id: Id) -> Response:
        """The copy itself; 404 while there is none."""
        preview = self.previews.of(self.library.open_video(self._item(id)), start=False)
        if preview is None or not preview.path.is_file():
            raise HTTPException(404, "there is no preview yet")
        headers = {"Cache-Control": "no-cache"}
        return FileResponse(preview.path, media_type="video/mp4", headers=headers)

    def show_thumbnail(
        self, id: Id, t: Annotated[int | None, Query(ge=0, le=1_000_000)] = None
    ) -> Response:
        """A small picture of second `t`, or of the most salient moment."""
        item = self._item(id)
        try:
            moment = videos.best_moment(item) if t is None else float(t)
            picture = thumbnail(self.library.open_video(item), moment)
        except (VideoError, OSError) as error:
            raise HTTPException(404, "no picture can be made of this video") from error
        headers = {"Cache-Control": "private, max-age=600"}
        return Response(picture, media_type="image/jpeg", headers=headers)

    def save_version(self, id: Id, body: SaveIn) -> Response:
        item = self._item(id)
        events = [edits.Edited(**event.model_dump()) for event in body.events]
        try:
            version = edits.save(item, events, seen=body.seen)
        except OSError as error:
            raise HTTPException(507, f"cannot be saved there ({error.strerror})") from error
        self.library.refresh()
        return SafeJson({"version": version}, status_code=201)

    def export_video(
        self, id: Id, format: Annotated[str, InPath(max_length=40)], version: Version = None
    ) -> Response:
        """A version in one of the formats offered."""
        if (export := self.exports.get(format)) is None:
            raise HTTPException(404, "there is no such format")
        item = self._item(id)
        text = export.render(_draft(item, version))
        return _attachment(text, export, f"{item.summary.title}.{export.ending}")

    # Captioning

    def caption_video(self, id: Id, anyway: bool = False) -> Response:
        """Queue a video of the library that has no captions; `anyway`: one that was declined."""
        item, queue = self._item(id), self._queue()
        if anyway and not (item.declined and self._can_caption_anyway):
            raise HTTPException(409, "no captions of this video were withheld")
        if item.captioned and not anyway:
            raise HTTPException(409, "this video has captions already")
        job = queue.submit(
            self.library.open_video(item),
            title=item.summary.title,
            uploaded=False,
            declined=item.record if anyway else None,
        )
        return SafeJson(self._row(job), status_code=202)

    async def upload(
        self, request: Request, name: Annotated[str, Query(max_length=500)] = ""
    ) -> Response:
        """Take a video as the raw body of the request, and queue it. `name` is only shown."""
        queue = self._queue()
        if self.uploads is None:
            raise HTTPException(404, "this page was opened for files, not for a folder")
        length = request.headers.get("content-length", "")
        announced = int(length) if length.isdecimal() and len(length) < 19 else None
        try:
            path = await receive_upload(
                request.stream(), self.uploads, limit=self.upload_limit, announced=announced
            )
        except ClientDisconnect:
            raise HTTPException(400, "the upload broke off") from None
        except OSError as error:
            raise HTTPException(507, f"cannot be stored ({error.strerror})") from error
        title = display_name(name).rsplit(".", 1)[0] or "untitled"
        try:
            job = queue.submit(path, title=title, uploaded=True)
        except StarcError:
            path.unlink(missing_ok=True)
            raise
        return SafeJson(self._row(job), status_code=202)

    def list_jobs(self) -> Response:
        return SafeJson({"jobs": self._job_rows()})

    def cancel_job(self, id: Id) -> Response:
        """Stop a job; an upload that was waiting for it goes too."""
        if (job := self._queue().find(id)) is None:
            raise HTTPException(404, "there is no such job")
        self._queue().cancel(job)
        return SafeJson(self._row(job))

    async def watch_jobs(self) -> Response:
        """Server-sent events: all jobs after every change, until none is active."""
        return StreamingResponse(self._job_events(), media_type="text/event-stream")

    async def _job_events(self) -> AsyncIterator[str]:
        seen, busy = -1, True
        while busy:
            queue = self._queue()
            # Read before the rows: a change in between is then sent twice, not lost.
            turn, busy = queue.turn, queue.busy
            if turn != seen or not busy:
                rows = await asyncio.to_thread(self._job_rows)
                yield f"data: {json.dumps({'jobs': rows, 'idle': not busy})}\n\n"
                seen = turn
            await asyncio.sleep(0.15)

    # Helpers

    def _item(self, id: str) -> Item:
        if (item := self.library.find(id)) is None:
            raise HTTPException(404, "there is no such video")
        # Another window or process may have saved since the library was last opened.
        return replace(item, versions=videos.versions_in(item.edits))

    def _missing(self, item: Item) -> str | None:
        """Why there is no video to play, and how to give one; None if there is one."""
        try:
            self.library.open_video(item)
        except VideoError as error:
            return f"{error}. To see it, name its folder too: starc view CAPTIONS VIDEOS."
        return None

    def _frame_rate(self, item: Item) -> float | None:
        """For stepping through pictures; None where there is nothing to step through."""
        with suppress(VideoError):
            return frame_rate(self.library.open_video(item)) or None
        return None

    @property
    def _can_caption_anyway(self) -> bool:
        return self.queue is not None and self.queue.anyway is not None

    def _queue(self) -> JobQueue:
        if self.queue is None:
            raise HTTPException(404, "this page was opened without a model, so it cannot caption")
        return self.queue

    def _job_rows(self) -> list[dict[str, Any]]:
        return [self._row(job) for job in self.queue.jobs()] if self.queue else []

    def _row(self, job: CaptionJob) -> dict[str, Any]:
        """A job with the id of the video it made, or of the one that can be tried again."""
        row, made = job.as_row(), job.result or (job.path if job.state == "failed" else None)

        def of(items: list[Item]) -> str | None:
            return next((item.id for item in items if made in (item.record, item.video)), None)

        video = made and (of(self.library.items()) or of(self.library.refresh()))
        return {**row, "video": video}


def _draft(item: Item, version: int | None) -> Captioned:
    if (captioned := edits.draft(item, version)) is None:
        raise HTTPException(404, "there is no such version")
    return captioned


def _compared(comparison: Comparison | None, item: Item) -> dict[str, Any] | None:
    captioned = comparison.captioned(item.names) if comparison else None
    if comparison is None or captioned is None:
        return None
    return {"name": comparison.name, "record": captioned.to_json()}


def _attachment(text: str, export: edits.Export, name: str) -> Response:
    headers = {"Content-Disposition": disposition(name)}
    content = text.encode("utf-8", "replace")  # a record may hold half a surrogate pair
    return Response(content, media_type=export.media_type, headers=headers)


def static_file(name: Annotated[str, InPath(max_length=80)]) -> Response:
    """A file of the page, from the fixed list that was read when the server started."""
    if name not in STATIC:
        raise HTTPException(404, "there is no such file")
    content, media_type = STATIC[name]
    return Response(content, media_type=media_type, headers={"Cache-Control": "no-cache"})


class Threads:
    """Answers requests in threads that the end of the server does not wait for.

    Costly ones have a limit of their own, so that they leave threads to the others.
    """

    def __init__(self) -> None:
        self._costly, self._all = asyncio.Semaphore(MOST_COSTLY), asyncio.Semaphore(MOST_THREADS)

    def answering(self, function: Callable[..., Response]) -> Callable[..., Any]:
        """The function as a coroutine, which FastAPI calls with the same arguments."""

        @functools.wraps(function)
        async def answer(**values: Any) -> Response:
            costly = self._costly if function.__name__ in COSTLY else nullcontext()
            try:
                async with costly, self._all:
                    return await _in_daemon(functools.partial(function, **values))
            except asyncio.CancelledError:  # Ctrl-C: whoever still listens is told
                return SafeJson({"message": "the server has ended"}, status_code=503)

        return answer


async def _in_daemon(call: Callable[[], Response]) -> Response:
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Response] = loop.create_future()

    def settle(made: Response | BaseException) -> None:
        if future.done():
            return
        if isinstance(made, BaseException):
            future.set_exception(made)
        else:
            future.set_result(made)

    def work() -> None:
        made: Response | BaseException
        try:
            made = call()
        except BaseException as error:
            made = error
        with suppress(RuntimeError):  # the server has ended meanwhile
            loop.call_soon_threadsafe(settle, made)

    threading.Thread(target=work, daemon=True).start()
    return await future


COSTLY = frozenset(
    {"export_video", "export_training", "find_moments", "show_peaks", "show_thumbnail"}
)
"""Requests whose work grows with a video or with the library."""
MOST_COSTLY, MOST_THREADS = 8, 40
"""Of them, and of all requests, at once; more wait their turn."""

ROUTES: tuple[tuple[str, str, Callable[..., Any]], ...] = (
    ("GET", "/api/library", Viewer.open_library),
    ("GET", "/api/search", Viewer.find_moments),
    ("GET", "/api/export/training", Viewer.export_training),
    ("GET", "/api/videos/{id}", Viewer.open_video),
    ("GET", "/api/videos/{id}/media", Viewer.stream_video),
    ("HEAD", "/api/videos/{id}/media", Viewer.stream_video),
    ("GET", "/api/videos/{id}/thumbnail", Viewer.show_thumbnail),
    ("GET", "/api/videos/{id}/peaks", Viewer.show_peaks),
    ("POST", "/api/videos/{id}/preview", Viewer.make_preview),
    ("GET", "/api/videos/{id}/preview", Viewer.show_preview),
    ("HEAD", "/api/videos/{id}/preview", Viewer.show_preview),
    ("POST", "/api/videos/{id}/versions", Viewer.save_version),
    ("GET", "/api/videos/{id}/export/{format}", Viewer.export_video),
    ("POST", "/api/videos/{id}/caption", Viewer.caption_video),
    ("POST", "/api/uploads", Viewer.upload),
    ("GET", "/api/jobs", Viewer.list_jobs),
    ("GET", "/api/jobs/events", Viewer.watch_jobs),
    ("DELETE", "/api/jobs/{id}", Viewer.cancel_job),
)
