"""The captioning heads of PDVC: an LSTM that writes one sentence for each event query.

The light head is conditioned on the query only. The head with deformable soft attention (LSTM-DSA)
also samples the encoded frames before every word and weights the samples by additive attention.
Word id 0 is start, end and padding; words have ids from 1.

Shapes: B videos, Q queries, A = B·Q sentences, D width, V words and 0, S steps, N points of a head.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from starc.methods.deformable import DeformableAttention, Pyramid

State = tuple[Tensor, Tensor]


@dataclass(frozen=True, slots=True)
class Context:
    """Inputs of a captioning head."""

    query_BQD: Tensor
    reference_BQR: Tensor
    memory: Pyramid

    def of(self, video: int, query: Tensor) -> Context:
        """Some queries of one video."""
        query_BQD, reference_BQR = self.query_BQD[video, query], self.reference_BQR[video, query]
        return Context(query_BQD[None], reference_BQR[None], self.memory.video(video))


class LightCore(nn.Module):
    """An LSTM over words and the query."""

    def __init__(self, words: int, width: int, rnn: int, layers: int, dropout: float) -> None:
        super().__init__()
        self.rnn = lstm(words + width, rnn, layers, dropout)

    def prepare(self, context: Context) -> tuple[Tensor, ...]:
        # The published code averages over one clip and divides by 1 + 1e-5.
        return (context.query_BQD.flatten(0, 1) / (1 + 1e-5),)

    def forward(self, word_AD: Tensor, state: State, query_AD: Tensor) -> tuple[Tensor, State]:
        output, state = self.rnn(torch.cat((word_AD, query_AD), dim=1)[None], state)
        return output[0], state


class DeformableCore(nn.Module):
    """An LSTM over words, the query and attended frames (LSTM-DSA)."""

    def __init__(
        self,
        words: int,
        width: int,
        rnn: int,
        layers: int,
        dropout: float,
        attention_width: int,
        attention: DeformableAttention,
    ) -> None:
        super().__init__()
        heads, self.levels, _ = attention.shape
        self.rnn = lstm(words + 2 * width, rnn, layers, dropout)
        self.deformable_att = attention
        """attention_weights and output_proj are in published files but never used."""
        self.ctx2att = nn.Linear(width // heads, attention_width)
        self.h2att = nn.Linear(rnn, attention_width)
        self.alpha_net = nn.Linear(attention_width, 1)

    def prepare(self, context: Context) -> tuple[object, ...]:
        memory = context.memory.first(self.levels)
        reference = memory.scaled(context.reference_BQR)
        return context.query_BQD, reference, self.deformable_att.values(memory), memory.sizes

    def forward(
        self,
        word_AD: Tensor,
        state: State,
        query_BQD: Tensor,
        reference_BQLR: Tensor,
        value_BMHE: Tensor,
        sizes: tuple[int, ...],
    ) -> tuple[Tensor, State]:
        hidden_BQD = torch.unflatten(state[0][-1], 0, query_BQD.shape[:2])
        both_BQD = torch.cat((hidden_BQD, query_BQD), dim=-1)
        clip = self.deformable_att.sample(both_BQD, reference_BQLR, value_BMHE, sizes)
        clip_BQHNE = clip.permute(0, 3, 1, 4, 2)
        energy = self.ctx2att(clip_BQHNE) + self.h2att(hidden_BQD)[:, :, None, None]
        weight_BQHN1 = self.alpha_net(energy.tanh()).softmax(dim=3)
        attended_BQD = (weight_BQHN1 * clip_BQHNE).sum(3).flatten(2)
        visual_AD = torch.cat((attended_BQD, query_BQD), dim=-1).flatten(0, 1)
        output, state = self.rnn(torch.cat((word_AD, visual_AD), dim=1)[None], state)
        return output[0], state


def lstm(inputs: int, width: int, layers: int, dropout: float) -> nn.LSTM:
    return nn.LSTM(inputs, width, layers, bias=False, dropout=dropout if layers > 1 else 0.0)


class Captioner(nn.Module):
    def __init__(
        self,
        vocabulary: int,
        words: int,
        rnn: int,
        dropout: float,
        core: LightCore | DeformableCore,
    ) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary + 1, words)
        self.logit = nn.Linear(rnn, vocabulary + 1)
        self.core = core
        self.dropout = nn.Dropout(dropout)
        nn.init.uniform_(self.embed.weight, -0.1, 0.1)
        nn.init.uniform_(self.logit.weight, -0.1, 0.1)
        nn.init.zeros_(self.logit.bias)

    def step(
        self, word_A: Tensor, state: State | None, prepared: tuple[object, ...]
    ) -> tuple[Tensor, State]:
        """Log-probabilities of the next word, [A, V]."""
        if state is None:
            rnn = self.core.rnn
            zeros = self.embed.weight.new_zeros(rnn.num_layers, len(word_A), rnn.hidden_size)
            state = (zeros, zeros)
        output_AD, state = self.core(self.embed(word_A), state, *prepared)
        return self.logit(self.dropout(output_AD)).log_softmax(dim=1), state

    def forward(self, context: Context, word_AS: Tensor) -> Tensor:
        """Log-probabilities after each word of given sentences (teacher forcing), [A, S, V]."""
        state, prepared, steps = None, self.core.prepare(context), []
        for index in range(word_AS.shape[1] - 1):
            if index and not word_AS[:, index].any():
                break
            log_AV, state = self.step(word_AS[:, index], state, prepared)
            steps.append(log_AV)
        return torch.stack(steps, dim=1)

    @torch.no_grad()
    def greedy(self, context: Context, longest: int) -> tuple[Tensor, Tensor]:
        """Greedy decoding: words [B, Q, S], 0 after the end, and their log-probabilities.

        As published, a finished sentence keeps feeding its own arg-max until all are finished, and
        log-probabilities are not masked after the end. S is 0 if no sentence has a word.
        """
        shape, prepared = context.query_BQD.shape[:2], self.core.prepare(context)
        word_A = context.query_BQD.new_zeros(shape.numel(), dtype=torch.long)
        active_A = torch.ones_like(word_A, dtype=torch.bool)
        state: State | None = None
        words, logs = [], []
        for _ in range(longest):
            log_AV, state = self.step(word_A, state, prepared)
            log_A, word_A = log_AV.max(dim=1)
            active_A = active_A & (word_A > 0)
            if not active_A.any():
                break
            words.append(word_A * active_A)
            logs.append(log_A)
        if not words:
            empty = word_A.new_zeros(*shape, 0)
            return empty, empty.float()
        return (
            torch.unflatten(torch.stack(words, dim=1), 0, shape),
            torch.unflatten(torch.stack(logs, dim=1), 0, shape),
        )


def sentence_loss(log_ASV: Tensor, word_AS: Tensor, mask_AS: Tensor) -> Tensor:
    """Mean negative log-probability of the words and the end of each sentence, [A].

    `word_AS` and `mask_AS` (True on start, words and one end) include the start.
    """
    target, mask = word_AS[:, 1:], mask_AS[:, 1:].float()
    steps = log_ASV.shape[1]
    log_AS = log_ASV.gather(2, target[:, :steps, None])[..., 0]
    return -(log_AS * mask[:, :steps]).sum(1) / (mask.sum(1) + 1e-6)
