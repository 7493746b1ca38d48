"""`starc train` and `starc ablate`: what went wrong without a word is stopped or put right."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models
from typer.testing import CliRunner

from starc.cli import app
from starc.errors import (
    AnnotationError,
    CheckpointError,
    ConfigError,
    DatastoreError,
    StarcError,
    VideoError,
)
from starc.model import checkpoint
from starc.retrieval.datastore import CaptionStore
from starc.training import ablations, loop, train
from starc.training.run import RunFolder, wait_until_free
from starc.training.tables import Ablation, Row
from starc.training.train import Files, run_training
from support.small_training import SMALL, STEPS, WIDTH, files, given

torch.set_num_threads(1)
QUICK = [*SMALL, "train.validate_every=0"]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    files(folder)
    return folder


def run(
    chosen: Files, folder: Path, *more: str, name: str = "youcook2", resume: bool = False
) -> list[str]:
    notes: list[str] = []
    settings = [] if resume and not more else [*QUICK, *more]
    run_training(
        name,
        chosen,
        folder,
        settings,
        resume=resume,
        progress=lambda line: None,
        on_note=notes.append,
    )
    return notes


def metrics(folder: Path) -> list[Any]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def first(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trained first stage."""
    folder = tmp_path_factory.mktemp("first")
    run(given(data, datastore=None), folder / "run", name="vid2seq")
    return folder / "run/last"


class Killed(BaseException):
    pass


@pytest.mark.parametrize("moment", ["before the first save", "before the first step"])
def test_a_run_from_other_weights_killed_early(
    data: Path, first: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    chosen = given(data, init=first)
    run(chosen, tmp_path / "whole")

    def killed(*_: Any, **__: Any) -> None:
        raise Killed

    where = (RunFolder, "save") if moment == "before the first save" else (loop.Training, "epoch")
    monkeypatch.setattr(*where, killed)
    with pytest.raises(Killed):
        run(chosen, tmp_path / "killed")
    monkeypatch.undo()
    run(chosen, tmp_path / "killed", resume=True)
    assert metrics(tmp_path / "killed") == metrics(tmp_path / "whole")
    weights = [(tmp_path / name / "last/model.safetensors") for name in ("whole", "killed")]
    assert weights[0].read_bytes() == weights[1].read_bytes()


def test_resuming_with_other_files(data: Path, first: Path, tmp_path: Path) -> None:
    chosen, folder = given(data, init=first), tmp_path / "run"
    run(chosen, folder)
    other = tmp_path / "other.json"
    other.write_text((data / "annotations.json").read_text().replace("eggs", "milk"))
    for changed, says in (
        ({"annotations": other}, r"--annotations: the run began with .*annotations\.json \("),
        ({"features": data / "speech.json"}, "--features"),
        ({"datastore": None}, r"--datastore: .* now it is none"),
        ({"speech": None}, "--speech"),
        ({"subset": "training"}, "--subset: the run began with none"),
    ):
        with pytest.raises(ConfigError, match=says):
            run(replace(chosen, **changed), folder, resume=True)
    moved = tmp_path / "moved.json"
    moved.write_text((data / "annotations.json").read_text())
    run(replace(chosen, annotations=moved, init=None), folder, resume=True)


def test_resuming_with_settings(data: Path, tmp_path: Path) -> None:
    run(given(data), tmp_path / "run", "model.retrieval=on", "model.retrieval.captions=5")
    same = ("model.retrieval=on", "model.retrieval.captions=5")
    run(given(data), tmp_path / "run", *same, resume=True)
    with pytest.raises(ConfigError, match=r"--set train\.epochs=7: a resumed run keeps its recipe"):
        run(given(data), tmp_path / "run", "train.epochs=7", resume=True)


def test_a_killed_ablation_goes_on(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # sums of two threads round otherwise
    table = Ablation("t", (Row("one"), Row("two", ("model.segments.pooling=uniform",))))
    folder = tmp_path / "run"
    settings = [*QUICK[:-1], "train.save_every=1"]
    arguments = ["tiny", *files(tmp_path / "data")]
    for setting in settings:
        arguments += ["--set", setting]
    place = folder / "two-seed0"
    rows = {"datastores": {}, "own": tmp_path / "data/datastore"}
    whole = ablations.run_rows(table, arguments, tmp_path / "whole", jobs=2, **rows)
    assert not any(result.problem for result in whole)
    # Row one is done, row two was killed after its first step.
    chosen = given(tmp_path / "data", validation=tmp_path / "data/validation.json")
    (folder).mkdir()
    (tmp_path / "whole/one-seed0").rename(folder / "one-seed0")

    def kill(line: dict[str, Any]) -> None:
        if line["step"] == 2:
            raise Killed

    overrides = [*settings, *table.rows[1].overrides, "train.seed=0"]
    with pytest.raises(Killed):
        run_training("tiny", chosen, place, overrides, resume=False, progress=kill)
    assert (place / "last").resolve().name == "step-000001"
    lines: list[str] = []
    again = ablations.run_rows(table, arguments, folder, on_line=lines.append, **rows)
    assert lines == ["two, seed 0: done"]
    assert [result.metrics for result in again] == [result.metrics for result in whole]
    assert metrics(place) == metrics(tmp_path / "whole/two-seed0")


def test_waiting_for_a_row_that_is_still_at_work(tmp_path: Path) -> None:
    wait_until_free(tmp_path / "none")
    held = RunFolder(tmp_path / "run", resume=False)
    waiting = threading.Thread(target=wait_until_free, args=(tmp_path / "run",))
    waiting.start()
    waiting.join(timeout=0.3)
    assert waiting.is_alive()
    held.close()
    waiting.join(timeout=30)
    assert not waiting.is_alive()


def youcook2(path: Path, subsets: dict[str, str]) -> Path:
    """Annotations in YouCook2's own form."""
    made = json.loads((path / "annotations.json").read_text())
    made |= json.loads((path / "validation.json").read_text())
    database = {
        video: {
            "duration": one["duration"],
            "subset": subsets.get(video, "training"),
            "annotations": [
                {"segment": span, "id": n, "sentence": text}
                for n, (span, text) in enumerate(
                    zip(one["timestamps"], one["sentences"], strict=True)
                )
            ],
        }
        for video, one in made.items()
    }
    target = path / "youcook2.json"
    target.write_text(json.dumps({"database": database}))
    return target


def test_validation_has_its_own_subset(data: Path, tmp_path: Path) -> None:
    held_out = dict.fromkeys(("video8", "video9", "video10"), "validation")
    both = youcook2(data, held_out)
    chosen = given(data, annotations=both, validation=both, subset="training")
    for wrong in (chosen, replace(chosen, validation_subset="training")):
        with pytest.raises(AnnotationError, match=r"8 videos are also trained on \(one is 'video0"):
            run(wrong, tmp_path / "run")
    assert not (tmp_path / "run").exists()
    task = train._task(
        train.recipes.apply_overrides(train.recipes.recipe("tiny"), SMALL),
        replace(chosen, validation_subset="validation"),
        None,
        lambda text: None,
    )
    assert task.validation is not None
    assert (len(task.train), set(task.validation.ids)) == (8, set(held_out))


def test_subsets_of_ablate_and_analyse(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held_out = dict.fromkeys(("video8", "video9", "video10"), "validation")
    both, seen = str(youcook2(data, held_out)), []
    monkeypatch.setattr(
        ablations, "run_rows", lambda _, arguments, *__, **___: seen.append(arguments) or []
    )
    monkeypatch.setattr(ablations, "write", lambda *_, **__: [])
    line = ["--annotations", both, "--features", str(data / "features.pth"), "-o", str(data / "x")]
    tokenizer = ["--tokenizer", str(data / "tokenizer.json"), "--validation", both]
    subsets = ["--subset", "training", "--validation-subset", "validation"]
    ended = CliRunner().invoke(app, ["ablate", "pooling", "tiny", *line, *tokenizer, *subsets])
    assert ended.exit_code == 0, ended.output
    assert seen[0][-4:] == subsets
    started = ["--init", "embedded", "--validation", both]
    ended = CliRunner().invoke(app, ["ablate", "pooling", "tiny", *line, *started])
    assert ended.exit_code == 0 and "--tokenizer" not in seen[1], ended.output
    ended = CliRunner().invoke(app, ["analyse", "a", "b", *line, "--subset", "nosuch"])
    assert "no video of subset 'nosuch'" in str(ended.exception)


def test_captions_without_an_owner_are_not_found_by_their_own_video(
    data: Path, tmp_path: Path
) -> None:
    CaptionStore([f"{STEPS[0].upper()}.", "other"], torch.randn(2, WIDTH)).save(tmp_path / "own")
    chosen = given(data, datastore=tmp_path / "own")
    with pytest.raises(DatastoreError, match=r"training videos .*'crack the eggs'.*build it"):
        run(chosen, tmp_path / "run")
    assert not (tmp_path / "run").exists()
    assert not any("name no video" in note for note in run(given(data), tmp_path / "owned"))
    CaptionStore(["one", "other"], torch.randn(2, WIDTH)).save(tmp_path / "foreign")
    notes = run(given(data, datastore=tmp_path / "foreign"), tmp_path / "two")
    assert any("2 captions name no video" in note for note in notes)
    run(chosen, tmp_path / "run", "model.retrieval.exclude_own=false")


def test_where_the_weights_come_from_is_said(data: Path, first: Path, tmp_path: Path) -> None:
    (alone,) = run(given(data), tmp_path / "alone")
    assert alone.startswith("warning: youcook2 without --init") and "1e-05, too low" in alone
    (scratch,) = run(given(data), tmp_path / "scratch", name="tiny")
    assert scratch.startswith("note:")
    (taken,) = run(given(data, init=first), tmp_path / "taken")
    count = len(checkpoint.load(first).model.state_dict())
    assert taken.startswith(f"note: {count} of ") and str(first) in taken
    assert "start fresh: anchor_KD" in taken and "saliency" in taken and "t5" not in taken


def words(path: Path, *first: str, more: dict[str, int] | None = None) -> Path:
    vocabulary = {word: n for n, word in enumerate(first)} | (more or {})
    Tokenizer(models.WordLevel(vocabulary, unk_token=first[0])).save(str(path))
    return path


@pytest.mark.parametrize(
    ("vocabulary", "more", "says"),
    [
        (("[UNK]", ".", "stir"), {}, r"id 0 is '\[UNK\]', not '<pad>'"),
        (("<pad>", ".", "<unk>"), {}, r"id 1 is '\.', not '</s>'"),
        (("<pad>", "</s>", "stir"), {}, r"id 2 is 'stir', not '<unk>'"),
        (("<pad>", "</s>", "<unk>"), {"stir": 140}, "4 words, the model room for 140"),
        (("<pad>", "</s>", "<unk>"), {"stir": 139}, "id 139 is 'stir', not '<extra_id_0>'"),
    ],
)
def test_a_tokenizer_of_something_else(
    data: Path, tmp_path: Path, vocabulary: tuple[str, ...], more: dict[str, int], says: str
) -> None:
    wrong = words(tmp_path / "tokenizer.json", *vocabulary, more=more)
    with pytest.raises(CheckpointError, match=says) as caught:
        run(given(data, tokenizer=wrong), tmp_path / "run")
    assert "\n" not in str(caught.value) and str(wrong) in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_a_tokenizer_with_time_tokens(tmp_path: Path) -> None:
    more = {f"<time={n}>": 140 + n for n in range(25)} | {"<extra_id_0>": 139}
    path = words(tmp_path / "tokenizer.json", "<pad>", "</s>", "<unk>", more=more)
    chosen = train.recipes.apply_overrides(train.recipes.recipe("tiny"), SMALL)
    checkpoint.check_tokenizer(checkpoint.read_tokenizer(path), chosen.model, str(path))


@pytest.mark.parametrize(
    ("changed", "setting", "kind", "says"),
    [
        ({}, "model.temporal.features=8", StarcError, "16 wide, the model's features 8"),
        ({"datastore": None}, "model.temporal.features=8", VideoError, r"the model needs \[n, 8\]"),
        ({}, "train.freeze=nothing.*", ConfigError, "no parameter matches"),
        ({}, "train.precision=float16", ConfigError, r"train\.precision=float16: "),
        ({"tokenizer": Path("absent.json")}, "", CheckpointError, "not a tokenizer"),
    ],
)
def test_what_is_wrong_is_said_before_the_folder_exists(
    data: Path,
    tmp_path: Path,
    changed: dict[str, Any],
    setting: str,
    kind: type[StarcError],
    says: str,
) -> None:
    off = ["model.retrieval=none"] if "datastore" in changed else []
    with pytest.raises(kind, match=says):
        run(given(data, **changed), tmp_path / "run", *([setting] if setting else []), *off)
    assert not (tmp_path / "run").exists()


def test_torchrun(tmp_path: Path) -> None:
    """The line of `starc train --help`, with two processes on CPUs and no variable set."""
    arguments = files(tmp_path / "data")
    line = ["-m", "starc", "train", "tiny", *arguments, "-o", str(tmp_path / "two")]
    line += ["--datastore", str(tmp_path / "data/datastore")]
    for setting in [*QUICK, "model.t5.dropout=0", "model.temporal.dropout=0"]:
        line += ["--set", setting]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("ACCELERATE")}
    ended = subprocess.run(
        [*torchrun, "--nproc-per-node", "2", *line],
        capture_output=True,
        text=True,
        timeout=300,
        env=environment | {"OMP_NUM_THREADS": "1"},
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.strip() == str(tmp_path / "two/best")
    assert ended.stderr.count("without --init") == 1
    still = ["model.t5.dropout=0", "model.temporal.dropout=0"]
    run(given(tmp_path / "data"), tmp_path / "one", *still, name="tiny")
    for two, one in zip(metrics(tmp_path / "two"), metrics(tmp_path / "one"), strict=True):
        assert two == pytest.approx(one, rel=1e-4)
