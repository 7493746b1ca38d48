"""The server as a whole: pages, ranges, what `serve` listens on, and requests nobody thought of."""

from __future__ import annotations

import json
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from urllib.parse import unquote

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient

from starc.errors import AnnotationError, ConfigError
from starc.types import Captioned, Event
from starc.viewer import server
from starc.viewer.security import without_folders
from starc.viewer.server import create_app, serve
from support.viewer_browser import running
from support.viewer_sample import captioned, make_library, write_record

BASE = "http://127.0.0.1:8350"
OURS = {"Origin": BASE}


def quick(path: Path, progress: object, cancelled: object) -> Captioned:
    return Captioned(path.name, 4.0, (Event(0, 2, "x"),))


@pytest.fixture(scope="module")
def top(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("server")
    make_library(folder, duration=12.0, dishes=2)
    return folder


@pytest.fixture(scope="module")
def client(top: Path) -> TestClient:
    app = create_app(
        [top / "library"], reference=top / "reference.json", compare=top / "baseline", caption=quick
    )
    return TestClient(app, base_url=BASE, headers=OURS)


@pytest.fixture(scope="module")
def soup(client: TestClient) -> str:
    videos = client.get("/api/library").json()["videos"]
    return str(next(video["id"] for video in videos if "tomato" in video["title"]))


def test_the_library_tells_what_it_has(client: TestClient) -> None:
    library = client.get("/api/library").json()
    assert [video["title"] for video in library["videos"]] == [
        "Mushroom risotto",
        "Roasted tomato soup",
    ]
    assert library["can_caption"] and library["videos"][1]["events"] == 8
    assert library["videos"][1]["captioned"] and library["videos"][1]["video"]


def test_a_video_comes_with_all_that_stands_beside_it(client: TestClient, soup: str) -> None:
    video = client.get(f"/api/videos/{soup}").json()
    assert video["record"]["starc"] == 1 and len(video["record"]["saliency"]) == 12
    assert len(video["reference"]["record"]["events"]) == 8
    assert video["other"]["name"] == "baseline" and video["other"]["record"]["events"]
    assert video["formats"] == ["training", "json"] and not video["can_caption"]
    assert client.get(f"/api/videos/{soup}?version=3").status_code == 404
    assert client.get("/api/videos/" + "0" * 16).status_code == 404


@pytest.mark.parametrize(
    ("header", "status", "start", "stop"),
    [
        (None, 200, 0, None), ("bytes=0-9", 206, 0, 10), ("bytes=100-", 206, 100, None),
        ("bytes=-50", 206, -50, None), ("bytes=5-5", 206, 5, 6), ("bytes=9999999-", 416, 0, 0),
        ("bytes=9-2", 400, 0, 0), ("bites=0-1", 400, 0, 0), ("bytes=a-b", 400, 0, 0),
    ],
)  # fmt: skip
def test_ranges(
    client: TestClient, soup: str, top: Path, header: str | None, status: int, start: int,
    stop: int | None,
) -> None:  # fmt: skip
    content = (top / "library" / "roasted-tomato-soup.mp4").read_bytes()
    headers = {"Range": header} if header else {}
    answer = client.get(f"/api/videos/{soup}/media", headers=headers)
    assert answer.status_code in (status, 416 if status == 400 else status)
    if status < 300:
        assert answer.content == content[start:stop]
        assert answer.headers["content-type"] == "video/mp4"
        assert answer.headers["accept-ranges"] == "bytes"
    head = client.head(f"/api/videos/{soup}/media")
    assert head.status_code == 200 and head.headers["content-length"] == str(len(content))


def test_a_file_that_only_claims_to_be_a_video(tmp_path: Path) -> None:
    (tmp_path / "notes.mp4").write_text("<html><script>alert(1)</script>")
    client = TestClient(create_app([tmp_path]), base_url=BASE)
    (video,) = client.get("/api/library").json()["videos"]
    assert client.get(f"/api/videos/{video['id']}/media").status_code == 415
    assert client.get(f"/api/videos/{video['id']}/thumbnail").status_code == 404
    assert client.get(f"/api/videos/{video['id']}").status_code == 422


def test_thumbnails_and_search(client: TestClient, soup: str) -> None:
    picture = client.get(f"/api/videos/{soup}/thumbnail")
    assert picture.headers["content-type"] == "image/jpeg" and picture.content[:2] == b"\xff\xd8"
    answer = client.get("/api/search", params={"q": "Where do they add garlic?"}).json()
    assert answer["moments"][0]["id"] == soup and "garlic" in answer["moments"][0]["text"]
    assert answer["words"] == ["add", "garlic"] and answer["total"] >= 2
    assert client.get("/api/search", params={"q": "x" * 300}).status_code == 422


def test_pages_and_files(client: TestClient) -> None:
    for path in ("/", "/watch/anything"):
        assert client.get(path).headers["content-type"] == "text/html; charset=utf-8"
    assert "javascript" in client.get("/static/watch.js").headers["content-type"]
    for path in ("/docs", "/redoc", "/static/", "/static/server.py", "/static/none.js"):
        assert client.get(path).status_code == 404


def test_a_damaged_record_is_told_not_thrown(tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text('{"starc": 1}')
    write_record(tmp_path / "odd.json", captioned("odd", 5.0))
    odd = json.loads((tmp_path / "odd.json").read_text())
    odd["events"][0]["caption"] = "half \ud800 a character"
    (tmp_path / "odd.json").write_text(json.dumps(odd))
    client = TestClient(create_app([tmp_path]), base_url=BASE)
    videos = {video["title"]: video for video in client.get("/api/library").json()["videos"]}
    assert videos["bad"]["problem"]
    answer = client.get(f"/api/videos/{videos['bad']['id']}")
    assert answer.status_code == 422 and "bad.json" in answer.json()["message"]
    assert client.get(f"/api/videos/{videos['odd']['id']}").status_code == 200
    assert client.get("/api/search?q=half").status_code == 200
    assert client.get(f"/api/videos/{videos['odd']['id']}/export/training").status_code == 200


def test_bad_arguments_are_told_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(AnnotationError, match="no such file or folder"):
        create_app([tmp_path / "none"])
    with pytest.raises(AnnotationError, match="no such file"):
        create_app([tmp_path], reference=tmp_path / "none.json")
    with pytest.raises(ValueError):
        create_app([])


def run(**arguments: object) -> tuple[str, Callable[[], None]]:
    """`serve` in a thread; the address it announced, and what stops it."""
    ready, said = threading.Event(), []
    servers = []
    real = server.uvicorn.Server

    class Caught(real):  # type: ignore[misc, valid-type]
        def __init__(self, config: object) -> None:
            super().__init__(config)
            servers.append(self)

    def announce(address: str) -> None:
        said.append(address)
        ready.set()

    server.uvicorn.Server = Caught  # type: ignore[misc]
    try:
        thread = threading.Thread(target=serve, kwargs={**arguments, "announce": announce})
        thread.start()
        assert ready.wait(10)
        while not servers or not servers[0].started:
            thread.join(0.01)
    finally:
        server.uvicorn.Server = real  # type: ignore[misc]

    def stop() -> None:
        servers[0].should_exit = True
        thread.join(10)

    return said[0], stop


def test_serve_listens_here_and_opens_the_one_file(top: Path) -> None:
    record = top / "library" / "roasted-tomato-soup.json"
    address, stop = run(folders=[record], port=0)
    try:
        assert address.startswith("http://127.0.0.1:") and "/watch/" in address
        with pytest.raises(urllib.error.HTTPError, match="401"):  # another user of this machine
            urllib.request.urlopen(address.partition("?")[0])
        opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
        assert b"<title>" in opener.open(address).read()
        port = int(address.split(":")[2].split("/")[0])
        with pytest.raises(ConfigError, match="--port"):
            serve([record], port=port)
    finally:
        stop()


def test_serve_beyond_this_machine_wants_a_token(top: Path) -> None:
    address, stop = run(folders=[top / "library"], host="0.0.0.0", port=0)
    try:
        port = address.split(":")[2].split("/")[0]
        token = address.partition("?token=")[2]
        assert len(token) >= 24
        here = f"http://127.0.0.1:{port}/api/library"
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(here)
        request = urllib.request.Request(here, headers={"Authorization": f"Bearer {token}"})
        assert json.load(urllib.request.urlopen(request))["videos"]
    finally:
        stop()


def test_a_user_may_do_without_a_token_on_this_machine_only(top: Path) -> None:
    for host, asked in (("127.0.0.1", False), ("0.0.0.0", True)):
        address, stop = run(folders=[top / "library"], port=0, host=host, token="none")
        stop()
        assert ("?token=" in address) == asked


def exchange(site: str, *pieces: bytes, pause: float = 0.0) -> bytes:
    """What the server says to some bytes, sent with pauses, until it closes or is silent."""
    host, port = site.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=5) as one:
        with suppress(OSError):  # it may close while we still send
            for piece in pieces:
                one.sendall(piece)
                time.sleep(pause)
        said = b""
        with suppress(ConnectionError):
            while part := one.recv(65536):
                said += part
        return said


HEAD = b"POST /api/videos/0123456789abcdef/versions HTTP/1.1\r\nHost: 127.0.0.1\r\n"


@pytest.mark.parametrize(
    "pieces",
    [
        [],
        [b"GET / HTTP/1.1\r\nHost: 127"],
        [b"GET / HTTP/1.1\r\n", *[b"X: y\r\n"] * 30],
        [HEAD + b"Origin: http://127.0.0.1\r\nContent-Length: 4000\r\n\r\n", *[b"{"] * 30],
    ],
)
def test_who_sends_half_a_request_is_let_go(
    top: Path, monkeypatch: pytest.MonkeyPatch, pieces: list[bytes]
) -> None:
    monkeypatch.setattr(server, "PATIENCE", 0.2)
    with running(create_app([top / "library"])) as site:
        assert b"200" not in exchange(site, *pieces, pause=0.05)  # times out if it is kept


def test_idle_visitors_keep_nobody_out(top: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "MOST_CONNECTIONS", 10)
    with running(create_app([top / "library"])) as site, ExitStack() as open_ones:
        address = ("127.0.0.1", int(site.rpartition(":")[2]))
        for _ in range(40):
            idle = open_ones.enter_context(socket.create_connection(address))
            idle.sendall(b"GET / HTTP/1.1\r\n")
        assert json.load(urllib.request.urlopen(f"{site}/api/library", timeout=5))["videos"]


def test_serve_says_where_it_cannot_listen(top: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(ConfigError, match="cannot listen"):
            serve([top], port=taken.getsockname()[1])
    with pytest.raises(ConfigError, match="cannot listen"):
        serve([top], port=99999)


def test_openapi_names_every_request(client: TestClient) -> None:
    paths = client.get("/openapi.json").json()["paths"]
    assert {"/api/library", "/api/videos/{id}/versions", "/api/uploads"} <= set(paths)


PARTS = st.one_of(
    st.text(max_size=20),
    st.sampled_from(["0" * 16, "..", "%2e%2e", "\0", "versions", "media", "events", "-1", "1e9"]),
)


@settings(deadline=None, max_examples=120, suppress_health_check=[HealthCheck.too_slow])
@given(
    method=st.sampled_from(["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "HEAD"]),
    parts=st.lists(PARTS, max_size=4),
    query=st.dictionaries(st.sampled_from(["q", "limit", "version", "name", "token"]), PARTS),
    body=st.one_of(st.binary(max_size=40), st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(max_size=6),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=6), inner), max_leaves=6,
    ).map(lambda value: json.dumps(value).encode())),
)  # fmt: skip
def test_no_request_makes_the_server_fail(
    client: TestClient, method: str, parts: list[str], query: dict[str, str], body: bytes
) -> None:
    path = "/".join(urllib.request.quote(part, safe="", errors="replace") for part in parts)
    content = None if method in ("GET", "HEAD") else body
    for start in ("/", "/api/", "/api/videos/", "/static/"):
        answer = client.request(method, BASE + start + path, params=query, content=content)
        assert answer.status_code < 500, (method, start + path)


def test_schemathesis_finds_no_failure(tmp_path: Path) -> None:
    """Requests made from our own OpenAPI: none is answered with 500."""
    import schemathesis

    write_record(tmp_path / "soup.json", captioned("soup", 6.0))
    app = create_app([tmp_path], caption=quick)
    client = TestClient(app, base_url=BASE, headers=OURS, raise_server_exceptions=False)
    id = client.get("/api/library").json()["videos"][0]["id"]
    schema = schemathesis.openapi.from_dict(client.get("/openapi.json").json())
    tried = 0
    for operation in schema.get_all_operations():
        operation = operation.ok()

        @settings(
            deadline=None, max_examples=8, database=None, derandomize=True,
            suppress_health_check=list(HealthCheck),
        )  # fmt: skip
        @given(case=operation.as_strategy(), real=st.booleans())
        def attempt(case: object, real: bool) -> None:
            nonlocal tried
            tried += 1
            if real and "id" in (case.path_parameters or {}):
                case.path_parameters["id"] = id
            arguments = case.as_transport_kwargs(base_url=BASE)
            headers = {**(arguments.get("headers") or {}), **OURS}
            keep = ("method", "url", "params", "json", "data", "content")
            known = {key: value for key, value in arguments.items() if key in keep}
            answer = client.request(**known, headers=headers)
            assert answer.status_code < 500, (case.method, answer.url)

        attempt()
    assert tried > 60


def test_answers_are_packed_and_not_sent_twice(client: TestClient) -> None:
    for path in ("/static/timeline.js", "/static/base.css", "/", "/api/library"):
        plain = client.get(path, headers={"Accept-Encoding": "identity"})
        assert "content-encoding" not in plain.headers
        first = client.get(path)
        assert first.content == plain.content and first.headers["etag"] == plain.headers["etag"]
        if len(plain.content) >= 1000:
            assert first.headers["content-encoding"] == "gzip"
            assert int(first.headers["content-length"]) < len(plain.content) / 2
        again = client.get(path, headers={"If-None-Match": first.headers["etag"]})
        assert again.status_code == 304 and again.content == b""
        assert again.headers["x-frame-options"] == "DENY"
    other = client.get("/api/library", headers={"If-None-Match": 'W/"0"'})
    assert other.status_code == 200 and other.json()


def test_an_error_names_no_folder(tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text('{"starc": 1, "video"')
    client = TestClient(create_app([tmp_path]), base_url=BASE)
    (row,) = client.get("/api/library").json()["videos"]
    assert row["problem"] == "the file is not valid JSON"
    for path in (f"/api/videos/{row['id']}", f"/api/videos/{row['id']}/export/json"):
        answer = client.get(path)
        assert answer.status_code == 422 and "bad.json: not valid JSON" in answer.json()["message"]
        assert str(tmp_path.parent) not in answer.text
    said = "/srv/a b/x.mp4: no; see /var/log/x y, C:\\data\\z.mp4"
    said = without_folders(said, [Path("/srv/a b")])
    assert said == "x.mp4: no; see x y, z.mp4"


def test_a_download_keeps_its_name_in_any_script(tmp_path: Path) -> None:
    record = captioned("蒜蓉 大虾.mp4", 9.0)
    write_record(tmp_path / "蒜蓉 大虾.json", record)
    client = TestClient(create_app([tmp_path]), base_url=BASE)
    (row,) = client.get("/api/library").json()["videos"]
    header = client.get(f"/api/videos/{row['id']}/export/json").headers["content-disposition"]
    assert header.startswith("attachment; filename=\"video.json\"; filename*=UTF-8''")
    assert unquote(header.rpartition("'")[2]) == "蒜蓉-大虾.json"
