"""Caption metrics over whole texts, each with one or more references, as COCO's tools take them.

In: documents, each a tokenised text beside its references: the paragraph of a video, or the title
of a chapter. Out: METEOR, CIDEr, ROUGE-L and BLEU over all documents together. Here document
frequencies, lengths and METEOR's counts are those of the whole corpus; the dense protocols
(ngrams.py) take them video by video.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from starc_eval.meteor import SEPARATOR, Meteor, aggregate
from starc_eval.ngrams import ORDERS, SIGMA, SMALL, TINY, common_subsequence, rouge_f
from starc_eval.pairs import Floats

Grams = Counter[tuple[str, ...]]


class Document(NamedTuple):
    hypothesis: str
    references: tuple[str, ...]


class Scores(NamedTuple):
    metrics: dict[str, float]
    per_document: dict[str, Floats]
    """Of the metrics that are means over documents."""


def words_only(text: str) -> str:
    """PDVC's tokens of a paragraph: runs of ASCII letters, lower-case."""
    return " ".join(re.sub("[^a-zA-Z]", " ", text).lower().split())


def score_documents(documents: Sequence[Document], meteor: Meteor) -> Scores:
    """Every metric over all documents; BLEU and METEOR have no meaning document by document."""
    pairs = [(one.hypothesis, SEPARATOR.join(one.references)) for one in documents]
    means = {
        "CIDEr": cider(documents),
        "Rouge-L": np.array([rouge(document) for document in documents], np.float64),
    }
    metrics = {"METEOR": aggregate(meteor.statistics_many(pairs))}
    metrics |= {name: float(value_D.mean()) for name, value_D in means.items()}
    metrics |= {f"Bleu_{n + 1}": value for n, value in enumerate(bleu(documents))}
    return Scores(metrics, means)


def _grams(text: str) -> Grams:
    words = text.split()
    return Counter(
        tuple(words[at : at + n]) for n in range(1, ORDERS + 1) for at in range(len(words) - n + 1)
    )


def bleu(documents: Sequence[Document]) -> list[float]:
    """Corpus BLEU 1 to 4: counts clipped to the reference that has most, closest length."""
    correct, guess = [0] * ORDERS, [0] * ORDERS
    length, wanted = 0, 0
    for hypothesis, references in documents:
        words = len(hypothesis.split())
        length += words
        wanted += min((abs(n - words), n) for n in (len(one.split()) for one in references))[1]
        most = Grams()
        for reference in references:
            most |= _grams(reference)
        said = _grams(hypothesis)
        for gram, count in (said & most).items():
            correct[len(gram) - 1] += count
        for n in range(ORDERS):
            guess[n] += max(0, words - n)
    ratio = (length + TINY) / (wanted + SMALL)
    brevity = math.exp(1 - 1 / ratio) if ratio < 1 else 1.0
    product, scores = 1.0, []
    for n in range(ORDERS):
        product *= (correct[n] + TINY) / (guess[n] + SMALL)
        scores.append(product ** (1 / (n + 1)) * brevity)
    return scores


def cider(documents: Sequence[Document]) -> Floats:
    """CIDEr of each document, the mean over its references (formula: ngrams.py).

    A document counts once for an n-gram, however many of its references have it.
    """
    references = [[_grams(text) for text in one.references] for one in documents]
    frequency: Counter[tuple[str, ...]] = Counter()
    for several in references:
        frequency.update({gram for grams in several for gram in grams})
    all_documents = math.log(len(documents))

    def vector(grams: Grams) -> tuple[list[dict[tuple[str, ...], float]], list[float], int]:
        weights: list[dict[tuple[str, ...], float]] = [{} for _ in range(ORDERS)]
        for gram, count in grams.items():
            idf = all_documents - math.log(max(1, frequency[gram]))
            weights[len(gram) - 1][gram] = count * idf
        norms = [math.sqrt(sum(w**2 for w in order.values())) for order in weights]
        return weights, norms, sum(count for gram, count in grams.items() if len(gram) == 2)

    scores = []
    for document, several in zip(documents, references, strict=True):
        said, said_norms, said_length = vector(_grams(document.hypothesis))
        total = 0.0
        for weights, norms, length in map(vector, several):
            penalty = math.exp(-((said_length - length) ** 2) / (2 * SIGMA**2))
            for n in range(ORDERS):
                shared = said[n].keys() & weights[n].keys()
                value = sum(
                    min(said[n][gram], weights[n][gram]) * weights[n][gram] for gram in shared
                )
                norm = said_norms[n] * norms[n]
                total += value / norm * penalty if norm else 0.0
        scores.append(10 * total / ORDERS / len(several))
    return np.array(scores, np.float64)


def rouge(document: Document) -> float:
    """ROUGE-L from the best precision and the best recall of any reference."""
    said = document.hypothesis.split(" ")
    several = [reference.split(" ") for reference in document.references]
    common = [common_subsequence(said, words) for words in several]
    recalls = [shared / len(words) for shared, words in zip(common, several, strict=True)]
    return rouge_f(max(common) / len(said), max(recalls))
