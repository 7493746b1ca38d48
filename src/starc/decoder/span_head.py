"""When things happen, from what is said: a small head on the first layers of a language model.

In: spoken words as states after the writer's first layers, averaged over bins of two seconds. Out:
for each bin how likely an event starts, ends, or goes on there (a GRU in both directions), and the
spans that together score best:

    score(s, e) = log p_start(s) + log p_end(e) + reward - length · |log (seconds / typical)|
                  + inside · mean logit of p_inside in s..e · min(1, bins / 8)

Spans do not overlap; the best set is found by dynamic programming. `reward` decides how many there
are. The low-rank changes of the writer begin above these layers, so the head and the writer were
trained apart (recipes/caption_writer.py).
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
SHORT = 8
"""Bins from which on a span's inside counts fully."""
START, END, INSIDE = range(3)


class TimedSpan(NamedTuple):
    """When something happens, in seconds, and how likely that is."""

    start: float
    end: float
    confidence: float


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

    def spans(self, logits_T3: Tensor, duration: float) -> list[TimedSpan]:
        """The set of spans that scores best."""
        settings, seconds = self.settings, self.settings.bin
        bins = len(logits_T3)
        start, end = (F.logsigmoid(logits_T3[:, n]).tolist() for n in (START, END))
        inside = [0.0, *logits_T3[:, INSIDE].cumsum(0).tolist()]
        best, chosen = [0.0] * (bins + 1), [0] * (bins + 1)
        for stop in range(1, bins + 1):
            best[stop] = best[stop - 1]
            longest = min(round(settings.longest / seconds), stop)
            for length in range(round(settings.shortest / seconds), longest + 1):
                first = stop - length
                value = best[first] + start[first] + end[stop - 1] + settings.reward
                mean = (inside[stop] - inside[first]) / length
                value += settings.inside * mean * min(1.0, length / SHORT)
                value -= settings.length * abs(math.log(length * seconds / settings.typical))
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


def bins_of(
    reader: Reader,
    tokenizer: Tokenizer,
    words: Sequence[tuple[float, str]],
    duration: float,
    settings: SpanConfig,
) -> Tensor:
    """Word states averaged over bins [T, D + 2]: then how many tokens, and which part of the video.

    `words` are (seconds, text) in order.
    """
    count = int(duration // settings.bin) + 1
    ids, bin_of = list[int](), list[int]()
    for time, text in words:
        some = tokenizer.encode(f" {text}", add_special_tokens=False).ids
        ids += some
        bin_of += [min(count - 1, int(time // settings.bin))] * len(some)
    device = reader.device
    sum_TD = torch.zeros(count, reader.settings.width, device=device)
    tokens_T = torch.zeros(count, device=device)
    for first in range(0, len(ids), CHUNK):
        context = max(0, first - CONTEXT)
        x_LD = reader.first_layers(ids[context : first + CHUNK], settings.layers)
        x_LD = F.layer_norm(x_LD[first - context :].float(), x_LD.shape[1:])
        bin_L = torch.tensor(bin_of[first : first + CHUNK], device=device)
        sum_TD.index_add_(0, bin_L, x_LD)
        tokens_T.index_add_(0, bin_L, torch.ones_like(bin_L, dtype=torch.float32))
    mean_TD = sum_TD / tokens_T.clamp_min(1)[:, None]
    place_T = torch.linspace(0, 1, count, device=device)
    return torch.cat([mean_TD, tokens_T.log1p()[:, None], place_T[:, None]], dim=1)
