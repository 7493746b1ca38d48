"""Summaries above captions that are written, not chosen: by HiCM², by a person, by a model.

A hierarchical datastore (hierarchy.py) whose clusters are summed up in words of their own: HiCM²'s
published pickle (read without running it), a file per level, or any server that speaks OpenAI's
`chat/completions`. Answers of a server are kept, so that an interrupted build goes on.
"""

from __future__ import annotations

import json
import os
import pickle
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from starc.errors import DatastoreError
from starc.files import cache, pickles
from starc.media.encoders import TextEncoder
from starc.retrieval.captions import CaptionList, read_captions
from starc.retrieval.datastore import CaptionStore
from starc.retrieval.hierarchy import HierarchicalStore, cluster_rows

HICM2 = "HiCM²"
PROMPT = (
    "Write one sentence of at most 20 words that says what the sentences below have in common. "
    "Answer with the sentence alone."
)
TIMEOUT = 120.0
"""Seconds that a server may take for one answer."""
Summarise = Callable[[Sequence[str]], str]


def read_hicm2(
    path: str | Path, *, encoder: str = "openai/clip-vit-large-patch14"
) -> HierarchicalStore:
    """HiCM²'s memory, hierarchical_clustering_results_*.pkl, with the embeddings it holds.

    It keeps summaries of every level and no embeddings of the captions below them, so its first
    level takes the captions' place. Nothing in the file is executed.
    """
    path = Path(path)
    try:
        content = pickles.load(path.read_bytes())
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
