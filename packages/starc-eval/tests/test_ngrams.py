"""BLEU, CIDEr and ROUGE-L against direct definitions."""

import math
import random
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from starc_eval import ngrams as ngrams_module
from starc_eval.ngrams import bleu, cider, common_subsequence, ngrams, rouge, rouge_l
from starc_eval.pairs import Groups

word = st.sampled_from(["add", "oil", "the", "pan", "1\u00a01/2"])
caption = st.lists(word, max_size=7).map(" ".join)


def grams(text: str) -> Counter[tuple[str, ...]]:
    words = text.split()
    return Counter(tuple(words[i : i + n]) for n in range(1, 5) for i in range(len(words) - n + 1))


def one_group(pairs: list[tuple[int, int]]) -> Groups:
    """All pairs of caption numbers in one group."""
    distinct = sorted(set(pairs))
    return Groups(
        np.zeros((1, 4), int),
        np.array([len(pairs)]),
        np.zeros(len(pairs), int),
        np.array([distinct.index(pair) for pair in pairs], int),
        np.array([a for a, _ in distinct], int),
        np.array([b for _, b in distinct], int),
    )


def cider_by_definition(pairs: list[tuple[str, str]]) -> float:
    frequency = Counter(gram for _, reference in pairs for gram in grams(reference))
    documents = math.log(len(pairs))

    def weights(text: str) -> dict[tuple[str, ...], float]:
        return {
            gram: count * (documents - math.log(max(1, frequency[gram])))
            for gram, count in grams(text).items()
        }

    total = 0.0
    for hypothesis, reference in pairs:
        h, r = weights(hypothesis), weights(reference)
        delta = max(len(hypothesis.split()) - 1, 0) - max(len(reference.split()) - 1, 0)
        for n in range(1, 5):
            value = sum(
                min(h[gram], r[gram]) * r[gram] for gram in h if len(gram) == n and gram in r
            )
            norm = math.prod(
                math.sqrt(sum(w**2 for gram, w in side.items() if len(gram) == n))
                for side in (h, r)
            )
            total += (value / norm if norm else value) * math.exp(-(delta**2) / 72) / 4 * 10
    return total / len(pairs)


@given(captions=st.lists(caption, min_size=1, max_size=6))
@settings(deadline=None, max_examples=60)
def test_counts(captions: list[str]) -> None:
    table = ngrams(captions)
    for c, text in enumerate(captions):
        rows = slice(table.first_C[c], table.first_C[c + 1])
        counts = Counter(
            zip(table.order_E[rows].tolist(), table.count_E[rows].tolist(), strict=True)
        )
        expected = Counter((len(gram) - 1, count) for gram, count in grams(text).items())
        assert counts == expected
        assert table.words_C[c] == len(text.split())


@given(
    captions=st.lists(caption, min_size=2, max_size=6),
    data=st.data(),
    unmatched=st.integers(0, 2),
)
@settings(deadline=None, max_examples=80)
def test_cider_and_bleu(captions: list[str], data: st.DataObject, unmatched: int) -> None:
    number = st.integers(0, len(captions) - 1)
    pairs = data.draw(st.lists(st.tuples(number, number), min_size=1, max_size=6))
    pairs += [(0, len(captions))] * unmatched
    captions = [*captions, "nowhere"]
    table, group = ngrams(captions), one_group(pairs)
    common = table.common(group.hypothesis_U, group.reference_U)
    texts = [(captions[a], captions[b]) for a, b in pairs]
    expected = cider_by_definition(texts)
    assert cider(group, table, common)[0] == pytest.approx(expected, abs=1e-12)

    tested = sum(len(h.split()) for h, _ in texts)
    referred = sum(len(r.split()) for _, r in texts)
    product = 1.0
    for n in range(1, 5):
        correct = sum(
            (Counter(g for g in grams(h).elements() if len(g) == n) & grams(r)).total()
            for h, r in texts
        )
        guess = sum(max(0, len(h.split()) - n + 1) for h, _ in texts)
        product *= (correct + 1e-15) / (guess + 1e-9)
        ratio = (tested + 1e-15) / (referred + 1e-9)
        expected = product ** (1 / n) * (math.exp(1 - 1 / ratio) if ratio < 1 else 1)
        assert bleu(group, table, common)[0, n - 1] == pytest.approx(expected, rel=1e-9, abs=1e-12)


def test_one_pair_alone_scores_no_cider() -> None:
    table, group = ngrams(["add oil to the pan"]), one_group([(0, 0)])
    common = table.common(group.hypothesis_U, group.reference_U)
    assert cider(group, table, common)[0] == 0
    assert bleu(group, table, common)[0, 3] == pytest.approx(1, abs=1e-8)


def test_parts_give_what_the_whole_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = random.Random(0)
    captions = [" ".join(draw.choices("abcdef", k=draw.randint(0, 9))) for _ in range(40)]
    group_I = np.sort(np.array([draw.randrange(9) for _ in range(120)]))
    number_U = [np.array([draw.randrange(40) for _ in range(60)]) for _ in range(2)]
    pair_I = np.array([draw.randrange(60) for _ in range(120)])
    size_G = np.bincount(group_I, minlength=10)
    grouped = Groups(np.zeros((10, 4), int), size_G, group_I, pair_I, *number_U)

    def scores() -> list[list[float]]:
        table = ngrams(captions)
        common = table.common(*number_U)
        found = cider(grouped, table, common), rouge(grouped, captions, common)
        return [score_G.tolist() for score_G in (*found, *bleu(grouped, table, common).T)]

    whole = scores()
    monkeypatch.setattr(ngrams_module, "_BLOCK", 50)
    assert scores() == whole


letters = st.lists(st.sampled_from("abcd"), max_size=70)


@given(letters, letters)
def test_common_subsequence(a: list[str], b: list[str]) -> None:
    table = [[0] * (len(b) + 1) for _ in range(len(a) + 1)]
    for i, x in enumerate(a):
        for j, y in enumerate(b):
            table[i + 1][j + 1] = (
                table[i][j] + 1 if x == y else max(table[i][j + 1], table[i + 1][j])
            )
    assert common_subsequence(a, b) == table[-1][-1]


def test_rouge_l() -> None:
    assert rouge_l(["a", "b", "c"], ["a", "b", "c"]) == 1
    assert rouge_l([""], [""]) == 1
    assert rouge_l([""], ["a"]) == 0
    assert rouge_l(["a", "b"], ["a", "c", "d"]) == pytest.approx(
        (1 + 1.44) * (1 / 2) * (1 / 3) / (1 / 3 + 1.44 / 2)
    )
