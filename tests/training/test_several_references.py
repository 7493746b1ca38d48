"""ViTT's annotators and ActivityNet's two files: trained on, validated and scored."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from starc.cli import app
from starc.errors import StarcError
from starc.model import checkpoint
from starc.model.starc import STaRC
from starc.training.convert import convert
from starc.training.dataset import Videos
from starc_eval.annotations import read_references
from support import small_training as small
from support.clips import write_clip

IDS = [f"vittvideo{n:02d}" for n in range(4)]  # eleven characters, as YouTube's


def account(shift: float) -> dict[str, Any]:
    spans = [[8.0 * k + shift, 8.0 * k + 6.0] for k in range(3)]
    return {"duration": 24.0, "timestamps": spans, "sentences": small.STEPS[:3], "path": "x.npy"}


@pytest.fixture
def vitt(tmp_path: Path) -> Path:
    """Files in the layout that VidChapters publishes, and a model."""
    put(tmp_path / "train.json", {video: account(0) for video in IDS[:2]})
    put(tmp_path / "dev.json", {f"{n}_{IDS[2]}": account(n) for n in range(2)})
    test = {f"{n}_{IDS[3]}": account(n) for n in range(3)}
    put(tmp_path / "test.json", test)
    torch.save({video: torch.randn(24, small.WIDTH) for video in IDS}, tmp_path / "clipvitl14.pth")
    chosen = small.recipe()
    made = small.task(chosen)
    checkpoint.save(
        tmp_path / "model", STaRC(chosen.model), tokenizer=small.tokenizer(), store=made.store
    )
    assert made.store is not None
    made.store.save(tmp_path / "datastore")
    return tmp_path


def put(path: Path, content: Any) -> Path:
    path.write_text(json.dumps(content))
    return path


def starc(*arguments: object) -> str:
    result = CliRunner().invoke(app, [str(each) for each in arguments])
    assert result.exit_code == 0, (result.output, result.exception)
    return result.output


def test_vitt_is_trained_and_tested(vitt: Path) -> None:
    files = ["--features", vitt / "clipvitl14.pth"]
    both = ["--annotations", vitt / "train.json", "--validation", vitt / "dev.json"]
    starc("data", "check", *files, *both)
    settings = [part for setting in small.SMALL for part in ("--set", setting)]
    starc(
        *("train", "vitt", *files, *both, "--init", vitt / "model", *settings),
        *("--datastore", vitt / "datastore", "-o", vitt / "run"),
    )
    assert "validation" in (vitt / "run/metrics.jsonl").read_text()
    shown = starc(
        *("evaluate", vitt / "run/best", *files, "--annotations", vitt / "test.json"),
        *("--out", vitt / "predictions.json"),
    )
    assert "refs:1 | videos:3/3" in shown and "3 annotations" in " ".join(shown.split())
    assert list(json.loads((vitt / "predictions.json").read_text())["results"]) == [IDS[3]]
    again = starc("score", vitt / "predictions.json", vitt / "test.json")
    assert again.split("Segments")[0] == shown.split("Segments")[0]
    together = starc(
        *("evaluate", vitt / "run/best", *files, "--annotations", vitt / "test.json"),
        *("--annotators", "together"),
    )
    assert "refs:3 | videos:1/1" in together


def test_two_files_are_two_references(vitt: Path) -> None:
    one, two = (put(vitt / f"val_{n}.json", {f"v_{IDS[3]}": account(n)}) for n in (1, 2))
    shown = starc(
        *("evaluate", vitt / "model", "--features", vitt / "clipvitl14.pth"),
        *("--annotations", one, "--annotations", two),
    )
    assert "refs:2 | videos:1/1" in shown


def test_training_learns_from_every_account(vitt: Path) -> None:
    files = [vitt / "test.json", vitt / "train.json"]
    videos = Videos.read(files, vitt / "clipvitl14.pth", None)
    parts = videos.parts(0, random.Random(0))
    assert [(videos.ids[part.video], part.annotator) for part in parts] == [
        *((video, 0) for video in IDS[:2]),
        *((IDS[3], n) for n in range(3)),
    ]
    starts = [videos.part(part).events[0].start for part in parts]
    assert starts == [0, 0, 0, 1, 2]
    assert {videos.part(part).id for part in parts} == {*IDS[:2], IDS[3]}  # hides its own captions


def raw(*starts: int, name: str = "FmTp") -> dict[str, Any]:
    tags = [{"timestamp": start, "tag": f"section {n}"} for n, start in enumerate(starts)]
    return {"id": name, "annotations": tags}


def test_raw_vitt_takes_its_durations_from_the_videos(tmp_path: Path) -> None:
    """ViTT-annotations.json, id_mapping.json and test_id.txt, as they are published."""
    records = [raw(260, 2000), raw(0, 1500), raw(100, name="gone"), raw(9000, name="AbCd")]
    records += [raw(0, name="trai"), raw(0, name="priv")]
    lines = tmp_path / "ViTT-annotations.json"
    lines.write_text("".join(json.dumps(record) + "\n" for record in records))
    names = {"FmTp": IDS[0], "gone": IDS[1], "AbCd": IDS[2], "trai": IDS[3]}
    put(tmp_path / "id_mapping.json", names)
    (tmp_path / "test_id.txt").write_text("FmTp\ngone\nAbCd\npriv\n")
    (tmp_path / "videos").mkdir()
    for video in (IDS[0], IDS[2]):
        write_clip(tmp_path / f"videos/{video}.mp4", seconds=4.0)
    (tmp_path / "videos" / f"{IDS[1]}.mp4").write_text("not a video")
    shown = starc(
        *("data", "convert", lines, "--videos", tmp_path / "videos", "-o", tmp_path / "test.jsonl"),
        *("--names", tmp_path / "id_mapping.json", "--only", tmp_path / "test_id.txt"),
    )
    assert "2 accounts of 1 videos" in shown
    for reason in ("not listed", "no duration", "beyond the video", "no name"):
        assert reason in shown
    found = read_references(tmp_path / "test.jsonl")
    assert {key: each.spans for key, each in found.items()} == {
        f"0_{IDS[0]}": ((0.26, 2.0), (2.0, 4.0)),
        f"1_{IDS[0]}": ((0.0, 1.5), (1.5, 4.0)),
    }
    table = tmp_path / "durations.csv"
    table.write_text("FmTp,4.5\ngone 3\n")
    found = convert(lines, durations=table).annotations
    assert found["1_FmTp"].spans[-1] == (1.5, 4.5) and found["gone"].spans == ((0.1, 3.0),)
    table.write_text("FmTp,long")
    with pytest.raises(StarcError, match="a video and its float"):
        convert(lines, durations=table)
