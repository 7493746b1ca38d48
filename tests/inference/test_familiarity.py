"""A model says when a video is not of its kind."""

from __future__ import annotations

import dataclasses

import torch

from starc.inference.familiarity import why_unfamiliar
from starc.inference.pipeline import EMBEDDED
from starc.model import checkpoint
from starc.types import Sentence

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
        assert reason is not None and "what is said is unlike" in reason


def test_without_a_limit_nothing_is_refused() -> None:
    loaded = checkpoint.load(EMBEDDED, device="cpu")
    inputs = dataclasses.replace(loaded.config.inputs, familiar_speech=0.0)
    loaded.model.config = dataclasses.replace(loaded.config, inputs=inputs)
    assert why_unfamiliar(loaded, torch.zeros(3, 0), said(LONG_JUMP)) is None
    assert why_unfamiliar(loaded, torch.zeros(3, 0), []) is None
