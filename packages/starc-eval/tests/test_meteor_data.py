"""METEOR's index: built once, whole or not at all, and never trusted when damaged."""

from __future__ import annotations

import gzip
import json
import os
import zipfile
from pathlib import Path

import pytest

from starc_eval import meteor_data
from starc_eval.errors import StarcError
from starc_eval.meteor import Meteor
from starc_eval.meteor_data import NAME, Sources, java_hash, locate, open_index

TABLE = """0.5
right away
at once
0.4
at once
right away
0.3
at once
immediately
0.2
go
leave
"""


@pytest.fixture
def sources(tmp_path: Path) -> Sources:
    """A table of four paraphrases and a dictionary of a few words."""
    files = Sources(tmp_path / "paraphrase.gz", tmp_path / "meteor.jar")
    files.paraphrases.write_bytes(gzip.compress(TABLE.encode()))
    with zipfile.ZipFile(files.jar, "w") as jar:
        jar.writestr("synonym/english.synsets", "go\n00000007\nwalk\n00000007 00000009\nmouse\n5\n")
        jar.writestr("synonym/english.exceptions", "go\nwent gone\nmouse\nmice\n")
        jar.writestr("function/english.words", "the\nat\n")
        jar.writestr("nonbreaking/english.prefixes", "# titles\nMr\n\nNo #NUMERIC_ONLY# \n")
    return files


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def test_planted_answers(sources: Sources, cache: Path) -> None:
    index = open_index(cache, sources)
    assert index.word("went").synsets == [7]
    assert index.word("walks").synsets == [7, 9]
    assert index.word("walking").stem == java_hash("walk")
    assert index.word("at").function and not index.word("once").function
    assert index.word("once").number >= 0 > index.word("walk").number
    assert index.prefixes == {"Mr": False, "No": True}
    for backend in ("c", "python"):
        if backend == "c" and not _has_extension():
            continue
        meteor = Meteor(backend=backend, cache=cache, sources=sources)  # type: ignore[arg-type]
        assert meteor.backend == backend
        counts = meteor.statistics("come at once", "come right away")
        assert counts[4:8] == (1, 1, 0, 0) and counts[20:] == (1, 3, 3)
        assert meteor.statistics("immediately", "at once")[16:20] == (1, 1, 0, 1)
        assert meteor.statistics("immediately", "right away")[20:] == (0, 0, 0)
        assert meteor.statistics("mice", "mouse")[12:14] == (1, 1)


def _has_extension() -> bool:
    from starc_eval import meteor

    return meteor._meteor is not None


def test_built_once_with_progress(sources: Sources, cache: Path) -> None:
    seen: list[float] = []
    open_index(cache, sources, seen.append)
    assert seen == sorted(seen) and seen[-1] == 1.0
    assert [path.name for path in cache.iterdir()] == [NAME]
    seen.clear()
    open_index(cache, sources, seen.append)
    assert not seen


def test_damage_anywhere_is_noticed_and_mended(sources: Sources, cache: Path) -> None:
    open_index(cache, sources)
    path = cache / NAME
    good = path.read_bytes()
    header = int.from_bytes(good[8:12], "little")
    table = json.loads(good[16 : 16 + header])["sections"]
    places = [0, 8, 12, 16, 40, 16 + header - 1]
    places += [16 + header + offset for offset, size, *_ in table.values() if size]
    damaged = [good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :] for at in places]
    damaged += [good[:at] for at in (0, 7, 15, 16, 200, 16 + header, len(good) - 8, len(good) - 1)]
    damaged += [good + b"\0", bytes(len(good))]
    for wrong in damaged:
        path.write_bytes(wrong)
        built: list[float] = []
        open_index(cache, sources, built.append)
        assert built and path.read_bytes() == good


def test_other_data_or_another_format_is_built_again(sources: Sources, cache: Path) -> None:
    open_index(cache, sources)
    sources.paraphrases.write_bytes(gzip.compress((TABLE + "0.1\nstart\nbegin\n").encode()))
    built: list[float] = []
    index = open_index(cache, sources, built.append)
    assert built and index.word("begin").number >= 0


def test_a_failed_build_leaves_nothing(sources: Sources, cache: Path) -> None:
    def interrupt(fraction: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        open_index(cache, sources, interrupt)
    assert not [*cache.iterdir()]
    open_index(cache, sources)
    good = (cache / NAME).read_bytes()
    (cache / NAME).write_bytes(good[:-1])
    with pytest.raises(KeyboardInterrupt):
        open_index(cache, sources, interrupt)
    assert (cache / NAME).read_bytes() == good[:-1]
    assert len([*cache.iterdir()]) == 1


def test_a_full_disk_leaves_nothing(
    sources: Sources, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StarcError, match=r"cannot be written \(No space left.*XDG_CACHE_HOME"):
        open_index(cache, sources)
    assert not [*cache.iterdir()]


def test_unwritable_cache_is_named(sources: Sources, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StarcError, match=r"file/starc: .*cannot be written.*XDG_CACHE_HOME") as one:
        open_index(tmp_path / "file/starc", sources)
    assert "\n" not in str(one.value)


def test_cache_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert meteor_data.cache_folder() == Path("/somewhere/starc")
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.setenv("HOME", "/me")
    assert meteor_data.cache_folder() == Path("/me/.cache/starc")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"no gzip",
        gzip.compress(TABLE.encode())[:-12],
        gzip.compress(TABLE.encode()[:-8]),
        gzip.compress(b""),
    ],
    ids=["empty", "text", "cut off", "half an entry", "nothing inside"],
)
def test_damaged_table_is_named(sources: Sources, cache: Path, content: bytes) -> None:
    sources.paraphrases.write_bytes(content)
    with pytest.raises(StarcError, match=r"paraphrase.gz: METEOR's data are damaged"):
        open_index(cache, sources)
    assert not [*cache.iterdir()]


def test_damaged_jar_is_named(sources: Sources, cache: Path) -> None:
    sources.jar.write_bytes(b"no zip")
    with pytest.raises(StarcError, match="METEOR's data are damaged"):
        open_index(cache, sources)
    sources.jar.unlink()
    with pytest.raises(StarcError, match="METEOR's data are damaged"):
        open_index(cache, sources)


@pytest.mark.parametrize("package", ["pycocoevalcap", "snowballstemmer"])
def test_what_is_missing_is_named(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = meteor_data.importlib.util.find_spec
    monkeypatch.setattr(
        meteor_data.importlib.util,
        "find_spec",
        lambda name, *rest: None if name == package else real(name, *rest),
    )
    with pytest.raises(StarcError, match=rf"{package}.*pip install '{package}[=<]"):
        locate()


def test_another_stemmer_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    english = type(meteor_data.stemmer().__self__)  # type: ignore[attr-defined]
    monkeypatch.setattr(english, "stemWord", lambda self, word: word.removesuffix("ed"))
    with pytest.raises(StarcError, match=r"added -> add.*snowballstemmer<3"):
        meteor_data.stemmer.__wrapped__()


def test_java_hash() -> None:
    assert java_hash("") == 0
    assert java_hash("cars") == java_hash("cat5") == 3046175
    assert java_hash("polygenelubricants") == 1 << 31
    assert java_hash("\U0001f600") == (31 * 0xD83D + 0xDE00) & 0xFFFFFFFF
    assert java_hash("\ud83d") == 0xD83D  # half a character, as broken JSON has it
