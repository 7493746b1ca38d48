"""What a record names as influence is what changes the events; nothing else does.

Each input of the shipped path is replaced by noise, one by one: frames, datastore, the weights of
STaRC, the span head and caption writer, and what is said.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

import pytest
import torch
from torch import Tensor, nn

from starc.inference.pipeline import EMBEDDED, Captioner, Options
from starc.model import checkpoint
from starc.model.checkpoint import Loaded
from starc.retrieval.datastore import CaptionStore
from starc.types import Captioned, Event, Frame

Module = TypeVar("Module", bound=nn.Module)
SAMPLE = Path(__file__).parents[2] / "examples" / "scrambled_eggs.mp4"
SAID = """WEBVTT

00:00:02.000 --> 00:00:08.000
Season two chicken breasts with salt and plenty of black pepper.

00:00:40.000 --> 00:00:55.000
Fry the chicken in the hot oil until both sides are brown.
"""
OTHER = """WEBVTT

00:00:10.000 --> 00:00:20.000
Peel the potatoes and boil them in salted water.

00:01:10.000 --> 00:01:25.000
Mash the potatoes with butter and milk.
"""


class NoiseEncoder:
    """Frames in, noise out."""

    name, width, size = "noise", 1280, 224

    def __init__(self) -> None:
        self.frames = 0

    def encode(self, frames: Iterable[Frame]) -> Tensor:
        seen = sum(1 for _ in frames)
        self.frames += seen
        return torch.randn(seen, self.width, generator=torch.Generator().manual_seed(0))


def noisy(module: Module) -> Module:
    """The same module with random weights of the same size."""
    module = copy.deepcopy(module)
    torch.manual_seed(0)
    with torch.no_grad():
        for weight in module.parameters():
            weight.normal_(std=float(weight.abs().mean()) + 0.01)
    return module


def noise_store(loaded: Loaded) -> Loaded:
    """The model with nonsense to retrieve."""
    assert loaded.store is not None
    torch.manual_seed(0)
    rows = torch.randn(len(loaded.store), loaded.store.width)
    nonsense = [f"wug {n} blicket" for n in range(len(rows))]
    return loaded.with_store(CaptionStore(nonsense, rows, encoder=loaded.store.encoder))


def noise_model(loaded: Loaded) -> Loaded:
    return dataclasses.replace(loaded, model=noisy(loaded.model))


def noise_head(loaded: Loaded) -> Loaded:
    writer = copy.copy(loaded.writer)
    assert writer is not None and writer.head is not None
    writer.head = noisy(writer.head)
    return dataclasses.replace(loaded, writer=writer)


NOISE: dict[str, Callable[[Loaded], Loaded]] = {
    "datastore": noise_store,
    "the decoder": noise_model,
    "the span head": noise_head,
}


@pytest.fixture(scope="module")
def loaded() -> Loaded:
    # No fingerprint: what another model said must not be found in the cache.
    return dataclasses.replace(checkpoint.load(EMBEDDED, device="cpu"), fingerprint=None)


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("influence")
    (folder / "said.vtt").write_text(SAID)
    (folder / "other.vtt").write_text(OTHER)
    return folder


def caption(loaded: Loaded, kept: Path, noise: str = "", **options: object) -> Captioned:
    """The sample, with one input replaced by noise."""
    if noise in NOISE:
        loaded = dataclasses.replace(NOISE[noise](loaded), fingerprint=None)
    speech = kept / ("other.vtt" if noise == "speech" else "said.vtt")
    chosen = Options(**{"cache": kept, "force": True, "transcript": speech} | options)  # type: ignore[arg-type]
    encoder = NoiseEncoder() if noise == "pictures" else None
    return Captioner(loaded, chosen, encoder=encoder).caption(SAMPLE)


SILENT = {"transcript": None, "engine": "none"}


def times(events: tuple[Event, ...]) -> list[tuple[float, float]]:
    return [(event.start, event.end) for event in events]


def words(events: tuple[Event, ...]) -> list[str]:
    return [event.caption for event in events]


def test_the_method_has_no_part_in_the_events_of_a_video_with_speech(
    loaded: Loaded, kept: Path
) -> None:
    plain = caption(loaded, kept, lanes=True)
    assert "search" not in plain.provenance
    assert caption(loaded, kept).events == plain.events
    for noise in ("pictures", "datastore", "the decoder"):
        other = caption(loaded, kept, noise, lanes=True)
        assert other.events == plain.events, noise
        assert other.saliency == plain.saliency, noise
        # The control: what was asked for as lanes does change, so the noise arrived.
        assert other.segments != plain.segments, noise


def test_speech_makes_the_events_of_a_video_with_speech(loaded: Loaded, kept: Path) -> None:
    plain = caption(loaded, kept)
    assert {event.times_from for event in plain.events} == {("speech",)}
    assert {event.words_from for event in plain.events} == {("speech",)}
    assert plain.provenance["times by"] == "the span head"
    assert plain.provenance["words by"] == "the caption writer, greedy"
    for noise in ("speech", "the span head"):
        other = caption(loaded, kept, noise)
        assert times(other.events) != times(plain.events), noise
        assert words(other.events) != words(plain.events), noise


def test_pictures_and_datastore_make_the_events_of_a_silent_video(
    loaded: Loaded, kept: Path
) -> None:
    plain = caption(loaded, kept, **SILENT)
    named = {(event.times_from, event.words_from) for event in plain.events}
    assert named == {(("pictures", "datastore"), ("pictures", "datastore"))}
    assert plain.provenance["times by"] == plain.provenance["words by"] == "the decoder"
    for noise in ("pictures", "datastore", "the decoder"):
        other = caption(loaded, kept, noise, **SILENT)
        assert times(other.events) != times(plain.events), noise
        assert words(other.events) != words(plain.events), noise
    assert caption(loaded, kept, "the span head", **SILENT).events == plain.events


@pytest.mark.parametrize(
    ("options", "watched"), [({}, False), ({"lanes": True}, True), (SILENT, True)]
)
def test_frames_that_decide_nothing_are_not_watched(
    loaded: Loaded, kept: Path, tmp_path: Path, options: dict[str, object], watched: bool
) -> None:
    encoder = NoiseEncoder()
    given = {"cache": tmp_path, "transcript": kept / "said.vtt"} | options
    made = Captioner(loaded, Options(**given), encoder=encoder).caption(SAMPLE)  # type: ignore[arg-type]
    assert (encoder.frames > 0) == watched
    assert (made.provenance["frames"] == "not used") != watched


def test_what_cannot_change_an_answer_is_not_in_its_key(kept: Path, tmp_path: Path) -> None:
    """Another search, datastore or image encoder finds the answer that speech alone made."""
    plain = Captioner(options=Options(cache=tmp_path, transcript=kept / "said.vtt"))
    made = plain.caption(SAMPLE)
    for changed in (
        {"beams": 1},
        {"image_encoder": "clip-vit-l-14"},
        {"datastore": str(EMBEDDED / "datastore")},
    ):
        options = dataclasses.replace(plain.options, **changed)
        assert Captioner(options=options).kept(SAMPLE, options=options) == made, changed
    for changed in ({"lanes": True}, {"precision": "int8"}):
        options = dataclasses.replace(plain.options, **changed)
        assert Captioner(options=options).kept(SAMPLE, options=options) is None, changed


def test_the_answer_for_a_silent_video_is_keyed_by_all_that_makes_it(tmp_path: Path) -> None:
    silent = Options(cache=tmp_path, engine="none", force=True)
    made = Captioner(options=silent).caption(SAMPLE)
    assert Captioner(options=silent).kept(SAMPLE, options=silent) == made
    for changed in ({"beams": 1}, {"image_encoder": "clip-vit-l-14"}):
        options = dataclasses.replace(silent, **changed)
        assert Captioner(options=options).kept(SAMPLE, options=options) is None, changed
