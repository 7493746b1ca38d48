"""What an event names as its sources is exactly what changes it.

Pictures, datastore, speech and the weights of the small STaRC of the embedded model are replaced by
noise, one by one and all together.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from starc.inference.pipeline import EMBEDDED
from starc.inference.predict import Prediction, VideoInputs, predict
from starc.model import checkpoint
from starc.model.checkpoint import Loaded
from starc.retrieval.datastore import CaptionStore
from starc.types import Sentence

SAID = (
    "First we peel two onions and chop them very finely.",
    "Heat some olive oil in a large pan.",
    "Now the onions go into the pan with a little salt.",
    "Pour in the crushed tomatoes and stir.",
)
ELSE_SAID = (
    "Crack three eggs into a bowl.",
    "Whisk them with a fork until they are smooth.",
    "And then grate some cheese.",
    "Put the bread in the oven.",
)
SECONDS = 60


def sentences(lines: tuple[str, ...]) -> tuple[Sentence, ...]:
    return tuple(Sentence(14.0 * n + 2, 14.0 * n + 8, text) for n, text in enumerate(lines))


def video(loaded: Loaded, seed: int, lines: tuple[str, ...]) -> VideoInputs:
    """Pictures as of training, drawn by `seed`."""
    assert loaded.joint is not None
    generator = torch.Generator().manual_seed(seed)
    noise_TI = torch.randn(SECONDS, loaded.image_width, generator=generator)
    return VideoInputs(
        id="video",
        features_TD=loaded.joint.mean_I + loaded.joint.deviation_I * noise_TI,
        times=tuple(map(float, range(SECONDS))),
        frames=SECONDS,
        duration=float(SECONDS),
        sentences=sentences(lines),
    )


def nonsense(store: CaptionStore) -> CaptionStore:
    """A datastore whose captions mean nothing."""
    generator = torch.Generator().manual_seed(5)
    noise_ND = torch.randn(store.embedding_ND.shape, generator=generator)
    return CaptionStore([f"nonsense {n}" for n in range(len(store))], noise_ND)


def noisy(loaded: Loaded) -> Loaded:
    """The small STaRC with weights of noise; caption writer and span head as they are."""
    model = copy.deepcopy(loaded.model)
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(0.1 * torch.randn(weight.shape, generator=generator))
    return replace(loaded, model=model)


def outcomes(loaded: Loaded, lines: tuple[str, ...], *, lanes: bool) -> dict[str, Prediction]:
    """Predictions as it is, and with each of the inputs replaced."""
    assert isinstance(loaded.store, CaptionStore)
    usual, else_seen = video(loaded, 0, lines), video(loaded, 1, lines)
    other_store, other_weights = loaded.with_store(nonsense(loaded.store)), noisy(loaded)
    cases = {
        "as it is": (loaded, usual),
        "speech": (loaded, replace(usual, sentences=sentences(ELSE_SAID))),
        "pictures": (loaded, else_seen),
        "datastore": (other_store, usual),
        "weights": (other_weights, usual),
        "all but speech": (other_weights.with_store(other_store.store), else_seen),
    }
    if not lines:
        del cases["speech"]
    return {
        name: predict(model, [inputs], lanes=lanes)[0] for name, (model, inputs) in cases.items()
    }


def times(prediction: Prediction) -> list[tuple[float, float]]:
    return [(event.start, event.end) for event in prediction.events]


def words(prediction: Prediction) -> list[str]:
    return [event.caption for event in prediction.events]


@pytest.fixture(scope="module")
def loaded() -> Iterator[Loaded]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # on a busy machine two wait for each other at every product
    yield checkpoint.load(EMBEDDED, device="cpu")
    torch.set_num_threads(threads)


@pytest.mark.parametrize("lanes", [False, True])
def test_a_video_with_speech_depends_on_its_speech_alone(loaded: Loaded, lanes: bool) -> None:
    found = outcomes(loaded, SAID, lanes=lanes)
    usual = found["as it is"]
    assert len(usual.events) > 1
    for event in usual.events:
        assert event.times_from == event.words_from == ("speech",)
    for name in ("pictures", "datastore", "weights", "all but speech"):
        assert found[name].events == usual.events, name  # confidences too
        assert found[name].saliency == usual.saliency, name
    assert times(found["speech"]) != times(usual) and words(found["speech"]) != words(usual)
    assert bool(usual.segments) == lanes
    for name in ("pictures", "datastore", "weights"):  # segments are computed, not used
        assert (found[name].segments != usual.segments) == lanes, name


def test_a_silent_video_depends_on_what_its_events_name(loaded: Loaded) -> None:
    found = outcomes(loaded, (), lanes=False)
    usual = found["as it is"]
    assert usual.events
    for event in usual.events:
        assert event.times_from == event.words_from == ("pictures", "datastore")
    for name in ("pictures", "datastore", "weights"):
        assert times(found[name]) != times(usual), name
        assert words(found[name]) != words(usual), name
