"""First weights of the small model: recipes/first_weights.py and the mean in recipes/ship.py."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import cosine_similarity

from starc.model.starc import STaRC
from starc.retrieval.datastore import CaptionStore
from support.scripts import script
from support.tiny import WIDTH, tiny, words_tokenizer


def test_what_is_retrieved_starts_as_its_words_as_loud_as_speech() -> None:
    torch.manual_seed(0)
    model, tokenizer = STaRC(tiny()), words_tokenizer()
    captions = [f"w{3 * n} w{3 * n + 1} w{3 * n + 2}" for n in range(40)]
    store = CaptionStore(captions, torch.randn(len(captions), WIDTH))
    script("first_weights").retrieved_words(model, store, tokenizer)
    assert model.retrieved_projection is not None
    width = model.config.t5.width
    with torch.no_grad():
        found_ND = model.retrieved_projection(store.embedding_ND)
        words = [tokenizer.encode(caption).ids for caption in captions]
        word_ND = torch.stack([model.t5.shared.weight[ids].mean(0) for ids in words])
    assert found_ND.norm(dim=1).mean() == pytest.approx(width**0.5, rel=1e-3)
    alike_NN = cosine_similarity(found_ND[:, None], word_ND[None], dim=-1)
    assert (alike_NN.argmax(1) == torch.arange(len(captions))).all()


def test_heads_that_copy_look_at_the_token_after_its_like() -> None:
    torch.manual_seed(0)
    model = STaRC(tiny()).eval()
    script("first_weights").copying_heads(model.t5)
    speech_BL = torch.arange(50, 90)[None]
    with torch.no_grad():
        memory_BMD = model.t5.encode(speech_BL, torch.ones_like(speech_BL))
        attention = model.t5.decoder.block[0].layer[1].EncDecAttention
        written_BLD = model.t5.shared(speech_BL[:, :-1])
        query, key = attention.q(written_BLD)[0], attention.k(memory_BMD)[0]
    size = model.config.t5.head_width
    looked_at = (query[:, :size] @ key[:, :size].T).argmax(1)
    assert (looked_at == torch.arange(1, 40)).float().mean() > 0.5  # chance: 1 in 40


def test_mean_of_models() -> None:
    states = [{"weight": torch.tensor([value])} for value in (1.0, 2.0, 6.0)]
    assert script("ship").mean(states)["weight"].tolist() == [3.0]
