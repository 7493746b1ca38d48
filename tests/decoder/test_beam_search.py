"""Search: published ids, transformers' own `generate`, batches, bad input."""

import copy
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import T5ForConditionalGeneration
from transformers.modeling_outputs import BaseModelOutput

from starc.config import BeamSearch, T5Config, tiny
from starc.decoder import incremental
from starc.decoder.beam_search import Decoded, generate
from starc.decoder.precision import convert
from starc.decoder.t5 import T5
from support.stock_t5 import stock, with_weights_of

SIZE = T5Config(
    width=32,
    head_width=8,
    feed_forward=64,
    layers=2,
    decoder_layers=2,
    heads=4,
    text_vocabulary=30,
    bins=10,
    dropout=0.0,
)


def peer(seed: int, *, ending: float = 2.5) -> T5ForConditionalGeneration:
    """A random small model of transformers whose end id is likely enough to matter."""
    torch.manual_seed(seed)
    model = stock(SIZE)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "layer_norm" not in name and "shared" not in name:
                parameter.mul_(2.0)
        model.shared.weight[1] *= ending
    return model


def ours(model: T5ForConditionalGeneration) -> T5:
    return with_weights_of(model, SIZE)


def memory(videos: int, positions: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    memory_BMD = torch.randn(videos, positions, SIZE.width, generator=generator)
    mask_BM = torch.rand(videos, positions, generator=generator) < 0.7
    mask_BM[:, 0] = True
    return memory_BMD, mask_BM


def random_search(seed: int) -> BeamSearch:
    choose = random.Random(seed).choice
    tokens = choose([1, 6, 20, 20, 40])
    return BeamSearch(
        beams=choose([1, 2, 3, 4, 4, 5]),
        max_tokens=tokens,
        min_tokens=choose([0, 0, 3]) if tokens > 3 else 0,
        length_penalty=choose([1.0, 1.0, 0.0, 0.6, 2.0, -0.5]),
        repetition_penalty=choose([1.0, 1.0, 1.2, 0.9]),
        rules="transformers",
    )


def peer_generate(
    model: T5ForConditionalGeneration, memory_BMD: Tensor, mask_BM: Tensor, search: BeamSearch
) -> Any:
    # Greedy search knows no length penalty, and transformers says so in its log.
    options: dict[str, Any] = {"num_beams": search.beams}
    if search.beams > 1:
        options |= {"length_penalty": search.length_penalty, "early_stopping": False}
    return model.generate(
        encoder_outputs=BaseModelOutput(last_hidden_state=memory_BMD),
        attention_mask=mask_BM.long(),
        max_new_tokens=search.max_tokens,
        min_new_tokens=search.min_tokens or None,
        repetition_penalty=search.repetition_penalty,
        do_sample=False,
        return_dict_in_generate=True,
        output_scores=True,
        **options,
    )


@pytest.mark.parametrize("seed", range(24))
def test_as_transformers(seed: int) -> None:
    model, search = peer(seed), random_search(seed)
    memory_BMD, mask_BM = memory(1 + seed % 4, 3 + 5 * (seed % 7), seed)
    expected = peer_generate(model, memory_BMD, mask_BM, search)
    found = generate(ours(model), memory_BMD, mask_BM, search)
    for video, decoded in enumerate(found):
        ids = expected.sequences[video, 1:].tolist()
        ids = ids[: ids.index(1) + 1] if 1 in ids else ids
        assert list(decoded.ids) == ids
        if search.beams > 1:
            score = expected.sequences_scores[video].item()
            assert decoded.score == pytest.approx(score, rel=1e-5, abs=1e-5)


def padded(decoded: list[Decoded], length: int) -> list[list[int]]:
    return [([0, *video.ids] + [0] * length)[:length] for video in decoded]


def check_published(folder: Path, case: str) -> None:
    state = torch.load(folder / "weights.pt")["state_dict"]
    t5 = T5(tiny().t5)
    t5.load_state_dict({name: state[f"t5_model.{name}"] for name in t5.state_dict()})
    golden = torch.load(folder / f"case_{case}.pt")
    run = golden["gen"]
    memory = run["gen_enc_concat#0"], run["gen_enc_mask#0"]
    plain = BeamSearch(max_tokens=64)
    # min_length 24 of transformers counts the start id.
    strict = BeamSearch(max_tokens=24, min_tokens=23, length_penalty=0.6, repetition_penalty=1.2)
    for search, ids, scores in (
        (replace(plain, beams=1), golden["gen_greedy_ids"], None),
        (plain, run["gen_ids#0"], run["gen_sequences_scores#0"]),
        (strict, golden["gen_beam4_min24_lp0.6_rp1.2_ids"], golden["gen_beam4_min24_scores"]),
    ):
        found = generate(t5, *memory, search)
        assert padded(found, ids.shape[1]) == ids.tolist()
        if scores is not None:
            assert [video.score for video in found] == pytest.approx(scores.tolist(), abs=1e-4)


@pytest.mark.parametrize("case", ["F100_B1", "F50_B2"])
def test_published_ids(data: Path, case: str) -> None:
    check_published(data / "model", case)


@pytest.mark.parametrize("case", ["F100_B4", "F75_B3", "F160_B2"])
def test_more_published_ids(shared: Path, case: str) -> None:
    check_published(shared / "parity/model", case)


@pytest.mark.parametrize("rules", ["published", "transformers"])
@pytest.mark.parametrize("beams", [1, 4])
def test_neighbours_change_nothing(beams: int, rules: str) -> None:
    t5 = ours(peer(1, ending=4.0))
    search = BeamSearch(beams=beams, max_tokens=30, rules=rules)
    memory_BMD, mask_BM = memory(5, 40)
    mask_BM[0, 5:] = False
    mask_BM[1, 20:] = False
    together = generate(t5, memory_BMD, mask_BM, search)
    assert len({len(video.ids) for video in together}) > 1
    for video, expected in enumerate(together):
        real_M = mask_BM[video]
        one_BMD = memory_BMD[video][real_M][None]
        (alone,) = generate(t5, one_BMD, torch.ones(1, int(real_M.sum())), search)
        assert alone.ids == expected.ids
        assert alone.score == pytest.approx(expected.score, abs=1e-5)


def test_masked_memory_may_hold_anything() -> None:
    t5, search = ours(peer(0)), BeamSearch(max_tokens=10)
    memory_BMD, mask_BM = memory(2, 20)
    expected = generate(t5, memory_BMD, mask_BM, search)
    wild_BMD = memory_BMD.masked_fill(~mask_BM[..., None], float("nan"))
    assert generate(t5, wild_BMD, mask_BM, search) == expected


def test_clearing_dead_slots_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    t5, search = ours(peer(5, ending=0.5)), BeamSearch(max_tokens=40)
    expected = generate(t5, *memory(3, 20), search)
    monkeypatch.setattr(incremental, "SLOT_STEPS", 1)
    often = generate(t5, *memory(3, 20), search)
    assert [video.ids for video in often] == [video.ids for video in expected]
    for video, other in zip(often, expected, strict=True):
        assert video.score == pytest.approx(other.score, abs=1e-5)


@pytest.mark.parametrize("beams", [1, 3])
def test_log_probabilities_are_those_of_the_model(beams: int) -> None:
    t5 = ours(peer(1)).eval()
    memory_BMD, mask_BM = memory(3, 12)
    search = BeamSearch(beams=beams, max_tokens=15, repetition_penalty=1.3)
    for video, decoded in enumerate(generate(t5, memory_BMD, mask_BM, search)):
        one = memory_BMD[video : video + 1], mask_BM[video : video + 1]
        target_BL = torch.tensor([decoded.ids])
        with torch.no_grad():
            log_BLV = t5.logits(t5.decode(*one, target_BL)).log_softmax(-1)
        log_L = log_BLV.gather(2, target_BL[..., None]).flatten()
        assert list(decoded.log_probabilities) == pytest.approx(log_L.tolist(), abs=1e-4)


def test_scores_without_penalties_are_mean_log_probabilities() -> None:
    search = BeamSearch(beams=3, max_tokens=12, rules="transformers")
    for decoded in generate(ours(peer(2)), *memory(3, 12), search):
        logs = decoded.log_probabilities
        assert decoded.score == pytest.approx(sum(logs) / len(logs), abs=1e-5)


def test_shortest_and_longest_output() -> None:
    t5 = ours(peer(0, ending=6.0))
    for beams in (1, 4):
        free = generate(t5, *memory(4, 9), BeamSearch(beams=beams, max_tokens=20))
        assert min(len(video.ids) for video in free) < 8
        search = BeamSearch(beams=beams, max_tokens=20, min_tokens=8)
        for video in generate(t5, *memory(4, 9), search):
            assert 1 not in video.ids[:8]
            assert 9 <= len(video.ids) <= 20
        search = BeamSearch(beams=beams, max_tokens=20, min_tokens=20)
        assert all(len(video.ids) == 20 for video in generate(t5, *memory(4, 9), search))


def test_no_videos() -> None:
    empty_BMD = torch.zeros(0, 3, SIZE.width)
    assert generate(ours(peer(0)), empty_BMD, torch.ones(0, 3), BeamSearch()) == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"beams": 0},
        {"max_tokens": 0},
        {"min_tokens": -1},
        {"min_tokens": 9, "max_tokens": 8},
        {"repetition_penalty": 0.0},
        {"repetition_penalty": float("nan")},
        {"length_penalty": float("inf")},
        {"max_tokens": 2, "grammar": True},
        {"rules": "other"},
    ],
)
def test_bad_search(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        BeamSearch(**wrong)


def test_bad_memory() -> None:
    t5 = ours(peer(0))
    memory_BMD, mask_BM = memory(2, 4)
    with pytest.raises(ValueError, match="empty"):
        generate(t5, memory_BMD, torch.zeros_like(mask_BM), BeamSearch())
    with pytest.raises(ValueError, match="empty"):
        generate(t5, memory_BMD[:, :0], mask_BM[:, :0], BeamSearch())
    with pytest.raises(ValueError, match="21 beams need a vocabulary"):
        generate(t5, memory_BMD, mask_BM, BeamSearch(beams=21))


@torch.no_grad()
def test_changed_weights_are_noticed() -> None:
    t5, search = ours(peer(0)), BeamSearch(beams=2, max_tokens=8)
    generate(t5, *memory(1, 6), search)
    for change in ("in place", "exchanged", "other precision"):
        if change == "in place":
            t5.shared.weight.mul_(-0.5)
            t5.decoder.block[0].layer[2].DenseReluDense.wo.weight.mul_(-2.0)
        elif change == "exchanged":
            state = {name: tensor.flip(0) for name, tensor in t5.state_dict().items()}
            t5.load_state_dict(state, assign=True)
        else:
            convert(t5, "int8")
        fresh = copy.deepcopy(t5)
        assert generate(t5, *memory(1, 6), search) == generate(fresh, *memory(1, 6), search)
