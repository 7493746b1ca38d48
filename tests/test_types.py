"""The nouns check themselves and survive JSON."""

import json

import numpy as np
import pytest

from starc.types import Captioned, Event, Frame, Retrieved, Segment, Sentence


@pytest.mark.parametrize(
    ("start", "end"), [(3, 3), (5, 2), (-1, 2), (0, float("nan")), (0, float("inf"))]
)
def test_a_span_runs_forward(start: float, end: float) -> None:
    with pytest.raises(ValueError, match="start"):
        Event(start, end, "stir")
    with pytest.raises(ValueError, match="start"):
        Sentence(start, end, "now stir")


def test_a_frame_is_a_picture() -> None:
    Frame(0.0, np.zeros((2, 3, 3), np.uint8))
    with pytest.raises(ValueError, match="shape"):
        Frame(0.0, np.zeros((3, 3), np.uint8))


def test_captioned_survives_json() -> None:
    whole = Captioned(
        video="eggs",
        duration=70.0,
        events=(Event(1.0, 4.5, "crack the eggs", 0.7), Event(5.0, 9.0, "whisk", 0.2, True)),
        sentences=(Sentence(0.0, 2.0, "two eggs"),),
        frame_times=(0.5, 1.5),
        saliency=(0.1, 0.9),
        segments=(Segment(0, 2, 3, 1.5, True, (Retrieved("beat eggs", 0.8),)),),
        provenance={"model": "tiny"},
    )
    assert Captioned.from_json(json.loads(json.dumps(whole.to_json()))) == whole


def test_captioned_refuses_other_json() -> None:
    with pytest.raises(ValueError, match="version"):
        Captioned.from_json({"starc": 99})
    with pytest.raises(ValueError, match="saliency"):
        Captioned(video="x", duration=1.0, events=(), saliency=(0.1,))
    with pytest.raises(ValueError, match="duration"):
        Captioned(video="x", duration=0.0, events=())
