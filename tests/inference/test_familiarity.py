"""A model says when a video is not of its kind."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch

from starc.inference.batch import not_captioned, warnings
from starc.inference.models import why_unfamiliar
from starc.inference.pipeline import EMBEDDED, Captioner, Options, can_be_forced
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
        assert reason is not None and reason.startswith("speech similarity 0.")


def test_frames_decide_where_nothing_is_said_and_speech_where_something_is() -> None:
    loaded = checkpoint.load(EMBEDDED, device="cpu")
    assert loaded.joint is not None
    ordinary_TI = loaded.joint.mean_I + loaded.joint.deviation_I * torch.ones(3, 1)
    strange_TI = loaded.joint.mean_I + 2 * loaded.joint.deviation_I * torch.ones(3, 1)
    assert why_unfamiliar(loaded, ordinary_TI, []) is None
    assert why_unfamiliar(loaded, strange_TI, []) == "frame distance 4.00, at most 1.58"
    for image_TI in (ordinary_TI, strange_TI):
        assert why_unfamiliar(loaded, image_TI, said(KITCHEN)) is None
        unlike = why_unfamiliar(loaded, image_TI, said(LONG_JUMP)) or ""
        assert unlike.startswith("speech similarity 0.") and unlike.endswith(", at least 0.60")


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
    captioner = Captioner(options=Options(cache=tmp_path, lanes=True))
    frames = captioner.read_frames(video)
    unlike = why_unfamiliar(captioner.loaded, frames.features_TD, [])
    assert (unlike is None) == kitchen, unlike


def test_what_is_forced_is_said_to_be_so() -> None:
    found = Captioned("a.mp4", 9.0, (), provenance={"unfamiliar": "frame distance 4.00"})
    assert warnings(found) == (), "the reason says it"
    forced = dataclasses.replace(found, events=(Event(0, 5, "stir"),))
    assert warnings(forced) == ("captions are likely wrong (out of domain)",)


SURE, UNSURE = (Event(0, 5, "stir", 0.5),), (Event(0, 5, "stir", 0.24), Event(5, 9, "fry", 0.1))
UNLIKE = {"unfamiliar": "frame distance 4.00, at most 1.58"}
SILENT = "(no speech: no sound)"
SEEN = ": what is seen is unlike the videos that the model was trained on"


@pytest.mark.parametrize(
    ("events", "known", "reason"),
    [
        (SURE, {}, ""),
        (SURE, UNLIKE, f"out of domain {SILENT}{SEEN}"),
        (UNSURE, {}, f"low confidence {SILENT}: the median of the events is 17%"),
        ((), {}, f"no event was found {SILENT}"),
        ((), UNLIKE, f"no event was found {SILENT}{SEEN}"),
    ],
)
def test_reasons_and_what_force_does_about_them(
    events: tuple[Event, ...], known: dict[str, str], reason: str
) -> None:
    captioner, known = Captioner(), {"speech": "none: no sound", **known}
    found = Captioned("a.mp4", 9.0, events, provenance=known)
    shown = captioner._shown(found, Path("b.mp4"), force=False)
    assert (shown.video, shown.reason) == ("b.mp4", reason)
    assert shown.events == (() if reason else events) and "forced" not in shown.provenance
    forced = captioner._shown(found, Path("b.mp4"), force=True)
    assert forced.events == events and forced.reason == ("" if events else reason)
    withheld = {"forced": reason} if reason and events else {}
    assert forced.provenance == {**known, **withheld}
    assert can_be_forced(reason) == bool(withheld)
    advice = "; --force captions it anyway" if withheld else ""
    assert not_captioned(reason) == f"not captioned: {reason}{advice}"


def test_without_a_limit_nothing_is_refused() -> None:
    loaded = checkpoint.load(EMBEDDED, device="cpu")
    inputs = dataclasses.replace(loaded.config.inputs, familiar_speech=0.0, familiar_frames=0.0)
    loaded.model.config = dataclasses.replace(loaded.config, inputs=inputs)
    assert why_unfamiliar(loaded, torch.zeros(3, 0), said(LONG_JUMP)) is None
    assert why_unfamiliar(loaded, torch.zeros(3, 0), []) is None
