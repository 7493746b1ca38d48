"""The reader gives the states of the whole model, whatever else is read at the same time."""

from __future__ import annotations

import dataclasses

import torch

from starc.decoder.llama import Llama, merge
from starc.decoder.reader import Reader, Text
from support.stock_llama import TINY

ATOL = 1e-5


def model() -> Llama:
    torch.manual_seed(0)
    llama = Llama(dataclasses.replace(TINY, lora=2, lora_from=1)).eval()
    for name, parameter in llama.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.1)
    merge(llama)
    return llama


@torch.no_grad()
def test_texts_at_their_own_pace_get_the_states_of_the_model() -> None:
    llama = model()
    reader, first, second = Reader.of(llama), torch.arange(5, 17), torch.arange(40, 49)
    whole = [llama(llama.embed(token_L[None]))[0] for token_L in (first, second)]
    one, other = Text(reader, 12), Text(reader, 20)
    states = reader.read([one], [first[:7].tolist()])
    torch.testing.assert_close(states[0], whole[0][6], atol=ATOL, rtol=0)
    states = reader.read([other, one], [second[:8].tolist(), [12]])
    torch.testing.assert_close(states, torch.stack([whole[1][7], whole[0][7]]), atol=ATOL, rtol=0)
    states = reader.read([one, other], [first[8:].tolist(), [48]])
    torch.testing.assert_close(states, torch.stack([whole[0][11], whole[1][8]]), atol=ATOL, rtol=0)
    assert (one.length, other.length) == (12, 9)
    torch.testing.assert_close(reader.logits(states), llama.logits(states))


@torch.no_grad()
def test_the_first_layers_alone() -> None:
    llama = model()
    ids = list(range(3, 15))
    found_LD = Reader.of(llama).first_layers(ids, 2)
    llama.model.layers = llama.model.layers[:2]
    wanted_LD = llama(llama.embed(torch.tensor([ids])))[0]
    torch.testing.assert_close(llama.model.norm(found_LD), wanted_LD, atol=ATOL, rtol=0)
