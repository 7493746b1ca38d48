"""Summaries that somebody wrote: HiCM²'s memory, files, a server that speaks OpenAI's protocol."""

from __future__ import annotations

import json
import os
import pickle
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from starc.cli import app
from starc.cli import datastore as commands
from starc.errors import DatastoreError
from starc.retrieval.captions import read_facts
from starc.retrieval.datastore import CaptionStore, open_datastore
from starc.retrieval.hierarchy import HICM2, HierarchicalStore, read_hicm2, server, summarised
from starc.training.ablations import with_hierarchy, with_own_figures
from starc.training.tables import ABLATIONS
from support.datastores import Letters

FIRST, SECOND = ["crack the eggs", "fry the onion", "serve it"], ["cook breakfast"]


def memory() -> dict[str, Any]:
    """As finch-llama_hier.py saves it."""
    generator = np.random.default_rng(0)

    def clusters(summaries: list[str], parents: list[int] | None) -> dict[str, Any]:
        return {
            f"cluster_{n}": {
                "indices": [n, n + 1],
                "sentences": [summary, summary],
                "summary": summary,
                "clip_embedding": generator.standard_normal((1, 8)).astype(np.float16),
                "parent_clusters": parents,
            }
            for n, summary in enumerate(summaries)
        }

    return {"level_1": clusters(FIRST, None), "level_2": clusters(SECOND, [0, 1, 2])}


def test_hicm2(tmp_path: Path) -> None:
    path = tmp_path / "hierarchical_clustering_results_yc2_70B.pkl"
    path.write_bytes(pickle.dumps(memory()))
    result = CliRunner().invoke(app, ["datastore", "build", str(path), "-o", str(tmp_path / "d")])
    assert result.exit_code == 0, result.output
    store = open_datastore(tmp_path / "d")
    assert isinstance(store, HierarchicalStore)
    assert list(store.captions) == FIRST + SECOND
    assert store.facts["summaries"] == HICM2 and store.encoder == "openai/clip-vit-large-patch14"
    row = torch.from_numpy(memory()["level_1"]["cluster_1"]["clip_embedding"]).float()
    nearest = store.search(row, k=1)
    assert nearest.index_SR.tolist() == [[1, 3]]
    assert float(nearest.score_SR[0, 0]) == pytest.approx(1, abs=1e-3)
    again = HierarchicalStore.load(tmp_path / "d")
    assert torch.equal(again.embedding_ND, store.embedding_ND)
    with pytest.raises(DatastoreError, match="are of these captions"):
        store.remove([0])


def test_a_memory_that_would_run_something_is_refused(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> Any:
            return os.system, (f"touch {tmp_path / 'run'}",)

    (tmp_path / "evil.pkl").write_bytes(pickle.dumps({"level_1": Evil()}))
    with pytest.raises(DatastoreError, match="not a plain pickle"):
        read_hicm2(tmp_path / "evil.pkl")
    assert not (tmp_path / "run").exists()
    (tmp_path / "other.pkl").write_bytes(pickle.dumps({"level_1": {"cluster_0": {"a": 1}}}))
    with pytest.raises(DatastoreError, match="not HiCM²'s memory"):
        read_hicm2(tmp_path / "other.pkl")


class Answers(BaseHTTPRequestHandler):
    """A language model that repeats the first sentence it is given."""

    asked: list[dict[str, Any]]
    fail = False

    def do_POST(self) -> None:
        question = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.asked.append(question | {"path": self.path, "key": self.headers["Authorization"]})
        first = question["messages"][-1]["content"].splitlines()[0]
        answer = {"choices": [{"message": {"role": "assistant", "content": f" about {first}\n"}}]}
        self.send_response(503 if type(self).fail else 200)
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def address(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[str]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr(commands, "_text_encoder", lambda name: Letters())
    Answers.asked, Answers.fail = [], False
    with HTTPServer(("127.0.0.1", 0), Answers) as listening:
        threading.Thread(target=listening.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{listening.server_port}/v1"
        listening.shutdown()


def test_a_server_sums_up_and_its_answers_are_kept(address: str, tmp_path: Path) -> None:
    texts = [f"{verb} {noun}" for verb in ("aaaa", "zzzz") for noun in ("b", "bb", "c", "d", "e")]
    records = [{"caption": text, "video": text[:4]} for text in texts * 2]
    (tmp_path / "c.json").write_text(json.dumps(records))
    arguments = ["datastore", "build", str(tmp_path / "c.json"), "--levels", "2"]
    arguments += ["--summariser", address, "--summariser-model", "small", "-o", str(tmp_path / "d")]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, (result.output, result.exception)
    store = open_datastore(tmp_path / "d")
    assert isinstance(store, HierarchicalStore)
    assert [len(level) for level in store.stores] == [20, 2, 1]
    assert sorted(caption[:10] for caption in store.stores[1].captions) == [
        "about aaaa",
        "about zzzz",
    ]
    # A summary of one video's captions is that video's, and hidden with them.
    assert sorted(map(str, store.stores[1].videos)) == ["aaaa", "zzzz"]
    assert store.stores[2].videos == (None,)
    assert store.facts["summaries"] == f"small at {address}"
    first = Answers.asked[0]
    assert (first["path"], first["model"], first["key"]) == (
        "/v1/chat/completions",
        "small",
        "Bearer secret",
    )
    questions = len(Answers.asked)
    Answers.fail = True  # all is known by now
    assert CliRunner().invoke(app, arguments).exit_code == 0
    assert len(Answers.asked) == questions
    with pytest.raises(DatastoreError, match="503"):
        server(address, "small")(["something", "new"])


def test_summaries_from_files(address: str, tmp_path: Path) -> None:
    (tmp_path / "c.txt").write_text("\n".join(FIRST))
    (tmp_path / "one.txt").write_text("\n".join(FIRST[:2]))
    (tmp_path / "two.json").write_text(json.dumps(SECOND))
    arguments = ["datastore", "build", tmp_path / "c.txt", "-o", tmp_path / "d"]
    arguments += ["--summaries", tmp_path / "one.txt", "--summaries", tmp_path / "two.json"]
    assert CliRunner().invoke(app, list(map(str, arguments))).exit_code == 0
    store = open_datastore(tmp_path / "d")
    assert list(store.captions) == FIRST + FIRST[:2] + SECOND
    assert read_facts(tmp_path / "d")["levels"] == [2, 1]
    assert not Answers.asked


def test_the_papers_figure_stands_beside_the_papers_method_only(tmp_path: Path) -> None:
    row = next(row for row in ABLATIONS["datastore"].rows if row.datastore == "hierarchical")
    (tmp_path / "m.pkl").write_bytes(pickle.dumps(memory()))
    read_hicm2(tmp_path / "m.pkl").save(tmp_path / "hicm2")
    assert with_own_figures(row, tmp_path / "hicm2") == row
    CaptionStore(FIRST, torch.eye(3)).save(tmp_path / "own")
    made = with_hierarchy(ABLATIONS["datastore"], {}, tmp_path / "own", tmp_path)
    ours = with_own_figures(row, made["hierarchical"])
    assert (ours.name, ours.paper) == ("hierarchical (medoids)", {})
    levels = summarised(CaptionStore(FIRST, torch.eye(26)[:3]), [1], Letters(), " ".join, "me")
    levels.save(tmp_path / "mine")
    assert with_own_figures(row, tmp_path / "mine").paper == {}
    other = ABLATIONS["datastore"].rows[0]
    assert with_own_figures(other, tmp_path / "own") == other
