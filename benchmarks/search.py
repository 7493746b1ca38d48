"""Searching a datastore: ours against a search that normalises the datastore in every call.

    python benchmarks/search.py [--captions 1000000] [--width 768] [--queries 20] [--threads N]
        [--quick]

Prints one JSON line per claim: CPU seconds on one thread and their ratio, then wall seconds on all
threads, with the preparation (once per process) and the peak memory beside them. Best of `--runs`;
both sides run in this process, in turn, on the same captions, and must find the same ones.
"""

from __future__ import annotations

import argparse

import torch
from measure import best, peak_bytes, report
from torch import Tensor
from torch.nn.functional import normalize

from starc.retrieval.datastore import CaptionStore


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--captions", type=int, default=1_000_000)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--queries", type=int, default=20)
    parser.add_argument("--top", type=int, default=10, help="captions per query")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--quick", action="store_true", help="120,000 captions, two runs")
    options = parser.parse_args()
    if options.quick:
        options.captions, options.runs = 120_000, 2

    torch.set_num_threads(options.threads)
    generator = torch.Generator().manual_seed(0)
    embedding_ND = rows(options.captions, options.width, generator)
    query_SD = torch.randn(options.queries, options.width, generator=generator)
    store = CaptionStore([f"caption {n}" for n in range(len(embedding_ND))], embedding_ND)
    size = {name: getattr(options, name) for name in ("captions", "width", "queries", "top")}

    def ours() -> Tensor:
        return store.search(query_SD, k=options.top).index_SR

    def peer() -> Tensor:
        score_SN = normalize(query_SD, dim=1) @ normalize(embedding_ND, dim=1).T
        return score_SN.topk(options.top, dim=1).indices

    prepare = best(ours, 1)
    peak = peak_bytes()
    report(
        "search, all threads",
        **size,
        threads=options.threads,
        wall_seconds=best(ours, options.runs).wall,
        prepare_cpu_seconds=prepare.cpu,
        prepare_wall_seconds=prepare.wall,
        peak_gigabytes=peak / 1e9,
        datastore_gigabytes=embedding_ND.nbytes / 1e9,
    )
    torch.set_num_threads(1)
    our_best, peer_best = best(ours, options.runs), best(peer, max(2, options.runs // 2))
    report(
        "search, one thread, against normalising in every call",
        **size,
        cpu_seconds=our_best.cpu,
        peer_cpu_seconds=peer_best.cpu,
        ratio=peer_best.cpu / our_best.cpu,
        same=torch.equal(our_best.result, peer_best.result),
        peak_gigabytes_with_peer=peak_bytes() / 1e9,
    )


def rows(captions: int, width: int, generator: torch.Generator) -> Tensor:
    """Random unit rows, the hardest case for a search: no caption is much nearer than others."""
    embedding_ND = torch.empty(captions, width)
    for part_ND in embedding_ND.split(65_536):
        part_ND.copy_(normalize(torch.randn(part_ND.shape, generator=generator), dim=1))
    return embedding_ND


if __name__ == "__main__":
    main()
