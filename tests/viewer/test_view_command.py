"""`starc view`: what the command hands to the server."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from starc.cli import app
from starc.inference import pipeline
from starc.types import Captioned, Event

CAPTIONED = Captioned("a.mp4", 9.0, (Event(1, 2, "stir"),))


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Arguments of `serve`, which here only says its address."""
    arguments: dict[str, Any] = {}

    def serve(paths: list[Path], **options: Any) -> None:
        arguments.update(options, paths=paths)
        options["announce"]("http://[::1]:8350/?token=" + "x" * 100)

    monkeypatch.setattr("starc.viewer.server.serve", serve)
    return arguments


def test_the_command_serves_what_it_was_given(served: dict[str, Any], tmp_path: Path) -> None:
    command = ["view", str(tmp_path), "--no-browser", "--port", "0", "--compare", "other"]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    # The address is one line, however long, so that it can be copied.
    assert "starc: http://[::1]:8350/?token=" + "x" * 100 + "\n" in result.output
    assert served["paths"] == [tmp_path] and served["compare"] == Path("other")
    assert served["host"] == "127.0.0.1" and served["port"] == 0 and served["token"] is None
    assert served["open_browser"] is False


def test_the_page_captions_with_the_embedded_model_unless_told_otherwise(
    served: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Any] = []

    def caption(self: Any, path: Path, *, force: bool, stop: Any, on_progress: Any) -> Captioned:
        made.append((self, force))
        on_progress("watching", 3, 12)
        on_progress("listening", 30.4, 90.0)
        on_progress("captioning", 0.0, 1.0)
        return CAPTIONED

    monkeypatch.setattr("starc.inference.pipeline.Captioner.caption", caption)
    for options in ([], ["--model", "embedded"], ["--model", "some/folder"]):
        CliRunner().invoke(app, ["view", str(tmp_path), *options])
        said: list[tuple[Any, ...]] = []
        served["caption"](Path("a.mp4"), lambda *row, said=said: said.append(row), lambda: False)
    models = [captioner._model for captioner, _ in made]
    assert models == [pipeline.EMBEDDED, pipeline.EMBEDDED, "some/folder"]
    assert said == [
        ("watching", 0.25, "3 of 12 frames seen"),
        ("listening", pytest.approx(0.3378, abs=1e-4), "30 of 90 s heard"),
        ("captioning", 0.0, ""),
    ]
    served["caption_anyway"](Path("a.mp4"), lambda *row: None, lambda: False)
    assert made[-1][0] is made[-2][0]  # one model for both
    assert [force for _, force in made] == [False, False, False, True]
    CliRunner().invoke(app, ["view", str(tmp_path), "--model", "none"])
    assert served["caption"] is served["caption_anyway"] is None


def test_every_format_of_caption_can_be_exported(served: dict[str, Any], tmp_path: Path) -> None:
    CliRunner().invoke(app, ["view", str(tmp_path)])
    exports = served["exports"]
    assert exports["vtt"].ending == "vtt" and exports["chapters"].ending == "chapters.vtt"
    assert exports["vtt"].render(CAPTIONED).startswith("WEBVTT")
    assert exports["csv"].render(CAPTIONED).startswith("video,start")
    assert exports["html"].media_type == "text/plain; charset=utf-8"  # downloaded, never run
    assert not {"json", "video"} & set(exports)


def test_the_token_is_in_a_file_or_in_the_environment(
    served: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, secret = tmp_path / "token", "correct-horse-battery"
    file.write_text(f"{secret}\n")
    file.chmod(0o600)

    def view(*options: str) -> str:
        served.clear()
        result = CliRunner().invoke(app, ["view", str(tmp_path), *options])
        return str(result.exception or served["token"])

    assert view("--token", str(file)) == secret
    assert view("--token", "none") == "none"
    # A secret on the command line is not taken, and not repeated.
    refused = view("--token", secret)
    assert "names no file" in refused and "STARC_TOKEN" in refused and secret not in refused
    for mode in (0o640, 0o604):
        file.chmod(mode)
        assert f"chmod 600 {file}" in view("--token", str(file))
    file.chmod(0o600)
    monkeypatch.setenv("STARC_TOKEN", "another-horse")
    assert view() == "another-horse" and view("--token", str(file)) == secret
    for short in ("none", "short"):
        file.write_text(short)
        monkeypatch.setenv("STARC_TOKEN", short)
        assert "can be guessed" in view() and "can be guessed" in view("--token", str(file))


def test_the_help_explains_every_option() -> None:
    text = CliRunner().invoke(app, ["view", "--help"], env={"COLUMNS": "200"}).output
    for option in ("host", "port", "token", "reference", "compare", "model", "browser"):
        assert re.search(rf"--{option}\b[^│|]*\s[A-Z][a-z]+ ", text), option
