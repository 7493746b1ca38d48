"""Beam search against transformers' own `generate`, on the same weights and the same memory.

    python benchmarks/decoding.py --tokens 256

T5-base size, random weights, one thread, CPU seconds, everything in one run. The end id is banned,
so both decode all tokens. One JSON line per contender: seconds, ratio to transformers, and whether
its ids are the same. transformers needs about 1.6 s per token here; --tokens 32 is a short trial.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import T5ForConditionalGeneration
from transformers.modeling_outputs import BaseModelOutput

from starc.config import BeamSearch, T5Config
from starc.decoder.beam_search import Decoded, generate
from starc.decoder.precision import convert
from starc.decoder.t5 import T5


def peer(settings: T5Config) -> T5ForConditionalGeneration:
    """transformers' model of the same size, with random weights."""
    config = transformers.T5Config(
        vocab_size=settings.vocabulary,
        d_model=settings.width,
        d_kv=settings.head_width,
        d_ff=settings.feed_forward,
        num_layers=settings.layers,
        num_decoder_layers=settings.decoder_layers,
        num_heads=settings.heads,
        decoder_start_token_id=0,
    )
    return T5ForConditionalGeneration(config).eval()


def ours(model: T5ForConditionalGeneration, settings: T5Config) -> T5:
    """Our model with the weights of `model`."""
    t5 = T5(settings).eval()
    weights = model.state_dict()
    t5.load_state_dict({name: weights[name] for name in t5.state_dict()})
    return t5


def timed(call: Callable[[], Any]) -> tuple[Any, float]:
    """The result and its CPU seconds."""
    begin = time.process_time()
    result = call()
    return result, time.process_time() - begin


def peer_generate(
    model: T5ForConditionalGeneration, memory_BMD: Tensor, mask_BM: Tensor, search: BeamSearch
) -> tuple[list[tuple[int, ...]], list[float]]:
    """Ids and scores of transformers."""
    output = model.generate(
        encoder_outputs=BaseModelOutput(last_hidden_state=memory_BMD),
        attention_mask=mask_BM.long(),
        num_beams=search.beams,
        max_new_tokens=search.max_tokens,
        min_new_tokens=search.min_tokens,
        do_sample=False,
        return_dict_in_generate=True,
        output_scores=True,
    )
    ids = [tuple(row) for row in output.sequences[:, 1:].tolist()]
    return ids, output.sequences_scores.tolist()


def agreement(decoded: list[Decoded], ids: list[tuple[int, ...]]) -> float:
    """Share of positions with the same id."""
    same = [
        mine == other
        for video, expected in zip(decoded, ids, strict=True)
        for mine, other in zip(video.ids, expected, strict=False)
    ]
    return sum(same) / len(same)


def main() -> None:
    """Run all contenders."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--videos", type=int, default=4)
    parser.add_argument("--beams", type=int, default=4)
    parser.add_argument("--memory", type=int, default=1205, help="positions of the decoder memory")
    parser.add_argument("--layers", type=int, default=12)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    settings = T5Config(layers=options.layers, decoder_layers=options.layers)
    model = peer(settings)
    t5 = ours(model, settings)
    memory_BMD = torch.randn(options.videos, options.memory, settings.width)
    mask_BM = torch.ones(options.videos, options.memory, dtype=torch.bool)
    search = BeamSearch(
        beams=options.beams,
        max_tokens=options.tokens,
        min_tokens=options.tokens,
        rules="transformers",
    )
    facts = {"tokens": options.tokens, "videos": options.videos, "beams": options.beams}
    (ids, scores), peer_seconds = timed(lambda: peer_generate(model, memory_BMD, mask_BM, search))
    print(json.dumps({"what": "transformers", **facts, "cpu_seconds": round(peer_seconds, 2)}))
    for precision in ("float32", "int8"):
        convert(t5, precision)
        decoded, seconds = timed(lambda: generate(t5, memory_BMD, mask_BM, search))
        gap = max(abs(mine.score - other) for mine, other in zip(decoded, scores, strict=True))
        report = {
            "what": f"starc {precision}",
            **facts,
            "cpu_seconds": round(seconds, 2),
            "ratio": round(peer_seconds / seconds, 2),
            "ids_equal": [video.ids for video in decoded] == ids,
            "ids_agree": round(agreement(decoded, ids), 4),
            "score_gap": gap,
        }
        print(json.dumps(report), flush=True)


if __name__ == "__main__":
    main()
