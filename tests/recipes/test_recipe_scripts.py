"""The recipes' shell scripts run as written, at a tiny size."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from starc.config import vid2seq, with_sizes_of
from starc.model import checkpoint
from starc.model.starc import STaRC
from starc.retrieval.datastore import CaptionStore
from starc.training.recipes import RECIPES as RECIPE_NAMES
from support import stock_llama
from support.small_training import SMALL, files, recipe, tokenizer
from support.small_youcook2 import gguf, raw_files

RECIPES = Path(__file__).parents[2] / "recipes"
WIDE = 384


def run(script: str, *arguments: Path, path: Path, **more: str) -> subprocess.CompletedProcess[str]:
    """A recipe with `starc` on the path, and `more` in its environment."""
    path.mkdir(exist_ok=True)
    modules = {"python": "", "starc": "-m starc", "torchrun": "-m torch.distributed.run"}
    for name, module in modules.items():
        (path / name).write_text(f'#!/bin/sh\nexec {sys.executable} {module} "$@"\n')
        (path / name).chmod(0o755)
    environment = os.environ | {"PATH": f"{path}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
    command = ["sh", str(RECIPES / script), *map(str, arguments)]
    return subprocess.run(
        command, capture_output=True, text=True, env=environment | more, timeout=7200
    )


def small_data(folder: Path) -> Path:
    """What the recipes call DATA: eight videos to train on, three held out."""
    files(folder)
    for old, new in (("annotations", "train"), ("validation", "val")):
        (folder / f"{old}.json").rename(folder / f"{new}.json")
    return folder


@pytest.mark.slow
def test_tiny(tmp_path: Path) -> None:
    data, out = small_data(tmp_path / "data"), tmp_path / "out"
    generator = torch.Generator().manual_seed(0)
    videos = json.loads((data / "train.json").read_text())
    names = [*videos, *json.loads((data / "val.json").read_text())]
    rows = {video: torch.randn(24, WIDE, generator=generator) for video in names}
    save_file(rows, data / "features.safetensors")
    owned = [(video, text) for video in videos for text in videos[video]["sentences"]]
    embedding_ND = torch.randn(len(owned), WIDE, generator=generator)
    store = CaptionStore([text for _, text in owned], embedding_ND, videos=[v for v, _ in owned])
    store.save(data / "datastore")
    ended = run("tiny.sh", data, out, path=tmp_path / "bin")
    assert ended.returncode == 0, ended.stderr
    assert "CIDEr" in ended.stdout and (out / "done").exists()
    # Killed after the weights were there: not done, so it goes on.
    (out / "done").unlink()
    before = (out / "last/model.safetensors").read_bytes()
    again = run("tiny.sh", data, out, path=tmp_path / "bin")
    assert again.returncode == 0, again.stderr
    assert (out / "last/model.safetensors").read_bytes() == before


@pytest.mark.parametrize(
    ("script", "validation", "scored"),
    [("youcook2.sh", "val.json", "val.json"), ("vitt.sh", "dev.json", "test.json")],
)
def test_what_is_chosen_by_and_scored(
    tmp_path: Path, script: str, validation: str, scored: str
) -> None:
    """A recipe without its trainings: what it would call."""
    (tmp_path / "bin").mkdir()
    fake = tmp_path / "bin/starc"
    fake.write_text('#!/bin/sh\necho "$@"\n[ "$1" != train ] || eval mkdir -p \\${$#}\n')
    fake.chmod(0o755)
    environment = os.environ | {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"}
    command = ["sh", RECIPES / script, tmp_path / "data", tmp_path / "out"]
    called = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    *_, first, second, evaluated, scored_again = called.stdout.splitlines()
    assert all(f"--validation {tmp_path}/data/{validation}" in line for line in (first, second))
    assert f"--annotations {tmp_path}/data/{scored}" in evaluated
    assert scored_again.endswith(f"{tmp_path}/data/{scored} --protocol paragraph")


ONE_EPOCH = "--set train.epochs=1 --set train.batch=4 --set train.validation_beams=1"


def small_vid2seq(folder: Path) -> Path:
    """A model folder of the first stage; sizes come from it."""
    model = with_sizes_of(vid2seq(), recipe().model)
    checkpoint.save(folder, STaRC(model), tokenizer=tokenizer())
    return folder


@pytest.mark.slow
def test_a_language_model_as_decoder(tmp_path: Path) -> None:
    data, out, hub = small_data(tmp_path / "data"), tmp_path / "out", tmp_path / "hub"
    out.mkdir()
    save_file(torch.load(data / "features.pth"), out / "features.safetensors")
    (data / "datastore").rename(out / "datastore")
    _, theirs = stock_llama.pair()
    theirs.save_pretrained(hub)
    stock_llama.byte_tokenizer().save(str(hub / "tokenizer.json"))
    sizes = [one for one in SMALL if "model.t5" not in one and "heads" not in one]
    more = " ".join(f"--set {one}" for one in [*sizes, "model.decoding.max_tokens=20"])
    ended = run("llama.sh", data, out, hub, path=tmp_path / "bin", SETTINGS=f"{more} {ONE_EPOCH}")
    assert ended.returncode == 0, ended.stderr
    assert "CIDEr" in ended.stdout
    config = json.loads((out / "starc/best/config.json").read_text())
    assert config["retrieval"]["form"] == "text" and config["llama"]["lora"] == 32


@pytest.mark.slow
@pytest.mark.parametrize("script", ["youcook2.sh", "vitt.sh", "activitynet.sh"])
def test_two_stages(script: str, tmp_path: Path) -> None:
    """All but what needs CLIP and a published checkpoint, whose results are there already."""
    data, out = small_data(tmp_path / "data"), tmp_path / "out"
    out.mkdir()
    if script == "vitt.sh":
        (data / "test.json").write_bytes((data / "val.json").read_bytes())
        (data / "val.json").rename(data / "dev.json")
    save_file(torch.load(data / "features.pth"), out / "features.safetensors")
    (data / "datastore").rename(out / "datastore")
    small_vid2seq(out / "pretrained")
    ended = run(script, data, out, path=tmp_path / "bin", SETTINGS=ONE_EPOCH)
    assert ended.returncode == 0, ended.stderr
    assert "CIDEr" in ended.stdout and "protocol:paragraph" in ended.stdout.replace("\n", "")
    stages = [
        json.loads((out / name / "manifest.json").read_text()) for name in ("vid2seq", "starc")
    ]
    named = {"youcook2.sh": "vid2seq youcook2", "vitt.sh": "vid2seq_vitt vitt"}
    wanted = named.get(script, "vid2seq_activitynet activitynet")
    assert " ".join(stage["recipe"] for stage in stages) == wanted
    weight = {"youcook2.sh": 6.0, "vitt.sh": 2.0, "activitynet.sh": 6.0}[script]
    second = json.loads((out / "starc/recipe.json").read_text())["model"]
    assert second["loss"]["saliency_weight"] == weight and second["t5"]["width"] == 16


@pytest.mark.slow
def test_chapters_after_pretraining(tmp_path: Path) -> None:
    data, out = small_data(tmp_path / "data"), tmp_path / "out"
    (data / "test.json").write_bytes((data / "val.json").read_bytes())
    (data / "narrated/features").mkdir(parents=True)
    (data / "features").mkdir()
    for video, rows in torch.load(data / "features.pth").items():
        for folder in ("narrated/features", "features"):
            np.save(data / folder / f"{video}.mp4.npy", rows.numpy())
    (data / "narrated/speech.json").write_bytes((data / "speech.json").read_bytes())
    init = str(small_vid2seq(tmp_path / "t5"))
    out.mkdir()
    ended = run("vidchapters.sh", data, out, path=tmp_path / "bin", SETTINGS=ONE_EPOCH, INIT=init)
    assert ended.returncode == 0, ended.stderr
    text = ended.stdout.replace("\n", "")
    assert "protocol:chapters" in text and "protocol:titles" in text
    again = run("vidchapters.sh", data, out, path=tmp_path / "bin", SETTINGS=ONE_EPOCH, INIT=init)
    assert again.returncode == 0, "predictions of its own are replaced"


@pytest.mark.slow
def test_the_embedded_model_and_its_tables(shared: Path, tmp_path: Path) -> None:
    """yc2_small.sh, which begins with small_youcook2.sh; the language model is a random one."""
    data, out = raw_files(shared / "data", tmp_path / "data"), tmp_path / "out"
    gguf(out / "wheel/tiny.gguf")
    short = {"MINUTES": "0.1", "SEEDS": "1", "JOBS": "1", "SETTINGS": "--set train.epochs=1"}
    ended = run("yc2_small.sh", data, out, path=tmp_path / "bin", **short)
    assert ended.returncode == 0, ended.stderr
    assert checkpoint.load(out / "small-youcook2").writer is not None
    for name in ("components", "clustering"):
        assert "not run" not in (out / name / "table.md").read_text()
    # Killed while the span model was put together: that is made again, and nothing before it.
    (out / "tiny-youcook2.done").unlink()
    (out / "small-youcook2.done").unlink()
    shutil.rmtree(out / "tiny-youcook2/datastore")
    before = (out / "starc0/metrics.jsonl").stat().st_mtime_ns
    again = run("small_youcook2.sh", data, out, path=tmp_path / "bin", **short)
    assert again.returncode == 0, again.stderr
    assert (out / "tiny-youcook2/datastore").is_dir()
    assert (out / "starc0/metrics.jsonl").stat().st_mtime_ns == before
    # The same with the language model as decoder, from the writer's.
    few = {"STAGE1": "3", "STAGE2": "2", "HELD": "2", "MODEL": str(out / "small-youcook2")}
    ended = run("yc2_llama.sh", data, out, path=tmp_path / "bin", **short | few)
    assert ended.returncode == 0, ended.stderr
    assert "| minus Baseline (Vid2Seq) | CIDEr" in ended.stdout and "not run" not in ended.stdout


def test_every_recipe_names_what_exists() -> None:
    """Without running them: the recipes and scripts that the shell files name."""
    for script in RECIPES.glob("*.sh"):
        text = script.read_text()
        for name in re.findall(r"starc train ([a-z0-9_]+) ", text):
            assert name in RECIPE_NAMES, f"{script.name}: {name}"
        for name in re.findall(r"(?:FIRST|RECIPE)(?:=|:-)([a-z0-9_]+)", text):
            assert name in RECIPE_NAMES, f"{script.name}: {name}"
        for used in re.findall(r"\$here/([a-z0-9_./]+\.(?:py|sh))", text):
            assert (RECIPES / used).exists(), f"{script.name}: {used}"
