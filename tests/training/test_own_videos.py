"""Own videos: captioned, corrected in the page, exported, trained on and scored."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import torch
from starlette.testclient import TestClient
from typer.testing import CliRunner

from starc.cli import app
from starc.model import checkpoint
from starc.viewer.server import create_app
from support.clips import picture, write_clip

BASE = "http://127.0.0.1:8350"
SAID = ["crack the eggs into a bowl and add the milk", "melt the butter in a hot pan"]


def own_videos(folder: Path) -> None:
    """Three narrated clips of eight seconds."""
    folder.mkdir()
    for shift, name in enumerate(("eggs", "soup", "bread")):
        shown = (picture(40 * shift + n, 64, 48) for n in range(16))
        write_clip(folder / f"{name}.mp4", pictures=shown, fps=2)
        lines = [f"{n + 1}\n00:00:0{4 * n},000 --> 00:00:0{4 * n + 3},000\n{text}\n"
                 for n, text in enumerate(SAID)]  # fmt: skip
        (folder / f"{name}.srt").write_text("\n".join(lines))


def corrected_in_the_page(folders: list[Path], out: Path) -> None:
    """What somebody does in the page: two events for every video, then Export corrections."""
    with TestClient(create_app(folders), base_url=BASE, headers={"Origin": BASE}) as page:
        videos = page.get("/api/library").json()["videos"]
        assert len(videos) == 3
        for video in videos:
            events = [
                {"start": 0.0, "end": 3.5, "caption": "whisk the eggs"},
                {"start": 4.0, "end": 7.5, "caption": "fry the eggs"},
            ]
            saved = page.post(
                f"/api/videos/{video['id']}/versions", json={"seen": 0, "events": events}
            )
            assert saved.json() == {"version": 1}, saved.text
        out.write_text(page.get("/api/export/training").text)


def cider(output: str) -> float:
    found = re.search(r"^CIDEr +([\d.]+)", output, flags=re.M)
    assert found is not None, output
    return float(found[1])


def test_the_lines_of_the_docs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).parents[2] / "docs/training.md").read_text("utf-8")
    (block,) = re.findall(r"^```sh\n(.*?)^```$", page, flags=re.S | re.M)
    monkeypatch.chdir(tmp_path)
    threads = torch.get_num_threads()
    own_videos(Path("videos"))
    outputs: dict[str, Any] = {}
    for line in block.splitlines():
        _, command, *arguments = shlex.split(line)
        if command == "view":
            corrected_in_the_page([Path(one) for one in arguments], Path("corrected.jsonl"))
            continue
        ended = CliRunner().invoke(app, [command, *arguments])
        assert ended.exit_code == 0, f"{line}: {ended.output} {ended.exception!r}"
        outputs[f"{command} {arguments[0]}"] = ended.output
    torch.set_num_threads(threads)
    notes = outputs["train tiny_youcook2"]
    warned = [line for line in notes.splitlines() if line.startswith("warning: ")]
    assert len(warned) == 1, notes
    assert "its caption writer and span head are not taken along" in warned[0]
    before, after = outputs["evaluate embedded"], outputs["evaluate tuned/best"]
    assert cider(after) > cider(before), "what was corrected is heard"
    tuned = checkpoint.load("tuned/best")
    assert tuned.writer is None and tuned.joint is not None and tuned.store is not None
    again = json.loads(Path("again/eggs.json").read_text())
    assert "eggs" in " ".join(event["caption"] for event in again["events"])
