"""Searching for the most probable sequence of token ids: greedy or with beams.

In: a decoder, the memory of B videos and the settings of the search. Out: per video its ids,
their log-probabilities and a score. The rules are those of transformers' `generate` (length and
repetition penalties, shortest length, when beams are finished and when a search may stop), on a
decoder that never copies a beam (incremental.py). A video that is finished leaves the batch; its
neighbours never change its result. Here K is beams and C = 2K the candidates of a step.

The grammar of a caption sequence, an option, lets time tokens stand only where they may, in order:

    sequence := event* end          event := start end word+
    end of an event > its start     start of an event > start of the one before

It sets the scores of what it forbids to -inf, so that every sequence parses completely into events
(time_tokens.py); nothing is renormalised, so log-probabilities stay those of the model.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor

from starc.config import EVENT_TOKENS, BeamSearch
from starc.decoder.incremental import IncrementalDecoder
from starc.decoder.llama import CausalDecoder, CausalSteps
from starc.decoder.t5 import END, PAD, T5
from starc.decoder.time_tokens import Vocabulary

NEVER = -1.0e9
"""Score of what must lose against everything; the value of transformers, which ties depend on."""
HOPELESS = NEVER / 2
"""A running score below this has been forbidden."""
OPENING, STARTED, TIMED, WORDS = range(4)
"""Where a hypothesis stands: at the beginning, after a start, after an end time, among words."""


def places(said_BKL: Tensor, vocabulary: Vocabulary) -> tuple[Tensor, Tensor]:
    """Where each beam stands, and the start bin of its latest event (-1: none), [B, K] each.

    `said_BKL` begins with the start id. Starts rise, so the latest is the largest.
    """
    timed_BKL = said_BKL >= vocabulary.text_tokens
    starts_BKL = timed_BKL & ~F.pad(timed_BKL[..., :-1], (1, 0))
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


@dataclass(frozen=True, slots=True)
class Decoded:
    """What was decoded for one video."""

    ids: tuple[int, ...]
    """Without the start id; ends with the end id unless `max_tokens` cut it off."""
    log_probabilities: tuple[float, ...]
    """Of each id, as the model gave it: before penalties."""
    score: float
    """Penalised log-probability divided by length ** length_penalty."""


@torch.inference_mode()
def generate(
    decoder: T5 | CausalDecoder,
    memory_BMD: Tensor,
    memory_mask_BM: Tensor,
    search: BeamSearch,
    given: Sequence[Sequence[int]] | None = None,
) -> list[Decoded]:
    """The best sequence of each video; `given` are the time ids that it must have."""
    decoder.check_memory(memory_BMD, memory_mask_BM)
    if 2 * search.beams > decoder.settings.vocabulary:
        raise ValueError(f"{search.beams} beams need a vocabulary of twice that many ids")
    if not len(memory_BMD):
        return []
    stepper: IncrementalDecoder | CausalSteps
    if isinstance(decoder, T5):
        stepper = IncrementalDecoder(decoder, memory_BMD, memory_mask_BM, beams=search.beams)
    else:
        stepper = CausalSteps(decoder, memory_BMD, memory_mask_BM, beams=search.beams)
    hypotheses = _Hypotheses(stepper, search, given)
    (_greedy if search.beams == 1 else _beams)(hypotheses)
    return cast(list[Decoded], hypotheses.decoded)


class _Hypotheses:
    """The running sequences of all unfinished videos, and what each may say next."""

    def __init__(
        self,
        stepper: IncrementalDecoder | CausalSteps,
        search: BeamSearch,
        given: Sequence[Sequence[int]] | None = None,
    ) -> None:
        settings, shape = stepper.settings, (stepper.videos, search.beams)
        self.given_BN: Tensor | None = None
        if given is not None:
            most = max(map(len, given))
            rows = [[*times, *([END] * (most + 1 - len(times)))] for times in given]
            self.given_BN = torch.tensor(rows, device=stepper.device)
            least = EVENT_TOKENS * most // 2 + 1
            search = replace(search, max_tokens=max(search.max_tokens, least))
        self.stepper, self.search = stepper, search
        device = stepper.device
        self.said_BKL = torch.full((*shape, 1), PAD, dtype=torch.long, device=device)
        self.log_BKL = torch.zeros((*shape, 0), device=device)
        self.score_BK = torch.full(shape, NEVER, device=device)
        self.score_BK[:, 0] = 0.0
        self.length = 0
        """Tokens said so far."""
        if search.grammar or given is not None:
            self.vocabulary = Vocabulary(settings.text_vocabulary, settings.bins)
        self.videos = list(range(stepper.videos))
        """Numbers of the unfinished videos in the batch that was given."""
        self.decoded: list[Decoded | None] = [None] * stepper.videos

    def next_scores(self) -> tuple[Tensor, Tensor]:
        """Scores [B, K, V] of the next token after all rules, and its log-probabilities.

        Greedy search penalises logits and beam search log-probabilities, as in transformers.
        """
        search, said_BKL = self.search, self.said_BKL
        logits_BKV = self.stepper.step(said_BKL[..., -1])
        log_BKV = logits_BKV.log_softmax(-1)
        score_BKV = logits_BKV if search.beams == 1 else log_BKV.clone()
        if (penalty := search.repetition_penalty) != 1.0:
            old_BKL = score_BKV.gather(2, said_BKL)
            new_BKL = torch.where(old_BKL < 0, old_BKL * penalty, old_BKL / penalty)
            score_BKV.scatter_(2, said_BKL, new_BKL)
        if self.length < search.min_tokens:
            score_BKV[..., END] = float("-inf")
        room, repeated = search.max_tokens - self.length, search.max_repeated_words
        if self.given_BN is not None:
            follow_(score_BKV, said_BKL, self.vocabulary, self.given_BN, room=room)
        elif search.grammar:
            forbid_(score_BKV, said_BKL, self.vocabulary, room=room)
        if search.token_type_first:
            vary_(score_BKV, said_BKL, self.vocabulary, max_repeated_words=repeated)
            weigh_(score_BKV, said_BKL, self.vocabulary, search.quantiles)
        return score_BKV, log_BKV

    def go_on(self, parent_BK: Tensor, token_BK: Tensor, log_BK: Tensor) -> None:
        """Continue the chosen parents with one token each."""
        self.said_BKL = _append(self.said_BKL, parent_BK, token_BK)
        self.log_BKL = _append(self.log_BKL, parent_BK, log_BK)
        self.length += 1
        if self.search.beams > 1:
            self.stepper.choose(parent_BK)

    def finish(self, row: int, ids: list[int], logs: list[float], score: float) -> None:
        """Store the result of a video, without what follows its end id."""
        length = ids.index(END) + 1 if END in ids else len(ids)
        self.decoded[self.videos[row]] = Decoded(tuple(ids[:length]), tuple(logs[:length]), score)

    def keep(self, rows: Tensor) -> None:
        """Go on with these videos only."""
        self.said_BKL, self.log_BKL = self.said_BKL[rows], self.log_BKL[rows]
        self.score_BK = self.score_BK[rows]
        if self.given_BN is not None:
            self.given_BN = self.given_BN[rows]
        self.videos = [self.videos[row] for row in rows.tolist()]
        if len(rows):
            self.stepper.keep(rows)


def _greedy(hypotheses: _Hypotheses) -> None:
    """Always the best next token, until the end id."""
    search = hypotheses.search
    while hypotheses.videos:
        score_BKV, log_BKV = hypotheses.next_scores()
        token_BK = score_BKV.argmax(-1)
        log_BK = log_BKV.gather(2, token_BK[..., None])[..., 0]
        hypotheses.go_on(torch.zeros_like(token_BK), token_BK, log_BK)
        ended_B = (token_BK[:, 0] == END) | (hypotheses.length >= search.max_tokens)
        if not ended_B.any():
            continue
        for row in ended_B.nonzero().flatten().tolist():
            logs = hypotheses.log_BKL[row, 0].tolist()
            score = math.fsum(logs) / len(logs) ** search.length_penalty
            hypotheses.finish(row, hypotheses.said_BKL[row, 0, 1:].tolist(), logs, score)
        hypotheses.keep((~ended_B).nonzero().flatten())


@dataclass(slots=True)
class _Finished:
    """The K best finished sequences of each video so far."""

    score_BK: Tensor
    real_BK: Tensor
    said_BKL: Tensor
    log_BKL: Tensor

    def add(self, score_BC: Tensor, real_BC: Tensor, said_BCL: Tensor, log_BCL: Tensor) -> None:
        """Take in the real ones of these sequences; the best K of old and new stay."""
        missing = said_BCL.shape[2] - self.said_BKL.shape[2]
        said_BKL = F.pad(self.said_BKL, (0, missing), value=END)
        log_BKL = F.pad(self.log_BKL, (0, missing))
        merged_BM = torch.cat([self.score_BK, score_BC.masked_fill(~real_BC, NEVER)], 1)
        self.score_BK, best_BK = merged_BM.topk(self.score_BK.shape[1])
        self.real_BK = torch.cat([self.real_BK, real_BC], 1).gather(1, best_BK)
        self.said_BKL = _rows(torch.cat([said_BKL, said_BCL], 1), best_BK)
        self.log_BKL = _rows(torch.cat([log_BKL, log_BCL], 1), best_BK)


def _beams(hypotheses: _Hypotheses) -> None:
    """Beam search.

    Of the 2K best continuations the K best unfinished ones go on; those among the best K that
    end compete, by score / length ** penalty, for K finished places. A video is done when its
    places are full and its best running score, at the present length, beats none of them; or when
    it has a finished sequence and the grammar leaves none of the others a way to go on.
    """
    finished = _Finished(
        score_BK=torch.full_like(hypotheses.score_BK, NEVER),
        real_BK=torch.zeros_like(hypotheses.score_BK, dtype=torch.bool),
        said_BKL=hypotheses.said_BKL[..., :0],
        log_BKL=hypotheses.log_BKL,
    )
    while hypotheses.videos:
        going_B = _extend(hypotheses, finished)
        going_B &= hypotheses.length < hypotheses.search.max_tokens
        if going_B.all():
            continue
        for row in (~going_B).nonzero().flatten().tolist():
            best = finished.said_BKL[row, 0].tolist(), finished.log_BKL[row, 0].tolist()
            hypotheses.finish(row, *best, finished.score_BK[row, 0].item())
        rows = going_B.nonzero().flatten()
        hypotheses.keep(rows)
        finished.score_BK, finished.real_BK = finished.score_BK[rows], finished.real_BK[rows]
        finished.said_BKL, finished.log_BKL = finished.said_BKL[rows], finished.log_BKL[rows]


def _extend(hypotheses: _Hypotheses, finished: _Finished) -> Tensor:
    """One step of the search; True for videos that may still find better sequences.

    Published rules: a length counts the start id and not the end id, and the best candidate
    keeps a search going even if it has just ended. Today's count what was generated.
    """
    search = hypotheses.search
    published = search.rules == "published"
    length = hypotheses.length + 1
    last = length == search.max_tokens
    score_BKV, log_BKV = hypotheses.next_scores()
    total_BN = (score_BKV + hypotheses.score_BK[..., None]).flatten(1)
    score_BC, index_BC = total_BN.topk(2 * search.beams)
    parent_BC, token_BC = index_BC // log_BKV.shape[2], index_BC % log_BKV.shape[2]
    log_BC = log_BKV.flatten(1).gather(1, index_BC)
    ends_BC = (token_BC == END) | (last and not published)
    contends_BC = ends_BC.clone()
    contends_BC[:, search.beams :] = False
    if contends_BC.any():
        finished.add(
            score_BC / length**search.length_penalty,
            contends_BC,
            _append(hypotheses.said_BKL, parent_BC, token_BC)[..., 1:],
            _append(hypotheses.log_BKL, parent_BC, log_BC),
        )
    hypotheses.score_BK, chosen_BK = (score_BC + ends_BC * NEVER).topk(search.beams)
    hypotheses.go_on(*(x_BC.gather(1, chosen_BK) for x_BC in (parent_BC, token_BC, log_BC)))
    running: float = (length + published) ** search.length_penalty
    best_B = (score_BC if published else hypotheses.score_BK)[:, 0] / running
    going_B = ~finished.real_BK.all(1) | (best_B > finished.score_BK.amin(1))
    going_B &= (hypotheses.score_BK.amax(1) > HOPELESS) | (finished.score_BK.amax(1) < HOPELESS)
    if last and published:
        score_BK = hypotheses.score_BK / running
        real_BK = going_B[:, None].expand_as(score_BK)
        finished.add(score_BK, real_BK, hypotheses.said_BKL[..., 1:], hypotheses.log_BKL)
    return going_B


def _rows(x_BKL: Tensor, index_BC: Tensor) -> Tensor:
    """The chosen rows of each video: [B, K, L] -> [B, C, L]."""
    return x_BKL.gather(1, index_BC[..., None].expand(-1, -1, x_BKL.shape[2]))


def _append(x_BKL: Tensor, parent_BC: Tensor, last_BC: Tensor) -> Tensor:
    """The chosen rows, each with one more element: [B, K, L] -> [B, C, L + 1]."""
    return torch.cat([_rows(x_BKL, parent_BC), last_BC[..., None]], 2)
