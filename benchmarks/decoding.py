"""Beam search against transformers' own `generate`, on the same weights and the same memory.

    python benchmarks/decoding.py [--tokens 256] [--case 1,4,505 ...] [--quick]

T5-base size, random weights, one thread, CPU seconds, everything in one run; both are warmed by a
few tokens first. A case is videos, beams, positions of the memory; without --case it is one video
with beams (short and long memory), one video greedily, and four videos. The end id is banned, so
both decode all tokens. One JSON line per contender: seconds, ratio to transformers, and whether its
ids are the same (a share of them for the precisions that are not exact). "floor" is what float32
cannot beat here: the bytes of weights and memory keys that one token needs, at the bandwidth with
which this processor sums an array. With four videos and 1205 positions transformers needs over a
second per token.
"""

from __future__ import annotations

import argparse
import copy
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from measure import best, report
from torch import Tensor
from transformers import T5ForConditionalGeneration
from transformers.modeling_outputs import BaseModelOutput

from starc.config import BeamSearch, T5Config
from starc.decoder.beam_search import Decoded, generate
from starc.decoder.precision import convert, has_bfloat16
from starc.decoder.t5 import T5

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from support.stock_t5 import stock, with_weights_of

CASES = ((1, 4, 505), (1, 4, 128), (1, 1, 505), (4, 4, 128), (4, 4, 505), (4, 4, 1205))
"""Videos, beams and positions of the memory, the common ones first."""
WARM = 3
"""Tokens of the run before the one that counts."""


def peer_generate(
    model: T5ForConditionalGeneration, memory_BMD: Tensor, mask_BM: Tensor, search: BeamSearch
) -> list[tuple[int, ...]]:
    """Ids of transformers."""
    output = model.generate(
        encoder_outputs=BaseModelOutput(last_hidden_state=memory_BMD),
        attention_mask=mask_BM.long(),
        num_beams=search.beams,
        max_new_tokens=search.max_tokens,
        min_new_tokens=search.min_tokens,
        do_sample=False,
    )
    return [tuple(row) for row in output[:, 1:].tolist()]


def agreement(decoded: list[Decoded], ids: list[tuple[int, ...]]) -> float:
    """Share of positions with the same id."""
    same = [
        mine == other
        for video, expected in zip(decoded, ids, strict=True)
        for mine, other in zip(video.ids, expected, strict=False)
    ]
    return sum(same) / len(same)


def bandwidth() -> float:
    """Bytes a second at which one thread reads an array that no cache holds."""
    x_N = torch.ones(2**26)
    return x_N.nbytes / best(lambda: x_N.sum(), 5).cpu


def floor_seconds(settings: T5Config, videos: int, positions: int, tokens: int) -> float:
    """Reading all weights of the decoder and the keys and values of the memory for each token."""
    inner = settings.heads * settings.head_width
    layer = settings.width * (6 * inner + 2 * settings.feed_forward)
    keys = 2 * videos * positions * inner
    numbers = settings.decoder_layers * (layer + keys) + settings.width * settings.vocabulary
    return 4 * numbers * tokens / bandwidth()


def compare(
    model: T5ForConditionalGeneration,
    t5: T5,
    case: Sequence[int],
    tokens: int,
    precisions: Sequence[str],
) -> None:
    """One case, all contenders."""
    videos, beams, positions = case
    memory_BMD = torch.randn(videos, positions, t5.settings.width)
    mask_BM = torch.ones(videos, positions, dtype=torch.bool)
    search = BeamSearch(beams=beams, max_tokens=tokens, min_tokens=tokens, rules="transformers")
    short = replace(search, max_tokens=WARM, min_tokens=WARM)
    facts = {"videos": videos, "beams": beams, "memory": positions, "tokens": tokens}
    peer_generate(model, memory_BMD, mask_BM, short)
    peer = best(lambda: peer_generate(model, memory_BMD, mask_BM, search), 1)
    report("transformers", **facts, cpu_seconds=peer.cpu)
    for precision in precisions:
        rough = convert(copy.deepcopy(t5), precision)
        generate(rough, memory_BMD, mask_BM, short)
        ours = best(partial(generate, rough, memory_BMD, mask_BM, search), 1)
        report(
            f"starc {precision}",
            **facts,
            cpu_seconds=ours.cpu,
            ratio=peer.cpu / ours.cpu,
            floor=floor_seconds(t5.settings, videos, positions, tokens),
            ids_equal=[video.ids for video in ours.result] == peer.result,
            ids_agree=agreement(ours.result, peer.result),
        )


def main() -> None:
    """Run all cases."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--case", action="append", help="videos,beams,memory")
    parser.add_argument("--precision", nargs="+", default=["float32", "bfloat16", "int8"])
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--quick", action="store_true", help="a small model, to see it run")
    options = parser.parse_args()
    cases: Sequence[tuple[int, ...]] = CASES
    if options.quick:
        options.tokens, options.layers, cases = 8, 1, [(1, 4, 100), (2, 1, 50)]
    if options.case:
        cases = [tuple(map(int, case.split(","))) for case in options.case]
    torch.set_num_threads(1)
    torch.manual_seed(0)
    settings = T5Config(layers=options.layers, decoder_layers=options.layers)
    model = stock(settings)
    t5 = with_weights_of(model, settings)
    precisions = [
        name
        for name in options.precision
        if name != "bfloat16" or has_bfloat16(torch.device("cpu"))
    ]
    for case in cases:
        compare(model, t5, case, options.tokens, precisions)


if __name__ == "__main__":
    main()
