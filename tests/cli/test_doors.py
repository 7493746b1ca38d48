"""Options of `starc caption`: each opens what the library can, or says why it stays shut."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner, Result

from starc.cli import app
from starc.config import apply_overrides, tiny
from starc.errors import StarcError
from starc.inference.pipeline import Captioner, Options
from starc.model import checkpoint
from starc.model.starc import STaRC
from starc.retrieval.datastore import CaptionStore
from starc.types import Captioned
from support.clips import colour_clip
from support.tiny import WIDTH, ColourEncoder, words_tokenizer


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model") / "tiny"
    torch.manual_seed(0)
    chosen = ["inputs.image_encoder=colours", "decoding.grammar=true", "decoding.max_tokens=24"]
    store = CaptionStore([f"w{k}" for k in range(20)], torch.randn(20, WIDTH), encoder="t")
    starc = STaRC(apply_overrides(tiny(), chosen))
    checkpoint.save(folder, starc, tokenizer=words_tokenizer(), store=store)
    return folder


@pytest.fixture
def starc_caption(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Result]:
    monkeypatch.setattr(
        "starc.inference.models.load_image_encoder", lambda name, **_: ColourEncoder()
    )
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    clip = colour_clip(tmp_path / "clip.mp4", seconds=6)

    def run(*options: str) -> Result:
        command = ["caption", str(clip), "--model", str(model), "--speech", "none", "--force"]
        return CliRunner().invoke(app, [*command, *options])

    return run


KEPT = """
import sys
from starc.cli import app
for name in sys.argv[3:]:
    command = ["caption", sys.argv[1], "--model", sys.argv[2], "--speech", "none", "-o", name]
    app([*command, "--force", "--threads", "1"], standalone_mode=False)
assert "torch" not in sys.modules, "a kept answer has imported torch"
"""


def test_a_kept_answer_needs_no_torch(
    starc_caption: Callable[..., Result], model: Path, tmp_path: Path
) -> None:
    first = tmp_path / "first.json"
    assert starc_caption("-o", str(first)).exit_code == 0
    endings = ("json", "vtt", "srt", "csv", "md", "html", "mkv")
    paths = [tmp_path / f"kept.{ending}" for ending in endings]
    command = [sys.executable, "-c", KEPT, tmp_path / "clip.mp4", model, *paths]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert paths[0].read_bytes() == first.read_bytes()
    assert all(path.stat().st_size for path in paths)


@pytest.mark.parametrize(
    "options",
    [
        ("--precision", "int8"),
        ("--device", "cpu"),
        ("--beams", "1"),
        ("--language", "en"),
        ("--limit", "pixels=100000"),
    ],
)
def test_a_door_opens(starc_caption: Callable[..., Result], options: tuple[str, ...]) -> None:
    result = starc_caption(*options)
    assert result.exit_code == 0, result.exception
    assert "WEBVTT" in result.stdout and "-->" in result.stdout


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--precision", "int4"), "choose one of float32, bfloat16, int8"),
        (("--device", "abacus"), "--device abacus: is not available"),
        (("--limit", "pixels=10"), "--limit pixels="),
        (("--limit", "colour=3"), "colour"),
        (("--datastore", "nowhere"), "nowhere"),
        (("--speech", "shout"), "neither a file nor one of"),
    ],
)
def test_a_door_that_stays_shut_says_why(
    starc_caption: Callable[..., Result], options: tuple[str, ...], says: str
) -> None:
    result = starc_caption(*options)
    assert isinstance(result.exception, StarcError), result.output
    assert says in str(result.exception) and "\n" not in str(result.exception)


def test_a_kept_answer_knows_a_device_that_is_none(starc_caption: Callable[..., Result]) -> None:
    assert starc_caption().exit_code == 0
    assert starc_caption("--device", "cuda:1").exit_code == 0  # kept: nothing has to be computed
    result = starc_caption("--device", "abacus")
    assert isinstance(result.exception, StarcError), result.output
    assert "--device abacus: is not available" in str(result.exception)


def test_a_limit_holds_for_a_copy_with_chapters(
    starc_caption: Callable[..., Result], tmp_path: Path
) -> None:
    assert starc_caption("-o", str(tmp_path / "first.json")).exit_code == 0
    result = starc_caption("-o", str(tmp_path / "copy.mkv"), "--limit", "pixels=10")  # kept
    assert "--limit pixels=" in str(result.exception) and not (tmp_path / "copy.mkv").exists()


def test_another_datastore_and_fewer_beams_are_other_answers(model: Path, tmp_path: Path) -> None:
    clip = colour_clip(tmp_path / "clip.mp4", seconds=6)
    other = CaptionStore(["elsewhere"] * 3, torch.randn(3, WIDTH), encoder="t")
    other.save(tmp_path / "other")

    def caption(**options: str) -> Captioned:
        chosen = Options(engine="none", cache=tmp_path / "cache", **options)  # type: ignore[arg-type]
        return Captioner(model, chosen, encoder=ColourEncoder()).caption(clip)

    own, others = caption(), caption(datastore=str(tmp_path / "other"))
    retrieved = {found.caption for segment in others.segments for found in segment.captions}
    assert retrieved == {"elsewhere"} and own.segments != others.segments
    assert caption(precision="int8").saliency == own.saliency
