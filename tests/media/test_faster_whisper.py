"""The road through the real faster-whisper, with a tiny random model made here."""

from __future__ import annotations

import importlib.util
import json
import wave
from pathlib import Path

import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

from starc.media import audio
from starc.media.container import open_container
from starc.media.speech import transcribe

pytestmark = pytest.mark.skipif(
    not all(map(importlib.util.find_spec, ("faster_whisper", "ctranslate2", "transformers"))),
    reason="faster-whisper is not installed: pip install 'starc[whisper,clip]'",
)
ROOT = Path(__file__).parents[2]
SIZE = 51_865
"""Tokens of the multilingual models, by which CTranslate2 knows them."""
TIMES = 1501


def make_whisper(folder: Path) -> Path:
    """A model folder as faster-whisper reads it: one layer each, width 16, random weights."""
    import torch
    from ctranslate2.converters.transformers import WhisperLoader
    from faster_whisper.tokenizer import _LANGUAGE_CODES
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    languages = [f"<|{code}|>" for code in _LANGUAGE_CODES][:99]
    tasks = ["translate", "transcribe", "startoflm", "startofprev", "nospeech", "notimestamps"]
    special = ["<|endoftext|>", "<|startoftranscript|>", *languages, *(f"<|{t}|>" for t in tasks)]
    words = [f"w{n}" for n in range(SIZE - TIMES - len(special))]
    torch.manual_seed(0)
    config = WhisperConfig(
        vocab_size=SIZE,
        d_model=16,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=16,
        decoder_ffn_dim=16,
        init_std=0.5,
    )
    spec = WhisperLoader().get_model_spec(WhisperForConditionalGeneration(config).eval())
    tokens = [*words, *special]
    spec.config.lang_ids = [tokens.index(language) for language in languages]
    spec.config.suppress_ids = spec.config.suppress_ids_begin = []
    spec.config.alignment_heads = [(0, 0)]
    spec.register_vocabulary([*tokens, *(f"<|{n * 0.02:.2f}|>" for n in range(TIMES))])
    folder.mkdir()
    spec.validate()
    spec.optimize()
    spec.save(str(folder))
    vocabulary = {token: n for n, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in special])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "preprocessor_config.json").write_text(json.dumps({"feature_size": 80}))
    return folder


def spoken(path: Path) -> Path:
    """Ten seconds of the sample's speech."""
    sample = ROOT / "examples/scrambled_eggs.mp4"
    with open_container(sample) as container, wave.open(str(path), "wb") as file:
        samples = next(audio.windows(container, sample, seconds=10.0)).samples
        file.setparams((1, 2, audio.RATE, 0, "NONE", ""))
        file.writeframes((samples * 32767).astype(np.int16).tobytes())
    return path


def test_any_language_goes_through_the_real_thing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    model, sound = make_whisper(tmp_path / "whisper"), spoken(tmp_path / "spoken.wav")
    found = {}
    for language in (None, "en", "de"):
        found[language] = transcribe(
            sound, engine="whisper", model=str(model), language=language, cache=tmp_path / "cache"
        )
        assert found[language].provenance.startswith("faster-whisper ")
        assert all(0 <= said.start < said.end <= 10.1 for said in found[language].sentences)
    assert found["de"].provenance.endswith("translated from de")
    assert "translated" not in found["en"].provenance
    assert found["de"].sentences != found["en"].sentences
