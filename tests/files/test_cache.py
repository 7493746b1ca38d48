"""The cache: named by content, hashed once, whole or absent."""

import json
import os
import threading
from pathlib import Path

import pytest

from starc.errors import ConfigError, VideoError
from starc.files import cache as caches
from starc.model.folder import fingerprint


def test_a_file_is_hashed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"a" * 4000)
    os.utime(path, (1, 1))
    name = caches.fingerprint(path)
    path.write_bytes(b"b" * 4000)
    os.utime(path, (1, 1))
    assert caches.fingerprint(path) == name, "it was read again"
    os.utime(path, (1, 2))
    assert caches.fingerprint(path) != name


def test_fingerprint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for whole in (10_000, 100):
        monkeypatch.setattr(caches, "READ_WHOLE", whole)
        monkeypatch.setattr(caches, "PIECE", 50)
        path = tmp_path / "a"
        names = set()
        for content in (b"a" * 4000, b"b" + b"a" * 3999, b"a" * 3999 + b"b", b"a" * 4001):
            path.write_bytes(content)
            names.add(caches.fingerprint(path))
        assert len(names) == 4
    with pytest.raises(VideoError):
        caches.fingerprint(tmp_path / "missing")


def test_half_written_entries_are_never_seen(tmp_path: Path) -> None:
    entry = tmp_path / "a.json"
    caches.write(entry, [1])
    with pytest.raises(TypeError):
        caches.write(entry, [1, object()])
    assert json.loads(entry.read_text()) == [1]
    assert list(tmp_path.iterdir()) == [entry]


def test_threads_share_one_hash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"a" * 4000)
    os.utime(path, (1, 1))
    opened = []
    original = Path.open

    def counted(self: Path, *arguments: str) -> object:
        opened.append(self)
        return original(self, *arguments)

    monkeypatch.setattr(Path, "open", counted)
    threads = [threading.Thread(target=caches.fingerprint, args=(path,)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert opened == [path]


def test_what_never_ends_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.mp4")
    for path in (Path("/dev/zero"), tmp_path / "pipe.mp4", tmp_path):
        with pytest.raises(VideoError, match="not a regular file"):
            caches.fingerprint(path)


def test_a_changed_byte_of_a_large_file_is_not_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(caches, "READ_WHOLE", 100)
    monkeypatch.setattr(caches, "PIECE", 50)
    path, text = tmp_path / "talk.vtt", "a" * 100_000
    caches.write_text(path, text, overwrite=False)
    caches.write_text(path, text, overwrite=False)
    os.utime(path, (1, 1))
    for place in range(4_999, len(text), 9_973):
        path.write_text(text[:place] + "b" + text[place + 1 :])
        os.utime(path, (1, 1))  # as a tool may that keeps times
        with pytest.raises(ConfigError, match="not as starc wrote it"):
            caches.write_text(path, text, overwrite=False)
    caches.write_text(path, text, overwrite=True)
    caches.write_text(path, "b", overwrite=False)


def test_a_changed_byte_of_a_large_model_is_another_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(caches, "READ_WHOLE", 100)
    monkeypatch.setattr(caches, "PIECE", 50)
    monkeypatch.setattr(caches, "SETTLED_NS", 0)
    weights, names = tmp_path / "model.safetensors", set()
    for place in range(0, 100_000, 9_973):
        weights.write_bytes(bytes(place) + b"b" + bytes(100_000 - place - 1))
        os.utime(weights, (1, 1))
        names.add(fingerprint(tmp_path))
    assert len(names) == 11
    opened = []
    monkeypatch.setattr(caches, "_whole_digest", opened.append)
    assert fingerprint(tmp_path) in names and not opened, "it was read again"
