"""A hierarchical datastore: captions, then clusters of captions, then clusters of those.

In: a CaptionStore and the number of clusters at each level. Out: HierarchicalStore, which searches
every level and gives the top-k of each, in the manner of HiCM² (the paper's datastore table). Each
cluster is represented by its medoid, the caption nearest to its centre, so a summary is always a
sentence somebody wrote; or by a summary in words of its own: HiCM²'s published pickle (read without
running it), a file per level, or any server that speaks OpenAI's `chat/completions`, whose answers
are kept, so that an interrupted build goes on. Indices run over all levels: captions first, then
the summaries.
"""

from __future__ import annotations

import json
import math
import os
import pickle
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from starc.errors import DatastoreError
from starc.files import cache, pickles
from starc.media.encoders import TextEncoder
from starc.retrieval.captions import CaptionList, read_captions, read_folder
from starc.retrieval.datastore import CaptionStore, Datastore
from starc.retrieval.search import NearestCaptions
from starc_eval.reading import parse_json, read_bytes, read_text

MEDOIDS = "medoids"
"""Summaries that are captions: the one nearest to the centre of its cluster."""
SUMMARIES = "summaries.jsonl"
_SAMPLE = 64
"""Rows per cluster from which starting centres are drawn; more brings nothing and costs a pass."""
_PART = 8192
"""Rows compared with all centres at a time."""
HICM2 = "HiCM²"
PROMPT = (
    "Write one sentence of at most 20 words that says what the sentences below have in common. "
    "Answer with the sentence alone."
)
TIMEOUT = 120.0
"""Seconds that a server may take for one answer."""
Summarise = Callable[[Sequence[str]], str]


class Clusters(NamedTuple):
    """G clusters of N rows."""

    cluster_N: Tensor
    """The cluster of each row, 0 … G-1."""
    medoid_G: Tensor
    """The row nearest to each cluster's centre."""


class HierarchicalStore(Datastore):
    """A datastore with summaries above its captions, searched at every level."""

    def __init__(
        self,
        store: CaptionStore,
        *,
        levels: Sequence[int] | None = None,
        seed: int = 0,
        medoids: Sequence[Tensor] = (),
        summaries: Sequence[CaptionStore] = (),
        source: str = MEDOIDS,
    ) -> None:
        """`levels` are the clusters per level, falling; by default an eighth and a 64th of N.

        `medoids` are the captions that serve as summaries, per level, by index, where known; or
        `summaries` are other sentences, per level, and `source` says who wrote them.
        """
        self.source = source
        self.medoids = list(medoids)
        if not self.medoids and source == MEDOIDS:
            self.medoids = _cluster_levels(store, levels, seed)
        self.stores: list[CaptionStore] = [store, *summaries]
        """The captions, then the summaries of each level, as datastores of their own."""
        for index in self.medoids:
            rows = index.tolist()
            captions = tuple(store.captions[n] for n in rows)
            videos = tuple(store.videos[n] for n in rows)
            self.stores.append(store.derived(captions, videos, store.embedding_ND[index]))
        if any(level.width != store.width for level in summaries):
            raise DatastoreError("datastore: summaries and captions of different text encoders")
        self.captions = tuple(text for level in self.stores for text in level.captions)
        self.videos = tuple(video for level in self.stores for video in level.videos)
        self.embedding_ND = torch.cat([level.embedding_ND for level in self.stores])
        self.store = self.stores[0]
        self.encoder, self.width, self.mean_D = store.encoder, store.width, store.mean_D

    @property
    def facts(self) -> dict[str, Any]:
        levels = [len(level) for level in self.stores[1:]]
        kind = {"kind": "hierarchical", "levels": levels, "summaries": self.source}
        return {**self.store.facts, **kind}

    def rebuilt(self, store: CaptionStore) -> HierarchicalStore:
        """Other captions with as many levels, in the same proportion to the captions."""
        if not self.medoids:
            raise DatastoreError(
                f"datastore: its summaries ({self.source}) are of these captions; build another"
            )
        levels = [max(1, len(index) * len(store) // len(self.store)) for index in self.medoids]
        return HierarchicalStore(store, levels=levels)

    def nearest(self, query_SD: Tensor, k: int, videos: Sequence[str | None]) -> NearestCaptions:
        """The `k` nearest of every level, captions first: R is at most k times the levels.

        A summary that is a caption of the excluded video is hidden like the caption itself; a
        level of which nothing is left is passed over.
        """
        levels: list[tuple[Tensor, Tensor]] = []
        first = 0
        for store in self.stores:
            try:
                index_SR, score_SR = store.nearest(query_SD, k, videos)
                levels.append((index_SR + first, score_SR))
            except DatastoreError:
                if store is self.store:
                    raise
            first += len(store)
        index, score = zip(*levels, strict=True)
        return NearestCaptions(torch.cat(index, dim=1), torch.cat(score, dim=1))

    def files(self, *, half: bool) -> dict[str, Callable[[Path], Any]]:
        tensors = {f"medoid_{level}": index for level, index in enumerate(self.medoids, start=1)}
        if self.medoids:
            return self.store.files(half=half, **tensors)
        records = []
        for level, store in enumerate(self.stores[1:], start=1):
            tensors[f"summary_{level}"] = store.embedding_ND
            pairs = zip(store.captions, store.videos, strict=True)
            records += [{"level": level, "caption": text, "video": video} for text, video in pairs]
        text = "".join(json.dumps(record) + "\n" for record in records)
        files = self.store.files(half=half, **tensors)
        return files | {SUMMARIES: lambda path: path.write_text(text, encoding="utf-8")}

    @classmethod
    def load(cls, folder: str | Path, *, verify: bool | None = None) -> HierarchicalStore:
        """Read what `save` wrote, without clustering again."""
        stored = read_folder(folder, verify=verify)
        below = CaptionStore.of(stored)
        source = str(stored.facts.get("summaries", MEDOIDS))
        names = sorted(name for name in stored.tensors if name.startswith(("medoid_", "summary_")))
        tensors = [stored.tensors[name] for name in names]
        if stored.facts["kind"] != "hierarchical":
            raise DatastoreError(f"{folder}: not a hierarchical datastore; read it as captions")
        if source == MEDOIDS:
            store = cls(below, medoids=tensors)
        else:
            summaries = _read_summaries(Path(folder) / SUMMARIES, below, tensors)
            store = cls(below, summaries=summaries, source=source)
        store._digest = stored.digest
        return store


def _read_summaries(path: Path, below: CaptionStore, rows: Sequence[Tensor]) -> list[CaptionStore]:
    try:
        records = [parse_json(line) for line in read_text(path).splitlines()]
        return [
            below.derived(
                tuple(record["caption"] for record in records if record["level"] == level),
                tuple(record["video"] for record in records if record["level"] == level),
                row_ND,
            )
            for level, row_ND in enumerate(rows, start=1)
        ]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DatastoreError(f"{path}: cannot be read ({error}); build it again") from None


def _cluster_levels(store: CaptionStore, levels: Sequence[int] | None, seed: int) -> list[Tensor]:
    """Medoids of each level, as rows of the store."""
    if levels is None:
        levels = sorted({max(1, len(store) // 8), max(1, len(store) // 64)}, reverse=True)
    if not levels:
        raise ValueError("a hierarchical datastore needs at least one level of clusters")
    if any(not 1 <= clusters <= below for below, clusters in pairwise((len(store), *levels))):
        raise ValueError(
            f"levels must fall from {len(store)} captions to 1 or more, got {tuple(levels)}"
        )
    index = [torch.arange(len(store), device=store.embedding_ND.device)]
    for clusters in levels:
        medoid_G = cluster_rows(store.embedding_ND[index[-1]], clusters, seed=seed).medoid_G
        index.append(index[-1][medoid_G])
    return index[1:]


@torch.no_grad()
def cluster_rows(row_ND: Tensor, clusters: int, *, iterations: int = 25, seed: int = 0) -> Clusters:
    """Spherical k-means of unit rows: the same seed gives the same clusters.

        cluster(n) = argmax_g  row_n · centre_g,      centre_g = unit mean of its rows

    Starts by k-means++; ties go to the first centre. A cluster that loses all rows is given the row
    that fits its own cluster worst, so there are as many clusters as asked for.
    """
    centre_GD = _start(row_ND, clusters, seed)
    cluster_N = torch.full((len(row_ND),), -1, dtype=torch.long, device=row_ND.device)
    for _ in range(iterations):
        before = cluster_N
        parts = [(part_ND @ centre_GD.T).max(1) for part_ND in torch.split(row_ND, _PART)]
        cluster_N = torch.cat([part.indices for part in parts])
        _refill(cluster_N, torch.cat([part.values for part in parts]), clusters)
        if torch.equal(cluster_N, before):
            break
        sum_GD = torch.zeros_like(centre_GD).index_add_(0, cluster_N, row_ND)
        centre_GD = normalize(sum_GD, dim=1)
    return Clusters(cluster_N, _medoids(row_ND, centre_GD, cluster_N))


def _start(row_ND: Tensor, clusters: int, seed: int) -> Tensor:
    """Greedy k-means++: of a few rows drawn far from the centres, the one that helps most."""
    generator = torch.Generator().manual_seed(seed)
    chosen_N = torch.randperm(len(row_ND), generator=generator)[: _SAMPLE * clusters]
    sample_ND = row_ND[chosen_N.to(row_ND.device)].cpu()
    draws = 2 + int(math.log(clusters))
    picked = [0]
    distance_N = _distance(sample_ND, sample_ND[:1])[0]
    for _ in range(clusters - 1):
        total_N = distance_N.cumsum(0)
        if total_N[-1] == 0:  # only copies of the chosen rows are left: any will do
            picked.append(next(n for n in range(len(sample_ND)) if n not in set(picked)))
            continue
        draw = torch.rand(draws, generator=generator, dtype=torch.float64) * total_N[-1]
        drawn = torch.searchsorted(total_N, draw, right=True).clamp_max(len(total_N) - 1)
        after = torch.minimum(distance_N, _distance(sample_ND, sample_ND[drawn]))
        best = int(after.sum(1).argmin())
        picked.append(int(drawn[best]))
        distance_N = after[best]
        distance_N[picked] = 0
    return sample_ND[picked].to(row_ND.device)


def _distance(row_ND: Tensor, centre_GD: Tensor) -> Tensor:
    """Half the squared distance of unit rows from each centre, in float64 [G, N]."""
    return (1 - centre_GD @ row_ND.T).clamp_min(0).double()


def _refill(cluster_N: Tensor, fit_N: Tensor, clusters: int) -> None:
    """Give each empty cluster the row that fits worst, of clusters that can spare one."""
    count_G = cluster_N.bincount(minlength=clusters).tolist()
    empty = [g for g, count in enumerate(count_G) if count == 0]
    worst = iter(fit_N.argsort(stable=True).tolist() if empty else [])
    for g in empty:
        row = next(row for row in worst if count_G[int(cluster_N[row])] > 1)
        count_G[int(cluster_N[row])] -= 1
        count_G[g] = 1
        cluster_N[row] = g


def _medoids(row_ND: Tensor, centre_GD: Tensor, cluster_N: Tensor) -> Tensor:
    """The row nearest to each centre, the first one where several are equally near."""
    parts = zip(torch.split(row_ND, _PART), torch.split(cluster_N, _PART), strict=True)
    fit_N = torch.cat([(part_ND * centre_GD[cluster]).sum(1) for part_ND, cluster in parts])
    by_fit = fit_N.argsort(descending=True, stable=True)
    order = by_fit[cluster_N[by_fit].argsort(stable=True)]
    count_G = cluster_N.bincount(minlength=len(centre_GD))
    return order[count_G.cumsum(0) - count_G]


def read_hicm2(
    path: str | Path, *, encoder: str = "openai/clip-vit-large-patch14"
) -> HierarchicalStore:
    """HiCM²'s memory, hierarchical_clustering_results_*.pkl, with the embeddings it holds.

    It keeps summaries of every level and no embeddings of the captions below them, so its first
    level takes the captions' place. Nothing in the file is executed.
    """
    path = Path(path)
    try:
        content = pickles.load(read_bytes(path, most=1 << 36))
    except OSError as error:
        raise DatastoreError(f"{path}: cannot be read ({error.strerror}); check the path") from None
    except pickle.UnpicklingError as error:
        raise DatastoreError(f"{path}: not a plain pickle ({error}); it is not read") from None
    try:
        names = sorted(content, key=lambda name: int(name.removeprefix("level_")))
        stores = []
        for name in names:
            clusters = list(content[name].values())
            rows = np.stack([np.asarray(one["clip_embedding"], np.float32) for one in clusters])
            texts = [" ".join(one["summary"].split()) for one in clusters]
            row_ND = torch.from_numpy(rows.reshape(len(texts), -1))
            stores.append(CaptionStore(texts, row_ND, encoder=encoder))
        return HierarchicalStore(stores[0], summaries=stores[1:], source=HICM2)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise DatastoreError(
            f"{path}: not HiCM²'s memory ({type(error).__name__}: {error}); expected "
            "{level_1: {cluster_0: {summary, clip_embedding, …}}, …}"
        ) from None


def with_summaries(
    store: CaptionStore, files: Sequence[Path], encoder: TextEncoder
) -> HierarchicalStore:
    """Captions with summaries from files, one per level, lowest first."""
    levels = [
        CaptionStore.build(read_captions(file), encoder, mean_D=store.mean_D) for file in files
    ]
    return HierarchicalStore(store, summaries=levels, source=", ".join(file.name for file in files))


def summarised(
    store: CaptionStore,
    levels: Sequence[int],
    encoder: TextEncoder,
    summarise: Summarise,
    source: str,
    *,
    on_progress: Callable[[int, int], None] | None = None,
) -> HierarchicalStore:
    """Captions clustered level by level, each cluster summed up by `summarise`.

    A summary of one video's captions alone belongs to that video, and is hidden with them.
    """
    below, made, total = store, list[CaptionStore](), sum(levels)
    for clusters in levels:
        cluster_N = cluster_rows(below.embedding_ND, clusters).cluster_N.tolist()
        texts, owners = [], []
        for cluster in range(clusters):
            inside = [n for n, one in enumerate(cluster_N) if one == cluster]
            texts.append(summarise([below.captions[n] for n in inside]))
            videos = {below.videos[n] for n in inside}
            owners.append(videos.pop() if len(videos) == 1 else None)
            if on_progress is not None:
                on_progress(sum(map(len, made)) + len(texts), total)
        listed = CaptionList(tuple(texts), tuple(owners))
        below = CaptionStore.build(listed, encoder, mean_D=store.mean_D)
        made.append(below)
    return HierarchicalStore(store, summaries=made, source=source)


def server(url: str, model: str) -> Summarise:
    """Asks a server that speaks OpenAI's protocol, such as http://localhost:8000/v1.

    $OPENAI_API_KEY is sent where it is set.
    """
    if not url.startswith(("http://", "https://")):
        raise DatastoreError(f"--summariser {url}: expected the URL of a server, ending in /v1")
    address = f"{url.rstrip('/')}/chat/completions"

    def summarise(texts: Sequence[str]) -> str:
        if len(texts) == 1:
            return texts[0]
        asked = [
            {"role": "system", "content": PROMPT},
            {"role": "user", "content": "\n".join(texts)},
        ]
        entry = cache.cache_folder("summaries") / f"{cache.key(model, *texts, PROMPT)}.json"
        kept = cache.read(entry)
        if isinstance(kept, str):
            return kept
        answer = _post(address, {"model": model, "messages": asked, "temperature": 0})
        try:
            text = " ".join(answer["choices"][0]["message"]["content"].split())
        except (KeyError, IndexError, TypeError, AttributeError):
            text = ""
        if not text:
            raise DatastoreError(f"{address}: no sentence in its answer ({answer!r:.80})")
        cache.write(entry, text)
        return text

    return summarise


def _post(address: str, question: dict[str, Any]) -> Any:
    headers = {"Content-Type": "application/json"}
    if secret := os.environ.get("OPENAI_API_KEY"):
        headers["Authorization"] = f"Bearer {secret}"
    request = urllib.request.Request(address, json.dumps(question).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        reason = f"{error.code} {error.read(200).decode('utf-8', 'replace')!r}"
    except (OSError, ValueError) as error:
        reason = str(error)
    raise DatastoreError(
        f"{address}: no answer ({reason}); what was summed up is kept: run this again"
    )
