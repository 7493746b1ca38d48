"""Searching a datastore: ours against a search that normalises the datastore in every call.

    python benchmarks/search.py [--captions 1000000] [--width 768] [--queries 20] [--threads N]

Prints one JSON line per claim: CPU seconds on one thread and their ratio, then wall seconds on all
threads, with the preparation (once per process) and the peak memory beside them. Best of `--runs`;
both sides run in this process, in turn, on the same captions, and must find the same ones.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from collections.abc import Callable

import torch
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
    options = parser.parse_args()

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

    prepare_cpu, prepare_wall, _ = best(ours, runs=1)
    gigabytes = peak_gigabytes()
    _, wall, _ = best(ours, runs=options.runs)
    say(
        "search, all threads",
        **size,
        threads=options.threads,
        wall_seconds=round(wall, 4),
        prepare_cpu_seconds=round(prepare_cpu, 2),
        prepare_wall_seconds=round(prepare_wall, 2),
        peak_gigabytes=gigabytes,
        datastore_gigabytes=round(embedding_ND.nbytes / 1e9, 2),
    )
    torch.set_num_threads(1)
    ours_cpu, _, ours_found = best(ours, runs=options.runs)
    peer_cpu, _, peer_found = best(peer, runs=max(2, options.runs // 2))
    say(
        "search, one thread, against normalising in every call",
        **size,
        cpu_seconds=round(ours_cpu, 4),
        peer_cpu_seconds=round(peer_cpu, 4),
        ratio=round(peer_cpu / ours_cpu, 1),
        same=torch.equal(ours_found, peer_found),
        peak_gigabytes_with_peer=peak_gigabytes(),
    )


def rows(captions: int, width: int, generator: torch.Generator) -> Tensor:
    """Random unit rows, the hardest case for a search: no caption is much nearer than others."""
    embedding_ND = torch.empty(captions, width)
    for part_ND in embedding_ND.split(65_536):
        part_ND.copy_(normalize(torch.randn(part_ND.shape, generator=generator), dim=1))
    return embedding_ND


def best(work: Callable[[], Tensor], *, runs: int) -> tuple[float, float, Tensor]:
    """Least CPU seconds and least wall seconds of several runs, and the last result."""
    cpu, wall = [], []
    for _ in range(runs):
        cpu_start, wall_start = time.process_time(), time.perf_counter()
        result = work()
        cpu.append(time.process_time() - cpu_start)
        wall.append(time.perf_counter() - wall_start)
    return min(cpu), min(wall), result


def peak_gigabytes() -> float:
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9, 2)


def say(claim: str, **figures: object) -> None:
    print(json.dumps({"claim": claim, **figures}), flush=True)


if __name__ == "__main__":
    main()
