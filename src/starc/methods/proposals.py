"""From what event queries say to a list of events: scores, ranking, how many are kept."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from starc.methods.matching import Answer, spans
from starc.types import Event

NO_SENTENCE = -1e5
"""Score of every sentence where no query of the batch says a word."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """What one query says, with the fields of the published result files."""

    start: float
    end: float
    score: float
    """Chance that this is an event."""
    sentence: str
    sentence_score: float
    """Sum of its words' log-probabilities, without the end's."""
    query: int
    label: int
    count: int
    """How many events the model sees in the video."""

    @property
    def words(self) -> int:
        return len(self.sentence.split())


def proposals(
    answer: Answer,
    word_BQS: Tensor,
    log_BQS: Tensor,
    seconds_B: Tensor,
    vocabulary: Mapping[int, str],
) -> list[list[Proposal]]:
    """For each video, its queries by falling score; boxes in seconds, inside the video."""
    queries, classes = answer.logit_BQC.shape[1:]
    score_BK, place_BK = answer.logit_BQC.sigmoid().flatten(1).topk(queries, dim=1)
    span_BQ2 = spans(answer.box_BQ2).clamp(0, 1) * seconds_B[:, None, None]
    told_BQ = ((word_BQS > 0) * log_BQS).sum(2)
    if not word_BQS.shape[2]:
        told_BQ = told_BQ + NO_SENTENCE
    count_B = answer.count_BN.argmax(dim=-1).clamp(min=1)
    found = []
    for video in range(len(score_BK)):
        one = []
        for score, place in zip(score_BK[video].tolist(), place_BK[video].tolist(), strict=True):
            query, label = divmod(place, classes)
            start, end = span_BQ2[video, query].tolist()
            sentence = text(word_BQS[video, query].tolist(), vocabulary)
            told, count = told_BQ[video, query].item(), int(count_B[video])
            one.append(Proposal(start, end, score, sentence, told, query, label, count))
        found.append(one)
    return found


def text(words: Sequence[int], vocabulary: Mapping[int, str]) -> str:
    """Words up to the first 0, and a full stop; a number that has no word stands for itself."""
    if 0 in words:
        words = words[: words.index(0)]
    return " ".join(vocabulary.get(word, str(word)) for word in words) + "." if words else ""


def joint_score(proposal: Proposal, sentence_weight: float) -> float:
    """The event's score and its sentence's, which is divided by its squared length.

    A query without a sentence gets 0 for it, better than any sentence, as published.
    """
    told = proposal.sentence_score / (proposal.words**2.0 + 1e-5)
    return sentence_weight * told + proposal.score


def reranked(found: Sequence[Proposal], sentence_weight: float) -> list[Proposal]:
    """As many as the model counts, the best by joint score, in time order."""
    ranked = sorted(found, key=lambda p: joint_score(p, sentence_weight), reverse=True)
    kept = ranked[: ranked[0].count] if ranked else []
    return sorted(kept, key=lambda p: (p.start, p.end))


def to_events(found: Sequence[Proposal], sources: tuple[str, ...]) -> list[Event]:
    """Events of proposals that last; confidence is the geometric mean of the words' chances."""
    return [
        Event(
            p.start,
            p.end,
            p.sentence,
            math.exp(p.sentence_score / p.words) if p.words else None,
            times_from=sources,
            words_from=sources,
        )
        for p in found
        if p.start < p.end
    ]
