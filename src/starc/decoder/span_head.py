"""When things happen, from what is said: a small head on the first layers of a language model.

In: spoken words as states after the writer's first layers, averaged over bins of two seconds. Out:
for each bin how likely an event starts, ends, or goes on there (a GRU in both directions), and the
spans that together score best:

    score(s, e) = log p_start(s) + log p_end(e) + reward - length · log² (seconds / typical)
                  + inside · mean logit of p_inside in s..e · min(1, seconds / full_inside)

Spans do not overlap; the best set is found by dynamic programming. `reward` decides how many there
are. Where steps follow each other faster than in the videos it learnt from, starts crowd in its
bins; then bins are made shorter, which to the head is a slower cook. The low-rank changes of the
writer begin above these layers, so the head and the writer were trained apart
(recipes/caption_writer.py).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor, nn

from starc.config import SpanConfig
from starc.decoder.reader import Reader

CHUNK, CONTEXT = 768, 128
"""Tokens whose states are computed at once, and tokens read again before them."""
START, END, INSIDE = range(3)
FINER = (1.0, 1.5, 2.0)
"""Bins are so many times shorter where starts crowd."""


class TimedSpan(NamedTuple):
    """When something happens, in seconds, and how likely that is."""

    start: float
    end: float
    confidence: float


class WordStates(NamedTuple):
    """States of the spoken tokens after the first layers, and when each is said."""

    state_LD: Tensor
    time_L: Tensor


class Timing(NamedTuple):
    """When things happen, and how likely something does in each bin of so many seconds."""

    spans: list[TimedSpan]
    inside_T: Tensor
    bin: float


class Recurrent(nn.Module):
    """One network: a projection, a GRU in both directions, logits."""

    def __init__(self, inputs: int, hidden: int, dropout: float = 0.35) -> None:
        super().__init__()
        self.projection = nn.Linear(inputs, hidden)
        self.gru = nn.GRU(hidden, hidden, 2, batch_first=True, bidirectional=True, dropout=dropout)
        self.out = nn.Linear(2 * hidden, 3)
        self.dropout = nn.Dropout(dropout)

    def forward(self, bins_BTD: Tensor) -> Tensor:
        states_BTD, _ = self.gru(self.dropout(F.relu(self.projection(bins_BTD))))
        logits_BT3: Tensor = self.out(self.dropout(states_BTD))
        return logits_BT3


class SpanHead(nn.Module):
    """Logits of start, end and inside for each bin, and the spans they make."""

    def __init__(self, width: int, settings: SpanConfig) -> None:
        super().__init__()
        self.settings = settings
        made = (Recurrent(width + 2, settings.width) for _ in range(settings.members))
        self.members = nn.ModuleList(made)

    def forward(self, bins_BTD: Tensor) -> Tensor:
        """[B, T, 3], the mean of the members."""
        return torch.stack([member(bins_BTD) for member in self.members]).mean(0)

    def timing(self, states: WordStates, duration: float) -> Timing:
        """Spans in the longest bins in which starts do not crowd."""
        for finer in FINER:
            seconds = self.settings.bin / finer
            logits_T3 = self(bins_of(states, duration, seconds)[None])[0]
            if logits_T3[:, START].sigmoid().mean() <= self.settings.most_starts:
                break
        spans = self.spans(logits_T3, duration, seconds)
        return Timing(spans, logits_T3[:, INSIDE].sigmoid(), seconds)

    def spans(self, logits_T3: Tensor, duration: float, seconds: float) -> list[TimedSpan]:
        """The set of spans that scores best, in bins of so many seconds."""
        settings = self.settings
        bins = len(logits_T3)
        start, end = (F.logsigmoid(logits_T3[:, n]).tolist() for n in (START, END))
        inside = [0.0, *logits_T3[:, INSIDE].cumsum(0).tolist()]
        best, chosen = [0.0] * (bins + 1), [0] * (bins + 1)
        for stop in range(1, bins + 1):
            best[stop] = best[stop - 1]
            longest = min(round(settings.longest / settings.bin), stop)
            for length in range(round(settings.shortest / settings.bin), longest + 1):
                first = stop - length
                value = best[first] + start[first] + end[stop - 1] + settings.reward
                mean = (inside[stop] - inside[first]) / length
                lasts = length * settings.bin
                value += settings.inside * mean * min(1.0, lasts / settings.full_inside)
                value -= settings.length * math.log(lasts / settings.typical) ** 2
                if value > best[stop]:
                    best[stop], chosen[stop] = value, length
        spans, stop = list[TimedSpan](), bins
        while stop:
            if length := chosen[stop]:
                first = stop - length
                sure = math.exp((start[first] + end[stop - 1]) / 2)
                spans.append(TimedSpan(first * seconds, min(stop * seconds, duration), sure))
            stop -= length or 1
        return spans[::-1]


def word_states(
    reader: Reader, tokenizer: Tokenizer, words: Sequence[tuple[float, str]], layers: int
) -> WordStates:
    """States of the words, which are (seconds, text) in order, after so many layers."""
    ids, times = list[int](), list[float]()
    for time, text in words:
        some = tokenizer.encode(f" {text}", add_special_tokens=False).ids
        ids += some
        times += [time] * len(some)
    parts = [torch.zeros(0, reader.settings.width, device=reader.device)]
    for first in range(0, len(ids), CHUNK):
        context = max(0, first - CONTEXT)
        x_LD = reader.first_layers(ids[context : first + CHUNK], layers)
        parts.append(F.layer_norm(x_LD[first - context :].float(), x_LD.shape[1:]))
    return WordStates(torch.cat(parts), torch.tensor(times, device=reader.device))


def bins_of(states: WordStates, duration: float, seconds: float) -> Tensor:
    """States averaged over bins [T, D + 2]: then how many tokens, and which part of the video."""
    state_LD, time_L = states
    count = int(duration // seconds) + 1
    bin_L = (time_L // seconds).long().clamp(max=count - 1)
    sum_TD = state_LD.new_zeros(count, state_LD.shape[1]).index_add_(0, bin_L, state_LD)
    tokens_T = torch.bincount(bin_L, minlength=count).float()
    mean_TD = sum_TD / tokens_T.clamp_min(1)[:, None]
    place_T = torch.linspace(0, 1, count, device=state_LD.device)
    return torch.cat([mean_TD, tokens_T.log1p()[:, None], place_T[:, None]], dim=1)
