"""Only regular files of a stated size are read, and never all of what cannot be text."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from starc.errors import AnnotationError, DatastoreError, SpeechError, VideoError
from starc.inference.jobs import find_videos
from starc.media.subtitles import read_sentences
from starc.retrieval.captions import read_captions
from starc_eval import reading
from starc_eval.annotations import read_annotations
from starc_eval.reading import read_bytes, read_text


def test_a_file_is_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"\xef\xbb\xbf" + "häh\n".encode() * 500_000)
    assert read_text(path) == "häh\n" * 500_000
    assert len(read_bytes(path)) == path.stat().st_size


def test_what_is_no_regular_file_of_that_size(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "eight").write_bytes(b"12345678")
    for path in (tmp_path / "pipe", Path("/dev/zero"), tmp_path):
        with pytest.raises(OSError, match=r"regular file|directory"):
            read_bytes(path)
    assert read_bytes(tmp_path / "eight", most=8) == b"12345678"
    with pytest.raises(OSError, match="larger than"):
        read_bytes(tmp_path / "eight", most=7)


def test_a_sparse_file_is_given_up_at_its_first_piece(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "PIECE", 1000)
    path = tmp_path / "a.json"
    with path.open("wb") as file:
        file.truncate(1 << 30)
        taken: list[int] = []
        usual = os.fdopen

        class Counting:
            def __init__(self, handle: int, mode: str) -> None:
                self.file = usual(handle, mode)

            def __enter__(self) -> Counting:
                return self

            def __exit__(self, *_: object) -> None:
                self.file.close()

            def read(self, size: int) -> bytes:
                taken.append(size)
                return self.file.read(size)

        monkeypatch.setattr(os, "fdopen", Counting)
        with pytest.raises(OSError, match="zero bytes"):
            read_text(path)
    assert taken == [1000]


@pytest.mark.parametrize("name", ["a.json", "a.jsonl", "a.txt", "a.srt", "a.vtt"])
def test_every_reader_refuses_a_pipe(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    os.mkfifo(path)
    for read, error in (
        (read_annotations, AnnotationError),
        (read_captions, (DatastoreError, AnnotationError)),
        (read_sentences, SpeechError),
    ):
        with pytest.raises(error, match="not a regular file"):
            read(path)
    if path.suffix == ".txt":
        with pytest.raises(VideoError, match="not a regular file"):
            find_videos([path])


def test_many_keys_with_a_twin_are_no_work(tmp_path: Path) -> None:
    keys = ",".join(f'"{n}": []' for n in range(200_000))
    (tmp_path / "a.json").write_text(f'{{{keys}, "7": []}}')
    with pytest.raises(AnnotationError, match="the key '7' occurs twice"):
        read_annotations(tmp_path / "a.json")
