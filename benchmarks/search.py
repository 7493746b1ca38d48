"""Searching a datastore: ours against plain torch, the first call and a stored datastore included.

    python benchmarks/search.py [--captions 1000000] [--width 768] [--queries 20] [--threads N]
        [--quick]

Prints one JSON line per claim: CPU seconds on one thread of a search, of the first one and of the
second (which prepares the rows), of torch with rows that are normalised in every call, as
published, and of torch with rows that are kept normalised; wall seconds on all threads; loading a
stored datastore in a fresh process, its memory, and its first search. Best of `--runs`; all run in
turn on the same captions and must find the same ones.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile

import torch
from measure import best, peak_bytes, report, resident_bytes
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
    parser.add_argument("--stored", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.stored:
        return stored(options.stored, options.queries, options.top)
    if options.quick:
        options.captions, options.runs = 120_000, 2

    generator = torch.Generator().manual_seed(0)
    embedding_ND = rows(options.captions, options.width, generator)
    query_SD = torch.randn(options.queries, options.width, generator=generator)
    store = CaptionStore([f"caption {n}" for n in range(len(embedding_ND))], embedding_ND)
    size = {name: getattr(options, name) for name in ("captions", "width", "queries", "top")}

    def ours() -> Tensor:
        return store.search(query_SD, k=options.top).index_SR

    def normalising() -> Tensor:
        score_SN = normalize(query_SD, dim=1) @ normalize(embedding_ND, dim=1).T
        return score_SN.topk(options.top, dim=1).indices

    def keeping() -> Tensor:
        score_SN = normalize(query_SD, dim=1) @ embedding_ND.T
        return score_SN.topk(options.top, dim=1).indices

    torch.set_num_threads(1)
    first, second = best(ours, 1), best(ours, 1)
    peak = peak_bytes()
    again = best(ours, options.runs)
    normalised, kept = (best(peer, max(2, options.runs // 2)) for peer in (normalising, keeping))
    report(
        "search, one thread",
        **size,
        cpu_seconds=again.cpu,
        first_cpu_seconds=first.cpu,
        second_cpu_seconds=second.cpu,
        normalising_cpu_seconds=normalised.cpu,
        keeping_cpu_seconds=kept.cpu,
        ratio=normalised.cpu / again.cpu,
        first_ratio=normalised.cpu / first.cpu,
        kept_ratio=kept.cpu / again.cpu,
        same=torch.equal(again.result, normalised.result),
        peak_gigabytes=peak / 1e9,
        load=os.getloadavg()[0],
    )
    torch.set_num_threads(options.threads)
    report(
        "search, all threads",
        **size,
        threads=options.threads,
        wall_seconds=best(ours, options.runs).wall,
    )
    with tempfile.TemporaryDirectory() as folder:
        store.save(folder)
        script = [sys.executable, __file__, "--stored", folder, "--top", str(options.top)]
        subprocess.run([*script, "--queries", str(options.queries)], check=True)


def stored(folder: str, queries: int, top: int) -> None:
    """A stored datastore in a fresh process: loading it, and the first search."""
    torch.set_num_threads(1)
    before = resident_bytes()
    loaded = best(lambda: CaptionStore.load(folder), 1)
    held = resident_bytes() - before
    query_SD = torch.randn(queries, loaded.result.width)
    first = best(lambda: loaded.result.search(query_SD, k=top), 1)
    report(
        "stored datastore, one thread",
        captions=len(loaded.result),
        load_cpu_seconds=loaded.cpu,
        first_cpu_seconds=first.cpu,
        loaded_gigabytes=held / 1e9,
        searched_gigabytes=(resident_bytes() - before) / 1e9,
    )


def rows(captions: int, width: int, generator: torch.Generator) -> Tensor:
    """Random unit rows, the hardest case for a search: no caption is much nearer than others."""
    embedding_ND = torch.empty(captions, width)
    for part_ND in embedding_ND.split(65_536):
        part_ND.copy_(normalize(torch.randn(part_ND.shape, generator=generator), dim=1))
    return embedding_ND


if __name__ == "__main__":
    main()
