"""The grammar of a caption sequence: time tokens only where they may stand, in order.

    sequence := event* end          event := start end word+
    end of an event > its start     start of an event > start of the one before

In: scores of the next token for every beam. Out: the same scores with -inf for what the grammar
forbids. Every sequence found under it parses completely into events (timeline.py). An option of
decoding; nothing is renormalised, so log-probabilities stay those of the model.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from starc.model.timeline import Vocabulary

OPENING, STARTED, TIMED, WORDS = range(4)
"""Where a hypothesis stands: at the beginning, after a start, after an end time, among words."""
EVENT_TOKENS = 3
"""The shortest event: start, end, one word."""
NEIGHBOURS = 2
"""Bins on either side that lend a time their weight."""


class Place(NamedTuple):
    """Where each beam stands, and the start bin of its latest event."""

    phase_BK: Tensor
    start_BK: Tensor

    def choose(self, parent_BK: Tensor) -> Place:
        """The places of these beams."""
        return Place(self.phase_BK.gather(1, parent_BK), self.start_BK.gather(1, parent_BK))

    def keep(self, videos: Tensor) -> Place:
        """The places of these videos."""
        return Place(self.phase_BK[videos], self.start_BK[videos])


def opening(videos: int, beams: int, device: torch.device) -> Place:
    """All beams before their first token."""
    nowhere_BK = torch.zeros(videos, beams, dtype=torch.long, device=device)
    return Place(nowhere_BK + OPENING, nowhere_BK - 1)


def advance(place: Place, token_BK: Tensor, vocabulary: Vocabulary) -> Place:
    """The places after one more token, which the grammar must allow."""
    bin_BK = token_BK - vocabulary.text_tokens
    timed_BK = bin_BK >= 0
    starts_BK = timed_BK & (place.phase_BK != STARTED)
    phase_BK = torch.where(timed_BK, TIMED, WORDS).masked_fill(starts_BK, STARTED)
    return Place(phase_BK, torch.where(starts_BK, bin_BK, place.start_BK))


def forbid_(score_BKV: Tensor, place: Place, vocabulary: Vocabulary, *, room: int) -> Tensor:
    """Set the score of every token that may not come next to -inf, in place.

    `room` counts the tokens that still fit, this one included: no event begins that cannot end.
    """
    text = vocabulary.text_tokens
    forbidden = float("-inf")
    phase_BK = place.phase_BK[..., None]
    no_words = (phase_BK == OPENING) | (phase_BK == STARTED)
    no_end = (phase_BK == STARTED) | (phase_BK == TIMED)
    end_BK = score_BKV[..., vocabulary.end].masked_fill(no_end[..., 0], forbidden)
    words_BKV = score_BKV[..., :text]
    words_BKV.masked_fill_(no_words, forbidden)
    words_BKV[..., list(vocabulary.wordless)] = forbidden
    score_BKV[..., vocabulary.end] = end_BK
    bin_V = torch.arange(vocabulary.bins, device=score_BKV.device)
    start_BK = place.start_BK[..., None]
    # The last bin starts nothing: no end could follow it.
    passed = bin_V <= start_BK
    no_start = passed | (bin_V == vocabulary.bins - 1) | (room < EVENT_TOKENS)
    no_time = torch.where(phase_BK == STARTED, passed, no_start | (phase_BK == TIMED))
    score_BKV[..., text:].masked_fill_(no_time, forbidden)
    return score_BKV


def weigh_(score_BKV: Tensor, last_BK: Tensor, vocabulary: Vocabulary) -> Tensor:
    """Let the kind of the next token be decided by the mass of all tokens of that kind, in place.

    A start may lie in any of a hundred bins, so each of them is less likely than the one end id, or
    than one more word, although together they are likelier by far. First words are weighed against
    times and end, then times against the end; the kind that loses is forbidden. Among times, those
    with likely neighbours come first. No word follows itself.
    """
    text, forbidden = vocabulary.text_tokens, float("-inf")
    again = torch.where(last_BK < text, forbidden, score_BKV.gather(2, last_BK[..., None])[..., 0])
    score_BKV.scatter_(2, last_BK[..., None], again[..., None])
    time_BKT = score_BKV[..., text:]
    end_BK = score_BKV[..., vocabulary.end].clone()
    score_BKV[..., vocabulary.end] = forbidden
    word_BK, when_BK = score_BKV[..., :text].logsumexp(-1), time_BKT.logsumexp(-1)
    stop = torch.logaddexp(when_BK, end_BK) > word_BK
    score_BKV[..., :text].masked_fill_(stop[..., None], forbidden)
    more = stop & (when_BK > end_BK)
    score_BKV[..., vocabulary.end] = end_BK.masked_fill(~stop | more, forbidden)
    near_BKT = _with_neighbours(time_BKT - when_BK[..., None])
    time_BKT.copy_(near_BKT.masked_fill(~more[..., None], forbidden))
    return score_BKV


def _with_neighbours(log_BKT: Tensor) -> Tensor:
    """Logarithms of probabilities smoothed over bins; what is forbidden stays so."""
    size = 2 * NEIGHBOURS + 1
    kernel = torch.arange(1.0, NEIGHBOURS + 2, device=log_BKT.device)
    kernel = torch.cat([kernel, kernel[:-1].flip(0)]).to(log_BKT.dtype)
    rows = log_BKT.nan_to_num(nan=float("-inf")).exp().reshape(-1, 1, log_BKT.shape[-1])
    smooth = F.conv1d(rows, (kernel / kernel.sum()).reshape(1, 1, size), padding=NEIGHBOURS)
    near = smooth.reshape(log_BKT.shape).clamp(min=1e-30).log()
    return near.masked_fill(log_BKT == float("-inf"), float("-inf"))
