"""Hostile requests, slow visitors and two servers on one folder."""

from __future__ import annotations

import json
import random
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from urllib.request import quote, urlopen

import httpx

from attack.mutate import ODD, mutated_bytes, mutated_json
from starc.types import Captioned, Event
from starc.viewer import server
from starc.viewer.server import create_app
from support.viewer_browser import running
from support.viewer_sample import make_library

SECRET = "a secret that lies beside the library"
METHODS = ("GET", "GET", "POST", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH", "TRACE")
PLACES = (
    "/", "/api/library", "/api/search?q=", "/api/videos/", "/api/uploads?name=", "/api/jobs/",
    "/static/", "/watch/", "/api/export/", "/openapi.json", "//evil.example/", "/api/jobs/events",
)  # fmt: skip
TAILS = (
    "", "../../secret.txt", "%2e%2e%2f%2e%2e%2fsecret.txt", "\0", "media", "thumbnail?t=-1",
    "versions", "export/vtt", "export/html?version=99999999999", "caption", "x" * 9000,
)  # fmt: skip
HEADERS = ("Range", "Cookie", "Content-Type", "Authorization", "X")
VALUES = (
    "bytes=0-", "bytes=9-1", "bytes=-0,1-2", "bytes=" + "0-1," * 500, "starc_token_8350=x", "\xff",
)  # fmt: skip


def captions(path: Path, progress: object, cancelled: object) -> Captioned:
    return Captioned(path.name, 4.0, (Event(0, 2, "x"),))


class Site:
    """A server on a made-up library, and what may never leave it."""

    def __init__(self, site: str, library: Path) -> None:
        self.site, self.library = site, library
        self.origin = {"Origin": site}
        self.client = httpx.Client(base_url=site, headers=self.origin, timeout=30)
        listed = self.client.get("/api/library").json()["videos"]
        self.ids = [video["id"] for video in listed]
        self.sound = [video["id"] for video in listed if not video["problem"]]

    def request(self, rng: random.Random) -> str | None:
        """One hostile request; what is wrong with the answer."""
        if rng.random() < 0.25:
            return self._raw(rng)
        tail = rng.choice(TAILS)
        if rng.random() < 0.7:
            tail = f"{rng.choice([*self.ids, '0' * 16, '..'])}/{tail}"
        url = rng.choice(PLACES) + (tail if rng.random() < 0.7 else quote(tail))
        body = {"seen": 0, "events": [{"start": 0, "end": 1, "caption": "stir"}]}
        headers = {rng.choice(HEADERS): rng.choice(VALUES)}
        method, content = rng.choice(METHODS), mutated_json(body, rng)
        if "events" in url and method == "GET":
            method = "HEAD"  # a stream without an end while jobs run
        try:
            sent = {name: value.encode("latin-1") for name, value in headers.items()}
            answer = self.client.request(
                method, url.replace("\0", "%00"), content=content, headers=sent
            )
        except (httpx.InvalidURL, httpx.LocalProtocolError, UnicodeError):
            return None  # our client refuses to send it
        except httpx.HTTPError as error:
            return f"{method} {url[:80]}: {error!r}"
        if answer.status_code >= 500 and answer.status_code != 507:
            return f"{method} {url[:80]}: {answer.status_code}"
        return f"{url}: the secret got out" if SECRET in answer.text else None

    def _raw(self, rng: random.Random) -> str | None:
        """Bytes that are hardly HTTP; the server closes or answers, and stays well."""
        head = b"GET /api/library HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
        with socket.create_connection(("127.0.0.1", int(self.site.rpartition(":")[2]))) as one:
            one.settimeout(10)
            try:
                one.sendall(mutated_bytes(head, rng))
                one.shutdown(socket.SHUT_WR)
                said = one.recv(65536)
            except TimeoutError:
                return "a visitor who has hung up is waited for"
            except OSError:
                return None
        return f"{said[:60]!r}" if b" 500 " in said[:20] else None


@contextmanager
def opened(folder: Path) -> Iterator[Site]:
    """A site; at the end it must still answer, and nothing outside it have changed."""
    folder.mkdir(exist_ok=True)
    library = folder / "library"
    if not library.exists():
        make_library(folder, duration=6.0, dishes=2)
    secret = folder / "secret.txt"
    secret.write_text(SECRET)
    (folder / "library/odd.json").write_text(json.dumps({"starc": 1, "video": ODD[-1]}))
    with running(create_app([library], caption=captions)) as site:
        visited = Site(site, library)
        with closing(visited.client):
            yield visited
        assert listed(site)
    assert secret.read_text() == SECRET and len(list(folder.iterdir())) == 4


def listed(site: str) -> bool:
    """Whether the library is shown."""
    with urlopen(f"{site}/api/library", timeout=20) as answer:
        return bool(json.load(answer)["videos"])


def slow_visitors(folder: Path, rng: random.Random) -> str | None:
    """Some hundred who send nothing or half a request, and one who wants to see the page."""
    with opened(folder) as site, ExitStack() as visitors:
        address = ("127.0.0.1", int(site.site.rpartition(":")[2]))
        for _ in range(server.MOST_CONNECTIONS + 60):
            one = visitors.enter_context(socket.create_connection(address))
            one.sendall(b"GET / HTTP/1.1\r\nHost: 127"[: rng.randrange(25)])
        if not listed(site.site):
            return "nobody is served"
    return None


def two_servers(folder: Path, rng: random.Random) -> str | None:
    """Two servers of one folder, two editors each: who is told "saved" is saved."""
    with opened(folder) as first, running(create_app([first.library])) as other:
        video = first.sound[rng.randrange(len(first.sound))]
        sites = [first.site, first.site, other, other]
        told: dict[int, str] = {}

        def edit(site: str, name: str) -> None:
            with httpx.Client(base_url=site, headers={"Origin": site}, timeout=30) as client:
                for _ in range(3):
                    seen = client.get(f"/api/videos/{video}").json()["newest"]
                    body = {"seen": seen, "events": [{"start": 0, "end": 1, "caption": name}]}
                    answer = client.post(f"/api/videos/{video}/versions", json=body)
                    if answer.status_code == 201:
                        told[answer.json()["version"]] = (
                            told.get(answer.json()["version"], "") + name
                        )

        editors = [
            threading.Thread(target=edit, args=(s, f"editor {n}")) for n, s in enumerate(sites)
        ]
        for editor in editors:
            editor.start()
        for editor in editors:
            editor.join()
        for version, name in told.items():
            url = f"/api/videos/{video}?version={version}"
            events = first.client.get(url).json()["record"]["events"]
            if [event["caption"] for event in events] != [name]:
                return f"version {version} was saved by {name}, and is {events}"
        return None if told else "nobody could save"
