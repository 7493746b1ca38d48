"""What stands between the page and the rest of the machine.

`Guard` wraps the whole application: it checks the Host of every request (a name that is rebound to
this machine is refused), the token where there is one, and the Origin of whatever changes state;
it caps bodies and adds the headers that keep a browser from running anything but our own files.
`confine` is the only way from a name to a file, `sniff` the only judge of what a file is.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import os
import re
import unicodedata
from collections.abc import Iterable
from contextlib import suppress
from html import escape
from pathlib import Path
from urllib.parse import parse_qs, quote, urlencode, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import cookie_parser
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

COOKIE = "starc_token_{port}"
"""By port: to a browser all servers of a machine are one, and two pages would share a cookie."""
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
SECURITY_HEADERS = {
    # Trusted types make the browser itself refuse innerHTML: a caption can only ever be text.
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "media-src 'self'; connect-src 'self'; form-action 'none'; frame-ancestors 'none'; "
        "base-uri 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
}


def is_loopback(host: str) -> bool:
    """Whether a name or address means this machine and nobody else's."""
    with suppress(ValueError):
        return host.lower() == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
    return False


def _host_is_known(header: str, names: frozenset[str]) -> bool:
    """An address cannot be rebound; a name can, so it must be one of ours."""
    with suppress(ValueError):  # also of a port that is no number
        host, _ = urlsplit(f"//{header}").hostname or "", urlsplit(f"//{header}").port
        return host in names or ipaddress.ip_address(host) is not None
    return False


class Guard:
    """The wall around the application; a request that it lets through is one of ours."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        token: str | None,
        hosts: Iterable[str] = (),
        body_limit: int = 4 << 20,
        unlimited: Iterable[str] = (),
    ) -> None:
        self.app = app
        self.proof = None if token is None else digest(token)
        self.key = None if token is None else digest(f"key {token}")
        self.names = frozenset({"localhost", *(name.lower() for name in hosts)})
        self.body_limit = body_limit
        self.unlimited = frozenset(unlimited)
        """Paths whose handler counts the bytes itself."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(SECURITY_HEADERS)
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        answer = self._refuse(scope) or self._login(scope)
        if answer is not None:
            await answer(scope, receive, send_guarded)
        else:
            await self.app(scope, self._capped(scope, receive), send_guarded)

    def _refuse(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        hosts = headers.getlist("host")
        if len(hosts) != 1 or not _host_is_known(hosts[0], self.names):
            return _plain(421, "this server does not answer to that host name")
        if scope["method"] not in SAFE_METHODS:
            # A browser sends Origin with every such request; "null" (a sandbox, a file) is nobody.
            origins = headers.getlist("origin")
            if len(origins) != 1 or _origin_host(origins[0]) != hosts[0].lower():
                return _plain(403, "a change must come from this page (Origin does not match Host)")
        elif headers.get("sec-fetch-site") == "cross-site" and not _is_visit(scope, headers):
            return _plain(403, "another site asked for this; open the page itself")
        length = headers.get("content-length", "0")
        if scope["path"] not in self.unlimited and not (
            length.isdecimal() and int(length[:18]) <= self.body_limit
        ):
            return _plain(413, f"the request is larger than {self.body_limit} bytes")
        return None

    def _login(self, scope: Scope) -> Response | None:
        """None if the request proves the token; else a refusal, or a redirect that hands it out.

        A browser sends the cookie to any server on this machine, so it opens our pages and nothing
        else. What they ask for needs the key too, which they keep where other servers' pages have
        no access (the storage of an origin, with its port).
        """
        if self.proof is None or self.key is None:
            return None
        headers = Headers(scope=scope)
        query = parse_qs(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        name = COOKIE.format(port=urlsplit(f"//{headers['host']}").port or 80)
        page = not scope["path"].startswith("/api/")
        cookie = _same(cookie_parser(headers.get("cookie", "")).get(name, ""), self.proof)
        bearer = headers.get("authorization", "").removeprefix("Bearer ")
        offered = query.pop("token", [""])[0]
        known = scope["method"] == "GET" and _same(digest(offered), self.proof)
        if _same(digest(bearer), self.proof) or (known and not page):
            return None
        if cookie and not known and (page or _same(query.get("key", [""])[0], self.key)):
            return None
        # A strict cookie is not sent along a road that begins on another site: whoever comes from
        # there gets a page that comes again by itself.
        from_elsewhere = headers.get("sec-fetch-site") == "cross-site"
        if not known and (offered or not from_elsewhere or not page):
            return _plain(401, "a token is needed: open the address that `starc view` printed")
        # The token leaves the address bar at once; its digests stay, in the cookie and the storage.
        # A redirect must not leave this server: `//elsewhere` would be another site.
        rest = urlencode(query, doseq=True)
        target = "/" + quote(scope["path"].lstrip("/\\"), errors="replace")
        target += f"?{rest}" if rest else ""
        target += f"#key={self.key}" if known else ""
        answer = _again(target) if from_elsewhere else RedirectResponse(target, 303)
        if known:
            answer.set_cookie(name, self.proof, httponly=True, samesite="strict", path="/")
        return answer

    def _capped(self, scope: Scope, receive: Receive) -> Receive:
        if scope["path"] in self.unlimited:
            return receive
        read = 0

        async def receive_capped() -> Message:
            nonlocal read
            message = await receive()
            read += len(message.get("body", b""))
            if read > self.body_limit:
                raise HTTPException(413, f"the request is larger than {self.body_limit} bytes")
            return message

        return receive_capped


def _is_visit(scope: Scope, headers: Headers) -> bool:
    """Somebody followed a link to one of our pages; not a picture, a frame or a script's request.

    A browser too old to say what for is let in at the front door, as ever.
    """
    page = scope["path"] == "/" or scope["path"].startswith("/watch/")
    mode, use = headers.get("sec-fetch-mode"), headers.get("sec-fetch-dest")
    return page and mode in (None, "navigate") and use in (None, "document")


def _again(target: str) -> Response:
    """A page of one line that goes on to `target`, now as a request of our own."""
    page = f'<!doctype html><meta http-equiv="refresh" content="0;url={escape(target)}">'
    return HTMLResponse(page)


def _plain(status: int, words: str) -> Response:
    return PlainTextResponse(words + "\n", status_code=status)


def _origin_host(origin: str) -> str | None:
    try:
        parts = urlsplit(origin)
    except ValueError:
        return None
    return parts.netloc.lower() if parts.scheme in ("http", "https") else None


def digest(text: str) -> str:
    """SHA-256, of names with broken bytes too."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _same(given: str, wanted: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "replace"), wanted.encode())


def confine(folder: Path, path: Path) -> Path | None:
    """The real path of a regular file below `folder`; None if it lies, or leads, elsewhere."""
    if "\0" in str(path):
        return None
    try:
        real = path.resolve(strict=True)
        inside = real.is_relative_to(folder.resolve(strict=True))
    except (OSError, RuntimeError):  # RuntimeError: a loop of links
        return None
    return real if inside and real.is_file() else None


def sniff(head: bytes) -> tuple[str, str] | None:
    """File ending and media type of a video by its first bytes (a few dozen), never by its name."""
    if head[4:8] in (b"ftyp", b"moov", b"mdat", b"wide"):
        quicktime = head[4:8] != b"ftyp" or head[8:10] == b"qt"
        return (".mov", "video/quicktime") if quicktime else (".mp4", "video/mp4")
    if head[:4] == b"\x1a\x45\xdf\xa3":
        return (".webm", "video/webm") if b"webm" in head[:64] else (".mkv", "video/x-matroska")
    if head[:4] == b"RIFF" and head[8:12] == b"AVI ":
        return ".avi", "video/x-msvideo"
    return None


def sniff_file(path: Path) -> tuple[str, str] | None:
    """`sniff` of a file on disk; a link is not followed (the caller has resolved it)."""
    try:
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0))
    except OSError:
        return None
    with os.fdopen(handle, "rb") as file:
        return sniff(file.read(64))


def display_name(text: str, *, limit: int = 120) -> str:
    """A name for people: no folders, no control or direction marks; never used as a path."""
    text = re.split(r"[/\\]", text)[-1]
    kept = "".join(c for c in text if unicodedata.category(c) not in ("Cc", "Cf", "Cs", "Co", "Cn"))
    return " ".join(kept.split())[:limit].strip() or "untitled"


def disposition(name: str) -> str:
    """The header that makes a download of an answer, under a name in any script.

    Letters, digits, dot, dash and underscore; programs that know no `filename*` see ASCII ones.
    """
    stem, _, ending = name.rpartition(".")
    kept = "".join(c if unicodedata.category(c)[0] in "LNM" or c in "._-" else "-" for c in stem)
    kept = re.sub("-+", "-", kept).strip("-.")[:80] or "video"
    plain = unicodedata.normalize("NFKD", kept).encode("ascii", "ignore").decode()
    plain = re.sub("-+", "-", plain).strip("-.") or "video"
    header = f'attachment; filename="{plain}.{ending}"'
    if plain == kept:
        return header
    return header + f"; filename*=UTF-8''{quote(f'{kept}.{ending}', safe='', errors='replace')}"


def without_folders(text: str, folders: Iterable[Path] = ()) -> str:
    """An error's words for the page, which must not learn where files lie."""
    for folder in sorted(map(str, folders), key=len, reverse=True):
        text = text.replace(f"{folder}{os.sep}", "")
    return re.sub(r"(?<![\w./:~-])(?:[A-Za-z]:\\|/)(?:[^\s:;,()'\"]+[/\\])+", "", text)
