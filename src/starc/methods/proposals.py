"""From query predictions to a list of events: scores, ranking and how many are kept."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from starc.methods.matching import LayerOutput, spans
from starc.methods.words import Words
from starc.types import Event

NO_SENTENCE = -1e5
"""Sentence score if no query of the batch predicts a word."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """The prediction of one query; the fields are those of the published result files."""

    start: float
    end: float
    score: float
    """Probability that this is an event."""
    sentence: str
    sentence_score: float
    """Sum of log-probabilities of its words, without the end token."""
    query: int
    label: int
    count: int
    """Predicted number of events in the video."""

    @property
    def words(self) -> int:
        return len(self.sentence.split())


def proposals(
    output: LayerOutput,
    word_BQS: Tensor,
    log_BQS: Tensor,
    seconds_B: Tensor,
    words: Words,
) -> list[list[Proposal]]:
    """For each video its queries by descending score; boxes in seconds, clipped to the video."""
    queries, classes = output.logit_BQC.shape[1:]
    score_BK, index_BK = output.logit_BQC.sigmoid().flatten(1).topk(queries, dim=1)
    span_BQ2 = spans(output.box_BQ2).clamp(0, 1) * seconds_B[:, None, None]
    sentence_BQ = ((word_BQS > 0) * log_BQS).sum(2)
    if not word_BQS.shape[2]:
        sentence_BQ = sentence_BQ + NO_SENTENCE
    count_B = output.count_BN.argmax(dim=-1).clamp(min=1)
    result = []
    for video in range(len(score_BK)):
        ranked = []
        for score, index in zip(score_BK[video].tolist(), index_BK[video].tolist(), strict=True):
            query, label = divmod(index, classes)
            start, end = span_BQ2[video, query].tolist()
            sentence = words.decode(word_BQS[video, query].tolist())
            log, count = sentence_BQ[video, query].item(), int(count_B[video])
            ranked.append(Proposal(start, end, score, sentence, log, query, label, count))
        result.append(ranked)
    return result


def joint_score(proposal: Proposal, sentence_weight: float) -> float:
    """Event score plus weighted sentence score, which is divided by the squared length.

    As published, an empty sentence scores 0, which is better than any other.
    """
    sentence = proposal.sentence_score / (float(proposal.words * proposal.words) + 1e-5)
    return sentence_weight * sentence + proposal.score


def rerank(proposals: Sequence[Proposal], sentence_weight: float) -> list[Proposal]:
    """The best by joint score, as many as the predicted count, in temporal order."""
    ranked = sorted(proposals, key=lambda p: joint_score(p, sentence_weight), reverse=True)
    kept = ranked[: ranked[0].count] if ranked else []
    return sorted(kept, key=lambda p: (p.start, p.end))


def to_events(proposals: Sequence[Proposal], sources: tuple[str, ...]) -> list[Event]:
    """Proposals of positive length as events."""
    return [
        Event(
            p.start,
            p.end,
            p.sentence,
            math.exp(p.sentence_score / p.words) if p.words else None,
            times_from=sources,
            words_from=sources,
        )
        for p in proposals
        if p.start < p.end
    ]
