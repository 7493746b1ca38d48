"""What stands between the page and the machine: hosts, origins, tokens, paths, names."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient

from starc.errors import ConfigError
from starc.types import Captioned, Event
from starc.viewer.security import (
    confine,
    display_name,
    disposition,
    is_loopback,
    sniff,
)
from starc.viewer.server import ServerLimits, create_app
from support.viewer_sample import captioned, write_clip, write_record

BASE = "http://127.0.0.1:8350"
OURS = {"Origin": BASE}

TRAVERSAL = [
    "../secret.json",
    "../../etc/passwd",
    "..",
    ".",
    "/etc/passwd",
    "//etc/passwd",
    "\\..\\secret.json",
    "..\\..\\secret.json",
    "%2e%2e%2fsecret.json",
    "%2e%2e/%2e%2e/etc/passwd",
    "..%2fsecret.json",
    "..%252fsecret.json",
    "%252e%252e%252fsecret.json",
    "..%c0%afsecret.json",
    "%c0%ae%c0%ae/secret",
    "..%ef%bc%8fsecret.json",
    "．．／secret.json",
    "....//secret.json",
    "..././secret.json",
    "..;/secret.json",
    "a/../../secret.json",
    "./../secret.json",
    "~/secret.json",
    "~root/.ssh/id_rsa",
    "file:///etc/passwd",
    "file://localhost/etc/passwd",
    "C:\\Windows\\win.ini",
    "C:/Windows/win.ini",
    "\\\\host\\share\\x",
    "secret.json\0",
    "secret.json%00.mp4",
    "%00",
    "\0",
    "..\0/secret.json",
    "/proc/self/environ",
    "/dev/stdin",
    "CON",
    "NUL",
    "aux.json",
    "x" * 5000,
    "secret.json ",
    " ../secret",
    "..\n/secret.json",
    "..\r\n/secret.json",
    "..\u2215secret.json",
    "\u202e../secret.json",
    "$(id)",
    "`id`",
    "; cat /etc/passwd",
    "| id",
    "{{7*7}}",
    "%s%s%s%n",
    "..%5c..%5csecret.json",
    "%2e%2e%5csecret.json",
]
XSS = [
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "<svg/onload=alert(1)>",
    "javascript:alert(1)",
    '"><script>alert(1)</script>',
    "'><img src=x onerror=alert(1)>",
    "</title><script>alert(1)</script>",
    "<iframe srcdoc='<script>alert(1)</script>'>",
    "<a href=javascript:alert(1)>x</a>",
    "<body onload=alert(1)>",
    "<math><mi//xlink:href='data:x,<script>alert(1)</script>'>",
    "${alert(1)}",
    "{{constructor.constructor('x')()}}",
    "<style>@import 'http://elsewhere/x.css'</style>",
    "<base href=//elsewhere/>",
    "<!--<script>alert(1)//-->",
    "\u2028<script>alert(1)</script>",
    "<scr\0ipt>alert(1)</scr\0ipt>",
    "＜script＞alert(1)＜/script＞",
    "<video><source onerror=alert(1)></video>",
    "\N{GRINNING FACE}<b>",
    "<object data=data:text/html,x>",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library, and beside it a secret that nobody may reach."""
    top = tmp_path_factory.mktemp("security")
    library = top / "library"
    library.mkdir()
    write_clip(library / "soup.mp4", 6.0)
    write_record(library / "soup.json", captioned("soup.mp4", 6.0))
    write_record(top / "secret.json", Captioned("secret.mp4", 9.0, (Event(0, 1, "TOP SECRET"),)))
    write_clip(top / "secret.mp4", 3.0)
    return library


@pytest.fixture(scope="module")
def client(folder: Path) -> TestClient:
    return TestClient(create_app([folder]), base_url=BASE)


@pytest.fixture(scope="module")
def soup(client: TestClient) -> str:
    return str(client.get("/api/library").json()["videos"][0]["id"])


@pytest.mark.parametrize("path", ["/", "/watch/x", "/static/watch.js", "/api/library", "/nowhere"])
def test_every_answer_forbids_foreign_and_inline_script(client: TestClient, path: str) -> None:
    headers = client.get(path).headers
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy and "http" not in policy
    assert "require-trusted-types-for 'script'" in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cross-origin-resource-policy"] == "same-origin"
    assert headers["x-frame-options"] == "DENY"


def test_the_pages_ask_nobody_else_for_anything() -> None:
    from starc.viewer.routes import STATIC

    for name, (content, _) in STATIC.items():
        text = content.decode().replace("http://www.w3.org/2000/svg", "")
        assert "http:" not in text and "https:" not in text and 'src="//' not in text, name
        assert "innerHTML" not in text and "outerHTML" not in text and "eval(" not in text, name
        assert "insertAdjacentHTML" not in text and "document.write" not in text, name
        if name.endswith(".html"):
            assert " style=" not in text and " onclick=" not in text and "<script>" not in text
        if name.endswith(".js"):
            assert text.count("\n") <= 400, f"{name} is too long to read"


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:8350", 200), ("localhost:8350", 200), ("LOCALHOST", 200), ("[::1]:8350", 200),
        ("192.168.1.7:8350", 200), ("evil.example", 421), ("evil.example:8350", 421),
        ("localhost.evil.example", 421), ("127.0.0.1.evil.example", 421), ("", 421), ("[::1", 421),
        ("127.0.0.1:port", 421), ("user@127.0.0.1@evil.example", 421),
    ],
)  # fmt: skip
def test_only_our_own_host_names_are_answered(client: TestClient, host: str, status: int) -> None:
    assert client.get("/api/library", headers={"Host": host}).status_code == status


@pytest.mark.parametrize(
    "origin",
    [None, "null", "http://evil.example", "http://127.0.0.1:9999", "http://127.0.0.1",
     "http://127.0.0.1:8350.evil.example", "ftp://127.0.0.1:8350", "http://[", ""],
)  # fmt: skip
def test_changes_from_elsewhere_are_refused(
    client: TestClient, soup: str, folder: Path, origin: str | None
) -> None:
    headers = {} if origin is None else {"Origin": origin}
    body = {"seen": 0, "events": []}
    assert (
        client.post(f"/api/videos/{soup}/versions", json=body, headers=headers).status_code == 403
    )
    assert client.post("/api/uploads", content=b"x", headers=headers).status_code == 403
    assert client.delete("/api/jobs/" + "0" * 16, headers=headers).status_code == 403
    assert not list(folder.glob("*.edits"))


def test_another_site_cannot_load_pictures_or_records(client: TestClient, soup: str) -> None:
    for path in (f"/api/videos/{soup}", f"/api/videos/{soup}/media", "/static/watch.js"):
        assert client.get(path, headers={"Sec-Fetch-Site": "cross-site"}).status_code == 403
    # A link to the page from elsewhere is no harm.
    assert client.get("/", headers={"Sec-Fetch-Site": "cross-site"}).status_code == 200


def test_a_token_opens_once_and_then_cookie_and_key_do(folder: Path) -> None:
    app = create_app([folder], token="correct horse")
    client = TestClient(app, base_url=BASE)
    assert client.get("/api/library").status_code == 401
    assert client.get("/?token=wrong").status_code == 401
    assert client.get("/api/library", headers={"Cookie": "starc_token_8350=x"}).status_code == 401
    assert client.post("/api/uploads?token=correct+horse", headers=OURS).status_code == 401
    answer = client.get("/?token=correct+horse&q=garlic", follow_redirects=False)
    target, _, key = answer.headers["location"].partition("#key=")
    assert answer.status_code == 303 and target == "/?q=garlic" and len(key) == 64
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie and "samesite=strict" in cookie and "correct" not in cookie
    assert client.get("/").status_code == client.get(f"/api/library?key={key}").status_code == 200
    assert client.get("/api/library?key=wrong").status_code == 401
    # The printed address opens again, and hands out the key again.
    again = client.get("/?token=correct+horse", follow_redirects=False)
    assert again.headers["location"] == f"/#key={key}"
    fresh = TestClient(app, base_url=BASE, headers={"Authorization": "Bearer correct horse"})
    assert fresh.get("/api/library").status_code == 200
    with pytest.raises(ConfigError, match="can be guessed"):
        create_app([folder], token="short")


def test_what_a_neighbour_is_sent_lets_nobody_in(folder: Path) -> None:
    """A browser shows its cookies to every server on this machine, whatever the port."""
    app = create_app([folder], token="correct horse")
    client = TestClient(app, base_url=BASE)
    client.get("/?token=correct+horse")
    (leaked,) = client.cookies.jar
    assert leaked.name == "starc_token_8350"
    neighbour = TestClient(app, base_url=BASE, headers={"Cookie": f"{leaked.name}={leaked.value}"})
    for path in ("/api/library", "/api/jobs", f"/api/library?key={leaked.value}"):
        assert neighbour.get(path).status_code == 401
    id = "0123456789abcdef"
    for path in (f"/api/videos/{id}/versions", "/api/uploads"):
        assert neighbour.post(path, headers=OURS, json={}).status_code == 401
    # Nor does the cookie of one port open another.
    other = TestClient(app, base_url="http://127.0.0.1:8351", headers=neighbour.headers)
    assert neighbour.get("/").status_code == 200 and other.get("/").status_code == 401


@pytest.mark.parametrize("path", ["//evil.example/", "/\\evil.example", "/%0d%0aX: y", "/é"])
def test_the_token_redirect_stays_here(folder: Path, path: str) -> None:
    client = TestClient(create_app([folder], token="correct horse"), base_url=BASE)
    answer = client.get(BASE + path + "?token=correct+horse", follow_redirects=False)
    assert answer.status_code in (303, 401)
    target = answer.headers.get("location", "/")
    assert target.startswith("/") and target[1:2] not in ("/", "\\") and "\r" not in target


def test_bodies_are_capped(folder: Path) -> None:
    client = TestClient(create_app([folder], limits=ServerLimits(body=1000)), base_url=BASE)
    id = client.get("/api/library").json()["videos"][0]["id"]
    large = json.dumps({"seen": 0, "events": [], "x": "y" * 2000}).encode()
    url = f"/api/videos/{id}/versions"
    headers = {**OURS, "Content-Type": "application/json"}
    assert client.post(url, content=large, headers=headers).status_code == 413
    # Without a length, in pieces.
    assert client.post(url, content=iter([large]), headers=headers).status_code == 413
    wrong = {**headers, "Content-Length": "-5"}
    assert client.post(url, content=b"{}", headers=wrong).status_code == 413


@pytest.mark.parametrize("attack", TRAVERSAL + XSS)
def test_no_string_reaches_a_file_or_becomes_markup(
    client: TestClient, soup: str, attack: str
) -> None:
    raw, twice = quote(attack, safe=""), quote(quote(attack, safe=""), safe="")
    for piece in {raw, twice, quote(attack, safe="/%")}:
        for path in (
            f"/static/{piece}",
            f"/api/videos/{piece}",
            f"/api/videos/{piece}/media",
            f"/api/videos/{piece}/thumbnail",
            f"/api/videos/{soup}/export/{piece}",
            f"/api/videos/{soup}?version={piece}",
            f"/api/jobs/{piece}",
            f"/{piece}",
        ):
            answer = client.get(path)
            assert answer.status_code < 500, path
            assert b"SECRET" not in answer.content and b"root:" not in answer.content
            if attack in XSS and answer.status_code != 200:
                assert "html" not in answer.headers.get("content-type", "")
    answer = client.get("/api/search", params={"q": attack})
    assert answer.status_code in (200, 422)
    assert answer.headers["content-type"] == "application/json"


def test_a_record_cannot_name_a_file_outside(tmp_path: Path) -> None:
    library = tmp_path / "library"
    library.mkdir()
    write_clip(tmp_path / "secret.mp4", 2.0)
    for number, attack in enumerate(["../secret.mp4", str(tmp_path / "secret.mp4"), *TRAVERSAL]):
        write_record(library / f"r{number}.json", Captioned(attack, 5.0, (Event(0, 1, "x"),)))
    client = TestClient(create_app([library]), base_url=BASE)
    videos = client.get("/api/library").json()["videos"]
    assert len(videos) == len(TRAVERSAL) + 2
    for video in videos:
        assert not video["video"]
        assert client.get(f"/api/videos/{video['id']}/media").status_code == 404
        assert client.get(f"/api/videos/{video['id']}").status_code == 200


@pytest.mark.skipif(os.name == "nt", reason="links need rights there")
def test_links_that_lead_out_are_not_followed(tmp_path: Path) -> None:
    library, outside = tmp_path / "library", tmp_path / "outside"
    library.mkdir()
    outside.mkdir()
    write_clip(outside / "secret.mp4", 2.0)
    write_record(outside / "secret.json", Captioned("s", 9.0, (Event(0, 1, "SECRET"),)))
    (library / "a.mp4").symlink_to(outside / "secret.mp4")
    (library / "a.json").symlink_to(outside / "secret.json")
    (library / "folder").symlink_to(outside)
    (library / "loop.mp4").symlink_to(library / "loop.mp4")
    write_record(library / "soup.json", captioned("soup.mp4", 6.0))
    edits = library / "soup.edits"
    edits.mkdir()
    (edits / "0001.json").symlink_to(outside / "secret.json")
    write_clip(library / "inside.mp4", 2.0)
    (library / "alias.mp4").symlink_to(library / "inside.mp4")
    client = TestClient(create_app([library]), base_url=BASE)
    answer = client.get("/api/library")
    titles = {video["title"] for video in answer.json()["videos"]}
    assert titles == {"soup", "inside", "alias"} and answer.json()["links_out"] == 3
    assert "SECRET" not in client.get("/api/search", params={"q": "secret"}).text

    # A file that becomes a link after it was listed is refused when it is opened.
    id = next(v["id"] for v in answer.json()["videos"] if v["title"] == "inside")
    (library / "inside.mp4").unlink()
    (library / "inside.mp4").symlink_to(outside / "secret.mp4")
    assert client.get(f"/api/videos/{id}/media").status_code == 404


def test_confine(tmp_path: Path) -> None:
    inner = tmp_path / "in"
    inner.mkdir()
    (inner / "a").write_text("x")
    (tmp_path / "b").write_text("x")
    assert confine(inner, inner / "a") == (inner / "a").resolve()
    for path in (inner / ".." / "b", tmp_path / "b", inner / "none", inner, Path(f"{inner}/a\0")):
        assert confine(inner, path) is None


@pytest.mark.parametrize(
    ("head", "ending"),
    [
        (b"\0\0\0\x20ftypisom", ".mp4"),
        (b"\0\0\0\x14ftypqt  ", ".mov"),
        (b"\0\0\0\x08wide", ".mov"),
        (b"\x1a\x45\xdf\xa3....webm", ".webm"),
        (b"\x1a\x45\xdf\xa3....matroska", ".mkv"),
        (b"RIFF....AVI LIST", ".avi"),
        (b"RIFF....WAVEfmt ", None),
        (b"<html>", None),
        (b"", None),
        (b"\x7fELF", None),
        (b"PK\x03\x04", None),
        (b"#!/bin/sh\n", None),
        (b"GIF89a", None),
    ],
)
def test_content_decides_what_a_file_is(head: bytes, ending: str | None) -> None:
    kind = sniff(head)
    assert (kind and kind[0]) == ending


def test_loopback() -> None:
    assert all(map(is_loopback, ("127.0.0.1", "localhost", "::1", "127.8.8.8")))
    assert not any(map(is_loopback, ("0.0.0.0", "192.168.0.2", "example", "::", "")))


@settings(deadline=None, max_examples=150)
@given(st.text(max_size=300))
def test_names_for_people_and_for_downloads_are_tame(text: str) -> None:
    shown = display_name(text)
    assert shown and len(shown) <= 120 and not set(shown) & set("/\\\0\n\r\u202e")
    shown.encode()
    header = disposition(f"{text}.json")
    assert header.isascii() and header.isprintable()
    name = re.match(r'attachment; filename="([^"]*)"', header)[1]
    assert name.isascii() and name.endswith(".json") and not name.startswith(".")
    assert not set(name) & set("/\\\"'\n\r :;")
