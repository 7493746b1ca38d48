"""From a model folder and feature files to a score; videos in parts."""

from __future__ import annotations

import json
import random
from itertools import groupby, pairwise
from pathlib import Path

import pytest
import torch

from starc.inference.predict import Prediction, WindowPrediction
from starc.model import checkpoint
from starc.model.starc import STaRC
from starc.training.dataset import cut
from starc.training.evaluate import area_under_curve, evaluate, saliency_auc
from starc.training.loop import train
from starc.training.recipes import apply_overrides
from starc.training.run import RunFolder
from starc_eval.annotations import read_predictions, write_predictions
from support import small_training as small

WINDOWS = [
    "model.inputs.frames=8",
    "model.windowing.seconds=8",
    "model.windowing.longest=10",
    "model.windowing.in_training=true",
]


def test_the_area_is_the_share_of_pairs_in_order() -> None:
    inside = torch.tensor([True, True, False, False])
    assert area_under_curve(torch.tensor([4.0, 3.0, 2.0, 1.0]), inside) == 1
    assert area_under_curve(torch.tensor([1.0, 3.0, 2.0, 4.0]), inside) == 0.25
    assert area_under_curve(torch.ones(4), inside) == 0.5
    assert area_under_curve(torch.ones(4), torch.ones(4, dtype=torch.bool)) is None


def test_parts_tile_every_video_and_their_number_is_fixed() -> None:
    videos = small.videos()
    counts = set()
    for seed in range(5):
        parts = videos.parts(7.0, random.Random(seed))
        counts.add(len(parts))
        for video, group in groupby(parts, key=lambda part: part.video):
            found = list(group)
            assert found[0].start == 0 and found[-1].end == videos.duration(video)
            assert all(a.end == b.start for a, b in pairwise(found))
    assert counts == {3 * len(videos)}
    assert videos.parts(7.0, random.Random(0)) != videos.parts(7.0, random.Random(1))
    assert len(videos.parts(0, random.Random(0))) == len(videos)


def test_a_part_has_the_events_and_words_whose_middle_it_holds() -> None:
    example = small.videos()[2]
    part = cut(example, 7.0, 20.0)
    assert part.duration == 13 and len(part.clip_TD) == 13
    torch.testing.assert_close(part.clip_TD, example.clip_TD[7:20])
    assert [(event.start, event.end) for event in part.events] == [(1, 7), (9, 13)]
    assert [said.start for said in part.sentences] == [1, 9]
    assert cut(example, 0, 24) is example


@pytest.mark.parametrize("windowing", ["none", "seconds"])
def test_a_model_folder_is_scored(tmp_path: Path, windowing: str) -> None:
    small.files(tmp_path)
    chosen = apply_overrides(small.recipe(), WINDOWS if windowing == "seconds" else [])
    task = small.task(chosen)
    checkpoint.save(
        tmp_path / "model", STaRC(chosen.model), tokenizer=small.tokenizer(), store=task.store
    )
    heard: list[tuple[int, int]] = []
    found = evaluate(
        tmp_path / "model",
        tmp_path / "annotations.json",
        tmp_path / "features.pth",
        tmp_path / "speech.json",
        on_progress=lambda done, total: heard.append((done, total)),
    )
    (reference,) = found.references
    assert set(found.predictions) == set(reference)
    assert heard[-1] == (len(reference), len(reference))
    assert found.saliency_auc is not None and 0 <= found.saliency_auc <= 1
    write_predictions(found.predictions, tmp_path / "predictions.json")
    again = read_predictions(tmp_path / "predictions.json")
    assert {video: one.spans for video, one in again.items()} == {
        video: one.spans for video, one in found.predictions.items()
    }


def test_the_saliency_that_is_shown_is_the_one_that_is_judged() -> None:
    videos = small.videos(1)  # events at 0-6, 8-14 and 16-22 of 24 s
    shown = [float(second % 8 < 6) for second in range(24)]
    window = WindowPrediction(0.0, 24.0, [], [1 - one for one in shown], [], 24)
    seen = torch.zeros(24, small.WIDTH)
    prediction = Prediction((), tuple(range(24)), seen, tuple(shown), (), (window,))
    assert saliency_auc({"video0": prediction}, videos) == 1
    silent = Prediction((), (), seen, (), (), ())
    assert saliency_auc({"video0": silent}, videos) is None


def test_training_in_parts_is_reproducible(tmp_path: Path) -> None:
    chosen = apply_overrides(small.recipe(), [*WINDOWS, "train.relative_rate=true"])
    traces = []
    for name in ("a", "b"):
        with RunFolder(tmp_path / name, resume=False) as run:
            train(chosen, small.task(chosen, validation=True), run)
        lines = (tmp_path / name / "metrics.jsonl").read_text().splitlines()
        traces.append([json.loads(line)["loss"] for line in lines if "loss" in line])
    assert traces[0] == traces[1]
    assert len(traces[0]) == 2 * (3 * 8 // 4)


def test_a_run_folder_is_evaluated_with_other_beams(tmp_path: Path) -> None:
    small.files(tmp_path)
    chosen = small.recipe()
    with RunFolder(tmp_path / "run", resume=False) as run:
        run.write("recipe.json", {})
        train(chosen, small.task(chosen), run)
    answers = evaluate(
        tmp_path / "run",
        tmp_path / "annotations.json",
        tmp_path / "features.pth",
        tmp_path / "speech.json",
        beams=2,
    )
    assert len(answers.predictions) == 8
