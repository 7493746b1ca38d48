"""METEOR's word alignment, in pure Python.

In: words with what the matchers compare, sentences as lists of words. Out: the 23 counts METEOR
scores from. Words and short phrases of a reference are matched with those of a hypothesis by
spelling, stem, WordNet synsets and paraphrases; a beam search picks matches that do not overlap.
`_meteor.c` is the same in C, with the same interface; each must give what the other gives.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import accumulate, chain
from operator import itemgetter
from typing import NamedTuple, TypeAlias

BEAM = 40
EXACT, STEM, SYNONYM, PARAPHRASE = range(4)
KEPT_REACHES, KEPT_TARGETS = 512, 1 << 14
"""Sentences and phrases whose paraphrases stay in memory."""
LONGEST, MOST_MATCHES = 1 << 14, 1 << 20
"""Words of a sentence, and possible matches of a pair: 1,024 equal words with as many."""

_rank = itemgetter(0)
_first = itemgetter(3)

Statistics: TypeAlias = tuple[int, ...]


class Match(NamedTuple):
    """Words start : stop of the hypothesis with words first : last of the reference."""

    module: int
    start: int
    stop: int
    first: int
    last: int
    gain: int
    """Both lengths together; half of each, rounded down, for all but exact matches."""
    distance: int
    used: int
    """Bit mask of the hypothesis words."""
    covered: int
    """Bit mask of the reference words."""


Chain: TypeAlias = "tuple[Match, Chain] | None"
Path: TypeAlias = tuple[int, int, int, int, Chain]  # rank, end of the last match, masks, matches


class _Sentence:
    """A sentence and what is looked up in it for every pair it takes part in."""

    __slots__ = ("functions", "keys", "nodes", "phrases", "places", "spelt", "stemmed", "words")

    def __init__(self, words: Sequence[int], aligner: Aligner) -> None:
        self.words = list(words)
        self.keys = [aligner.keys[word] for word in words]
        self.functions = [0, *accumulate(aligner.functions[word] for word in words)]
        self.places: dict[int, list[int]] = defaultdict(list)
        self.spelt: dict[int, list[int]] = defaultdict(list)
        self.stemmed: dict[int, list[int]] = defaultdict(list)
        for place, word in enumerate(words):
            self.places[word].append(place)
            self.spelt[self.keys[place]].append(place)
            self.stemmed[aligner.stems[word]].append(place)
        self.phrases = aligner.phrases(words)
        self.nodes: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for start, stop, node in self.phrases:
            self.nodes[node].append((start, stop))


class Aligner:
    """Knows words and sentences by number and aligns pairs of sentences."""

    def __init__(
        self,
        node_words: memoryview,
        child_starts: memoryview,
        target_starts: memoryview,
        targets: memoryview,
    ) -> None:
        self._node_words, self._child_starts = node_words, child_starts
        self._target_starts, self._targets = target_starts, targets
        self._target_order = lru_cache(KEPT_TARGETS)(self._read_targets)
        self._reach = lru_cache(KEPT_REACHES)(self._collect_targets)
        self._sentences: list[_Sentence] = []
        self._by_synset: dict[int, list[int]] = defaultdict(list)
        self._synonyms: list[set[int]] = []
        self._numbers: list[int] = []
        self.keys: list[int] = []
        self.stems: list[int] = []
        self.functions: list[bool] = []

    def add_word(
        self, key: int, stem: int, function: bool, synsets: Sequence[int], number: int
    ) -> int:
        """Make a word known; its synonyms are the known words that share a synset."""
        word = len(self.keys)
        synonyms: set[int] = set()
        for synset in synsets:
            synonyms.update(self._by_synset[synset])
            self._by_synset[synset].append(word)
        synonyms = {other for other in synonyms if self.keys[other] != key}
        for other in synonyms:
            self._synonyms[other].add(word)
        self._synonyms.append(synonyms)
        self.keys.append(key)
        self.stems.append(stem)
        self.functions.append(function)
        self._numbers.append(number)
        return word

    def add_sentence(self, words: Sequence[int]) -> int:
        """Make a sentence known."""
        if len(words) > LONGEST:
            raise ValueError(f"a sentence has at most {LONGEST} words, got {len(words)}")
        self._sentences.append(_Sentence(words, self))
        return len(self._sentences) - 1

    def statistics(self, pairs: Iterable[tuple[int, int]]) -> bytes:
        """The counts of (hypothesis, reference) pairs, 23 int32 each.

        A pair with more than MOST_MATCHES possible matches is an OverflowError of its numbers.
        """
        counts = (self._statistics(hypothesis, reference) for hypothesis, reference in pairs)
        return array("i", chain.from_iterable(counts)).tobytes()

    def phrases(self, words: Sequence[int]) -> list[tuple[int, int, int]]:
        """(start, stop, node) of all runs of words that begin an entry of the paraphrase table."""
        phrases = []
        starts, numbers = self._child_starts, [self._numbers[word] for word in words]
        for start in range(len(words)):
            node = 0
            for stop in range(start, len(words)):
                first, last = starts[node], starts[node + 1]
                node = bisect_left(self._node_words, numbers[stop], first, last)
                if node == last or self._node_words[node] != numbers[stop]:
                    break
                phrases.append((start, stop + 1, node))
        return phrases

    def _statistics(self, hypothesis: int, reference: int) -> Statistics:
        hyp, ref = self._sentences[hypothesis], self._sentences[reference]
        counts = [0] * 23
        counts[:4] = len(hyp.words), len(ref.words), hyp.functions[-1], ref.functions[-1]
        chunks, end, last = 0, -1, -1
        for match in _search(self._matches(hypothesis, reference), len(ref.words)):
            module, start, stop, first, upto = match[:5]
            place = 4 + 4 * module
            functions_hyp = hyp.functions[stop] - hyp.functions[start]
            functions_ref = ref.functions[upto] - ref.functions[first]
            counts[place] += stop - start - functions_hyp
            counts[place + 1] += upto - first - functions_ref
            counts[place + 2] += functions_hyp
            counts[place + 3] += functions_ref
            counts[21] += stop - start
            counts[22] += upto - first
            chunks += (start, first) != (end, last)
            end, last = stop, upto
        counts[20] = chunks
        return tuple(counts)

    def _matches(self, hypothesis: int, reference: int) -> list[Match]:
        """All that could be matched, in the order the search tries them."""
        hyp, ref = self._sentences[hypothesis], self._sentences[reference]
        matches: list[Match] = []

        def add(module: int, first: int, last: int, start: int, stop: int) -> None:
            if len(matches) >= MOST_MATCHES:
                raise OverflowError(hypothesis, reference)
            length, width = stop - start, last - first
            gain = length + width if module == EXACT else length // 2 + width // 2
            used, covered = ((1 << length) - 1) << start, ((1 << width) - 1) << first
            distance = abs(first - start)
            matches.append(Match(module, start, stop, first, last, gain, distance, used, covered))

        for first, key in enumerate(ref.keys):
            if key in hyp.spelt:
                for start in hyp.spelt[key]:
                    add(EXACT, first, first + 1, start, start + 1)
        if hyp.words == ref.words:
            return matches
        for first, word in enumerate(ref.words):
            stem = self.stems[word]
            if stem in hyp.stemmed:
                for start in hyp.stemmed[stem]:
                    if hyp.keys[start] != ref.keys[first]:
                        add(STEM, first, first + 1, start, start + 1)
        for first, word in enumerate(ref.words):
            if shared := hyp.places.keys() & self._synonyms[word]:
                for start in sorted(place for other in shared for place in hyp.places[other]):
                    add(SYNONYM, first, first + 1, start, start + 1)
        for first, last, start, stop in self._paraphrases(reference, hypothesis):
            add(PARAPHRASE, first, last, start, stop)
        for start, stop, first, last in self._paraphrases(hypothesis, reference):
            add(PARAPHRASE, first, last, start, stop)
        return matches

    def _paraphrases(self, source: int, target: int) -> Iterable[tuple[int, int, int, int]]:
        """Runs of words in the source sentence with their paraphrases in the target sentence."""
        nodes = self._sentences[target].nodes
        common = self._reach(source) & nodes.keys()
        if not common:
            return
        for start, stop, node in self._sentences[source].phrases:
            order = self._target_order(node)
            for paraphrase in sorted(common & order.keys(), key=order.__getitem__):
                for place in nodes[paraphrase]:
                    yield start, stop, *place

    def _read_targets(self, node: int) -> dict[int, int]:
        """Paraphrases of a phrase, with their places in the table."""
        first, last = self._target_starts[node], self._target_starts[node + 1]
        return dict(zip(self._targets[first:last].tolist(), range(first, last), strict=True))

    def _collect_targets(self, sentence: int) -> frozenset[int]:
        """All paraphrases of all phrases in a sentence."""
        phrases = self._sentences[sentence].phrases
        return frozenset().union(*[self._target_order(node) for _, _, node in phrases])


def _search(matches: list[Match], positions: int) -> list[Match]:
    """The best matches that do not overlap, in the order of the reference.

    Goes through the reference word by word and keeps the 40 best paths: those with most gain, then
    fewest chunks, then least distance. Matches that overlap no other one are taken without asking.
    """
    options: dict[int, list[Match]] = defaultdict(list)
    used = covered = used_twice = covered_twice = 0
    for match in matches:
        options[match.first].append(match)
        used_twice |= used & match.used
        covered_twice |= covered & match.covered
        used |= match.used
        covered |= match.covered
    sure = [m for m in matches if not (m.used & used_twice or m.covered & covered_twice)]
    if len(sure) == len(matches):
        return sorted(sure, key=_first)
    given = {match.first: match for match in sure}
    idle = ~(covered | covered << 1)  # nothing can match here, nor one word before
    used = covered = 0
    for match in sure:
        used |= match.used
        covered |= match.covered

    # A rank is one integer, so that sorting need not look at three: a chunk weighs more than all
    # distances together, and a gain of one more than all chunks.
    chunk = 1 + sum(match.distance for match in matches)
    gain = chunk * (positions + 2)
    paths: list[Path] = [(0, -1, used, covered, None)]
    for position in range(positions):
        if idle >> position & 1:
            continue
        if len(paths) > 1:
            paths.sort(key=_rank)
            del paths[BEAM:]
        if position in given:
            paths = [_taken(path, given[position], chunk) for path in paths]
        elif position in options:
            here = options[position]
            paths = [new for path in paths for new in _branches(path, here, chunk, gain)]
        else:
            paths = [_skipped(path, 1 << position, chunk) for path in paths]
    paths.sort(key=_rank)
    chain = min((_skipped(path, 0, chunk) for path in paths[:BEAM]), key=_rank)[4]
    chosen = []
    while chain is not None:
        match, chain = chain
        chosen.append(match)
    return chosen[::-1]


def _taken(path: Path, match: Match, chunk: int) -> Path:
    """The path with a sure match; every path has it, so only chunks tell paths apart."""
    rank, end, used, covered, chain = path
    if end >= 0 and end != match.start:
        rank += chunk
    return rank, match.stop, used, covered, (match, chain)


def _skipped(path: Path, position: int, chunk: int) -> Path:
    """The path without a match here: the chunk, if there is one, ends."""
    rank, end, used, covered, chain = path
    if end < 0 or covered & position:
        return path
    return rank + chunk, -1, used, covered, chain


def _branches(path: Path, options: list[Match], chunk: int, gain: int) -> list[Path]:
    """The path with each match that still fits, and without any.

    The distance of a match counts against the paths that branch off after it, not against its own:
    METEOR does so.
    """
    rank, end, used, covered, chain = path
    if covered >> options[0].first & 1:
        return [path]
    new: list[Path] = []
    for match in options:
        _, start, stop, _, _, gained, distance, takes, covers = match
        if not (used & takes or covered & covers):
            worth = rank - gained * gain
            if end >= 0 and end != start:
                worth += chunk
            new.append((worth, stop, used | takes, covered | covers, (match, chain)))
            rank += distance
    if end >= 0:
        rank += chunk
    new.append((rank, -1, used, covered, chain))
    return new
