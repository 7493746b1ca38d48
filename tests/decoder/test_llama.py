"""Llama against transformers; caches; low-rank changes; the causal decoder of STaRC."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor

from starc.config import SPECIAL_IDS, BeamSearch, LossConfig
from starc.decoder import beam_search
from starc.decoder.llama import Cache, CausalDecoder, Llama, merge
from starc.model.starc import STaRC
from support.stock_llama import TINY, byte_tokenizer, pair
from support.tiny import batch, one, store, tiny

CAUSAL = dataclasses.replace(TINY, width=64, heads=4, head_width=16, words=997)
"""Text, special ids and sentinels number 1100, as in support.tiny."""


def states(model: Llama, token_BL: Tensor) -> Tensor:
    return model(model.embed(token_BL))


@torch.no_grad()
def test_logits_are_those_of_transformers() -> None:
    ours, theirs = pair()
    token_BL = torch.randint(0, TINY.words, (3, 20))
    torch.testing.assert_close(
        ours.logits(states(ours, token_BL)), theirs(token_BL).logits, atol=1e-4, rtol=0
    )


@torch.no_grad()
def test_padding_and_cache_change_nothing() -> None:
    ours, _ = pair()
    token_BL = torch.randint(0, TINY.words, (2, 9))
    whole, alone = states(ours, token_BL), states(ours, token_BL[1:, :4])
    torch.testing.assert_close(whole[1:, :4], alone, atol=1e-5, rtol=0)
    cache = Cache.empty(TINY, 2, whole)
    first = ours(ours.embed(token_BL[:, :5]), cache, torch.tensor([5, 2]))
    torch.testing.assert_close(first[1, :2], alone[0, :2], atol=1e-5, rtol=0)
    rest = torch.stack([token_BL[0, 5:9], token_BL[1, [2, 3, 0, 0]]])
    later = ours(ours.embed(rest), cache, torch.tensor([4, 2]))
    assert cache.length_B.tolist() == [9, 4]
    torch.testing.assert_close(later[0], whole[0, 5:], atol=1e-5, rtol=0)
    torch.testing.assert_close(later[1, :2], alone[0, 2:], atol=1e-5, rtol=0)


def test_low_rank_changes_train_alone_and_merge() -> None:
    settings = dataclasses.replace(TINY, lora=4, lora_from=1)
    torch.manual_seed(0)
    model, token_BL = Llama(settings), torch.randint(0, TINY.words, (2, 6))
    before = states(model, token_BL)
    trained = {name for name, value in model.named_parameters() if value.requires_grad}
    assert trained and all("lora_" in name for name in trained)
    assert not any(".layers.0." in name for name in trained)
    before.square().sum().backward()
    torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=1e-3).step()
    changed = states(model, token_BL)
    assert not torch.allclose(before, changed)
    merge(model)
    torch.testing.assert_close(states(model, token_BL), changed, atol=1e-5, rtol=0)
    assert not any("lora_" in name for name in model.state_dict())


def starc(**parts: object) -> STaRC:
    torch.manual_seed(0)
    loss = LossConfig(denoising_weight=0.5)
    return STaRC(tiny(llama=CAUSAL, loss=loss, **parts))


def test_a_prefix_is_read_as_transformers_reads_it() -> None:
    """Greedy ids after embeddings as prefix are those of transformers' generate."""
    torch.manual_seed(0)
    _, theirs = pair(dataclasses.replace(CAUSAL, words=CAUSAL.vocabulary))
    decoder = CausalDecoder(CAUSAL).eval()
    table_VD = theirs.model.embed_tokens.weight.detach()
    state = {name: value for name, value in theirs.state_dict().items() if "lm_head" not in name}
    special, stop = SPECIAL_IDS, SPECIAL_IDS + CAUSAL.words
    state["model.embed_tokens.weight"] = table_VD[special:stop]
    decoder.llama.load_state_dict(state)
    added_VD = torch.cat([table_VD[:special], table_VD[stop:]])
    decoder.added.load_state_dict({"weight": added_VD})
    memory_BMD = torch.randn(2, 7, CAUSAL.width)
    mask_BM = torch.tensor([[1, 1, 1, 1, 1, 1, 1], [1, 1, 0, 1, 0, 1, 1]]).bool()
    decoded = beam_search.generate(decoder, memory_BMD, mask_BM, BeamSearch(beams=1, max_tokens=9))
    for row, (memory_MD, mask_M) in enumerate(zip(memory_BMD, mask_BM, strict=True)):
        start_1D = table_VD[0][None]
        official = theirs.generate(
            inputs_embeds=torch.cat([memory_MD[mask_M], start_1D])[None],
            attention_mask=torch.ones(1, int(mask_M.sum()) + 1, dtype=torch.long),
            max_new_tokens=9,
            do_sample=False,
            eos_token_id=1,
            pad_token_id=0,
        )
        assert list(decoded[row].ids) == official[0].tolist()


def test_neighbours_change_no_loss_and_no_beam() -> None:
    model, captions, whole = starc().eval(), store(), batch((13, 40))
    search = BeamSearch(beams=3, max_tokens=12, grammar=True)
    (both,) = model.generate([whole], captions, search)
    for video in (0, 1):
        alone = one(whole, video)
        (single,) = model.generate([alone], captions, search)
        assert single.decoded[0].ids == both.decoded[video].ids
    single_loss = model(one(whole, 1), captions)
    assert single_loss.denoising is not None and single_loss.caption > 0


def test_decoding_scores_are_those_of_training() -> None:
    """The log-probabilities of decoded ids sum to minus the loss of these ids as a target."""
    model, captions = starc(retrieval=None).eval(), None
    some = one(batch((20,)), 0)
    (found,) = model.generate([some], captions, BeamSearch(beams=1, max_tokens=8))
    ids, logs = found.decoded[0].ids, found.decoded[0].log_probabilities
    target_BL = torch.tensor([ids])
    decoder = model.decoder
    with torch.no_grad():
        loss = decoder.loss(
            found.encoded.memory_BMD,
            found.encoded.memory_mask_BM,
            target_BL,
            torch.ones_like(target_BL),
            label_smoothing=0.0,
        )
    assert float(loss) == pytest.approx(-sum(logs) / len(logs), abs=1e-4)


def test_it_learns_and_times_start_from_digits() -> None:
    model, some, captions = starc(), batch((20, 12)), store()
    decoder = model.decoder
    assert isinstance(decoder, CausalDecoder)
    decoder.start_times_from_digits(lambda text: byte_tokenizer().encode(text).ids)
    words_VD = decoder.llama.model.embed_tokens.weight
    seven = byte_tokenizer().encode("7").ids[0]
    first = len(decoder.added.weight) - CAUSAL.bins
    torch.testing.assert_close(decoder.added.weight[first + 77], words_VD[seven])
    optimiser = torch.optim.Adam(model.parameters(), lr=3e-3)
    losses = []
    for _ in range(25):
        loss = model(some, captions)
        optimiser.zero_grad()
        loss.total.backward()
        optimiser.step()
        losses.append(loss.caption.item())
    assert losses[-1] < 0.6 * losses[0]
