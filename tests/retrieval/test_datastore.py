"""The datastore: retrieval, saving, editing, bad input."""

import pickle
from pathlib import Path

import pytest
import torch
from torch.nn.functional import normalize

from starc.errors import DatastoreError
from starc.retrieval import captions as captions_module
from starc.retrieval import datastore, search
from starc.retrieval.approximate import FaissStore
from starc.retrieval.captions import TENSORS, CaptionList, duplicates, read_captions, same_text
from starc.retrieval.datastore import CaptionStore, joined, open_datastore, overlap
from starc.retrieval.hierarchy import HierarchicalStore
from support.datastores import Letters, random_store


def test_exclude_hides_the_captions_of_a_video():
    rows = torch.tensor([[1.0, 0], [0.9, 0.1], [0.5, 0.5], [0, 1]])
    store = CaptionStore(list("abcd"), rows, videos=["v_x", "x.mp4", "y", None])
    query_SD = torch.tensor([[1.0, 0], [1.0, 0]])
    assert store.search(query_SD[:1], k=2, exclude="x").index_SR.tolist() == [[2, 3]]
    assert store.search(query_SD[:1], k=2, exclude="unknown").index_SR.tolist() == [[0, 1]]
    nearest = store.search(query_SD, k=4, exclude=["x", None])
    assert nearest.index_SR.tolist() == [[2, 3], [0, 1]]  # as many as the poorer query has
    with pytest.raises(ValueError, match="one video per query"):
        store.search(query_SD, k=1, exclude=["x"])
    own = CaptionStore(["a"], rows[:1], videos=["x"])
    with pytest.raises(DatastoreError, match="all 1 captions belong to the video"):
        own.search(query_SD, k=1, exclude="x")


def test_retrieval_equals_the_published_code(shared: Path):
    folder = shared / "parity/model"
    store = CaptionStore.from_published(folder / "bank_embeds.pt")
    assert (len(store), store.width) == (500, 64)
    checked = 0
    for path in sorted(folder.glob("case_*.pt")):
        case = torch.load(path, weights_only=True)
        for golden in (case[part] for part in ("fwd", "gen") if part in case):
            passes = sorted(name for name in golden if name.startswith("ret_queries#"))
            queries = [query_SD for name in passes for query_SD in golden[name]]
            for n, query_SD in enumerate(queries):
                index_SR, score_SR = store.search(query_SD, k=10)
                assert torch.equal(index_SR, golden[f"ret_topk_idx#{n}"]), (path.name, n)
                wanted_SR = golden.get(f"ret_topk_val#{n}", score_SR)  # one case has none
                assert torch.allclose(score_SR, wanted_SR, atol=1e-6)
                checked += 1
    assert checked > 20


@pytest.mark.parametrize("half", [False, True])
def test_save_and_load(tmp_path: Path, half: bool):
    captions = ["plain", "two\nlines", "ünïcode \u2028 \ud800", 'quote "']
    videos = ["a", None, "b", "a"]
    rows = torch.randn(4, 26, generator=torch.Generator().manual_seed(0))
    store = CaptionStore(captions, rows, videos=videos, encoder="t", mean_D=torch.ones(26))
    folder = tmp_path / "new" / "datastore"
    store.save(folder, half=half)
    again = CaptionStore.load(folder)
    assert (again.captions, again.videos) == (tuple(captions), tuple(videos))
    assert (again.encoder, again.version) == ("t", store.version)
    assert again.mean_D is not None and torch.equal(again.mean_D, torch.ones(26))
    if half:
        assert torch.allclose(again.embedding_ND, store.embedding_ND, atol=1e-3)
        assert torch.allclose(again.embedding_ND.norm(dim=1), torch.ones(4))
    else:
        assert torch.equal(again.embedding_ND, store.embedding_ND)
    again.save(folder)  # over itself, while its embeddings are mapped
    assert len(open_datastore(folder)) == 4
    assert sorted(path.name for path in folder.parent.iterdir()) == ["datastore"]


def test_a_kill_between_two_renames_loses_no_datastore(tmp_path: Path):
    random_store(20, 8).save(tmp_path / "d")
    (tmp_path / "d").rename(tmp_path / ".d.old")
    assert len(open_datastore(tmp_path / "d")) == 20


def test_a_damaged_folder_is_refused(tmp_path: Path):
    folder = tmp_path / "d"
    random_store(20, 8).save(folder)
    facts = (folder / "datastore.json").read_text()
    for name in ("embeddings.safetensors", "captions.jsonl"):
        whole = (folder / name).read_bytes()
        (folder / name).write_bytes(whole[:-5])
        with pytest.raises(DatastoreError, match=f"{name}: damaged"):
            CaptionStore.load(folder)
        with pytest.raises(DatastoreError):
            CaptionStore.load(folder, verify=False)
        (folder / name).unlink()
        with pytest.raises(DatastoreError, match=f"{name} is missing"):
            CaptionStore.load(folder)
        (folder / name).write_bytes(whole)
    for broken, message in [
        ("{", "not valid JSON"),
        ("[]", "version None"),
        (facts.replace('"starc_datastore": 1', '"starc_datastore": 9'), "version 9"),
        ('{"starc_datastore": 1}', "incomplete"),
        (facts.replace('"kind": "captions"', '"kind": "other"'), "unknown kind"),
    ]:
        (folder / "datastore.json").write_text(broken)
        with pytest.raises(DatastoreError, match=message):
            open_datastore(folder)
    (folder / "datastore.json").unlink()
    with pytest.raises(DatastoreError, match="not a datastore"):
        CaptionStore.load(folder)
    with pytest.raises(DatastoreError, match="files that are not ours"):
        random_store(2, 8).save(folder)
    with pytest.raises(DatastoreError, match="not a datastore"):
        CaptionStore.load(tmp_path / "nowhere")


@pytest.mark.parametrize("name", ["captions.jsonl", "datastore.json"])
def test_json_that_is_too_deep_is_one_line(tmp_path: Path, name: str):
    CaptionStore(["a"], torch.ones(1, 4)).save(tmp_path / "store")
    (tmp_path / "store" / name).write_text("[" * 100_000)
    with pytest.raises(DatastoreError, match=name):
        open_datastore(tmp_path / "store", verify=False)


def test_only_a_folder_of_our_own_files_is_replaced(tmp_path: Path):
    ours = random_store(20, 8)
    for name, broken in {
        "someone's": '{"name": "my database"}',
        "empty": "{}",
        "no list": '{"starc_datastore": 1}',
        "not JSON": "{",
    }.items():
        folder = tmp_path / name
        folder.mkdir()
        (folder / "datastore.json").write_text(broken)
        with pytest.raises(DatastoreError, match=r"files that are not ours \(datastore.json\)"):
            ours.save(folder)
        assert (folder / "datastore.json").read_text() == broken
    ours.save(tmp_path / "d")
    (tmp_path / "d/notes.txt").write_text("mine")
    with pytest.raises(DatastoreError, match=r"files that are not ours \(notes.txt\)"):
        ours.save(tmp_path / "d")
    assert (tmp_path / "d/notes.txt").read_text() == "mine"
    (tmp_path / "d/notes.txt").unlink()
    random_store(3, 8).save(tmp_path / "d")
    assert len(open_datastore(tmp_path / "d")) == 3
    (tmp_path / "file").write_text("x")
    with pytest.raises(DatastoreError, match="not a folder"):
        ours.save(tmp_path / "file")


def test_another_datastore_has_another_fingerprint(tmp_path: Path):
    store = random_store(40, 8)
    others = [random_store(40, 8, seed=1), store.remove([0]), HierarchicalStore(store)]
    others += [FaissStore(store), FaissStore(store, effort=1, lists=8)]
    names = [other.fingerprint for other in (store, *others)]
    assert len(set(names)) == 6
    assert random_store(40, 8).fingerprint == store.fingerprint == store.to("cpu").fingerprint
    for kind in (store, HierarchicalStore(store), FaissStore(store)):
        kind.save(tmp_path / "d")
        loaded = open_datastore(tmp_path / "d")
        assert loaded.fingerprint == open_datastore(tmp_path / "d").fingerprint
        assert (loaded.exact.fingerprint == loaded.fingerprint) == (loaded.exact is loaded)
        random_store(40, 8, seed=2).save(tmp_path / "d")
        assert open_datastore(tmp_path / "d").fingerprint != loaded.fingerprint


def test_real_annotations_and_their_leak(shared: Path):
    train = read_captions(shared / "data/yc2/vid2seq_train.json")
    val = read_captions(shared / "data/yc2/vid2seq_val.json")
    assert len(train.captions) == 9586
    store = CaptionStore.build(train, Letters(), batch=4096)
    leaked = overlap(store, val.captions)
    assert 0 < len(leaked) < 500  # short sentences that cooks say in many videos
    clean = store.remove(captions=leaked)
    assert not overlap(clean, val.captions)


def test_build_reports_and_centres():
    seen: list[tuple[int, int]] = []
    texts = ["abc", "", "abd", "xyz"]
    store = CaptionStore.build(
        texts, Letters(), centre=True, batch=2, on_progress=lambda *at: seen.append(at)
    )
    assert seen == [(2, 3), (3, 3)]
    rows = Letters().encode(["abc", "abd", "xyz"])
    assert store.mean_D is not None and torch.allclose(store.mean_D, rows.mean(0))
    assert torch.allclose(store.embedding_ND, normalize(rows - rows.mean(0), dim=1))
    more = store.add(["qqq", " "], Letters())
    assert len(more) == 4
    expected = normalize(Letters().encode(["qqq"]) - store.mean_D, dim=1)
    assert torch.allclose(more.embedding_ND[3:], expected)


def test_add_and_remove():
    store = CaptionStore.build(CaptionList.of(["one", "two", "TWO!"], ["a", "b", None]), Letters())
    more = store.add(CaptionList.of(["three"], ["c"]), Letters())
    assert (len(store), more.captions[3], more.videos[3]) == (3, "three", "c")
    assert torch.equal(more.embedding_ND[:3], store.embedding_ND)
    assert store.add([" "], Letters()) is store
    assert more.remove([0, 3]).captions == ("two", "TWO!")
    assert more.remove(videos=["v_a"], captions=["Two."]).captions == ("three",)
    with pytest.raises(ValueError, match=r"\[0, 3\)"):
        store.remove([3])
    with pytest.raises(DatastoreError, match="no captions of video 'z'"):
        store.remove(videos=["z"])
    with pytest.raises(DatastoreError, match="no captions in it"):
        store.remove(range(3))
    other = Letters()
    other.name = "other"
    with pytest.raises(DatastoreError, match="text encoder 'letters'"):
        store.add(["x"], other)


def test_duplicates_and_overlap():
    captions = ["Cut it.", "cut  it", "fry", "fry", "Fry!", "…", "!"]
    store = CaptionStore(captions, torch.ones(7, 2))
    found = duplicates(store.captions)
    assert found.exact == [[2, 3]]
    assert found.near == [[0, 1], [2, 3, 4]]
    assert overlap(store, ["CUT IT", "boil", "CUT IT", "FRY"]) == ["CUT IT", "FRY"]
    assert same_text("Sauté,  the ONION's") == "sauté the onion s"


def test_joined():
    a, b = random_store(3, 4, encoder="t"), random_store(2, 4, 1, encoder="t", videos=["x", "y"])
    both = joined([a, b])
    assert both.videos == (None, None, None, "x", "y")
    assert torch.equal(both.embedding_ND[3:], b.embedding_ND)
    for other, message in [
        (random_store(2, 5, encoder="t"), "width 5"),
        (random_store(2, 4, encoder="u"), "encoder 'u'"),
        (random_store(2, 4, encoder="t", mean_D=torch.ones(4)), "centred otherwise"),
    ]:
        with pytest.raises(DatastoreError, match=f"datastore 2: {message}"):
            joined([a, other])
    with pytest.raises(ValueError, match="at least one"):
        joined([])


def test_bad_input():
    store = random_store(5, 8, encoder="t")
    with pytest.raises(DatastoreError, match=r"width 8 \(text encoder 't'\), the query has 9"):
        store.search(torch.ones(1, 9), k=1)
    with pytest.raises(DatastoreError, match="query 1 is not finite"):
        store.search(torch.tensor([[1.0] * 8, [float("nan")] * 8]), k=1)
    with pytest.raises(ValueError, match="k must be at least 1"):
        store.search(torch.ones(1, 8), k=0)
    with pytest.raises(ValueError, match=r"\[segments, width\]"):
        store.search(torch.ones(8), k=1)
    assert store.search(torch.ones(0, 8), k=3).index_SR.shape == (0, 3)
    nowhere = store.search(torch.zeros(1, 8), k=2)
    assert torch.equal(nowhere.index_SR[0], torch.zeros(5).topk(2).indices)
    assert nowhere.score_SR.tolist() == [[0, 0]]
    with pytest.raises(DatastoreError, match="no captions"):
        CaptionStore([], torch.empty(0, 8))
    with pytest.raises(DatastoreError, match="no captions to embed"):
        CaptionStore.build(["", " "], Letters())
    with pytest.raises(DatastoreError, match="caption 1 is not finite"):
        CaptionStore(["a", "b"], torch.tensor([[1.0], [torch.inf]]))
    with pytest.raises(ValueError, match="one row per caption"):
        CaptionStore(["a"], torch.ones(2, 3))
    with pytest.raises(ValueError, match="one video per caption"):
        CaptionStore(["a"], torch.ones(1, 3), videos=["a", "b"])


def test_a_store_travels_between_processes(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(search, "HALF_FROM", 10)
    store = random_store(50, 8)
    query_SD = torch.ones(1, 8)
    before = store.search(query_SD, k=3)
    again = pickle.loads(pickle.dumps(store))
    assert torch.equal(again.search(query_SD, k=3).index_SR, before.index_SR)


def test_what_search_prepares_is_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(search, "HALF_FROM", 10)
    monkeypatch.setattr(search, "has_bfloat16", lambda: True)
    monkeypatch.setattr(datastore, "HALF_FROM", 10)
    monkeypatch.setattr(captions_module, "MAPPED", 10)
    store = random_store(50, 8)
    store.save(tmp_path / "store")
    loaded = CaptionStore.load(tmp_path / "store")
    monkeypatch.setattr(search.HalfScan, "prepare", None)  # not called again
    query_SD = torch.ones(1, 8)
    wanted_N = (store.embedding_ND @ query_SD[0]).argsort(descending=True)
    assert torch.equal(loaded.search(query_SD, k=3).index_SR[0], wanted_N[:3])
    assert isinstance(loaded._scan, search.HalfScan)
    assert torch.equal(loaded.embedding_ND, store.embedding_ND)
    tensors = tmp_path / "store" / TENSORS
    tensors.write_bytes(tensors.read_bytes()[:-1] + b"\1")
    CaptionStore.load(tmp_path / "store")  # large files are mapped, not read
    with pytest.raises(DatastoreError, match="checksum differs"):
        CaptionStore.load(tmp_path / "store", verify=True)


def test_unit_rows_are_neither_copied_nor_changed():
    rows = normalize(torch.randn(10, 8, generator=torch.Generator().manual_seed(0)), dim=1)
    assert CaptionStore(["x"] * 10, rows).embedding_ND.data_ptr() == rows.data_ptr()
