"""A T5 that transformers saved, v1.0 or v1.1, gives the same logits and starts a training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, pre_tokenizers
from typer.testing import CliRunner

from starc.cli import app
from starc.config import vid2seq
from starc.decoder.incremental import IncrementalDecoder
from starc.decoder.precision import convert
from starc.decoder.t5 import T5
from starc.errors import CheckpointError
from starc.model import checkpoint, language_models
from support import small_training as small

WORDS = 140


def tokenizer() -> Tokenizer:
    """The words of the small training and T5's hundred sentinels at the end."""
    vocabulary = dict(small.tokenizer().get_vocab())
    vocabulary |= {f"word{n}": n for n in range(len(vocabulary), WORDS - 100)}
    vocabulary |= {f"<extra_id_{n}>": WORDS - 1 - n for n in range(100)}
    made = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    return made


def stock(folder: Path, version: str, **more: Any) -> Any:
    """A random T5 in a folder as the hub has them, with more rows than words, as t5-base has.

    "saved" is a v1.1 as transformers 5 writes it itself, which ties all embeddings.
    """
    if version != "v1.0":
        more = {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False} | more
    sizes = {"vocab_size": 160, "d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 2}
    torch.manual_seed(0)
    config = transformers.T5Config(**sizes, num_heads=2, decoder_start_token_id=0, **more)
    model = transformers.T5ForConditionalGeneration(config).eval()
    if version == "v1.1":
        model.lm_head.weight = torch.nn.Parameter(torch.randn(160, 16))
    with torch.no_grad():  # transformers makes them far too small to tell heads apart
        for weight in model.parameters():
            weight.mul_(3)
    folder.mkdir(exist_ok=True)
    if version == "saved":
        model.save_pretrained(folder)
    else:
        state = {name: weight.clone() for name, weight in model.state_dict().items()}
        save_file(state, folder / "model.safetensors")
        facts = config.to_dict() | {"tie_word_embeddings": version == "v1.0"}
        facts.pop("scale_decoder_outputs", None)
        (folder / "config.json").write_text(json.dumps(facts))
    tokenizer().save(str(folder / "tokenizer.json"))
    return model


def scores(t5: T5, memory_BMD: torch.Tensor, target_BL: torch.Tensor) -> torch.Tensor:
    mask_BM = torch.ones(memory_BMD.shape[:2], dtype=torch.bool)
    return t5.logits(t5.decode(memory_BMD, mask_BM, target_BL))


@pytest.mark.parametrize("version", ["v1.0", "v1.1", "saved"])
def test_the_logits_are_those_of_transformers(tmp_path: Path, version: str) -> None:
    theirs = stock(tmp_path, version)
    loaded = language_models.load(str(tmp_path), vid2seq())
    ours = loaded.model.t5.eval()
    said_BL, target_BL = torch.randint(3, 40, (2, 9)), torch.randint(3, 40, (2, 7))
    with torch.no_grad():
        expected = theirs(input_ids=said_BL, labels=target_BL).logits[..., :WORDS]
        memory_BMD = ours.encode(said_BL, torch.ones_like(said_BL))
        found = scores(ours, memory_BMD, target_BL)
        # Logits of a hundred and more: what float32 leaves of them depends on the processor.
        close = {"atol": 3e-5 * float(expected.abs().max()), "rtol": 1e-4}
        torch.testing.assert_close(found[..., :WORDS], expected, **close)
        decoder = IncrementalDecoder(ours, memory_BMD, torch.ones(2, 9, dtype=torch.bool), beams=1)
        given = [torch.zeros(2, 1, dtype=torch.long), *target_BL.split(1, dim=1)]
        for place, token_BK in enumerate(given[:-1]):
            step = decoder.step(token_BK)
            torch.testing.assert_close(step[:, 0], found[:, place], **close)
            decoder.choose(torch.zeros(2, 1, dtype=torch.long))
    rows = ours.shared.weight.norm(dim=1)  # time tokens are fresh, and as long as words
    torch.testing.assert_close(rows[WORDS:].mean(), rows[:WORDS].mean())
    assert len(rows) == WORDS + 100
    loss = ours.loss(
        memory_BMD, torch.ones(2, 9), target_BL, torch.ones_like(target_BL), label_smoothing=0.0
    )
    log_p = scores(ours, memory_BMD, target_BL).log_softmax(-1)
    expected = -log_p.gather(2, target_BL[..., None]).mean()
    torch.testing.assert_close(loss, expected, atol=1e-4, rtol=1e-4)
    with torch.no_grad():
        rough = scores(convert(ours, "int8"), memory_BMD, target_BL)
    exact = found
    assert float((rough - exact).abs().mean()) < 0.2 * float(exact.abs().mean())


@pytest.mark.parametrize("version", ["v1.0", "v1.1"])
def test_vid2seq_is_trained_from_it(tmp_path: Path, version: str) -> None:
    theirs = stock(tmp_path / "t5", version)
    files = small.files(tmp_path / "data")
    del files[files.index("--tokenizer") : files.index("--tokenizer") + 2]
    sizes = [one for one in small.SMALL if "model.t5" not in one]
    settings = [part for setting in sizes for part in ("--set", setting)]
    command = ["train", "vid2seq", *files, *settings, "--init", f"t5:{tmp_path / 't5'}"]
    command += ["--set", "train.learning_rate=0", "-o", str(tmp_path / "run")]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, (result.output, result.exception)
    said = " ".join(result.output.split())
    assert "start fresh: temporal" in said and "time tokens" in said
    assert f"weights from t5:{tmp_path / 't5'}" in said.replace("t5: ", "t5:")
    trained = checkpoint.load(tmp_path / "run/last")
    found = trained.model.t5.state_dict()
    for name, weight in theirs.state_dict().items():
        if name in found:
            torch.testing.assert_close(found[name][:WORDS], weight[:WORDS], msg=name)
    assert trained.tokenizer is not None


def test_what_is_no_t5_is_named(tmp_path: Path) -> None:
    stock(tmp_path / "t5", "v1.0")
    facts = json.loads((tmp_path / "t5/config.json").read_text())
    for change, says in (
        ({"model_type": "bart"}, "not a T5"),
        ({"d_ff": 48}, r"DenseReluDense.wi.weight is \(32, 16\), not \(48, 16\)"),
        ({"vocab_size": 20}, "20 embeddings for a tokenizer of 140"),
    ):
        (tmp_path / "t5/config.json").write_text(json.dumps(facts | change))
        with pytest.raises(CheckpointError, match=says):
            language_models.load(str(tmp_path / "t5"), vid2seq())
    (tmp_path / "t5/tokenizer.json").unlink()
    with pytest.raises(CheckpointError, match=r"no tokenizer.json in it; give --tokenizer"):
        language_models.load(str(tmp_path / "t5"), vid2seq())
    with pytest.raises(CheckpointError, match="no such folder"):
        language_models.load(str(tmp_path / "nowhere"), vid2seq())


@pytest.mark.parametrize("version", ["v1.0", "v1.1"])
def test_impossible_settings_and_weights_are_one_line(tmp_path: Path, version: str) -> None:
    stock(tmp_path, version)
    config, weights = tmp_path / "config.json", tmp_path / "model.safetensors"
    facts, whole = json.loads(config.read_text()), weights.read_bytes()

    def refused() -> str:
        try:
            language_models.load(f"t5:{tmp_path}", vid2seq())
        except CheckpointError as error:
            assert "\n" not in str(error) and len(str(error)) < len(str(tmp_path)) + 300
            return str(error)
        return ""

    assert not refused()
    keys = [key for key in facts if key.startswith(("d_", "num_", "relative", "vocab", "feed"))]
    for key in [*keys, "model_type"]:
        for value in (None, "x", -1, 0, 1.5, True, 10**9, 10**30, [], {}, "\x1b[31m" * 40):
            config.write_text(json.dumps(facts | {key: value}))
            refused()
        config.write_text(json.dumps({k: v for k, v in facts.items() if k != key}))
        refused()
    config.write_text(json.dumps(facts | {"num_layers": 10**7}))
    assert "tensors for 10000000 layers" in refused()
    config.write_text("[1]")
    assert "holds a list" in refused()
    config.write_text(json.dumps(facts))
    weights.write_bytes(whole[: len(whole) // 2])
    assert "cannot be read" in refused()
    weights.unlink()
    for content in ([1], {"shared.weight": 3}, {"shared.weight": torch.zeros(1).expand(160, 16)}):
        torch.save(content, tmp_path / "pytorch_model.bin")
        assert "not a dictionary of whole tensors" in refused()
