"""transformers' own Llama at the sizes of ours, with our weights, and a tokenizer for it."""

from __future__ import annotations

import torch
import transformers
from tokenizers import Tokenizer, pre_tokenizers
from transformers import LlamaForCausalLM

from starc.config import LlamaConfig
from starc.decoder.llama import Llama
from starc.decoder.pretrained import bpe_tokenizer

TINY = LlamaConfig(
    width=48, feed_forward=64, layers=3, heads=6, key_value_heads=2, head_width=8, words=260
)


def byte_tokenizer() -> Tokenizer:
    """Bytes, and some merges of letters."""
    pieces = ["<|end|>", *sorted(pre_tokenizers.ByteLevel.alphabet()), "ad", "add", "he"]
    vocabulary = {piece: n for n, piece in enumerate(pieces)}
    return bpe_tokenizer(vocabulary, [("a", "d"), ("ad", "d"), ("h", "e")], ["<|end|>"])


def pair(settings: LlamaConfig = TINY) -> tuple[Llama, LlamaForCausalLM]:
    """Ours and theirs with the same random weights."""
    torch.manual_seed(0)
    theirs = LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=settings.words,
            hidden_size=settings.width,
            intermediate_size=settings.feed_forward,
            num_hidden_layers=settings.layers,
            num_attention_heads=settings.heads,
            num_key_value_heads=settings.key_value_heads,
            head_dim=settings.head_width,
            rms_norm_eps=settings.norm_epsilon,
            rope_parameters={"rope_type": "default", "rope_theta": settings.rope_base},
            tie_word_embeddings=True,
        )
    ).eval()
    ours = Llama(settings).eval()
    with torch.no_grad():
        for parameter in ours.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    missing, extra = theirs.load_state_dict(ours.state_dict(), strict=False)
    assert missing == ["lm_head.weight"] and not extra
    return ours, theirs
