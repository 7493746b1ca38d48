"""Standard input and addresses become files: bounded, without a shell, gone afterwards."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest

from starc.errors import ConfigError, MissingExtra, StarcError, VideoError
from starc.media import sources
from starc.media.container import MediaLimits
from starc.media.subtitles import find_sidecar

YT_DLP = """
import json, sys
from pathlib import Path

options = sys.argv[1:]
Path({log!r}).write_text(json.dumps(options))
folder = Path(options[options.index("--paths") + 1])
assert options[-2] == "--"
if "missing" in options[-1]:
    sys.stderr.write("WARNING: hm\\nERROR: [generic] HTTP Error 404: Not Found\\n")
    sys.exit(1)
(folder / "A talk [x1].mp4").write_bytes(b"video")
(folder / "A talk [x1].en.vtt").write_text("WEBVTT\\n\\n00:01.000 --> 00:02.000\\nhello\\n")
"""


class Stdin:
    def __init__(self, content: bytes) -> None:
        self.buffer = io.BytesIO(content)


@pytest.fixture
def yt_dlp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program that takes the place of yt-dlp; returns where it notes its options."""
    log, program = tmp_path / "options.json", tmp_path / "bin" / "yt-dlp"
    program.parent.mkdir()
    program.write_text(f"#!{sys.executable}\n" + YT_DLP.format(log=str(log)))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=os.pathsep)
    monkeypatch.setattr(sources.importlib.util, "find_spec", lambda name: None)
    return log


def test_standard_input_is_a_file_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", Stdin(b"a video"))
    with sources.local_files(["a.mp4", "-"]) as (named, copied):
        assert named == Path("a.mp4") and copied.read_bytes() == b"a video"
    assert not copied.parent.exists()


def test_standard_input_is_bounded(tmp_path: Path) -> None:
    limits = MediaLimits(file_bytes=10)
    with pytest.raises(VideoError, match=r"-: more than 10 bytes .*--limit file_bytes="):
        sources.copied(io.BytesIO(b"x" * 11), tmp_path / "stdin", limits)
    sources.copied(io.BytesIO(b"x" * 10), tmp_path / "stdin", limits)


def test_nothing_on_standard_input(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(VideoError, match="nothing came on standard input"):
        sources.copied(io.BytesIO(), tmp_path / "stdin", MediaLimits())
    terminal = Mock(isatty=lambda: True)
    with pytest.raises(ConfigError, match="is a terminal; pipe a video"):
        sources.copied(terminal, tmp_path / "stdin", MediaLimits())
    monkeypatch.setattr(sys, "stdin", Stdin(b"a"))
    with pytest.raises(ConfigError, match="name it once"), sources.local_files(["-", "-"]):
        pass


def test_an_address_comes_with_its_subtitles(yt_dlp: Path) -> None:
    asked = []
    address = "https://video.example/watch?v=1&list=$(touch pwned);`id`"
    with sources.local_files([address], language="de", on_fetch=asked.append) as (video,):
        assert video.name == "A talk [x1].mp4" and video.read_bytes() == b"video"
        sidecar = find_sidecar(video)
        assert sidecar is not None and sidecar.name == "A talk [x1].en.vtt"
    assert not video.parent.exists() and asked == [address]
    options = yt_dlp.read_text()
    assert "$(touch pwned);`id`" in options and "--ignore-config" in options
    assert '"de(-[A-Z][A-Z]|-orig)?"' in options


def test_what_yt_dlp_says_is_one_line(yt_dlp: Path) -> None:
    with (
        pytest.raises(VideoError) as error,
        sources.local_files(["https://video.example/missing"]),
    ):
        pass
    assert "HTTP Error 404" in str(error.value) and "\n" not in str(error.value)


def test_without_yt_dlp_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setenv("PATH", "")
    with (
        pytest.raises(MissingExtra, match=r"starc\[url\]"),
        sources.local_files(["https://video.example/1"]),
    ):
        pass


@pytest.mark.parametrize("address", ["file:///etc/passwd", "ftp://a/b", "https://", "http://[/"])
def test_only_the_web_is_fetched(yt_dlp: Path, address: str) -> None:
    with pytest.raises(StarcError, match="begins with https://"), sources.local_files([address]):
        pass
    assert not yt_dlp.exists()


def test_a_call_that_fetches_nothing_says_so(tmp_path: Path) -> None:
    for address in ("https://a.org/b.mp4", Path("https://a.org/b.mp4")):
        with pytest.raises(
            VideoError, match=r"^https://a\.org/b\.mp4: is an address.*caption fetches"
        ) as caught:
            sources.check_local(address)
        assert "starc caption fetches it" in str(caught.value) and "\n" not in str(caught.value)
    with pytest.raises(VideoError, match=r"^-: standard input is read only by the command"):
        sources.check_local("-")
    with pytest.raises(VideoError, match=r"nowhere\.mp4: no such file; check the path"):
        sources.check_local(tmp_path / "nowhere.mp4")
    (tmp_path / "a: b.mp4").touch()
    assert sources.check_local(str(tmp_path / "a: b.mp4")) == tmp_path / "a: b.mp4"
