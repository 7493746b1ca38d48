"""The Ray run equals the local run, also when a machine dies half-way and a file kills workers."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from starc.errors import MissingExtra, StarcError
from starc.inference import cluster
from starc.inference.jobs import MANIFEST, Manifest
from starc.types import Captioned
from support.clips import grey_clip
from support.needs import skip
from support.small_batch import BrightnessCaptioner, caption_folder

PROGRAM = Path(__file__).parents[1] / "support" / "small_cluster.py"


def test_the_workers_hand_on_what_went_wrong(tmp_path: Path) -> None:
    grey_clip(tmp_path / "a.mp4", shade=9)
    (tmp_path / "b.mp4").write_text("text")
    read, predict = cluster._Read(BrightnessCaptioner), cluster._Predict(BrightnessCaptioner)
    good = predict(read({"index": 0, "video": str(tmp_path / "a.mp4")}))
    assert Captioned.from_json(json.loads(good["captioned"])).video == "a.mp4"
    assert good["error"] == "" and json.loads(good["identity"])["size"] > 0
    bad = predict(read({"index": 1, "video": str(tmp_path / "b.mp4")}))
    assert "b.mp4: not a video" in bad["error"] and bad["captioned"] == ""

    class Broken(BrightnessCaptioner):
        def read_speech(self, video: Path, stop: threading.Event) -> str:
            raise RuntimeError("deaf")

    assert cluster._Read(Broken)({"index": 0, "video": str(tmp_path / "a.mp4")})["error"] == (
        "RuntimeError: deaf"
    )


def test_without_ray_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", absent)
    with Manifest(tmp_path) as manifest, pytest.raises(MissingExtra, match=r"starc\[ray\]"):
        cluster.run([], BrightnessCaptioner, manifest, settings="s")


def test_a_cluster_that_does_not_answer_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Ray:
        @staticmethod
        def is_initialized() -> bool:
            return False

        @staticmethod
        def init(**_: object) -> None:
            raise RuntimeError("no GCS\nat 192.0.2.2")

    monkeypatch.setattr(importlib, "import_module", lambda name: Ray)
    with (
        Manifest(tmp_path) as manifest,
        pytest.raises(
            StarcError, match=r"no cluster answers \(no GCS at 192.0.2.2\); check RAY_ADD"
        ),
    ):
        cluster.run([], BrightnessCaptioner, manifest, settings="s")


def run_on_ray(clips: Path, out: Path, *, kill_after: int = 0) -> dict[str, int]:
    """What a cluster of two workers reports of a folder."""
    if importlib.util.find_spec("ray") is None:
        skip("Ray is not installed")
    command = [sys.executable, str(PROGRAM), str(clips), str(out), str(kill_after)]
    environment = os.environ | {"RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0"}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=400)
    assert ran.returncode == 0, ran.stderr[-3000:]
    report: dict[str, int] = json.loads(
        next(line for line in ran.stdout.splitlines() if line.startswith("{"))
    )
    return report


def written(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != MANIFEST}


def test_two_workers_write_what_a_local_run_writes(tmp_path: Path) -> None:
    clips, out, local = tmp_path / "clips", tmp_path / "ray", tmp_path / "local"
    clips.mkdir()
    for k in range(2):
        grey_clip(clips / f"clip {k}.mp4", shade=90 * k)
    report = run_on_ray(clips, out)
    assert report == {"done": 2, "failed": 0, "skipped": 0, "alive": 2}
    assert caption_folder(clips, local).done == 2
    assert written(out) == written(local) and len(written(out)) == 4


@pytest.mark.slow
def test_a_machine_dies_and_the_result_is_that_of_a_local_run(tmp_path: Path) -> None:
    clips, out, local = tmp_path / "clips", tmp_path / "ray", tmp_path / "local"
    clips.mkdir()
    for k in range(30):
        grey_clip(clips / f"clip {k:02}.mp4", shade=8 * k)
    (clips / "broken.mp4").write_text("not a video")
    grey_clip(clips / "deadly.mp4", shade=1)
    report = run_on_ray(clips, out, kill_after=8)
    assert report == {"done": 30, "failed": 2, "skipped": 0, "alive": 1}

    (clips / "deadly.mp4").rename(tmp_path / "away.mp4")
    counts = caption_folder(clips, local)
    assert (counts.done, counts.failed) == (30, 1)
    assert written(out) == written(local)
    with Manifest(out) as theirs, Manifest(local) as ours:
        assert "its worker died 3 times" in theirs.rows.pop("deadly").error
        assert theirs.rows.keys() == ours.rows.keys()
        for name, row in ours.rows.items():
            other = theirs.rows[name]
            assert (row.status, row.hash, row.outputs, row.error) == (
                other.status,
                other.hash,
                other.outputs,
                other.error,
            )
