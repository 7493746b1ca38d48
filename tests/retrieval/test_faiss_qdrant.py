"""Approximate and shared datastores: the same answers as exact search, or their recall."""

import sys
from pathlib import Path

import pytest
import torch
from torch.nn.functional import normalize

from starc.errors import DatastoreError, MissingExtra
from starc.retrieval.approximate import FaissStore, QdrantStore, measure_recall
from starc.retrieval.captions import CaptionList
from starc.retrieval.datastore import CaptionStore, open_datastore
from support.datastores import Letters


def clustered(captions: int = 3000, width: int = 32) -> CaptionStore:
    generator = torch.Generator().manual_seed(0)
    centre_GD = normalize(torch.randn(40, width, generator=generator), dim=1)
    which = torch.randint(40, (captions,), generator=generator)
    rows = centre_GD[which] + 0.1 * torch.randn(captions, width, generator=generator)
    videos = [f"video{n % 9}" if n % 3 else None for n in range(captions)]
    return CaptionStore([f"caption {n}" for n in range(captions)], rows, videos=videos, encoder="t")


def queries(store: CaptionStore, count: int = 7) -> torch.Tensor:
    noise = torch.randn(count, store.width, generator=torch.Generator().manual_seed(5))
    return store.embedding_ND[:count] + 0.1 * noise


class TestFaiss:
    def test_recall_is_measured_and_true(self):
        store = clustered()
        found = FaissStore(store)
        assert found.recall.value > 0.9
        assert str(found.recall).startswith("recall@10 = ")
        query_SD = queries(store, 100)
        again = measure_recall(found.search(query_SD, k=10), store.search(query_SD, k=10))
        assert again.queries == 100 and again.value > 0.9

    def test_visiting_every_list_is_exact(self):
        store = clustered()
        found = FaissStore(store, lists=20, effort=20)
        assert found.recall.value == 1
        query_SD = queries(store)
        exclude = ["video1", None, "video2", None, "video1", "nobody", None]
        for options in ({}, {"exclude": "video4"}, {"exclude": exclude}):
            exact, near = (it.search(query_SD, k=10, **options) for it in (store, found))
            assert torch.equal(exact.index_SR, near.index_SR)
            assert torch.equal(exact.score_SR, near.score_SR)

    def test_a_narrow_search_misses_and_says_so(self):
        generator = torch.Generator().manual_seed(0)
        rows = torch.randn(2000, 16, generator=generator)
        found = FaissStore(CaptionStore(["x"] * 2000, rows), lists=100, effort=1)
        assert 0 < found.recall.value < 0.9

    def test_queries_that_find_too_little_are_searched_exactly(self):
        store = clustered(300)
        found = FaissStore(store, lists=100, effort=1)
        nearest = found.search(queries(store), k=250)
        assert torch.equal(nearest.index_SR, store.search(queries(store), k=250).index_SR)
        assert found.search(queries(store), k=999).index_SR.shape == (7, 300)

    def test_save_and_load(self, tmp_path: Path):
        store = clustered(500)
        found = FaissStore(store, lists=10, effort=4)
        found.save(tmp_path / "d")
        again = open_datastore(tmp_path / "d")
        assert isinstance(again, FaissStore)
        assert (again.recall, again.effort, len(again)) == (found.recall, 4, 500)
        nearest = found.search(queries(store), k=5)
        assert torch.equal(again.search(queries(store), k=5).index_SR, nearest.index_SR)
        assert CaptionStore.load(tmp_path / "d").captions == store.captions
        (tmp_path / "d/index.faiss").write_bytes(b"junk")
        with pytest.raises(DatastoreError, match="damaged"):
            FaissStore.load(tmp_path / "d")
        with pytest.raises(DatastoreError, match="no faiss index that can be read"):
            FaissStore.load(tmp_path / "d", verify=False)

    def test_bad_input(self):
        store = clustered(50)
        found = FaissStore(store)
        with pytest.raises(DatastoreError, match="the query has 3"):
            found.search(torch.ones(1, 3), k=1)
        with pytest.raises(ValueError, match="k must be"):
            found.search(torch.ones(1, 32), k=0)
        owned = FaissStore(CaptionStore(["a"], torch.ones(1, 2), videos=["x"]))
        with pytest.raises(DatastoreError, match="belong to the video"):
            owned.search(torch.ones(1, 2), k=1, exclude="x")


class TestQdrant:
    def test_the_same_as_a_local_datastore(self, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr("starc.retrieval.approximate._BATCH", 150)
        store = clustered(400)
        shared = QdrantStore.upload(store, ":memory:")
        assert (len(shared), shared.encoder, shared.width) == (400, "t", 32)
        query_SD = queries(store)
        exclude = ["v_video1", None, "video2", None, "video1", "nobody", None]
        for options in ({}, {"exclude": "video4"}, {"exclude": exclude}):
            local, remote = (it.search(query_SD, k=10, **options) for it in (store, shared))
            assert torch.equal(local.index_SR, remote.index_SR)
            assert torch.allclose(local.score_SR, remote.score_SR, atol=1e-6)
            found_SRD = shared.embedding_ND[remote.index_SR]
            assert torch.allclose(found_SRD, store.embedding_ND[remote.index_SR])
        assert shared.captions[3] == "caption 3"
        assert shared.captions[-1] == "caption 399"
        assert list(shared.captions[1:4]) == ["caption 1", "caption 2", "caption 3"]
        assert shared.recall.value == 1
        with pytest.raises(IndexError):
            shared.captions[400]
        shared.close()

    def test_more_than_is_kept_and_more_than_there_are(self, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr("starc.retrieval.approximate._KEPT", 5)
        store = clustered(60)
        shared = QdrantStore.upload(store, ":memory:")
        nearest = shared.search(queries(store), k=99)
        assert torch.equal(nearest.index_SR, store.search(queries(store), k=99).index_SR)
        every = torch.arange(60).view(3, 20)
        assert torch.allclose(shared.embedding_ND[every], store.embedding_ND[every])
        shared.close()

    # the client leaves its lock file open when it is refused
    @pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
    def test_a_folder_is_shared_by_one_process_after_another(self, tmp_path: Path):
        store = clustered(30)
        first = QdrantStore.upload(store, tmp_path / "q", "mine")
        first.close()
        again = QdrantStore(tmp_path / "q", "mine")
        assert len(again) == 30
        assert again.search(queries(store), k=2).index_SR.shape == (7, 2)
        with pytest.raises(DatastoreError, match="such a collection already"):
            QdrantStore.upload(store, again.client, "mine")
        assert len(QdrantStore.upload(clustered(10), again.client, "mine", replace=True)) == 10
        with pytest.raises(DatastoreError, match="did not answer as expected"):
            QdrantStore(tmp_path / "q", "mine")  # one process at a time
        again.close()

    def test_captions_are_added_and_removed_without_gaps(self, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr("starc.retrieval.approximate._BATCH", 4)
        texts = [f"{'abcdefgh'[n]} caption" for n in range(8)]
        store = CaptionStore.build(
            CaptionList.of(texts, ["x", None, "y", "x", "z", "y", "x", "z"]), Letters(), centre=True
        )
        shared = QdrantStore.upload(store, ":memory:")
        assert shared.mean_D is not None and store.mean_D is not None
        assert torch.equal(shared.mean_D, store.mean_D)
        local, shared = store.remove(videos=["v_x"]), shared.remove(videos=["v_x"])
        local = local.add(CaptionList.of(["new"], ["x"]), Letters())
        shared = shared.add(CaptionList.of(["new"], ["x"]), Letters())
        assert len(shared) == len(local) == 6
        assert sorted(shared.captions) == sorted(shared.captions[:]) == sorted(local.captions)
        video_of = dict(zip(local.captions, local.videos, strict=True))
        listed = shared.listing()
        assert dict(zip(listed.captions, listed.videos, strict=True)) == video_of
        for n, caption in enumerate(local.captions):
            index_SR, score_SR = shared.search(local.embedding_ND[n : n + 1], k=1)
            assert shared.captions[int(index_SR)] == caption
            assert score_SR.item() == pytest.approx(1)
        whole = shared.exact
        assert sorted(whole.captions) == sorted(local.captions) and whole.encoder == "letters"
        with pytest.raises(DatastoreError, match="no captions would be left"):
            shared.remove(captions=local.captions)
        with pytest.raises(DatastoreError, match="no captions of video 'w'"):
            shared.remove(videos=["w"])
        assert len(QdrantStore(shared.client)) == 6
        shared.close()

    def test_a_folder_that_names_a_collection(self, tmp_path: Path):
        shared = QdrantStore.upload(clustered(10), tmp_path / "q", "mine")
        shared.save(tmp_path / "d")
        shared.close()
        address = f"qdrant:{tmp_path}/q/mine"
        for name in (tmp_path / "d", address, Path(address)):
            store = open_datastore(name)
            assert isinstance(store, QdrantStore) and len(store) == 10
            assert store.fingerprint is None
            store.close()
        memory = QdrantStore.upload(clustered(10), ":memory:")
        with pytest.raises(DatastoreError, match="no address to write"):
            memory.save(tmp_path / "e")
        memory.close()

    def test_names_of_collections(self, monkeypatch: pytest.MonkeyPatch):
        opened: list[tuple[str, str]] = []
        monkeypatch.setattr(
            "starc.retrieval.approximate.QdrantStore", lambda *place: opened.append(place)
        )
        url = "qdrant:http://host:6333/steps"
        for name in (url, Path(url), "qdrant:a/b/steps", "qdrant:/a/steps"):
            open_datastore(name)
        assert opened == [
            ("http://host:6333", "steps"),
            ("http://host:6333", "steps"),
            ("a/b", "steps"),
            ("/a", "steps"),
        ]
        for name in ("qdrant:", "qdrant:steps", "qdrant:a/", "qdrant:http://host"):
            with pytest.raises(DatastoreError, match="expected qdrant:LOCATION/COLLECTION"):
                open_datastore(name)

    def test_foreign_collections_and_folders(self, tmp_path: Path):
        from qdrant_client import QdrantClient, models

        client = QdrantClient(":memory:")
        size = models.VectorParams(size=2, distance=models.Distance.DOT)
        client.create_collection("named", vectors_config={"a": size})
        with pytest.raises(DatastoreError, match="did not answer as expected"):
            QdrantStore(client, "named")
        client.create_collection("bare", vectors_config=size)
        client.upsert("bare", [models.PointStruct(id=0, vector=[1.0, 0.0])])
        with pytest.raises(DatastoreError, match="point 0 has no caption"):
            QdrantStore(client, "bare").search(torch.ones(1, 2), k=1)
        client.close()
        (tmp_path / "thesis.tex").write_text("x")
        with pytest.raises(DatastoreError, match="not a folder of Qdrant"):
            QdrantStore.upload(clustered(10), tmp_path)
        with pytest.raises(DatastoreError, match="not a folder of Qdrant"):
            QdrantStore(tmp_path / "nowhere")
        assert [file.name for file in tmp_path.iterdir()] == ["thesis.tex"]

    def test_bad_input(self):
        from qdrant_client import QdrantClient

        client = QdrantClient(":memory:")
        with pytest.raises(DatastoreError, match="check the URL and that the collection exists"):
            QdrantStore(client, "nothing")
        with pytest.raises(DatastoreError, match="check the URL"):
            QdrantStore("http://127.0.0.1:9", "nothing")
        owned = CaptionStore(["a"], torch.ones(1, 2), videos=["x"])
        shared = QdrantStore.upload(owned, client)
        with pytest.raises(DatastoreError, match="nothing to retrieve"):
            shared.search(torch.ones(1, 2), k=1, exclude="x")
        with pytest.raises(DatastoreError, match="the query has 3"):
            shared.search(torch.ones(1, 3), k=1)
        client.close()


def test_what_to_install_is_said(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "faiss", None)
    monkeypatch.setitem(sys.modules, "qdrant_client", None)
    store = clustered(10)
    with pytest.raises(MissingExtra, match=r"starc\[faiss\]"):
        FaissStore(store)
    with pytest.raises(MissingExtra, match=r"starc\[qdrant\]"):
        QdrantStore(":memory:")
    with pytest.raises(MissingExtra, match=r"starc\[qdrant\]"):
        QdrantStore.upload(store, ":memory:")
