"""transformers' own T5 at the sizes of ours, and its weights in ours."""

from __future__ import annotations

import transformers
from transformers import T5ForConditionalGeneration

from starc.config import T5Config
from starc.decoder.t5 import T5


def stock(settings: T5Config) -> T5ForConditionalGeneration:
    """A random model of transformers."""
    config = transformers.T5Config(
        vocab_size=settings.vocabulary,
        d_model=settings.width,
        d_kv=settings.head_width,
        d_ff=settings.feed_forward,
        num_layers=settings.layers,
        num_decoder_layers=settings.decoder_layers,
        num_heads=settings.heads,
        dropout_rate=settings.dropout,
        feed_forward_proj=settings.feed_forward_activation,
        relative_attention_num_buckets=settings.relative_buckets,
        relative_attention_max_distance=settings.relative_distance,
        decoder_start_token_id=0,
    )
    return T5ForConditionalGeneration(config).eval()


def with_weights_of(model: T5ForConditionalGeneration, settings: T5Config) -> T5:
    """Our model with the weights of theirs."""
    t5, weights = T5(settings).eval(), model.state_dict()
    t5.load_state_dict({name: weights[name] for name in t5.state_dict()})
    return t5
