"""METEOR 1.5's data as one memory-mapped file.

In: the installed `pycocoevalcap`, whose jar is only read as a zip (Java is never run): WordNet
synsets and irregular forms, function words, abbreviations, and 5.27 M paraphrases. Out: `Index`,
built once into the user's cache. A file that is truncated, damaged, of another format or made from
other data is built again, so it can never change a score.
"""

from __future__ import annotations

import gzip
import importlib
import importlib.util
import itertools
import json
import mmap
import os
import struct
import sys
import zipfile
import zlib
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from starc_eval.atomic import replacing
from starc_eval.cache import cache_folder, make_folder
from starc_eval.errors import StarcError

Progress = Callable[[float], None]

MAGIC = b"starcMT\n"
VERSION = 2
NAME = f"meteor-en-{VERSION}.index"
CHUNK_BYTES = 1 << 22
MOST_WORDS = (1 << 16) - 1
"""Numbers of the words of paraphrases are stored in 16 bits; English has 43,139 such words."""

_RESOURCES = {
    "synsets": "synonym/english.synsets",
    "exceptions": "synonym/english.exceptions",
    "function": "function/english.words",
    "prefixes": "nonbreaking/english.prefixes",
}
_VIEWS = (
    *("node_words", "child_starts", "target_starts", "targets"),
    *("words", "word_starts", "hashes", "hashed", "stems", "synset_starts", "synsets"),
)
_CODES = {1: "B", 2: "H", 4: "I"}


@dataclass(frozen=True, slots=True)
class Sources:
    """Where METEOR's data lie."""

    paraphrases: Path
    """gzip: probability, phrase and paraphrase on three lines each."""
    jar: Path
    """zip with WordNet, function words and abbreviations."""

    def fingerprint(self) -> dict[str, Any]:
        """What the content is, from the checksums both files carry: no need to read them whole."""
        with _damage_named(self.jar.parent):
            with self.paraphrases.open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - 8))
                trailer = file.read(8).hex()
            with zipfile.ZipFile(self.jar) as jar:
                checksums = {name: jar.getinfo(path).CRC for name, path in _RESOURCES.items()}
        return {"paraphrases": [size, trailer], **checksums}


@contextmanager
def _damage_named(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, EOFError, KeyError, ValueError, zlib.error, zipfile.BadZipFile) as error:
        raise StarcError(
            f"{path}: METEOR's data are damaged ({error}); reinstall pycocoevalcap"
        ) from error


def locate() -> Sources:
    """METEOR's files in the installed packages, found without importing them."""
    _stemmer_spec()
    spec = importlib.util.find_spec("pycocoevalcap")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        meteor = Path(folder) / "meteor"
        sources = Sources(meteor / "data/paraphrase-en.gz", meteor / "meteor-1.5.jar")
        if sources.paraphrases.is_file() and sources.jar.is_file():
            return sources
    raise StarcError(
        "METEOR's data (pycocoevalcap) are not installed; pip install 'pycocoevalcap==1.2'"
    )


def _stemmer_spec() -> ModuleSpec:
    spec = importlib.util.find_spec("snowballstemmer")
    if spec is None:
        raise StarcError(
            "METEOR's stemmer (snowballstemmer) is not installed; pip install 'snowballstemmer<3'"
        )
    return spec


@cache
def stemmer() -> Callable[[str], str]:
    """The Snowball English stemmer of METEOR's time.

    Taken from the pure Python module: the package's own front door hands out PyStemmer if that is
    installed, whose version 3 stems `added` to `add`, as snowballstemmer 3 does.
    """
    spec = _stemmer_spec()
    alone = ModuleType("starc_snowball")  # without the stemmers of thirty other languages
    alone.__path__ = list(spec.submodule_search_locations or ())
    sys.modules[alone.__name__] = alone
    english = importlib.import_module(f"{alone.__name__}.english_stemmer")
    stem: Callable[[str], str] = english.EnglishStemmer().stemWord
    if stem("added") != "ad":
        raise StarcError(
            "snowballstemmer: this version stems words differently from METEOR 1.5 "
            f"(added -> {stem('added')}); pip install 'snowballstemmer<3'"
        )
    return stem


def java_hash(text: str) -> int:
    """32-bit string hash, h = 31 h + c: METEOR compares words by it."""
    value, encoded = 0, text.encode("utf-16-le", "surrogatepass")
    for unit in struct.unpack(f"<{len(encoded) // 2}H", encoded):
        value = (31 * value + unit) & 0xFFFFFFFF
    return value


# WordNet's detachment rules: the first that leads to a known word counts.
_ENDINGS = [
    *(("s", ""), ("ses", "s"), ("xes", "x"), ("zes", "z"), ("ches", "ch"), ("shes", "sh")),
    *(("men", "man"), ("ies", "y"), ("es", "e"), ("es", ""), ("ed", "e"), ("ed", "")),
    *(("ing", "e"), ("ing", ""), ("er", ""), ("est", ""), ("er", "e"), ("est", "e")),
]


class Word(NamedTuple):
    """What the matchers compare."""

    key: int
    """Hash of the spelling."""
    stem: int
    """Hash of the stem."""
    function: bool
    synsets: list[int]
    number: int
    """Of the word in the paraphrase table; -1 if it is not there."""


@dataclass(frozen=True)
class Index:
    """The opened file. Numbers are views into it, so the operating system shares them."""

    node_words: memoryview
    """Word number of each node of the trie of phrases; node 0 is the empty phrase."""
    child_starts: memoryview
    """The children of node n are child_starts[n] : child_starts[n + 1], sorted by word."""
    target_starts: memoryview
    targets: memoryview
    """The paraphrases (nodes) of node n are targets[target_starts[n] : target_starts[n + 1]]."""
    words: memoryview
    """All known words in a row; the first `phrase_words` occur in paraphrases, by their numbers."""
    word_starts: memoryview
    hashes: memoryview
    """Hashes of the words, in order, and in `hashed` the word of each."""
    hashed: memoryview
    phrase_words: int
    stems: memoryview
    """Hash of each word's stem."""
    synset_starts: memoryview
    synsets: memoryview
    exceptions: dict[str, list[str]]
    """Base forms of irregular words."""
    function_words: frozenset[str]
    prefixes: dict[str, bool]
    """Abbreviations; true for those that only precede numbers."""

    def word(self, spelling: str) -> Word:
        """All about one word; nothing is kept, since each caller asks once per word."""
        key = java_hash(spelling)
        number = self._number(spelling, key)
        synsets = {*self._synsets(number)}
        for base in self._bases(spelling):
            synsets.update(self._synsets(self._number(base, java_hash(base))))
        return Word(
            key=key,
            stem=java_hash(stemmer()(spelling)) if number is None else self.stems[number],
            function=spelling in self.function_words,
            synsets=sorted(synsets),
            number=-1 if number is None or number >= self.phrase_words else number,
        )

    def _number(self, spelling: str, key: int) -> int | None:
        """The number of a known word."""
        place = bisect_left(self.hashes, key)
        encoded = spelling.encode("utf-8", "surrogatepass")
        while place < len(self.hashes) and self.hashes[place] == key:
            number: int = self.hashed[place]
            if self.words[self.word_starts[number] : self.word_starts[number + 1]] == encoded:
                return number
            place += 1
        return None

    def _synsets(self, number: int | None) -> list[int]:
        """Synsets listed under this very word."""
        if number is None:
            return []
        starts = self.synset_starts
        return self.synsets[starts[number] : starts[number + 1]].tolist()

    def _bases(self, spelling: str) -> list[str]:
        """Base forms: of an irregular word those listed, else by the first rule that fits."""
        if spelling in self.exceptions:
            return self.exceptions[spelling]
        if len(spelling) < 3 or spelling.endswith("ss"):
            return []
        for ending, instead in _ENDINGS:
            if spelling.endswith(ending):
                base = spelling.removesuffix(ending) + instead
                if self._synsets(self._number(base, java_hash(base))):
                    return [base]
        return []


def open_index(
    folder: Path | None = None, sources: Sources | None = None, progress: Progress | None = None
) -> Index:
    """The index from the cache; built first if it is not there or not sound."""
    sources, folder = sources or locate(), folder or cache_folder()
    progress = progress or (lambda fraction: None)
    path, fingerprint = folder / NAME, sources.fingerprint()
    sections = _read(path, fingerprint)
    if sections is None:
        try:
            make_folder(folder)
            with replacing(path, binary=True) as file:
                _write(file, _build(sources, progress), fingerprint)
        except OSError as error:
            raise StarcError(
                f"{folder}: METEOR's index cannot be written ({error.strerror or error}); "
                "make room there or set XDG_CACHE_HOME to a folder you can write to"
            ) from error
        sections = _read(path, fingerprint)
        if sections is None:
            raise StarcError(f"{path}: was damaged while it was written; is the disk sound?")
        progress(1.0)
    return _index(sections)


def _index(sections: Mapping[str, memoryview]) -> Index:
    def lines(name: str) -> list[str]:
        text = str(sections[name], "utf-8")
        return text.split("\n") if text else []

    numeric = " #NUMERIC_ONLY#"
    return Index(
        **{name: sections[name] for name in _VIEWS},
        phrase_words=sections["phrase_words"][0],
        exceptions={form: bases for form, *bases in map(str.split, lines("exceptions"))},
        function_words=frozenset(lines("function")),
        prefixes={p.removesuffix(numeric): p.endswith(numeric) for p in lines("prefixes")},
    )


# The file: magic, length of the header, header (JSON), its CRC-32, then the sections.


def _write(file: Any, sections: Mapping[str, NDArray[Any]], fingerprint: dict[str, Any]) -> None:
    table, offset = {}, 0
    for name, values in sections.items():
        checksum = zlib.crc32(values.data.cast("B") if values.size else b"")
        table[name] = [offset, values.nbytes, checksum, _CODES[values.itemsize]]
        offset += -(-values.nbytes // 8) * 8
    header = json.dumps(
        {"order": sys.byteorder, "source": fingerprint, "sections": table, "bytes": offset}
    ).encode()
    header += b" " * (-(len(header)) % 8)
    file.write(MAGIC + struct.pack("<II", len(header), zlib.crc32(header)) + header)
    for values in sections.values():
        file.write(values.tobytes() + bytes(-values.nbytes % 8))


def _read(path: Path, fingerprint: dict[str, Any]) -> dict[str, memoryview] | None:
    """The sections, or None unless every byte is as it was written (CRC-32, 50 ms)."""
    try:
        with path.open("rb") as file:
            view = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except (OSError, ValueError):
        return None
    if len(view) < 16 or view[:8] != MAGIC:
        return None
    length, checksum = struct.unpack("<II", view[8:16])
    header, body = view[16 : 16 + length], view[16 + length :]
    if len(header) < length or zlib.crc32(header) != checksum:
        return None
    about = json.loads(bytes(header))
    expected = {"order": sys.byteorder, "source": fingerprint, "bytes": len(body)}
    if about != {**expected, "sections": about["sections"]}:
        return None
    sections = {}
    for name, (offset, size, crc, code) in about["sections"].items():
        part = body[offset : offset + size]
        if zlib.crc32(part) != crc:
            return None
        sections[name] = part.cast(code)
    return sections


# Building it.


def _build(sources: Sources, progress: Progress) -> dict[str, NDArray[Any]]:
    """All sections of the file, 20 s and under 1 GB."""
    with _damage_named(sources.jar), zipfile.ZipFile(sources.jar) as jar:
        texts = {name: jar.read(path).decode() for name, path in _RESOURCES.items()}
    prefixes = texts["prefixes"].splitlines()
    phrases, source_E, target_E = _paraphrases(sources.paraphrases, lambda f: progress(0.5 * f))
    words, word_W, length_P = _numbered(phrases)
    phrase_words = len(words)
    del phrases
    node_P, sections = _trie(word_W, length_P)
    progress(0.65)
    # Paraphrases by phrase, in the table's order: ties between alignments hang on it.
    source_E, target_E = node_P[source_E], node_P[target_E]
    count_N = np.bincount(source_E, minlength=len(sections["node_words"]))
    sections["target_starts"] = _starts(count_N)
    sections["targets"] = target_E[np.argsort(source_E, kind="stable")].astype(np.uint32)
    progress(0.7)

    synsets, exceptions = _wordnet(texts)
    known = set(words)
    words += [word for word in synsets if word not in known]
    numbers = [synsets.get(word, []) for word in words]
    stem = stemmer()
    stems = np.zeros(len(words), np.uint32)
    for place, word in enumerate(words):
        stems[place] = java_hash(stem(word))
        if not place % 1000:
            progress(0.7 + 0.29 * place / len(words))
    encoded = [word.encode() for word in words]
    hash_W = np.array([java_hash(word) for word in words], np.uint32)
    order_W = np.argsort(hash_W, kind="stable")
    return sections | {
        "words": np.frombuffer(b"".join(encoded), np.uint8),
        "word_starts": _starts(np.array([len(word) for word in encoded], np.int64)),
        "hashes": hash_W[order_W],
        "hashed": order_W.astype(np.uint32),
        "phrase_words": np.array([phrase_words], np.uint32),
        "stems": stems,
        "synset_starts": _starts(np.array([len(n) for n in numbers], np.int64)),
        "synsets": np.array([n for some in numbers for n in some], np.uint32),
        "exceptions": _text([" ".join([form, *bases]) for form, bases in exceptions.items()]),
        "function": _text(texts["function"].split()),
        "prefixes": _text([p for p in map(str.strip, prefixes) if p and p[0] != "#"]),
    }


def _paraphrases(path: Path, progress: Progress) -> tuple[dict[bytes, int], Any, Any]:
    """Number the distinct phrases; for each entry the numbers of phrase and paraphrase."""
    numbers: defaultdict[bytes, int] = defaultdict(itertools.count().__next__)
    sources, targets, rest = [], [], b""
    with _damage_named(path), path.open("rb") as raw, gzip.GzipFile(fileobj=raw) as file:
        size = path.stat().st_size
        while chunk := file.read(CHUNK_BYTES):
            lines = (rest + chunk).split(b"\n")
            whole = (len(lines) - 1) // 3 * 3
            sources.append(np.array([*map(numbers.__getitem__, lines[1:whole:3])], np.int32))
            targets.append(np.array([*map(numbers.__getitem__, lines[2:whole:3])], np.int32))
            rest = b"\n".join(lines[whole:])
            progress(raw.tell() / size)
        if rest or not numbers:
            raise ValueError("it does not end with a whole entry")
    return dict(numbers), np.concatenate(sources), np.concatenate(targets)


def _numbered(phrases: Mapping[bytes, int]) -> tuple[list[str], Any, Any]:
    """The distinct words, the words of all phrases in a row, and the phrases' lengths."""
    numbers: defaultdict[bytes, int] = defaultdict(itertools.count().__next__)
    parts, lengths = [], []
    left = iter(phrases)
    while batch := list(itertools.islice(left, 1 << 16)):
        in_a_row = b" ".join(batch).split(b" ")
        parts.append(np.array([*map(numbers.__getitem__, in_a_row)], np.int32))
        lengths.append(np.array([phrase.count(b" ") + 1 for phrase in batch], np.int32))
    if len(numbers) > MOST_WORDS:
        raise StarcError(f"METEOR's paraphrases: {len(numbers)} words, at most {MOST_WORDS} fit")
    return (
        [word.decode() for word in numbers],
        np.concatenate(parts).astype(np.uint16),
        np.concatenate(lengths),
    )


def _trie(word_W: Any, length_P: Any) -> tuple[Any, dict[str, NDArray[Any]]]:
    """The trie of all phrases, breadth first, and each phrase's node.

    With the phrases in order, a phrase begins a new node at depth d where its first d words differ
    from those of the phrase before; breadth first keeps the children of a node side by side.
    """
    row_W = np.repeat(np.arange(len(length_P)), length_P)
    column_W = np.arange(len(word_W)) - np.repeat(np.cumsum(length_P) - length_P, length_P)
    word_PL = np.zeros((len(length_P), int(length_P.max())), np.uint16)
    word_PL[row_W, column_W] = word_W + 1  # 0 stands after the last word
    del row_W, column_W
    order_P = np.lexsort(word_PL.T[::-1])
    word_PL = word_PL[order_P]

    new_P = np.zeros(len(word_PL), bool)
    new_P[0] = True
    node_P = np.zeros(len(word_PL), np.int64)
    words, parents, nodes = [np.zeros(1, np.uint16)], [], 1
    for word_P in word_PL.T:
        new_P[1:] |= word_P[1:] != word_P[:-1]
        born_P = new_P & (word_P > 0)
        parents.append(node_P[born_P])
        words.append(word_P[born_P] - 1)
        node_P = np.where(word_P > 0, nodes - 1 + np.cumsum(born_P), node_P)
        nodes += len(words[-1])
    children_N = np.bincount(np.concatenate(parents), minlength=nodes)
    back_P = np.empty_like(node_P)
    back_P[order_P] = node_P
    return back_P, {
        "node_words": np.concatenate(words),
        "child_starts": _starts(children_N, first=1),
    }


def _wordnet(texts: Mapping[str, str]) -> tuple[dict[str, list[int]], dict[str, list[str]]]:
    """Synsets of each word, and the base forms of each irregular one.

    Words with underscores never occur in text; only those that are base forms are kept.
    """
    lines = texts["exceptions"].splitlines()
    exceptions: defaultdict[str, list[str]] = defaultdict(list)
    for base, forms in zip(lines[0::2], lines[1::2], strict=True):
        for form in forms.split():
            exceptions[form].append(base)
    bases = {base for some in exceptions.values() for base in some}
    lines = texts["synsets"].splitlines()
    synsets = {
        word: [int(number) for number in numbers.split()]
        for word, numbers in zip(lines[0::2], lines[1::2], strict=True)
        if "_" not in word or word in bases
    }
    return synsets, exceptions


def _starts(count_N: Any, first: int = 0) -> NDArray[np.uint32]:
    return np.concatenate([[0], np.cumsum(count_N)]).astype(np.uint32) + np.uint32(first)


def _text(lines: list[str]) -> NDArray[np.uint8]:
    return np.frombuffer("\n".join(lines).encode(), np.uint8)
