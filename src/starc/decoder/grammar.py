"""The grammar of a caption sequence: time tokens only where they may stand, in order.

    sequence := event* end          event := start end word+
    end of an event > its start     start of an event > start of the one before

In: scores of the next token for every beam. Out: the same scores with -inf for what the grammar
forbids. Every sequence found under it parses completely into events (timeline.py). An option of
decoding; nothing is renormalised, so log-probabilities stay those of the model.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from starc.config import EVENT_TOKENS
from starc.decoder.time_tokens import Vocabulary

OPENING, STARTED, TIMED, WORDS = range(4)
"""Where a hypothesis stands: at the beginning, after a start, after an end time, among words."""


def places(said_BKL: Tensor, vocabulary: Vocabulary) -> tuple[Tensor, Tensor]:
    """Where each beam stands, and the start bin of its latest event (-1: none), [B, K] each.

    `said_BKL` begins with the start id. Starts rise, so the latest is the largest.
    """
    timed_BKL = said_BKL >= vocabulary.text_tokens
    starts_BKL = timed_BKL & ~pad(timed_BKL[..., :-1], (1, 0))
    phase_BK = torch.where(timed_BKL[..., -1], TIMED, WORDS if said_BKL.shape[2] > 1 else OPENING)
    phase_BK = phase_BK.masked_fill(starts_BKL[..., -1], STARTED)
    bin_BKL = torch.where(starts_BKL, said_BKL - vocabulary.text_tokens, -1)
    return phase_BK, bin_BKL.amax(-1)


def forbid_(score_BKV: Tensor, said_BKL: Tensor, vocabulary: Vocabulary, *, room: int) -> Tensor:
    """Set the score of every token that may not come next to -inf, in place.

    `room` counts the tokens that still fit, this one included: no event begins that cannot end.
    """
    text = vocabulary.text_tokens
    forbidden = float("-inf")
    phase_BK, start_BK = (x_BK[..., None] for x_BK in places(said_BKL, vocabulary))
    no_words = (phase_BK == OPENING) | (phase_BK == STARTED)
    no_end = (phase_BK == STARTED) | (phase_BK == TIMED)
    end_BK = score_BKV[..., vocabulary.end].masked_fill(no_end[..., 0], forbidden)
    words_BKV = score_BKV[..., :text]
    words_BKV.masked_fill_(no_words, forbidden)
    words_BKV[..., list(vocabulary.wordless)] = forbidden
    score_BKV[..., vocabulary.end] = end_BK
    bin_V = torch.arange(vocabulary.bins, device=score_BKV.device)
    # The last bin starts nothing: no end could follow it.
    passed = bin_V <= start_BK
    no_start = passed | (bin_V == vocabulary.bins - 1) | (room < EVENT_TOKENS)
    no_time = torch.where(phase_BK == STARTED, passed, no_start | (phase_BK == TIMED))
    score_BKV[..., text:].masked_fill_(no_time, forbidden)
    return score_BKV


def follow_(
    score_BKV: Tensor, said_BKL: Tensor, vocabulary: Vocabulary, given_BN: Tensor, *, room: int
) -> Tensor:
    """Let the given time ids be said, in their order, and words between them, in place.

    `given_BN` holds start and end of each event, then end ids. Where the next time is known, only
    whether the words are over is the model's to say: by the mass of all times and the end. Words
    end early enough (`room`) for every event to have one.
    """
    text, forbidden = vocabulary.text_tokens, float("-inf")
    phase_BK, _ = places(said_BKL, vocabulary)
    count_BK = (said_BKL >= text).sum(-1)
    events_BK = ((given_BN >= text).sum(-1, keepdim=True) - count_BK) // 2
    next_BK1 = given_BN.gather(1, count_BK)[..., None]
    end_BK1 = score_BKV[..., vocabulary.end, None]
    over_BK1 = torch.cat([score_BKV[..., text:], end_BK1], -1).logsumexp(-1, keepdim=True)
    no_words = (phase_BK == OPENING) | (phase_BK == STARTED)
    no_words |= (phase_BK == WORDS) & (room <= EVENT_TOKENS * events_BK + 1)
    words_BKV = score_BKV[..., :text].masked_fill_(no_words[..., None], forbidden)
    words_BKV[..., list(vocabulary.wordless)] = forbidden
    score_BKV[..., text:] = forbidden
    return score_BKV.scatter_(
        2, next_BK1, over_BK1.masked_fill(phase_BK[..., None] == TIMED, forbidden)
    )


def vary_(
    score_BKV: Tensor,
    said_BKL: Tensor,
    vocabulary: Vocabulary,
    *,
    max_repeated_words: int | None = None,
) -> Tensor:
    """Forbid a word to follow itself, and two words to follow each other twice in a caption.

    With `max_repeated_words`, no more than so many words in a row are said twice in all.
    """
    text, forbidden = vocabulary.text_tokens, float("-inf")
    last_BK1 = said_BKL[..., -1:]
    again = torch.where(last_BK1 < text, forbidden, score_BKV.gather(2, last_BK1))
    score_BKV.scatter_(2, last_BK1, again)
    timed_BKL = (said_BKL >= text).long()
    caption_BKL = timed_BKL.flip(-1).cumsum(-1).flip(-1) == 0  # words after the last time
    met_BKL = caption_BKL[..., :-1] & (said_BKL[..., :-1] == last_BK1)
    followers = said_BKL[..., 1:].masked_fill(~met_BKL, vocabulary.pad)
    score_BKV.scatter_(2, followers, forbidden)
    if max_repeated_words is not None and said_BKL.shape[-1] > max_repeated_words:
        run_BKNR = said_BKL.unfold(-1, max_repeated_words, 1)
        last_BK1R = run_BKNR[..., -1:, :]
        met_BKN = (run_BKNR[..., :-1, :] == last_BK1R).all(-1) & (last_BK1R < text).all(-1)
        followers = said_BKL[..., max_repeated_words:]
        met_BKN &= followers < text
        score_BKV.scatter_(2, followers.masked_fill(~met_BKN, vocabulary.pad), forbidden)
    return score_BKV


def weigh_(
    score_BKV: Tensor, said_BKL: Tensor, vocabulary: Vocabulary, quantiles: tuple[float, float]
) -> Tensor:
    """Let the kind of the next token be decided by the mass of all tokens of that kind, in place.

    A start may lie in any of a hundred bins, so each of them is less likely than the one end id, or
    than one more word, although together they are likelier by far. First words are weighed against
    times and end, then times against the end; the kind that loses is forbidden. Of the times only
    the quantile of their distribution stays (starts, ends): its middle is nearer to the truth than
    its peak.
    """
    text, forbidden = vocabulary.text_tokens, float("-inf")
    time_BKT = score_BKV[..., text:]
    end_BK = score_BKV[..., vocabulary.end].clone()
    score_BKV[..., vocabulary.end] = forbidden
    word_BK, when_BK = score_BKV[..., :text].logsumexp(-1), time_BKT.logsumexp(-1)
    stop = torch.logaddexp(when_BK, end_BK) > word_BK
    score_BKV[..., :text].masked_fill_(stop[..., None], forbidden)
    more = stop & (when_BK > end_BK)
    score_BKV[..., vocabulary.end] = end_BK.masked_fill(~stop | more, forbidden)
    phase_BK, _ = places(said_BKL, vocabulary)
    part_BK = torch.where(phase_BK == STARTED, quantiles[1], quantiles[0])
    mass_BKT = time_BKT.softmax(-1).nan_to_num().cumsum(-1)
    chosen_BK1 = (mass_BKT >= part_BK[..., None] * mass_BKT[..., -1:]).long().argmax(-1, True)
    value_BK1 = when_BK.masked_fill(~more, forbidden)[..., None]
    time_BKT.fill_(forbidden).scatter_(2, chosen_BK1, value_BK1)
    return score_BKV
