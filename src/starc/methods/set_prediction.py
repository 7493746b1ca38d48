"""Dense video captioning as set prediction: PDVC (Wang et al., ICCV 2021), CM² (CVPR 2024).

All events of a video are predicted in parallel from learned queries. CM² adds cross-attention to
retrieved text (`config.text`). Parameter names are the published ones. docs/methods.md says what
equals the published code.

Shapes as in deformable.py; F width of the features, C classes, N counts, E events, S words.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from starc.errors import DatastoreError
from starc.methods import matching
from starc.methods.captioner import Captioner, Context, DeformableCore, LightCore, sentence_loss
from starc.methods.deformable import (
    DecoderLayer,
    DeformableAttention,
    DeformableTransformer,
    EncoderLayer,
    Pyramid,
    refine_boxes,
    sine,
)
from starc.methods.matching import LayerOutput, Pairs, Target
from starc.methods.proposals import Proposal, proposals, rerank, to_events
from starc.methods.retrieval import Retrieved, projection, retrieve
from starc.methods.settings import GROUPS, PdvcConfig, check
from starc.methods.words import Words
from starc.types import Event


@dataclass(frozen=True, slots=True)
class VideoBatch:
    """Features of videos, padded to one length."""

    feature_BTF: Tensor
    valid_BT: Tensor
    seconds_B: Tensor
    proposal_BQ2: Tensor | None = None
    """Boxes that replace the learned queries."""
    proposed_BQ: Tensor | None = None
    """True where there is such a box."""

    def to(self, device: torch.device | str) -> VideoBatch:
        held = {spec.name: getattr(self, spec.name) for spec in fields(self)}
        return replace(self, **{k: v.to(device) for k, v in held.items() if v is not None})


@dataclass(frozen=True, slots=True)
class Annotated:
    """The annotated events of one video."""

    target: Target
    word_ES: Tensor
    mask_ES: Tensor
    """True on start, words and one end."""

    def to(self, device: torch.device | str) -> Annotated:
        target = Target(self.target.box_E2.to(device), self.target.label_E.to(device))
        return Annotated(target, self.word_ES.to(device), self.mask_ES.to(device))


@dataclass(frozen=True, slots=True)
class Decoded:
    """Results of a forward pass, with intermediate values."""

    levels: tuple[Tensor, ...]
    positions: tuple[Tensor, ...]
    memory: Pyramid
    query_BQD: Tensor
    position_BQD: Tensor
    states: tuple[Tensor, ...]
    """Queries after each decoder layer."""
    references: tuple[Tensor, ...]
    """Before the first layer and after each layer."""
    outputs: tuple[LayerOutput, ...]
    """Of each decoder layer."""
    retrieved: Retrieved | None = None
    text_BWD: Tensor | None = None

    def context(self, layer: int) -> Context:
        """Inputs of a layer's captioner: its queries, and the references before that layer."""
        layer %= len(self.states)
        return Context(self.states[layer], self.references[layer], self.memory)


class _Position(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.duration_embed_layer = nn.Linear(width, width)

    def forward(self, padding_BT: Tensor, seconds_B: Tensor) -> Tensor:
        """Position in the video and duration of the video, [B, 2·width, T]."""
        width = self.duration_embed_layer.in_features
        lasts = torch.arange(width, device=seconds_B.device) < seconds_B.int()[:, None]
        duration_BD = self.duration_embed_layer(lasts.to(self.duration_embed_layer.weight.dtype))
        position_BTD = sine(angles(~padding_BT), width)
        return torch.cat((position_BTD, duration_BD[:, None].expand_as(position_BTD)), -1).mT


def angles(valid_BT: Tensor) -> Tensor:
    """The middle of each frame, the video being 0 to 2π."""
    index = valid_BT.cumsum(1, dtype=torch.float32)
    return (index - 0.5) / (index[:, -1:] + 1e-6) * (2 * math.pi)


class _BaseEncoder(nn.Module):
    def __init__(self, features: int, width: int, levels: int) -> None:
        super().__init__()
        self.pos_embed = _Position(width // 2)
        convolutions = [nn.Conv1d(features, width, 1)]
        for level in range(1, levels):
            inputs = features if level == 1 else width
            convolutions.append(nn.Conv1d(inputs, width, 3, stride=2, padding=1))
        for convolution in convolutions:
            nn.init.xavier_uniform_(convolution.weight)
            nn.init.zeros_(convolution.bias)  # type: ignore[arg-type]
        self.input_proj = nn.ModuleList(
            nn.Sequential(convolution, nn.GroupNorm(GROUPS, width)) for convolution in convolutions
        )

    def forward(self, videos: VideoBatch) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
        """Features, padding and positions of each level; the first two read the raw features."""
        feature_BFT, padding_BT = videos.feature_BTF.mT, ~videos.valid_BT
        levels: list[Tensor] = []
        paddings, positions = [], []
        for level, layer in enumerate(self.input_proj):
            levels.append(layer(feature_BFT if level < 2 else levels[-1]))
            small = F.interpolate(padding_BT[None].float(), size=levels[-1].shape[-1:])[0].bool()
            paddings.append(padding_BT if level == 0 else small)
            positions.append(self.pos_embed(paddings[-1], videos.seconds_B))
        return levels, paddings, positions


class _BoxHead(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        last = nn.Linear(width, 2)
        self.layers = nn.ModuleList([nn.Linear(width, width), nn.Linear(width, width), last])
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)

    def forward(self, x: Tensor) -> Tensor:
        first, second, last = self.layers
        output: Tensor = last(second(first(x).relu()).relu())
        return output


class SetPredictor(nn.Module):
    """PDVC or CM², by its settings."""

    def __init__(self, config: PdvcConfig, words: Words | None = None) -> None:
        super().__init__()
        check(config)
        self.config = config
        self.words = words or Words([str(n + 1) for n in range(config.vocabulary)])
        """Without a vocabulary, words are their ids."""
        self.bank_ND: Tensor | None = None
        """Text embeddings that CM² searches."""
        layers = config.decoder_layers
        self.base_encoder = _BaseEncoder(config.features, config.width, config.levels)
        self.transformer = DeformableTransformer(
            config.width,
            config.levels,
            [self._encoder_layer() for _ in range(config.encoder_layers)],
            [self._decoder_layer() for _ in range(layers)],
        )
        self.caption_head = _repeat(self._captioner(), layers, config.shared_captioner)
        self.query_embed = nn.Embedding(config.queries, config.width * 2)
        self.down_proj = projection(config.text, config.width) if config.text else None
        classes, counts = (
            nn.Linear(config.width, size) for size in (config.classes, config.max_events + 1)
        )
        nn.init.constant_(classes.bias, -math.log(99))  # a prior probability of 0.01
        self.class_head = _repeat(classes, layers, not config.refine)
        self.count_head = _repeat(counts, layers, not config.refine)
        self.bbox_head = _repeat(_BoxHead(config.width), layers, not config.refine)
        with torch.no_grad():
            self.bbox_head[0].layers[-1].bias[1:] = -2.0  # type: ignore[union-attr,index]
        if config.refine:
            self.transformer.decoder.bbox_head = self.bbox_head

    def _attention(self, points: int) -> DeformableAttention:
        config = self.config
        return DeformableAttention(
            config.width, config.levels, config.heads, points, config.padding
        )

    def _encoder_layer(self) -> EncoderLayer:
        config, attention = self.config, self._attention(self.config.encoder_points)
        return EncoderLayer(config.width, config.feed_forward, config.dropout, attention)

    def _decoder_layer(self) -> DecoderLayer:
        config, attention = self.config, self._attention(self.config.decoder_points)
        return DecoderLayer(
            config.width,
            config.feed_forward,
            config.heads,
            config.dropout,
            attention,
            text=config.text is not None,
            text_first=config.text is not None and config.text.first,
        )

    def _captioner(self) -> Captioner:
        config, dropout = self.config, self.config.caption_dropout
        sizes = (config.word_width, config.width, config.rnn_width, config.rnn_layers, dropout)
        core: LightCore | DeformableCore
        if config.captioner == "light":
            core = LightCore(*sizes)
        else:
            shape = (config.caption_levels, config.caption_heads, config.caption_points)
            query_width = config.rnn_width + config.width
            attention = DeformableAttention(config.width, *shape, "border", query_width)
            attention.reset_parameters(centred=True)
            core = DeformableCore(*sizes, config.caption_attention, attention)
        return Captioner(config.vocabulary, config.word_width, config.rnn_width, dropout, core)

    @property
    def sources(self) -> tuple[str, ...]:
        """What its events are predicted from."""
        return ("pictures", "datastore") if self.config.text else ("pictures",)

    def forward(self, videos: VideoBatch) -> Decoded:
        return self.decode(videos)

    def decode(self, videos: VideoBatch) -> Decoded:
        """Predictions of every decoder layer, with what leads to them."""
        levels, paddings, positions = self.base_encoder(videos)
        frames = pyramid(levels, paddings)
        memory = self.transformer.encode(frames, torch.cat(positions, dim=2).mT)
        retrieved = self._retrieve(videos)
        text_BWD = None if retrieved is None else self._encode_text(retrieved.mean_BWD)
        absent_BQ = None
        if videos.proposal_BQ2 is None:
            learned = self.query_embed.weight.expand(len(videos.feature_BTF), -1, -1)
            position, query = learned.chunk(2, dim=-1)
            reference = self.transformer.reference_points(position).sigmoid()
        else:
            position, query = self.transformer.proposal_queries(videos.proposal_BQ2)
            reference = videos.proposal_BQ2
            absent_BQ = None if videos.proposed_BQ is None else ~videos.proposed_BQ
        refine = videos.proposal_BQ2 is None
        states, references = self.transformer.decode(
            query, position, reference, memory, absent_BQ, text_BWD, refine
        )
        outputs = []
        for layer, state in enumerate(states):
            box = references[layer]
            if refine:
                box = refine_boxes(self.bbox_head[layer](state), box, length_too=not self.training)
            counts = self.count_head[layer](state.amax(dim=1))
            outputs.append(LayerOutput(self.class_head[layer](state), box, counts))
        return Decoded(
            tuple(levels), tuple(positions), memory, query, position,
            tuple(states), tuple(references), tuple(outputs), retrieved, text_BWD,
        )  # fmt: skip

    def _retrieve(self, videos: VideoBatch) -> Retrieved | None:
        if self.config.text is None:
            return None
        if self.bank_ND is None:
            raise DatastoreError("memory bank: CM² needs text embeddings; set bank_ND")
        bank_ND = self.bank_ND.to(videos.feature_BTF)
        return retrieve(
            videos.feature_BTF, videos.valid_BT, bank_ND, self.config.text, skip_best=self.training
        )

    def _encode_text(self, mean_BWD: Tensor) -> Tensor:
        """The text of the windows, encoded by the encoder of the frames, [B, W, D].

        As published it is given to every level of the pyramid, and the first level is used.
        """
        assert self.down_proj is not None
        text_BDW = self.down_proj(mean_BWD).mT
        padding_BW = torch.zeros_like(text_BDW[:, 0], dtype=torch.bool)
        levels = self.config.levels
        position_BWD = sine(angles(~padding_BW), self.config.width).repeat(1, levels, 1)
        same = pyramid([text_BDW] * levels, [padding_BW] * levels)
        return self.transformer.encode(same, position_BWD).first(1).value_BMD

    def losses(
        self, decoded: Decoded, annotated: Sequence[Annotated], captions: bool = True
    ) -> tuple[dict[str, Tensor], list[list[Pairs]]]:
        """Every loss by its published name, unweighted, and the pairs of each decoder layer."""
        losses: dict[str, Tensor] = {}
        matched = []
        targets, last = [video.target for video in annotated], len(decoded.outputs) - 1
        for layer, output in enumerate(decoded.outputs):
            pairs = matching.match(output, targets, self.config.matching)
            named = matching.losses(output, targets, pairs, self.config.loss)
            if captions:
                each = [
                    sentence_loss(log, video.word_ES[events], video.mask_ES[events])
                    for log, video, (_, events) in zip(
                        self.caption_log_probs(decoded, annotated, pairs, layer),
                        annotated,
                        pairs,
                        strict=True,
                    )
                ]
                named["loss_caption"] = torch.cat(each).sum() / max(sum(map(len, each)), 1)
            suffix = "" if layer == last else f"_{layer}"
            losses |= {name + suffix: loss for name, loss in named.items()}
            matched.append(pairs)
        return losses, matched

    def caption_log_probs(
        self,
        decoded: Decoded,
        annotated: Sequence[Annotated],
        pairs: Sequence[Pairs],
        layer: int = -1,
    ) -> list[Tensor]:
        """Per video, log-probabilities of the words of the matched captions, [E, S, V]."""
        context, captioner = decoded.context(layer), self.caption_head[layer]
        return [
            captioner(context.of(video, queries), one.word_ES[events])
            for video, (one, (queries, events)) in enumerate(zip(annotated, pairs, strict=True))
        ]

    def total(self, losses: Mapping[str, Tensor], given_proposals: bool = False) -> Tensor:
        """The weighted sum; given proposals leave only the losses of counter and captions."""
        learned = ("loss_counter", "loss_caption") if given_proposals else ("loss_",)
        weights = {name: self.config.loss.weight(name) for name in losses}
        chosen = [
            losses[name] * weight
            for name, weight in weights.items()
            if weight and name.startswith(learned)
        ]
        return torch.stack(chosen).sum()

    @torch.no_grad()
    def propose(self, videos: VideoBatch) -> list[list[Proposal]]:
        """The predictions of all queries by descending score, for each video."""
        decoded = self.decode(videos)
        captioner = self.caption_head[-1]
        assert isinstance(captioner, Captioner)
        word_BQS, log_BQS = captioner.greedy(decoded.context(-1), self.config.caption_words)
        return proposals(decoded.outputs[-1], word_BQS, log_BQS, videos.seconds_B, self.words)

    def caption(self, features: Tensor, duration: float) -> list[Event]:
        """The events of one video in temporal order, from its features [T, F]."""
        training = self.training
        self.eval()
        try:
            videos = pad_videos([features], [duration], self.config)
            (found,) = self.propose(videos.to(self.query_embed.weight.device))
        finally:
            self.train(training)
        return to_events(rerank(found, self.config.sentence_weight), self.sources)


def pad_videos(
    features: Sequence[Tensor], durations: Sequence[float], config: PdvcConfig
) -> VideoBatch:
    """Features [T, F] of videos, resampled and padded."""
    rows = []
    for feature_TF, duration in zip(features, durations, strict=True):
        if feature_TF.ndim != 2 or feature_TF.shape[1] != config.features or not len(feature_TF):
            raise ValueError(
                f"features must be [frames, {config.features}], got {tuple(feature_TF.shape)}"
            )
        if not duration > 0:
            raise ValueError(f"duration must be positive, got {duration}")
        rows.append(resample(feature_TF.float(), config.frames))
    lengths = torch.tensor([len(row) for row in rows])
    feature_BTF = nn.utils.rnn.pad_sequence(rows, batch_first=True)
    valid_BT = torch.arange(feature_BTF.shape[1]) < lengths[:, None]
    return VideoBatch(feature_BTF, valid_BT, torch.tensor(list(durations), dtype=torch.float32))


def pyramid(levels_BDT: Sequence[Tensor], paddings_BT: Sequence[Tensor]) -> Pyramid:
    """Levels concatenated, with their padding."""
    return Pyramid(
        torch.cat(list(levels_BDT), dim=2).mT,
        torch.cat(list(paddings_BT), dim=1),
        tuple(level.shape[2] for level in levels_BDT),
        torch.stack([(~padding).sum(1).float() / padding.shape[1] for padding in paddings_BT], 1),
    )


def resample(feature_TF: Tensor, frames: int | None) -> Tensor:
    """Nearest features at `frames` evenly spaced positions; halves go to the earlier one."""
    if frames is None:
        return feature_TF
    index = torch.arange(frames, dtype=torch.float64) * (len(feature_TF) - 1) / max(frames - 1, 1)
    return feature_TF[(index - 0.5).ceil().long()]


def _repeat(module: nn.Module, times: int, shared: bool) -> nn.ModuleList:
    """One module per decoder layer: the same one, or copies."""
    return nn.ModuleList(module if shared else copy.deepcopy(module) for _ in range(times))
