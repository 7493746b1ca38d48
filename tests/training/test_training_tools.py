"""Data checks, looking inside a model, figures, and the commands that train."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from starc.cli import app
from starc.errors import AnnotationError, CheckpointError, ConfigError
from starc.model import checkpoint
from starc.model.checkpoint import Loaded
from starc.model.starc import STaRC
from starc.retrieval.datastore import CaptionStore
from starc.training import evaluate, figures
from starc.training.ablations import Result, markdown, rows, write
from starc.training.data_check import examine
from starc.training.dataset import Videos, usable_events
from starc.training.evaluate import caption_videos
from starc.training.recipes import Recipe, apply_overrides
from starc.training.tables import ablation
from starc.training.train import Files, initialised, run_training
from starc.types import Sentence
from starc_eval.annotations import VideoAnnotation
from support.small_training import SMALL, files, recipe, task, videos


def test_examine_finds_what_was_planted() -> None:
    annotations = {
        "good": VideoAnnotation(((0, 5),), ("stir",), 20.0),
        "bad": VideoAnnotation(((5, 2), (0, 99), (1, 2), (1, 2)), ("x", "y", " ", " "), 20.0),
        "timeless": VideoAnnotation(((0, 1),), ("z",), None),
    }
    features = {"good": torch.randn(20, 16), "bad": torch.randn(20, 9)}
    speech = {"good": [Sentence(0, 30, "late")]}
    store = task(recipe()).store
    found = examine(
        [annotations],
        features,
        speech,
        width=16,
        store=store,
        held_out=[
            {
                "video1": VideoAnnotation(((0, 1),), ("crack the eggs",)),
                "good": annotations["good"],
            }
        ],
    )
    said = {problem.what: problem.where for problem in found.problems}
    assert said["videos without features"] == ("timeless",)
    assert said["features of another width than 16"] == ("bad has 9",)
    assert said["videos without speech"] == ("bad", "timeless")
    assert said["events that run backwards"] == ("bad #1",)
    assert said["events that reach beyond the video"] == ("bad #2",)
    assert said["events that occur twice"] == ("bad #4",)
    assert said["videos without a duration"] == ("timeless",)
    assert said["held-out videos that are also trained on"] == ("good",)
    assert said["held-out videos in the datastore"] == ("video1",)
    assert not found.sound
    assert sum(found.histograms["words per caption"].values()) == found.events == 6


def test_examine_looks_at_the_numbers() -> None:
    whole = VideoAnnotation(((0, 5),), ("stir",), 110.0)
    names = ("a", "b", "c", "short", "zero", "frozen")
    features = {name: torch.randn(110, 16) for name in names}
    features |= {"short": torch.randn(10, 16), "zero": torch.zeros(110, 16)}
    features |= {"frozen": torch.ones(110, 16), "held": features["a"].clone()}
    held_out = {"held": whole, "absent": whole}
    found = examine([dict.fromkeys(names, whole)], features, {}, width=16, held_out=[held_out])
    said = {problem.what: problem.where for problem in found.problems if problem.serious}
    assert said.pop("features that do not fit the duration (the others are 1 rows a second)") == (
        "short: 10 rows for 110 s",
    )
    assert said.pop("features that never change") == ("zero: zeros", "frozen: one row repeated")
    assert said.pop("features that are copied") == ("held has those of a",)
    assert said.pop("validation: videos without features") == ("absent",)
    assert not said
    halved = {name: torch.randn(220, 16) for name in names}
    (rate,) = examine([dict.fromkeys(names, whole)], halved, None).problems
    assert not rate.serious and len(rate.where) == 6 and "row a second" in rate.what
    two = examine([{"a": whole, "short": whole}], features, None)
    (unfit,) = [problem for problem in two.problems if problem.serious]
    assert unfit.where == ("short: 10 rows for 110 s",), "the one that is right is not blamed"
    wide = examine([{"a": whole}], features, None, width=8, held_out=[{"held": whole}])
    assert [problem.where for problem in wide.problems[:2]] == [("a has 16",), ("held has 16",)]
    store = CaptionStore(["stir"], torch.ones(1, 8))
    (narrow,) = examine([{"a": whole}], features, None, store=store).problems
    assert "datastore's 8" in narrow.what and narrow.where == ("a has 16",)
    assert not narrow.serious


def test_videos_must_fit_together() -> None:
    one = {"a": VideoAnnotation(((0, 5), (4, 99), (7, 6)), ("stir", "wait", "no"), 20.0)}
    with pytest.raises(AnnotationError, match="has no features"):
        Videos.of(one, {}, {})
    with pytest.raises(AnnotationError, match="no annotated video"):
        Videos.of({}, {}, {})
    with pytest.raises(AnnotationError, match="no duration"):
        Videos.of({"a": VideoAnnotation(((0, 5),), ("x",))}, {"a": torch.zeros(2, 16)}, {})
    assert [(e.start, e.end) for e in usable_events(one["a"])] == [(0, 5), (4, 20.0)]


def untrained(chosen: Recipe) -> Loaded:
    """A model of random weights with its datastore."""
    torch.manual_seed(0)
    made = task(chosen)
    return Loaded(STaRC(chosen.model).eval(), made.collate.tokenizer, made.store, Path("model"))


def test_looking_inside_and_drawing(tmp_path: Path) -> None:
    seen = list(evaluate.analyse(untrained(recipe()), videos(2), range(2)))
    assert set(seen[0].segments) == set(evaluate.METHODS)
    for cut in seen[0].segments.values():
        assert [segment.first for segment in cut] == [0, *(s.stop for s in cut[:-1])]
    for draw in (
        figures.saliency_over_time,
        figures.transition_sharpness,
        figures.anchors_over_time,
    ):
        assert draw(seen, tmp_path / "figure.png").stat().st_size > 5000
    assert figures.segmentations(seen[0], tmp_path / "cuts.png").is_file()
    quality = {
        "Recall@0.5": 0.2,
        "Mean IoU": 0.3,
        "Matched segments": 5,
        "CIDEr": 0.4,
        "METEOR": 0.1,
    }
    assert figures.quality_against_captions({"a": quality}, tmp_path / "quality.png").is_file()


def test_segments_on_the_events_are_of_the_best_quality() -> None:
    found = videos(2)
    exact = {video: found.annotations[video] for video in found.ids}
    best = {"Recall@0.5": 1.0, "Mean IoU": 1.0, "Matched segments": 3.0}
    assert evaluate.segment_quality(exact, found) == pytest.approx(best)
    # Two events in one segment: IoU 6/14 with each. The third is met, twice.
    coarse = VideoAnnotation(((0, 14), (16, 22), (17, 22)), ("",) * 3, 24.0)
    values = evaluate.segment_quality({**exact, "video1": coarse}, found)
    assert list(values.values()) == pytest.approx([(1 + 1 / 3) / 2, (1 + 13 / 21) / 2, 2.5])


def test_the_segments_that_retrieve_lie_in_the_video() -> None:
    chosen, found = recipe(), videos(2)
    loaded = untrained(chosen)
    cut = evaluate.retrieving_segments(caption_videos(loaded, found), found)
    (seen, _) = evaluate.analyse(loaded, found, range(2))
    kept = [segment for segment in seen.segments["transport"] if segment.kept]
    assert 0 < len(kept) <= chosen.model.segments.top_k
    assert cut["video0"].spans == tuple((float(it.first), float(it.stop)) for it in kept)


def test_correlation() -> None:
    assert evaluate.correlation([1, 2, 3], [2, 4, 6]) == pytest.approx(1)
    assert evaluate.correlation([1, 2, 3], [6, 4, 2]) == pytest.approx(-1)
    assert evaluate.correlation([1, 2], [2, 4]) is None
    assert evaluate.correlation([1, 1, 1], [2, 4, 5]) is None


def test_several_models_are_correlated(tmp_path: Path, meteor_backend: Any) -> None:
    meteor_backend("auto")
    arguments, made = files(tmp_path / "data"), task(recipe())
    folders = []
    for method in ("transport", "uniform", "kmeans"):
        torch.manual_seed(0)
        chosen = apply_overrides(recipe(), [f"model.segments.method={method}"])
        folders.append(tmp_path / method / "best")
        folders[-1].parent.mkdir()
        saved = {"tokenizer": made.collate.tokenizer, "store": made.store}
        checkpoint.save(folders[-1], STaRC(chosen.model), **saved)
    named = ["--out", str(tmp_path / "out"), "--videos", "2", *arguments[:6]]
    result = CliRunner().invoke(app, ["analyse", *map(str, folders), *named])
    assert result.exit_code == 0, result.exception
    assert (tmp_path / "out/correlation.png").stat().st_size > 5000
    lines = (tmp_path / "out/correlation.csv").read_text().splitlines()
    assert lines[0] == "model,Recall@0.5,Mean IoU,Matched segments,CIDEr,METEOR"
    assert [line.split(",")[0] for line in lines[1:]] == ["transport", "uniform", "kmeans"]
    bare = apply_overrides(recipe(), ["model.retrieval=none"])
    checkpoint.save(tmp_path / "bare", STaRC(bare.model), tokenizer=made.collate.tokenizer)
    ended = CliRunner().invoke(app, ["analyse", str(folders[0]), str(tmp_path / "bare"), *named])
    assert isinstance(ended.exception, ConfigError)
    assert "retrieves nothing" in str(ended.exception)


@pytest.mark.parametrize("name", ["pooling", "anchors", "mu-gamma", "lambda"])
def test_tables_have_the_papers_numbers_beside_ours(name: str, tmp_path: Path) -> None:
    chosen = ablation(name)
    metrics = {"CIDEr": 0.1, "METEOR": 0.02, "soda_c": 0.03, "Bleu_4": 0.01}
    metrics |= {"F1": 0.2, "Precision": 0.2, "Recall": 0.2}
    results = [Result(row, (metrics, metrics)) for row in chosen.rows]
    assert "10.00 ± 0.00 (80.53)" in markdown(chosen, results)
    assert len(rows(results).splitlines()) == len(chosen.rows) + 1
    written = write(chosen, results, tmp_path)
    assert len(written) == (2 if chosen.kind == "table" else 3)
    missing = [Result(chosen.rows[0], (), "no datastore given")]
    assert "not run: no datastore given" in markdown(chosen, missing)


def named(arguments: list[str], **more: Path) -> Files:
    found = dict(zip(arguments[::2], map(Path, arguments[1::2]), strict=True))
    return Files(
        found["--annotations"],
        found["--features"],
        found["--speech"],
        more.get("validation"),
        more.get("datastore"),
        found["--tokenizer"],
        more.get("init"),
    )


def test_the_two_stages(tmp_path: Path) -> None:
    arguments = files(tmp_path / "data")
    told: list[dict[str, object]] = []
    one, two = tmp_path / "one", tmp_path / "two"
    run_training("vid2seq", named(arguments), one, SMALL, resume=False, progress=told.append)
    store = tmp_path / "data/datastore"
    second = named(arguments, datastore=store, init=one / "best")
    run_training("youcook2", second, two, SMALL, resume=False, progress=told.append)
    assert [line["step"] for line in told] == [1, 2, 1, 2]
    manifest = json.loads((two / "manifest.json").read_text())
    assert manifest["files"]["annotations"]["content"] and manifest["versions"]["torch"]
    wider = apply_overrides(recipe(), ["model.t5.feed_forward=48"])
    with pytest.raises(CheckpointError, match="the recipe needs"):
        initialised(checkpoint.load(one / "best"), wider)


def test_one_model_is_drawn(tmp_path: Path, meteor_backend: Any) -> None:
    meteor_backend("auto")
    arguments, made = files(tmp_path / "data"), task(recipe())
    saved = {"tokenizer": made.collate.tokenizer, "store": made.store}
    checkpoint.save(tmp_path / "model", STaRC(recipe().model), **saved)
    out = ["--out", str(tmp_path / "out"), "--videos", "2"]
    result = CliRunner().invoke(app, ["analyse", str(tmp_path / "model"), *out, *arguments[:6]])
    assert result.exit_code == 0, result.exception
    for name in ("saliency-inside-outside", "qualitative", "failure"):
        assert (tmp_path / f"out/{name}.png").stat().st_size > 5000
    lines = (tmp_path / "out/saliency-inside-outside.csv").read_text().splitlines()
    assert lines[0] == "video,inside,outside"
    assert len(lines) == 1 + 8 + 1, "all videos, not only those that are looked at"


def test_saliency_by_place_in_numbers(tmp_path: Path) -> None:
    (one, _) = evaluate.analyse(untrained(recipe()), videos(2), range(2), methods=())
    inside = one.salient_T.bool()
    seen = dataclasses.replace(one, saliency_T=torch.where(inside, 0.75, 0.25))
    _, numbers = figures.saliency_by_place([seen], tmp_path / "figure.png")
    assert numbers.read_text().splitlines()[1:] == ["video0,0.75,0.25", "all frames,0.75,0.25"]
    silent = dataclasses.replace(one, saliency_T=None)
    assert figures.saliency_by_place([silent], tmp_path / "none.png") == []
