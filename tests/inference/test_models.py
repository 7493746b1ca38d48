"""Whether a video is in domain, by planted speech and frames; what is shown of an answer."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from starc.config import WriterConfig
from starc.inference.models import frame_distance, speech_likeness, why_unfamiliar
from starc.inference.pipeline import Captioner, Options
from starc.model.checkpoint import Loaded
from starc.model.joint_space import JointSpace
from starc.model.starc import STaRC
from starc.retrieval.datastore import CaptionStore
from starc.types import Captioned, Event, Sentence
from support.stock_llama import TINY
from support.tiny import WIDTH, tiny, words_tokenizer

NEAR = {"w1": 0.1, "w2": 0.3, "w3": 0.5, "w4": 0.6, "w5": 0.9}
"""Words, and the cosine of each to the only caption."""


def made() -> Loaded:
    tokenizer = words_tokenizer()
    word_VD = torch.zeros(tokenizer.get_vocab_size(), WIDTH)
    for word, cosine in NEAR.items():
        word_VD[tokenizer.token_to_id(word), :2] = torch.tensor([cosine, (1 - cosine**2) ** 0.5])
    joint = JointSpace(tokenizer, word_VD, torch.zeros(4), torch.full((4,), 2.0), torch.eye(4))
    caption = CaptionStore(["stir"], torch.eye(1, WIDTH), videos=["v"])
    inputs = replace(tiny().inputs, familiar_speech=0.6, familiar_frames=1.5)
    model = STaRC(tiny(inputs=inputs, writer=WriterConfig(llama=TINY)))
    return Loaded(model, tokenizer, caption, Path("tiny"), joint=joint)


def said(*texts: str) -> list[Sentence]:
    return [Sentence(5.0 * n, 5.0 * n + 4, text) for n, text in enumerate(texts)]


def test_speech_is_as_near_as_the_upper_quartile_of_its_sentences() -> None:
    loaded = made()
    assert speech_likeness(loaded, said(*NEAR)) == pytest.approx(0.6)
    assert speech_likeness(loaded, said("w1", "w1", "w1", "w5")) == pytest.approx(0.3)
    assert speech_likeness(loaded, said("w7", "w5")) == pytest.approx(0.9), "w7 has no vector"
    assert not speech_likeness(loaded, said("w7")) and speech_likeness(loaded, []) is None


def test_frames_are_as_far_as_the_mean_square_of_the_median_one() -> None:
    joint = made().joint
    assert joint is not None
    image_TI = torch.tensor([[2.0, 2, 2, 2], [2, 2, 6, 2], [40, 40, 40, 40]])
    assert frame_distance(joint, image_TI) == pytest.approx(3.0)
    assert frame_distance(joint, torch.zeros(3, 0)) is None


def test_speech_decides_and_frames_only_where_nothing_is_said() -> None:
    loaded, near_TI, far_TI = made(), torch.ones(3, 4), torch.full((3, 4), 9.0)
    assert why_unfamiliar(loaded, far_TI, said("w5")) is None
    assert why_unfamiliar(loaded, near_TI, said("w3")) is not None
    assert why_unfamiliar(loaded, near_TI, []) is None
    assert why_unfamiliar(loaded, far_TI, []) is not None


@pytest.mark.parametrize(
    ("confidences", "shown"), [((0.1, 0.24, 0.9), False), ((0.1, 0.26, 0.9), True), ((), False)]
)
def test_events_are_shown_from_a_median_confidence_on(
    confidences: tuple[float, ...], shown: bool, tmp_path: Path
) -> None:
    events = tuple(Event(n, n + 1.0, "stir", sure) for n, sure in enumerate(confidences))
    answer = Captioned("v.mp4", 9.0, events, frame_times=(0.0, 1.0))
    captioner = Captioner(made(), Options(cache=tmp_path))
    found = captioner._shown(answer, Path("v.mp4"), force=False)
    assert bool(found.events) == shown == (not found.reason)
    forced = captioner._shown(answer, Path("v.mp4"), force=True)
    assert forced.events == events and bool(forced.reason) == (not events)
    assert ("forced" in forced.provenance) == (not shown and bool(events))


def test_an_answer_out_of_domain_is_not_shown(tmp_path: Path) -> None:
    answer = Captioned("v.mp4", 9.0, (Event(0.0, 1.0, "stir", 0.9),), frame_times=(0.0, 1.0))
    captioner = Captioner(made(), Options(cache=tmp_path))
    far = replace(answer, provenance={"unfamiliar": "frame distance 9.00, at most 1.50"})
    assert captioner._shown(answer, Path("v.mp4"), force=False).events == answer.events
    found = captioner._shown(far, Path("v.mp4"), force=False)
    assert not found.events and found.reason
