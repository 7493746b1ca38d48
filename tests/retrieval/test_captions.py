"""Captions out of files: every format, the published arrays, and files that mean harm."""

import json
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from starc.errors import AnnotationError, DatastoreError
from starc.retrieval.captions import read_captions
from starc.retrieval.datastore import CaptionStore
from support.datastores import Letters


def test_build_from_every_kind_of_file(tmp_path: Path):
    encoder = Letters()
    (tmp_path / "a.txt").write_text("\ufeffcut the onion\n\n  fry it \r\n", encoding="utf-8")
    (tmp_path / "list.json").write_text('["cut the onion", " ", "fry it"]')
    (tmp_path / "own.jsonl").write_text(
        '{"caption": "cut the onion", "video": "x"}\n{"caption": "fry it", "video": null}\n'
    )
    (tmp_path / "anet.json").write_text(
        json.dumps(
            {
                "v_x": {
                    "duration": 9,
                    "timestamps": [[0, 1], [1, 2]],
                    "sentences": ["cut the onion", "fry it"],
                }
            }
        )
    )
    step = {"segment": [0, 1], "sentence": "cut the onion"}
    (tmp_path / "yc2.json").write_text(
        json.dumps(
            {
                "database": {
                    "x": {"subset": "training", "duration": 9, "annotations": [step]},
                    "y": {
                        "subset": "validation",
                        "duration": 9,
                        "annotations": [{"segment": [0, 1], "sentence": "fry it"}],
                    },
                }
            }
        )
    )
    for name in ("a.txt", "list.json", "own.jsonl", "anet.json", "yc2.json"):
        store = CaptionStore.build(read_captions(tmp_path / name), encoder, batch=1)
        assert store.captions == ("cut the onion", "fry it"), name
        assert store.encoder == "letters"
        assert store.search(encoder.encode(["FRY it"]), k=1).index_SR.tolist() == [[1]]
    assert read_captions(tmp_path / "a.txt").blank == 2
    assert read_captions(tmp_path / "anet.json").videos == ("x", "x")
    assert read_captions(tmp_path / "own.jsonl").videos == ("x", None)
    assert read_captions(tmp_path / "yc2.json", subset="training").captions == ("cut the onion",)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b" \n\n", "no captions in it"),
        ("a.txt", b"\xff\xfe", "not a text file"),
        ("a.txt", b"\xff\xfe\x00", "it holds zero bytes"),
        ("a.json", b"{", "not valid JSON"),
        ("a.jsonl", b'{"caption": "a"}\n{"caption": 1}\n', "record 2 needs text"),
        ("a.json", b'["a", 1]', "not a format we know"),
        ("a.json", b"[]", "not a format we know"),
    ],
)
def test_bad_caption_files(tmp_path: Path, name: str, content: bytes, message: str):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises((DatastoreError, AnnotationError), match=message):
        read_captions(path)
    with pytest.raises(DatastoreError, match="cannot be read"):
        read_captions(tmp_path / "nowhere.txt")


def published(folder: Path, rows: np.ndarray, sentences: object) -> CaptionStore:
    np.save(folder / "x_clip_token_embeds.npy", rows)
    path = folder / "x_scene_sentences.npy"
    if isinstance(sentences, np.ndarray):
        np.save(path, sentences, allow_pickle=True)
    else:
        path = path.with_suffix(".json")
        path.write_text(json.dumps(sentences))
    return CaptionStore.from_published(folder / "x_clip_token_embeds.npy", path)


def test_published_arrays(tmp_path: Path):
    rows = np.random.default_rng(0).normal(size=(3, 1, 8)).astype(np.float16)
    words = ["one", "two", "thrée"]
    mixed = np.array([np.str_("one"), "two", "thrée"], dtype=object)
    for sentences in (words, np.array(words), np.array(words, dtype=object), mixed):
        store = published(tmp_path, rows, sentences)
        assert list(store.captions) == words
        assert store.width == 8
    assert published(tmp_path, rows[:, 0].astype(np.float32), words).width == 8
    unnamed = CaptionStore.from_published(tmp_path / "x_clip_token_embeds.npy")
    assert unnamed.captions == ("#0", "#1", "#2")
    torch.save({"embeds": torch.ones(2, 1, 4)}, tmp_path / "x.pt")
    assert CaptionStore.from_published(tmp_path / "x.pt").width == 4


class Bomb:
    def __reduce__(self):
        return (Path.touch, (Path("exploded"),))


def test_published_files_never_run_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    rows = np.ones((1, 4), dtype=np.float32)
    with pytest.raises(DatastoreError, match="wants to call"):
        published(tmp_path, rows, np.array([Bomb()], dtype=object))
    torch.save(Bomb(), tmp_path / "x.pt")
    (tmp_path / "y.pt").write_bytes(pickle.dumps(Bomb(), protocol=2))
    np.save(tmp_path / "z.npy", np.array([Bomb()], dtype=object), allow_pickle=True)
    for name in ("x.pt", "y.pt", "z.npy"):
        with pytest.raises(DatastoreError, match="cannot be read as an array"):
            CaptionStore.from_published(tmp_path / name)
    assert not (tmp_path / "exploded").exists()


def test_bad_published_files(tmp_path: Path):
    rows = np.ones((2, 4), dtype=np.float32)
    for sentences, message in [
        (["a"], "1 sentences for 2 embeddings"),
        ({"a": 1}, "expected a list of sentences"),
        (np.array([["a"], ["b", "c"]], dtype=object), "expected a list of sentences"),
        (np.array([1, 2]), "expected a list of sentences"),
    ]:
        with pytest.raises(DatastoreError, match=message):
            published(tmp_path, rows, sentences)
    with pytest.raises(DatastoreError, match=r"expected embeddings \[captions, width\]"):
        published(tmp_path, np.ones((2, 3, 4), dtype=np.float32), ["a", "b"])
    with pytest.raises(DatastoreError, match="expected numbers"):
        published(tmp_path, np.array(["a", "b"]), ["a", "b"])
    whole = tmp_path / "x_clip_token_embeds.npy"
    np.save(whole, rows)
    whole.write_bytes(whole.read_bytes()[:-9])
    with pytest.raises(DatastoreError, match="cannot be read"):
        CaptionStore.from_published(whole)
    (tmp_path / "s.npy").write_bytes(b"junk")
    np.save(whole, rows)
    with pytest.raises(DatastoreError, match="save the sentences as a JSON list"):
        CaptionStore.from_published(whole, tmp_path / "s.npy")


def test_coco_and_cc3m(tmp_path: Path) -> None:
    """captions_train2017.json, and Train_GCC-training.tsv: a caption, a tab, an address."""
    coco = {
        "info": {},
        "licenses": [],
        "images": [{"id": 9, "file_name": "9.jpg"}],
        "annotations": [
            {"image_id": 9, "id": 1, "caption": "A bicycle replica.\n"},
            {"image_id": 9, "id": 2, "caption": "A cat on a car"},
        ],
    }
    (tmp_path / "coco.json").write_text(json.dumps(coco))
    assert read_captions(tmp_path / "coco.json").captions == (
        "A bicycle replica.",
        "A cat on a car",
    )
    coco["annotations"] = [{"image_id": 9, "bbox": [0, 0, 1, 1]}]  # instances_train2017.json
    (tmp_path / "coco.json").write_text(json.dumps(coco))
    with pytest.raises(DatastoreError, match="record 1 needs text as caption"):
        read_captions(tmp_path / "coco.json")
    lines = ["a very typical bus station\thttp://lh6.example/x.jpg", "caption\turl", "no address"]
    (tmp_path / "gcc.tsv").write_text("\n".join(lines) + "\n")
    assert read_captions(tmp_path / "gcc.tsv").captions == (
        "a very typical bus station",
        "no address",
    )
