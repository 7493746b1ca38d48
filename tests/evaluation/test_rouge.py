"""ROUGE-L: the bit-parallel table against the plain one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from starc.evaluation.rouge import common_subsequence, rouge_l

words = st.lists(st.sampled_from("abcd"), max_size=70)


@given(words, words)
def test_common_subsequence(a: list[str], b: list[str]) -> None:
    table = [[0] * (len(b) + 1) for _ in range(len(a) + 1)]
    for i, x in enumerate(a):
        for j, y in enumerate(b):
            table[i + 1][j + 1] = (
                table[i][j] + 1 if x == y else max(table[i][j + 1], table[i + 1][j])
            )
    assert common_subsequence(a, b) == table[-1][-1]


def test_score() -> None:
    assert rouge_l(["a", "b", "c"], ["a", "b", "c"]) == 1
    assert rouge_l([""], [""]) == 1
    assert rouge_l([""], ["a"]) == 0
    assert rouge_l(["a", "b"], ["a", "c", "d"]) == pytest.approx(
        (1 + 1.44) * (1 / 2) * (1 / 3) / (1 / 3 + 1.44 / 2)
    )
