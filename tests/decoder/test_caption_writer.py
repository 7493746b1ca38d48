"""The caption writer: texts as documented, captions that neighbours do not change, folders."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from starc.config import WriterConfig
from starc.decoder import precision, quantised
from starc.decoder.caption_writer import (
    INSIDE,
    SCRIPT_EVENTS,
    CaptionWriter,
    Request,
    blocks,
    plain,
    scripts,
    words_of,
)
from starc.decoder.llama import Layer, Llama, merge
from starc.decoder.reader import Reader, Text
from starc.errors import CheckpointError
from starc.inference.predict import VideoInputs, predict
from starc.model import checkpoint
from starc.model.starc import STaRC
from starc.types import Sentence
from support.stock_llama import TINY, byte_tokenizer, pair
from support.tiny import store, tiny, words_tokenizer

SAID = (
    Sentence(0.0, 4.0, "Hi everyone, today: onion soup!"),
    Sentence(10.0, 14.0, "Cut the onions;"),
    Sentence(14.0, 20.0, "they go into the hot oil."),
    Sentence(40.0, 44.0, "It 's done, don't stir."),
)


def test_what_is_said_inside_a_span_stands_in_brackets() -> None:
    words = words_of(SAID)
    read = blocks(words, [(13.9, 20.0), (39.0, 45.0)], [["fry onions", "add oil"], []])
    assert read == [
        "hi everyone today onion soup. cut the onions. they go into the hot oil. it's done don't "
        "stir.\n[ they go into the hot oil. ] it's done don't stir.\n~ fry onions; add oil\n=",
        "[ it's done don't stir. ]\n=",
    ]
    assert [word.time for word in words] == sorted(word.time for word in words)


def test_long_spans_lose_their_middle_and_silence_is_empty() -> None:
    words = words_of([Sentence(0, 300, " ".join(f"w{n}" for n in range(300)))])
    (long,) = blocks(words, [(50.0, 250.0)])
    inside = long[long.index("[") : long.index("]")].split()
    assert len(inside) - 2 == INSIDE and "..." in inside
    assert blocks([], [(0.0, 5.0)]) == ["\n[ ]\n="]


def test_events_are_shared_evenly_among_texts() -> None:
    spans = [(float(10 - n), 11.0) for n in range(SCRIPT_EVENTS + 1)]
    first, second = scripts(spans)
    assert [*first, *second] == list(range(SCRIPT_EVENTS, -1, -1)) and len(first) - len(second) < 2
    assert scripts([]) == []


@pytest.mark.parametrize(("text", "wanted"), [("It 's 1/2 CUP!", "it's 1/2 cup."), ("…", "")])
def test_plain(text: str, wanted: str) -> None:
    assert plain(text) == wanted


def writer(**settings: object) -> CaptionWriter:
    llama, _ = pair()
    made = WriterConfig(llama=TINY, max_tokens=6, **settings)  # type: ignore[arg-type]
    return CaptionWriter(Reader.of(llama), byte_tokenizer(), made, Path("nowhere"))


def test_neighbours_change_no_caption() -> None:
    one = Request(SAID, [(13.0, 20.0), (39.0, 45.0)])
    other = Request(SAID[:2], [(n, n + 5.0) for n in range(9)], [["add"]] * 9)
    alone, both = writer().write([one]), writer().write([other, one])
    assert [caption.text for caption in both[1]] == [caption.text for caption in alone[0]]
    for ours, theirs in zip(both[1], alone[0], strict=True):
        assert ours.probability == pytest.approx(theirs.probability, abs=1e-4)
    assert len(both[0]) == 9 and all(caption.text for caption in both[0])


def test_captions_are_the_likeliest_tokens_of_transformers() -> None:
    """The whole text read again in one piece gives the same tokens and probabilities."""
    _, theirs = pair()
    tokenizer, made = byte_tokenizer(), writer(max_repeated_tokens=50)
    spans = [(13.0, 20.0), (39.0, 45.0)]
    (captions,) = made.write([Request(SAID, spans)])
    read = blocks(words_of(SAID), spans)
    ids = tokenizer.encode(read[0]).ids
    with torch.no_grad():
        logs, written = 0.0, list[int]()
        for _ in range(made.settings.max_tokens + 1):
            score_V = theirs(torch.tensor([ids])).logits[0, -1].log_softmax(-1)
            if not written:
                score_V[made.newline] = -torch.inf
            token = int(score_V.argmax())
            if token == made.newline or len(written) == made.settings.max_tokens:
                logs += float(score_V[made.newline])
                break
            logs += float(score_V[token])
            ids, written = [*ids, token], [*written, token]
    assert captions[0].text == tokenizer.decode(written).strip()
    assert captions[0].probability == pytest.approx(
        float(torch.tensor(logs / (len(written) + 1)).exp()), abs=1e-4
    )


def test_confidence_follows_the_calibration() -> None:
    (captions,) = writer().write([Request(SAID, [(13.0, 20.0)])])
    confident = writer().confidence(None, captions[0])
    assert confident == pytest.approx(captions[0].probability, abs=1e-3)
    steep = writer(calibration=(0.5, 2.0, -1.0))
    sure = captions[0]._replace(probability=0.99)
    assert 0 < steep.confidence(0.3, captions[0]) < steep.confidence(0.3, sure)
    assert steep.confidence(0.3, sure) < steep.confidence(0.9, sure)


def model_folder(path: Path) -> Path:
    """A tiny model with a tiny writer, its changes of low rank in 8 bits."""
    torch.manual_seed(0)
    checkpoint.save(path, STaRC(tiny()), tokenizer=words_tokenizer(), store=store())
    llama = Llama(dataclasses.replace(TINY, lora=2, lora_from=1))
    for name, parameter in llama.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(parameter, std=0.1)
    state = dict(llama.state_dict())
    packed = {name: tensor for name, tensor in state.items() if "lora_" not in name}
    for name, tensor in state.items():
        if "lora_" in name:
            parts = quantised.to_8_bits(tensor)
            packed |= {f"{name}.{kind}": part for kind, part in parts.items()}
    save_file({f"llama.{k}": v for k, v in packed.items()}, path / checkpoint.WRITER)
    byte_tokenizer().save(str(path / checkpoint.WRITER_TOKENIZER))
    settings = WriterConfig(llama=llama.settings, max_tokens=5)
    loaded = checkpoint.load(path, device="cpu")
    made = CaptionWriter(Reader.of(llama), byte_tokenizer(), settings, path)
    checkpoint.save(path.parent / "whole", loaded.model, tokenizer=loaded.tokenizer,
                    store=loaded.store, writer=made)  # fmt: skip
    return path.parent / "whole"


def test_a_folder_with_a_writer_captions_and_goes_along(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "model")
    loaded = checkpoint.load(folder, device="cpu")
    assert loaded.writer is not None
    video = VideoInputs("v", torch.randn(60, 64), tuple(map(float, range(60))), 60, 60.0, SAID)
    plain_model = dataclasses.replace(loaded, writer=None)
    (before,), (after,) = predict(plain_model, [video]), predict(loaded, [video])
    spans = [(event.start, event.end) for event in before.events]
    assert [(event.start, event.end) for event in after.events] == spans
    assert all(event.confidence is not None for event in after.events)
    silent = dataclasses.replace(video, sentences=())
    assert predict(loaded, [silent]) == predict(plain_model, [silent])
    checkpoint.save(tmp_path / "again", loaded.model, tokenizer=loaded.tokenizer,
                    store=loaded.store, writer=loaded.writer)  # fmt: skip
    (again,) = predict(checkpoint.load(tmp_path / "again", device="cpu"), [video])
    assert again.events == after.events
    checkpoint.save(tmp_path / "without", loaded.model, tokenizer=loaded.tokenizer)
    assert checkpoint.load(tmp_path / "without", device="cpu").writer is None


@pytest.mark.parametrize("name", ["bfloat16", "int8"])
def test_a_writer_in_lower_precision(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(precision, "has_bfloat16", lambda device: True)
    folder = model_folder(tmp_path / "model")
    exact, rough = (
        checkpoint.load(folder, device="cpu", precision=one).writer for one in ("float32", name)
    )
    assert exact is not None and rough is not None
    ids = list(range(5, 25))
    wanted, found = (
        one.reader.read([Text(one.reader, 20)], [ids]).float() for one in (exact, rough)
    )
    assert 0 < (found - wanted).norm() < 0.05 * wanted.norm()
    assert all(caption.text for caption in rough.write([Request(SAID, [(13.0, 20.0)])])[0])


def test_a_writer_that_has_nothing_to_read_stays_packed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, opened = model_folder(tmp_path / "model"), list[torch.nn.Module]()

    def note(part: torch.nn.Module) -> None:
        opened.extend([part] if isinstance(part, Layer) else [])
        merge(part)

    monkeypatch.setattr(checkpoint, "merge", note)
    loaded = checkpoint.load(folder, device="cpu")
    assert loaded.writer is not None
    predict(
        loaded, [VideoInputs("silent", torch.randn(9, 64), tuple(map(float, range(9))), 9, 9.0)]
    )
    assert not opened
    for _ in range(2):
        loaded.writer.write([Request(SAID, [(13.0, 20.0)])])
        assert len(opened) == TINY.layers


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_a_writer_that_reads_does_not_keep_its_file_in_memory(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "model")
    writer = checkpoint.load(folder, device="cpu").writer
    assert writer is not None
    assert str(folder) in Path("/proc/self/maps").read_text()
    writer.write([Request(SAID, [(13.0, 20.0)])])
    assert str(folder / checkpoint.WRITER) not in Path("/proc/self/maps").read_text()


def test_a_missing_writer_is_said(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "model")
    (folder / checkpoint.WRITER).unlink()
    with pytest.raises(CheckpointError, match=r"writer\.safetensors"):
        checkpoint.load(folder, device="cpu")


@pytest.mark.parametrize("scale", [None, torch.ones(1, 1)])
def test_a_matrix_without_its_scales_is_said(tmp_path: Path, scale: torch.Tensor | None) -> None:
    folder = model_folder(tmp_path / "model")
    tensors = {**load_file(folder / checkpoint.WRITER)}
    name = next(name for name in tensors if name.endswith(".scale"))
    kept = {n: t.clone() for n, t in tensors.items() if n != name}
    save_file(kept if scale is None else kept | {name: scale}, tmp_path / "damaged")
    (tmp_path / "damaged").replace(folder / checkpoint.WRITER)
    with pytest.raises(CheckpointError, match=r"writer\.safetensors: missing 1"):
        checkpoint.load(folder, device="cpu")
