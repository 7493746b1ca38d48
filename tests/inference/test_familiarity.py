"""A model says when a video is not of its kind."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch

from starc.inference.batch import warnings
from starc.inference.models import why_unfamiliar
from starc.inference.pipeline import EMBEDDED, Captioner, Options
from starc.model import checkpoint
from starc.types import Captioned, Event, Sentence
from support.needs import SHARED, skip

KITCHEN = (
    "Heat some oil in a pan and add the chopped onions.",
    "Hello everybody, welcome to my channel.",
    "Season the chicken with salt and pepper.",
    "Pour the sauce over the noodles and stir.",
)
MAKE_UP = (
    "Hello everybody, welcome to my channel.",
    "I start with a little concealer under my eyes.",
    "Then I draw a line along the upper lashes.",
    "This mascara was a present from my sister.",
)
LONG_JUMP = (
    "She runs down the track and jumps.",
    "The judges raise a white flag.",
    "That is a new personal best, and the stadium cheers.",
)


def said(lines: tuple[str, ...]) -> list[Sentence]:
    return [Sentence(5.0 * n, 5.0 * n + 4, text) for n, text in enumerate(lines)]


def test_kitchens_are_told_from_make_up_and_sports() -> None:
    loaded, nothing = checkpoint.load(EMBEDDED, device="cpu"), torch.zeros(3, 0)
    assert why_unfamiliar(loaded, nothing, said(KITCHEN)) is None
    for lines in (MAKE_UP, LONG_JUMP):
        reason = why_unfamiliar(loaded, nothing, said(lines))
        assert reason is not None and reason.startswith("speech 0.")


def test_frames_decide_where_nothing_is_said_and_either_is_enough() -> None:
    loaded = checkpoint.load(EMBEDDED, device="cpu")
    assert loaded.joint is not None
    ordinary_TI = loaded.joint.mean_I + loaded.joint.deviation_I * torch.ones(3, 1)
    strange_TI = loaded.joint.mean_I + 2 * loaded.joint.deviation_I * torch.ones(3, 1)
    assert why_unfamiliar(loaded, ordinary_TI, []) is None
    assert why_unfamiliar(loaded, strange_TI, []) == "frames 4.00 away, at most 1.58"
    # A cook may chat about anything, and cook where no camera of YouCook2 has been.
    assert why_unfamiliar(loaded, ordinary_TI, said(LONG_JUMP)) is None
    assert why_unfamiliar(loaded, strange_TI, said(KITCHEN)) is None
    assert "; speech 0." in (why_unfamiliar(loaded, strange_TI, said(LONG_JUMP)) or "")


@pytest.mark.parametrize(
    ("name", "kitchen"),
    [
        ("making_cake.mp4", True),
        ("pllava_cooking.mp4", True),
        ("stllm_cooking.mp4", True),
        ("nasa_13013.mp4", False),
        ("subsai_test1.webm", False),
    ],
)
def test_real_kitchens_are_told_from_other_places(name: str, kitchen: bool, tmp_path: Path) -> None:
    video = SHARED / "data" / "videos" / name
    if not video.exists():
        skip(f"no {video}")
    captioner = Captioner(options=Options(cache=tmp_path))
    frames = captioner.read_frames(video)
    unlike = why_unfamiliar(captioner.loaded, frames.features_TD, [])
    assert (unlike is None) == kitchen, unlike


def test_what_is_forced_is_said_to_be_so() -> None:
    found = Captioned("a.mp4", 9.0, (), provenance={"unfamiliar": "frames 4.00 away"})
    assert warnings(found) == (), "the reason says it"
    forced = dataclasses.replace(found, events=(Event(0, 5, "stir"),))
    assert warnings(forced) == ("captions are likely wrong (out of domain)",)


def test_without_a_limit_nothing_is_refused() -> None:
    loaded = checkpoint.load(EMBEDDED, device="cpu")
    inputs = dataclasses.replace(loaded.config.inputs, familiar_speech=0.0, familiar_frames=0.0)
    loaded.model.config = dataclasses.replace(loaded.config, inputs=inputs)
    assert why_unfamiliar(loaded, torch.zeros(3, 0), said(LONG_JUMP)) is None
    assert why_unfamiliar(loaded, torch.zeros(3, 0), []) is None
