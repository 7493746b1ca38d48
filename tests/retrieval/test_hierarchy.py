"""The hierarchical datastore: clusters that were planted are found, every level is searched."""

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import normalize

from starc.errors import DatastoreError
from starc.retrieval.datastore import CaptionStore, open_datastore
from starc.retrieval.hierarchy import HierarchicalStore, cluster_rows


def planted(groups: int, size: int, width: int = 32, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Unit rows around a few directions, and the direction each belongs to."""
    generator = torch.Generator().manual_seed(seed)
    centre_GD = normalize(torch.randn(groups, width, generator=generator), dim=1)
    group_N = torch.arange(groups).repeat(size)
    noise_ND = torch.randn(len(group_N), width, generator=generator)
    return normalize(centre_GD[group_N] + 0.03 * noise_ND, dim=1), group_N


def planted_store() -> CaptionStore:
    rows, group_N = planted(6, 20)
    captions = [f"caption {n} of group {group}" for n, group in enumerate(group_N.tolist())]
    return CaptionStore(captions, rows, videos=[f"video{n % 5}" for n in range(120)], encoder="t")


def test_planted_clusters_are_found():
    rows, group_N = planted(6, 20)
    cluster_N, medoid_G = cluster_rows(rows, 6, seed=0)
    pairs = set(zip(cluster_N.tolist(), group_N.tolist(), strict=True))
    assert len(pairs) == 6
    for g in range(6):
        inside = (cluster_N == g).nonzero().flatten()
        centre_D = normalize(rows[inside].sum(0), dim=0)
        assert medoid_G[g] == inside[(rows[inside] @ centre_D).argmax()]


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 60), st.integers(1, 60), st.booleans(), st.integers(0, 99))
def test_every_cluster_has_its_medoid(captions: int, clusters: int, copies: bool, seed: int):
    rows = torch.randn(captions, 5, generator=torch.Generator().manual_seed(seed))
    rows = normalize(torch.ones_like(rows) if copies else rows, dim=1)
    clusters = min(clusters, captions)
    cluster_N, medoid_G = cluster_rows(rows, clusters, seed=seed)
    assert sorted(set(cluster_N.tolist())) == list(range(clusters))
    assert cluster_N[medoid_G].tolist() == list(range(clusters))
    again = cluster_rows(rows, clusters, seed=seed)
    assert torch.equal(again.cluster_N, cluster_N) and torch.equal(again.medoid_G, medoid_G)


def test_search_gives_the_best_of_every_level():
    store = planted_store()
    tree = HierarchicalStore(store, levels=[30, 6])
    assert [len(level) for level in tree.stores] == [120, 30, 6]
    assert len(tree) == len(tree.captions) == len(tree.embedding_ND) == 156
    query_SD = store.embedding_ND[[0, 7, 50]]
    nearest = tree.search(query_SD, k=3)
    assert nearest.index_SR.shape == (3, 9)
    assert torch.equal(nearest.index_SR[:, :3], store.search(query_SD, k=3).index_SR)
    assert ((nearest.index_SR[:, 3:6] >= 120) & (nearest.index_SR[:, 3:6] < 150)).all()
    assert (nearest.index_SR[:, 6:] >= 150).all()
    score_SR = (tree.embedding_ND[nearest.index_SR] @ query_SD[:, :, None]).squeeze(2)
    assert torch.allclose(score_SR, nearest.score_SR, atol=1e-6)
    for query, group in enumerate((0, 7 % 6, 50 % 6)):  # the summary is of the query's own group
        assert tree.captions[nearest.index_SR[query, 6]].endswith(f"group {group}")
    summaries = [tree.captions[n] for n in range(120, 156)]
    assert set(summaries) <= set(store.captions)
    assert set(summaries[30:]) <= set(summaries[:30])


def test_exclude_holds_at_every_level():
    tree = HierarchicalStore(planted_store(), levels=[30, 6])
    nearest = tree.search(tree.embedding_ND[:4], k=3, exclude="video2")
    assert all(tree.videos[n] != "video2" for n in nearest.index_SR.flatten().tolist())
    one = CaptionStore(["a", "b", "c"], torch.eye(3), videos=["x", "x", "y"])
    alone = HierarchicalStore(one, levels=[1])
    owner = alone.videos[3]
    assert owner is not None
    nearest = alone.search(torch.ones(1, 3), k=5, exclude=owner)  # no summary is left
    assert (nearest.index_SR < 3).all()


def test_levels():
    store = planted_store()
    assert [len(level) for level in HierarchicalStore(store).stores] == [120, 15, 1]
    single = HierarchicalStore(CaptionStore(["a"], torch.ones(1, 2)))
    assert single.search(torch.ones(1, 2), k=4).index_SR.tolist() == [[0, 1]]
    for levels in ([], [0], [200], [10, 20]):
        with pytest.raises(ValueError, match="level"):
            HierarchicalStore(store, levels=levels)


def test_edited_captions_keep_their_levels():
    tree = HierarchicalStore(planted_store(), levels=[30, 6])
    fewer = tree.remove(videos=["video0", "video1"])
    assert [len(level) for level in fewer.stores] == [72, 18, 3]
    assert len(fewer.listing().captions) == 72


def test_save_and_load(tmp_path: Path):
    tree = HierarchicalStore(planted_store(), levels=[30, 6], seed=3)
    tree.save(tmp_path / "d")
    again = open_datastore(tmp_path / "d")
    assert isinstance(again, HierarchicalStore)
    assert (again.captions, again.videos) == (tree.captions, tree.videos)
    assert torch.equal(again.embedding_ND, tree.embedding_ND)
    assert CaptionStore.load(tmp_path / "d").captions == tree.captions[:120]
    planted_store().save(tmp_path / "flat")
    with pytest.raises(DatastoreError, match="not a hierarchical datastore"):
        HierarchicalStore.load(tmp_path / "flat")
    with pytest.raises(DatastoreError, match="the query has 3"):
        again.search(torch.ones(1, 3), k=1)
