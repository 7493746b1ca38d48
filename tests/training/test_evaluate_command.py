"""`starc evaluate`: protocols, given boundaries, files that are not ours."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from starc.cli import app
from starc.errors import AnnotationError
from starc.model import checkpoint
from starc.model.starc import STaRC
from starc.training.evaluate import evaluate
from starc.training.recipes import apply_overrides
from starc_eval.annotations import read_predictions, read_references
from support import small_training as small

WINDOWS = ["model.inputs.frames=8", "model.windowing.seconds=8", "model.windowing.longest=10"]


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    small.files(tmp_path)
    chosen = small.recipe()
    store = small.task(chosen).store
    for name, settings in (("model", []), ("windows", WINDOWS)):
        config = apply_overrides(chosen, settings).model
        checkpoint.save(tmp_path / name, STaRC(config), tokenizer=small.tokenizer(), store=store)
    return tmp_path


def starc(data: Path, *more: object, model: str = "model") -> Result:
    files = [
        f"--{n}={data / f}" for n, f in (("features", "features.pth"), ("speech", "speech.json"))
    ]
    arguments = ["evaluate", data / model, "--annotations", data / "validation.json", *files, *more]
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.mark.parametrize("model", ["model", "windows"])
def test_given_boundaries_are_kept_to_the_digit(data: Path, model: str) -> None:
    ended = starc(data, "--given-boundaries", "-o", data / "said.json", model=model)
    assert ended.exit_code == 0, ended.output
    said, wanted = read_predictions(data / "said.json"), read_references(data / "validation.json")
    assert {video: one.spans for video, one in said.items()} == {
        video: one.spans for video, one in wanted.items()
    }
    assert any(text for one in said.values() for text in one.sentences)
    assert "F1            100.00" in ended.stdout


def test_an_event_that_ends_before_it_starts_cannot_be_given(data: Path) -> None:
    content = {"video8": {"duration": 24.0, "timestamps": [[5, 4]], "sentences": ["x"]}}
    (data / "odd.json").write_text(json.dumps(content))
    with pytest.raises(AnnotationError, match=r"odd.json: video 'video8', event 1: \[5.0, 4.0\]"):
        evaluate(
            data / "model", data / "odd.json", data / "features.pth", None, given_boundaries=True
        )


@pytest.mark.parametrize("protocol", ["paragraph", "proposals", "chapters", "titles"])
def test_protocols(data: Path, protocol: str) -> None:
    ended = starc(data, "--protocol", protocol)
    assert ended.exit_code == 0, ended.output
    assert f"protocol:{protocol} | refs:1 | videos:3/3" in ended.stdout.replace("\n", "")


def test_protocols_of_queries_are_refused_before_anything_is_captioned(data: Path) -> None:
    ended = starc(data, "--protocol", "grounding")
    assert ended.exit_code == 2 and "published" in ended.output
    assert "of 3" not in ended.output


def test_json_with_timing(data: Path) -> None:
    report = json.loads(starc(data, "--json").stdout)
    assert set(report["seconds"]) == {"load", "caption", "score"}
    assert min(report["seconds"].values()) > 0
    assert 0 <= report["saliency_auc"] <= 1 and report["metrics"]["CIDEr"] >= 0


def test_a_file_of_the_users_stays(data: Path) -> None:
    mine = data / "notes.json"
    mine.write_text("mine")
    refused = starc(data, "-o", mine)
    assert refused.exit_code and "notes.json: is there" in str(refused.exception)
    assert mine.read_text() == "mine"
    assert starc(data, "-o", mine, "--overwrite").exit_code == 0
    assert starc(data, "-o", mine).exit_code == 0, "now it is ours"
    per_video = ["score", mine, data / "validation.json", "--per-video", data / "train.csv"]
    (data / "train.csv").write_text("mine")
    refused = CliRunner().invoke(app, [str(argument) for argument in per_video])
    assert refused.exit_code and (data / "train.csv").read_text() == "mine"
    lost = starc(data, "-o", data / "nowhere/said.json")
    assert "there is no folder" in str(lost.exception)
