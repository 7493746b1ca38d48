"""T5: published numbers, padding and batch, the chunked loss, bad input."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from starc.config import T5Config, tiny
from starc.decoder import t5 as module
from starc.decoder.t5 import T5
from support.stock_t5 import stock, with_weights_of

SMALL = T5Config(
    width=32,
    head_width=8,
    feed_forward=64,
    layers=2,
    decoder_layers=2,
    heads=4,
    text_vocabulary=120,
    bins=20,
    dropout=0.0,
)


@pytest.fixture
def small() -> T5:
    torch.manual_seed(0)
    return T5(SMALL).eval()


def published(folder: Path) -> T5:
    state = torch.load(folder / "weights.pt")["state_dict"]
    t5 = T5(tiny().t5).eval()
    t5.load_state_dict({name: state[f"t5_model.{name}"] for name in t5.state_dict()})
    return t5


def memory(videos: int, positions: int, width: int = SMALL.width) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(videos * positions)
    memory_BMD = torch.randn(videos, positions, width, generator=generator)
    return memory_BMD, torch.ones(videos, positions, dtype=torch.bool)


def ids(videos: int, length: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(2, SMALL.vocabulary, (videos, length), generator=generator)


def check_published(folder: Path, case: str) -> None:
    golden = torch.load(folder / f"case_{case}.pt")
    t5 = published(folder)
    for number, task in enumerate(("", "denoising_")):
        speech_BL = golden["inputs"][f"{task}input_tokens"]
        target_BL = golden["inputs"][f"{task}output_tokens"]
        expected = {
            name: golden["fwd"][f"{name}#{number}"]
            for name in ("t5_encoder.out", "enc_concat", "enc_mask", "logits_first8", "ce_loss")
        }
        real_BL, spoken_BL = target_BL != 0, speech_BL != 0
        memory = expected["enc_concat"], expected["enc_mask"]
        with torch.no_grad():
            speech_BLD = t5.encode(speech_BL, spoken_BL)
            logits_BLV = t5.logits(t5.decode(*memory, target_BL))
            loss = t5.loss(*memory, target_BL, real_BL, label_smoothing=0.1)
        torch.testing.assert_close(
            speech_BLD[spoken_BL], expected["t5_encoder.out"][spoken_BL], atol=1e-4, rtol=0
        )
        torch.testing.assert_close(
            logits_BLV[:, :8][real_BL[:, :8]],
            expected["logits_first8"][real_BL[:, :8]],
            atol=1e-4,
            rtol=0,
        )
        torch.testing.assert_close(loss, expected["ce_loss"], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("case", ["F100_B1", "F50_B2"])
def test_published_numbers(data: Path, case: str) -> None:
    check_published(data / "model", case)


@pytest.mark.parametrize("case", ["F100_B4", "F75_B3", "F160_B2"])
def test_more_published_numbers(shared: Path, case: str) -> None:
    check_published(shared / "parity/model", case)


def test_full_size_has_the_published_keys(shared: Path) -> None:
    lines = (shared / "parity/model/state_dict_t5base.txt").read_text().splitlines()
    names = {line.split()[0].removeprefix("t5_model.") for line in lines if "t5_model." in line}
    with torch.device("meta"):
        ours = set(T5(T5Config()).state_dict())
    assert names - ours == {
        "encoder.embed_tokens.weight",
        "decoder.embed_tokens.weight",
        "lm_head.weight",
    }
    assert ours <= names


def test_speech_does_not_depend_on_padding_or_neighbours(small: T5) -> None:
    lengths = [40, 3, 37, 0, 12]
    speech_BL = ids(5, 40)
    mask_BL = torch.arange(40) < torch.tensor(lengths)[:, None]
    with torch.no_grad():
        together_BLD = small.encode(speech_BL, mask_BL)
        for row, length in enumerate(lengths):
            assert not together_BLD[row, length:].any()
            if length:
                one_BL = speech_BL[row : row + 1, :length]
                alone_BLD = small.encode(one_BL, torch.ones_like(one_BL))
                torch.testing.assert_close(
                    together_BLD[row, :length], alone_BLD[0], atol=1e-5, rtol=1e-5
                )


def test_videos_of_similar_length_are_encoded_together(small: T5) -> None:
    lengths = torch.tensor([10, 100, 80, 0, 9])
    shapes = []
    small.encoder.register_forward_pre_hook(lambda _, given: shapes.append(given[0].shape[:2]))
    small.encode(ids(5, 100), torch.arange(100) < lengths[:, None])
    assert shapes == [(2, 100), (2, 10)]


def test_loss_is_the_plain_cross_entropy(small: T5, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOSS_TOKENS", 7)
    memory_BMD, memory_mask_BM = memory(3, 9)
    target_BL = ids(3, 10)
    real_BL = torch.arange(10) < torch.tensor([10, 4, 7])[:, None]
    memory_BMD.requires_grad_()
    grown = (small.shared.weight, memory_BMD)

    states_BLD = small.decode(memory_BMD, memory_mask_BM, target_BL)
    plain = F.cross_entropy(
        small.logits(states_BLD).flatten(0, 1),
        target_BL.masked_fill(~real_BL, -100).flatten(),
        label_smoothing=0.1,
    )
    expected = torch.autograd.grad(plain, grown)
    kept: list[torch.Size] = []

    def keep(tensor: Tensor) -> Tensor:
        kept.append(tensor.shape)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = small.loss(memory_BMD, memory_mask_BM, target_BL, real_BL, label_smoothing=0.1)
    torch.testing.assert_close(loss, plain)
    for ours, theirs in zip(torch.autograd.grad(loss, grown), expected, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-4)
    assert all(shape[-1:] != (SMALL.vocabulary,) for shape in kept)


def test_recomputing_changes_no_number() -> None:
    gradients = []
    for recompute in (False, True):
        torch.manual_seed(0)
        t5 = T5(replace(SMALL, recompute=recompute)).train()
        speech_BLD = t5.encode(ids(2, 6), torch.ones(2, 6))
        mask_BL = torch.ones(2, 6, dtype=torch.bool)
        t5.loss(speech_BLD, mask_BL, ids(2, 5), mask_BL[:, :5], label_smoothing=0.0).backward()
        gradients.append([parameter.grad for parameter in t5.parameters()])
    for plain, again in zip(*gradients, strict=True):
        torch.testing.assert_close(plain, again)


def test_time_rows_get_the_norm_of_text_rows(small: T5) -> None:
    text = SMALL.text_vocabulary
    with torch.no_grad():
        small.shared.weight[text:] *= 3
    before_VD = small.shared.weight.detach().clone()
    small.rescale_time_embeddings()
    after_VD = small.shared.weight.detach()
    norm_V = after_VD.norm(dim=1)
    torch.testing.assert_close(norm_V[text:].mean(), norm_V[:text].mean())
    torch.testing.assert_close(F.normalize(after_VD), F.normalize(before_VD))
    assert torch.equal(after_VD[:text], before_VD[:text])


def test_published_time_rows_were_rescaled(shared: Path) -> None:
    step = torch.load(shared / "parity/model/train_step_F100_B4.pt")
    state = step["state_after_adam_lr1e-3_clip1_renorm"]
    norm_V = state["t5_model.shared.weight"].norm(dim=1)
    torch.testing.assert_close(norm_V[1100:].mean(), norm_V[:1100].mean(), atol=1e-5, rtol=0)


@pytest.mark.parametrize("wrong", [-1, SMALL.vocabulary])
def test_ids_out_of_range(small: T5, wrong: int) -> None:
    with pytest.raises(ValueError, match=rf"speech ids must lie in \[0, 140\), got .*{wrong}"):
        small.encode(torch.tensor([[2, wrong]]), torch.ones(1, 2))
    with pytest.raises(ValueError, match="target ids"):
        small.decode(*memory(1, 3), torch.tensor([[wrong]]))


def test_bad_memory_and_target(small: T5) -> None:
    memory_BMD, mask_BM = memory(2, 3)
    mask_BM[1] = False
    with pytest.raises(ValueError, match="memory of video 1 in the batch is empty"):
        small.decode(memory_BMD, mask_BM, ids(2, 4))
    with pytest.raises(ValueError, match=r"memory must be \[B, M, 32\], got \(2, 3, 5\)"):
        small.decode(memory_BMD[..., :5], mask_BM, ids(2, 4))
    with pytest.raises(ValueError, match=r"memory mask must be \(2, 3\)"):
        small.decode(memory_BMD, mask_BM[:, :2], ids(2, 4))
    with pytest.raises(ValueError, match="no real token"):
        small.loss(*memory(2, 3), ids(2, 4), torch.zeros(2, 4), label_smoothing=0.1)


@pytest.mark.parametrize("activation", ["relu", "gelu_new"])
def test_stacks_are_those_of_transformers(activation: str) -> None:
    settings = replace(SMALL, decoder_layers=3, feed_forward_activation=activation)
    torch.manual_seed(0)
    theirs = stock(settings)
    for name, table in theirs.named_parameters():
        if "relative" in name:
            torch.nn.init.normal_(table, std=2.0)
    ours = with_weights_of(theirs, settings)
    # Longer than the position table reaches, with padding in the first row.
    speech_BL = torch.randint(2, settings.text_vocabulary, (2, 300))
    mask_BL = torch.ones(2, 300, dtype=torch.bool)
    mask_BL[0, 280:] = False
    with torch.no_grad():
        encoded = theirs.get_encoder()(speech_BL, attention_mask=mask_BL).last_hidden_state
        torch.testing.assert_close(
            ours.encode(speech_BL, mask_BL)[mask_BL], encoded[mask_BL], atol=2e-5, rtol=1e-4
        )
        target_BL = torch.randint(2, settings.vocabulary, (2, 260))
        wanted = theirs(encoder_outputs=(encoded,), attention_mask=mask_BL, labels=target_BL).logits
        states = ours.decode(encoded, mask_BL, target_BL)
        torch.testing.assert_close(ours.logits(states), wanted, atol=2e-5, rtol=1e-4)
