"""Answers in fewer bytes: gzip for text, and nothing at all for what the browser has already.

Only whole answers of text or pictures pass through here; videos and events are sent as they come.
"""

from __future__ import annotations

import gzip
import hashlib

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

SMALLEST = 1_000
"""Bytes below which packing costs more than it saves."""
TEXT = ("application/json", "text/html", "text/css", "text/javascript", "image/svg+xml")
TAGGED = (*TEXT, "image/jpeg")


class Packed:
    """Puts an ETag on what is asked for, and packs it for who says that it can unpack."""

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
