"""The recipes' shell scripts run as written, at a tiny size."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from starc.retrieval.datastore import CaptionStore
from support.small_training import files

RECIPES = Path(__file__).parents[2] / "recipes"
WIDE = 384


def run(script: str, *arguments: Path, path: Path) -> subprocess.CompletedProcess[str]:
    """A recipe with `starc` on the path."""
    path.mkdir(exist_ok=True)
    (path / "starc").write_text(f'#!/bin/sh\nexec {sys.executable} -m starc "$@"\n')
    (path / "starc").chmod(0o755)
    environment = os.environ | {"PATH": f"{path}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
    command = ["sh", str(RECIPES / script), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=500)


@pytest.mark.slow
def test_tiny(tmp_path: Path) -> None:
    data, out = tmp_path / "data", tmp_path / "out"
    files(data)
    for old, new in (("annotations", "train"), ("validation", "val")):
        (data / f"{old}.json").rename(data / f"{new}.json")
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
    *_, first, second, last = called.stdout.splitlines()
    assert all(f"--validation {tmp_path}/data/{validation}" in line for line in (first, second))
    assert f"--annotations {tmp_path}/data/{scored}" in last
