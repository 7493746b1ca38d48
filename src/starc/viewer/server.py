"""The web server: `create_app` puts the parts together, `serve` runs them until Ctrl-C.

It listens on this machine only, where other people may work too: nobody gets in without the token
that is in the address, unless the user says so. Whoever keeps it waiting is let go (`Patient`). The
captioning function, the other export formats, the reference and the second system are handed in:
the viewer knows nothing of the model.
"""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import logging
import secrets
import socket
import webbrowser
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import quote

import h11
import uvicorn
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from starc.errors import ConfigError, StarcError
from starc.files.scratch import scratch_folder
from starc.viewer.comparison import Comparison
from starc.viewer.edits import EXPORTS, Export
from starc.viewer.jobs import Caption, JobQueue, sweep_uploads
from starc.viewer.library import Library
from starc.viewer.previews import Previews
from starc.viewer.routes import ROUTES, SafeJson, Threads, Viewer, static_file
from starc.viewer.security import Guard, is_loopback, without_folders

__all__ = ["ServerLimits", "create_app", "serve"]

log = logging.getLogger("starc")
SHORTEST_TOKEN = 8
NO_TOKEN = "none"
PATIENCE = 15.0
"""Seconds between two looks at a connection."""
SLOWEST = 15_000
"""Bytes that the body of a request must bring from look to look."""
MOST_CONNECTIONS = 200
SMALLEST = 1_000
"""Bytes below which packing costs more than it saves."""
TEXT = ("application/json", "text/html", "text/css", "text/javascript", "image/svg+xml")
TAGGED = (*TEXT, "image/jpeg")


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerLimits:
    upload: int = 4 << 30
    """Bytes of one uploaded video."""
    body: int = 4 << 20
    """Bytes of any other request."""
    waiting: int = 20
    """Videos in the queue."""
    workers: int = 1
    """Videos captioned at the same time."""


class Packed:
    """Answers in fewer bytes: gzip for text, nothing at all for what the browser has already.

    Only whole answers of text or pictures pass through; videos and events are sent as they come.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "GET":
            await self.app(scope, receive, send)
            return
        asked = Headers(scope=scope)
        held: list[Message] = []

        async def send_packed(message: Message) -> None:
            if message["type"] == "http.response.start":
                kind = Headers(raw=message["headers"]).get("content-type", "").partition(";")[0]
                if message["status"] == 200 and kind in TAGGED:
                    held.append(message)
                    return
            elif held:
                start = held.pop()
                if not message.get("more_body", False):
                    start, message = _packed(start, message, asked)
                await send(start)
            await send(message)

        await self.app(scope, receive, send_packed)


def _packed(start: Message, message: Message, asked: Headers) -> tuple[Message, Message]:
    """The two messages of a whole answer, as short as they may be."""
    headers, body = MutableHeaders(raw=start["headers"]), message.get("body", b"")
    tag = f'W/"{hashlib.blake2b(body, digest_size=12).hexdigest()}"'
    headers["ETag"] = tag
    # Asked for again every time; what is on the disk of the browser is used only if it is the same.
    headers.setdefault("Cache-Control", "private, no-cache")
    headers.add_vary_header("Accept-Encoding")
    if tag in [one.strip() for one in asked.get("if-none-match", "").split(",")]:
        del headers["content-length"]
        return {**start, "status": 304, "headers": headers.raw}, {**message, "body": b""}
    text = headers.get("content-type", "").partition(";")[0] in TEXT
    if text and len(body) >= SMALLEST and "gzip" in asked.get("accept-encoding", ""):
        body = gzip.compress(body, 5)
        headers["Content-Encoding"] = "gzip"
        headers["Content-Length"] = str(len(body))
    return {**start, "headers": headers.raw}, {**message, "body": body}


def check_token(token: str) -> str:
    """The token, if it is hard to guess."""
    if len(token) < SHORTEST_TOKEN:
        raise ConfigError(
            f"token: {len(token)} characters can be guessed; give at least {SHORTEST_TOKEN}"
        )
    return token


def create_app(
    folders: Sequence[Path],
    *,
    caption: Caption | None = None,
    caption_anyway: Caption | None = None,
    exports: Mapping[str, Export] | None = None,
    reference: Path | None = None,
    compare: Path | None = None,
    token: str | None = None,
    hosts: Iterable[str] = (),
    limits: ServerLimits | None = None,
) -> FastAPI:
    """The application for some folders (or single files).

    `caption(path, progress, cancelled)` makes the page caption what is dropped on it,
    `caption_anyway` also what `caption` declined, when somebody asks for that;
    `exports` are added to the formats that are built in, under their names;
    `hosts` are the names besides addresses and `localhost` that the server answers to.
    """
    limits = limits or ServerLimits()
    if token is not None:
        check_token(token)
    library = Library([Path(folder) for folder in folders])
    queue = caption and JobQueue(
        caption, anyway=caption_anyway, workers=limits.workers, waiting=limits.waiting
    )
    uploads = next((root for root in library.roots if root.is_dir()), None) if queue else None
    if uploads is not None:
        sweep_uploads(uploads)
    viewer = Viewer(
        library=library,
        reference=Comparison(reference) if reference else None,
        other=Comparison(compare) if compare else None,
        queue=queue,
        uploads=uploads,
        upload_limit=limits.upload,
        previews=Previews(),
        exports={**EXPORTS, **(exports or {})},
    )
    app = _application(viewer)
    app.add_middleware(Packed)
    app.add_middleware(
        Guard, token=token, hosts=hosts, body_limit=limits.body, unlimited={"/api/uploads"}
    )
    return app


def _application(viewer: Viewer) -> FastAPI:
    """Routes, errors and the end of the queue; FastAPI's own pages load scripts from elsewhere."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        if viewer.queue is not None:
            viewer.queue.close()

    app = FastAPI(
        title="starc viewer",
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
        default_response_class=SafeJson,
    )
    app.state.viewer = viewer
    threads = Threads()
    for method, path, function in ROUTES:
        answer = getattr(viewer, function.__name__)
        app.add_api_route(
            path,
            answer if asyncio.iscoroutinefunction(answer) else threads.answering(answer),
            methods=[method],
            response_class=Response,
            include_in_schema=method != "HEAD" and path != "/api/jobs/events",
        )
    app.add_api_route("/static/{name}", static_file, response_class=Response)
    for path, file in (("/", "index.html"), ("/watch/{id}", "watch.html")):
        page = partial(static_file, file)
        app.add_api_route(path, page, response_model=None, include_in_schema=False)
    for kind in (StarcError, HTTPException, RequestValidationError):
        app.add_exception_handler(kind, _on_error)
    return app


def _on_error(request: Request, error: Exception) -> Response:
    """The message, with the `status` and the `details` that errors of the viewer have."""
    if isinstance(error, HTTPException):
        content, status, headers = {"message": error.detail}, error.status_code, error.headers
        return SafeJson(content, status_code=status, headers=headers)
    text = str(error)
    if isinstance(error, RequestValidationError):
        # Where and what, but not the input: it may hold NaN or half a character.
        first = error.errors()[0] if error.errors() else {"loc": (), "msg": "cannot be read"}
        text = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"[:500]
    text = without_folders(text, request.app.state.viewer.library.roots)
    content = {"message": text, **getattr(error, "details", {})}
    return SafeJson(content, status_code=getattr(error, "status", 422))


def serve(
    folders: Sequence[Path],
    *,
    host: str = "127.0.0.1",
    port: int = 8350,
    token: str | None = None,
    announce: Callable[[str], None] = log.info,
    open_browser: bool = False,
    **options: Any,
) -> None:
    """Serve until interrupted; `announce` receives the address (port 0 takes any free port).

    There is always a token, a random one where none was given; "none" does without, and only on
    this machine. `options` are those of `create_app`.
    """
    if token is None or (token == NO_TOKEN and not is_loopback(host)):
        token = secrets.token_urlsafe(24)
    token = None if token == NO_TOKEN else token
    names = {host, socket.gethostname()} - {"0.0.0.0", "::", ""}
    app = create_app(folders, token=token, hosts=names, **options)
    listener = _listen(host, port)
    # "Everywhere" becomes this machine's name; a single file opens on its own page.
    name = host if host in names else socket.gethostname()
    library = app.state.viewer.library
    items = library.refresh()
    one = len(items) == 1 and not any(root.is_dir() for root in library.roots)
    address = f"http://[{name}]" if ":" in name else f"http://{name}"
    address += f":{listener.getsockname()[1]}/" + (f"watch/{items[0].id}" if one else "")
    address += f"?token={quote(token, safe='')}" if token else ""
    announce(address)
    with _opened(address) if open_browser else nullcontext():
        uvicorn.Server(http_config(app)).run(sockets=[listener])


@contextmanager
def _opened(address: str) -> Iterator[None]:
    """Open a page in the browser by way of a private file.

    Every user of the machine can read command lines, and the address holds the token.
    """
    with scratch_folder() as folder:
        page = folder / "open.html"
        page.touch(mode=0o600)
        page.write_text(
            '<!doctype html><meta charset="utf-8"><meta name="referrer" content="no-referrer">'
            f'<meta http-equiv="refresh" content="0;url={escape(address)}">\n',
            encoding="utf-8",
        )
        webbrowser.open(page.as_uri())
        yield


def http_config(app: FastAPI) -> uvicorn.Config:
    """How the application is served; a warning for each bad request would fill the disk."""
    return uvicorn.Config(
        app,
        http=Patient,
        log_level="error",
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=2,
    )


class Patient(H11Protocol):
    """HTTP that waits for nobody for long, and for a limited number of visitors at once.

    A request must come within `PATIENCE` to twice that, its body at `SLOWEST` bytes in that time.
    With `MOST_CONNECTIONS` open the oldest goes that owes us a request, else the oldest.
    """

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.began, self.received, self.seen = self.loop.time(), 0, (self.cycle, 0)
        if len(self.connections) > MOST_CONNECTIONS:
            everyone = [one for one in self.connections if isinstance(one, Patient)]
            min(everyone, key=lambda one: (not one.owes(), one.began)).transport.abort()
        self.loop.call_later(PATIENCE, self.look)

    def data_received(self, data: bytes) -> None:
        self.received += len(data)
        super().data_received(data)

    def owes(self) -> bool:
        """Whether the next word is the visitor's: a request, or the rest of one."""
        return self.conn.their_state is h11.IDLE or (
            self.conn.their_state is h11.SEND_BODY and not self.flow.read_paused
        )

    def look(self) -> None:
        """Let a visitor go who owes us something and has sent too little since the last look."""
        if self.transport.is_closing():
            return
        cycle, received = self.seen
        enough = self.cycle is not cycle or (
            self.conn.their_state is h11.SEND_BODY and self.received - received >= SLOWEST
        )
        if self.owes() and not enough:
            self.transport.abort()
            return
        self.seen = (self.cycle, self.received)
        self.loop.call_later(PATIENCE, self.look)


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(128)  # before the address is announced: an early visitor waits
    except (OSError, OverflowError) as error:
        listener.close()
        raise ConfigError(f"{host}:{port}: cannot listen there ({error}); try --port 0") from None
    return listener
