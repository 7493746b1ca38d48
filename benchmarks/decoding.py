"""Beam search against transformers' own `generate`, on the same weights and the same memory.

    python benchmarks/decoding.py [--tokens 256] [--quick]

T5-base size, random weights, one thread, CPU seconds, everything in one run. The end id is banned,
so both decode all tokens. One JSON line per contender: seconds, ratio to transformers, and whether
its ids are the same. transformers needs about 1.6 s per token here; --tokens 32 is a short trial.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch
from measure import best, report
from torch import Tensor
from transformers import T5ForConditionalGeneration
from transformers.modeling_outputs import BaseModelOutput

from starc.config import BeamSearch, T5Config
from starc.decoder.beam_search import Decoded, generate
from starc.decoder.precision import convert

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from support.stock_t5 import stock, with_weights_of


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
    parser.add_argument("--quick", action="store_true", help="a small model, to see it run")
    options = parser.parse_args()
    if options.quick:
        options.tokens, options.memory, options.layers = 8, 100, 1
    torch.set_num_threads(1)
    torch.manual_seed(0)
    settings = T5Config(layers=options.layers, decoder_layers=options.layers)
    model = stock(settings)
    t5 = with_weights_of(model, settings)
    memory_BMD = torch.randn(options.videos, options.memory, settings.width)
    mask_BM = torch.ones(options.videos, options.memory, dtype=torch.bool)
    search = BeamSearch(
        beams=options.beams,
        max_tokens=options.tokens,
        min_tokens=options.tokens,
        rules="transformers",
    )
    facts = {"tokens": options.tokens, "videos": options.videos, "beams": options.beams}
    peer = best(lambda: peer_generate(model, memory_BMD, mask_BM, search), 1)
    ids, scores = peer.result
    report("transformers", **facts, cpu_seconds=peer.cpu)
    for precision in ("float32", "int8"):
        convert(t5, precision)
        ours = best(lambda: generate(t5, memory_BMD, mask_BM, search), 1)
        decoded = ours.result
        report(
            f"starc {precision}",
            **facts,
            cpu_seconds=ours.cpu,
            ratio=peer.cpu / ours.cpu,
            ids_equal=[video.ids for video in decoded] == ids,
            ids_agree=agreement(decoded, ids),
            score_gap=max(abs(a.score - b) for a, b in zip(decoded, scores, strict=True)),
        )


if __name__ == "__main__":
    main()
