"""Searching for the most probable sequence of token ids: greedy or with beams.

In: a decoder, the memory of B videos and the settings of the search. Out: per video its ids,
their log-probabilities and a score. The rules are those of transformers' `generate` (length and
repetition penalties, shortest length, when beams are finished and when a search may stop), on a
decoder that never copies a beam (incremental.py). A video that is finished leaves the batch; its
neighbours never change its result. Here K is beams and C = 2K the candidates of a step.
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
from starc.decoder import grammar
from starc.decoder.incremental import IncrementalDecoder
from starc.decoder.llama import CausalDecoder, CausalSteps
from starc.decoder.t5 import END, PAD, T5
from starc.decoder.time_tokens import Vocabulary

NEVER = -1.0e9
"""Score of what must lose against everything; the value of transformers, which ties depend on."""
HOPELESS = NEVER / 2
"""A running score below this has been forbidden."""


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
            grammar.follow_(score_BKV, said_BKL, self.vocabulary, self.given_BN, room=room)
        elif search.grammar:
            grammar.forbid_(score_BKV, said_BKL, self.vocabulary, room=room)
        if search.token_type_first:
            grammar.vary_(score_BKV, said_BKL, self.vocabulary, max_repeated_words=repeated)
            grammar.weigh_(score_BKV, said_BKL, self.vocabulary, search.quantiles)
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
