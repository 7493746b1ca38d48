"""PDVC: all events of a video at once, from a fixed number of queries (Wang et al., ICCV 2021).

`load` opens published weights, `Pdvc.caption` makes events of a video's features, and `Pdvc.losses`
is what it is trained with. docs/methods.md says what is proved.

Shapes: as in deformable.py; F width of the features, C classes, N counts.
"""

from __future__ import annotations

import copy
import json
import math
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from starc.errors import CheckpointError
from starc.methods import matching
from starc.methods.deformable import (
    DecoderLayer,
    DeformableAttention,
    DeformableTransformer,
    EncoderLayer,
    Padding,
    Pyramid,
    moved,
    sine,
)
from starc.methods.matching import Answer, Pairs, Target
from starc.methods.proposals import Proposal, proposals, reranked, to_events
from starc.methods.sentences import Captioner, Context, DeformableCore, LightCore, sentence_loss
from starc.methods.settings import PdvcConfig, read_config
from starc.types import Event

GROUPS = 32
"""Of the normalisation after each convolution; fixed in the published code."""


@dataclass(frozen=True, slots=True)
class Videos:
    """Features of some videos, padded to one length."""

    feature_BTF: Tensor
    valid_BT: Tensor
    seconds_B: Tensor
    proposal_BQ2: Tensor | None = None
    """Queries that stand for given boxes, in place of the learned ones."""
    proposed_BQ: Tensor | None = None
    """True where there is such a box."""


@dataclass(frozen=True, slots=True)
class Decoded:
    """All that the heads need, and every step on the way there."""

    levels: tuple[Tensor, ...]
    positions: tuple[Tensor, ...]
    memory: Pyramid
    query_BQD: Tensor
    position_BQD: Tensor
    states: tuple[Tensor, ...]
    """Queries after each decoder layer."""
    references: tuple[Tensor, ...]
    """Before each layer and after the last."""
    answers: tuple[Answer, ...]
    """Of each layer."""

    def context(self, layer: int) -> Context:
        """What the captioner of a layer sees: its queries, the references from before it."""
        return Context(self.states[layer], self.references[layer], self.memory)


@dataclass(frozen=True, slots=True)
class Annotated:
    """The annotated events of one video, with their sentences as word numbers."""

    target: Target
    word_ES: Tensor
    counts_ES: Tensor
    """True on the start, the words and one end."""


class _Position(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.duration_embed_layer = nn.Linear(width, width)

    def forward(self, padding_BT: Tensor, seconds_B: Tensor) -> Tensor:
        """Where a frame is, and how long the video: [B, 2·width, T]."""
        width = self.duration_embed_layer.in_features
        lasts = torch.arange(width, device=seconds_B.device) < seconds_B.int()[:, None]
        duration_BD = self.duration_embed_layer(lasts.to(self.duration_embed_layer.weight.dtype))
        place_BTD = sine(angles(~padding_BT), width)
        return torch.cat((place_BTD, duration_BD[:, None].expand_as(place_BTD)), -1).mT


def angles(valid_BT: Tensor) -> Tensor:
    """The middle of each frame on a circle that is the video."""
    place = valid_BT.cumsum(1, dtype=torch.float32)
    return (place - 0.5) / (place[:, -1:] + 1e-6) * (2 * math.pi)


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

    def forward(self, videos: Videos) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
        """Frames, padding and positions of each level; the second level reads the features."""
        feature_BFT, padding_BT = videos.feature_BTF.mT, ~videos.valid_BT
        found: list[Tensor] = []
        paddings, positions = [], []
        for level, layer in enumerate(self.input_proj):
            found.append(layer(feature_BFT if level < 2 else found[-1]))
            small = F.interpolate(padding_BT[None].float(), size=found[-1].shape[-1:])[0].bool()
            paddings.append(padding_BT if level == 0 else small)
            positions.append(self.pos_embed(paddings[-1], videos.seconds_B))
        return found, paddings, positions


class _Mlp(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList([*(nn.Linear(width, width) for _ in "ab"), nn.Linear(width, 2)])
        nn.init.zeros_(self.layers[-1].weight)  # type: ignore[arg-type]
        nn.init.zeros_(self.layers[-1].bias)  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers[:-1]:
            x = layer(x).relu()
        output: Tensor = self.layers[-1](x)
        return output


class Pdvc(nn.Module):
    """PDVC with the published parameter names."""

    sources: tuple[str, ...] = ("pictures",)
    """What its events come from."""

    def __init__(self, config: PdvcConfig) -> None:
        super().__init__()
        self.config = config
        self.vocabulary: Mapping[int, str] | None = None
        self.base_encoder = _BaseEncoder(config.features, config.width, config.levels)
        self.transformer = DeformableTransformer(
            config.width,
            config.levels,
            [self._encoder_layer() for _ in range(config.encoder_layers)],
            [self._decoder_layer() for _ in range(config.decoder_layers)],
        )
        layers, shared = config.decoder_layers, config.shared_captioner
        self.caption_head = _repeated(self._captioner(), layers, shared)
        self.query_embed = nn.Embedding(config.queries, config.width * 2)
        classes, box = nn.Linear(config.width, config.classes), _Mlp(config.width)
        nn.init.constant_(classes.bias, -math.log(99))  # an event is seen with chance 0.01
        self.class_head = _repeated(classes, layers, not config.refine)
        self.count_head = _repeated(
            nn.Linear(config.width, config.most_events + 1), layers, not config.refine
        )
        self.bbox_head = _repeated(box, layers, not config.refine)
        nn.init.constant_(self.bbox_head[0].layers[-1].bias[1:], -2)  # type: ignore[union-attr,index,arg-type]
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
            config.width, config.feed_forward, config.heads, config.dropout, attention
        )

    def _captioner(self) -> Captioner:
        config = self.config
        sizes = (config.words, config.width, config.rnn, config.rnn_layers, config.caption_dropout)
        core: LightCore | DeformableCore
        if config.captioner == "light":
            core = LightCore(*sizes)
        else:
            shape = (config.caption_levels, config.caption_heads, config.caption_points)
            attention = DeformableAttention(config.width, *shape, "border", 2 * config.width)
            attention.start(centred=True)
            core = DeformableCore(*sizes, config.caption_attention, attention)
        return Captioner(config.vocabulary, config.words, config.rnn, config.caption_dropout, core)

    def forward(self, videos: Videos) -> Decoded:
        found, paddings, positions = self.base_encoder(videos)
        frames = pyramid(found, paddings)
        memory = self.transformer.encode(frames, torch.cat(positions, dim=2).mT)
        absent_BQ = None
        if videos.proposal_BQ2 is None:
            given = self.query_embed.weight.expand(len(videos.feature_BTF), -1, -1)
            position, query = given.chunk(2, dim=-1)
            reference = self.transformer.reference_points(position).sigmoid()
        else:
            position, query = self.transformer.proposal_queries(videos.proposal_BQ2)
            reference = videos.proposal_BQ2
            absent_BQ = None if videos.proposed_BQ is None else ~videos.proposed_BQ
        refine = videos.proposal_BQ2 is None
        states, references = self.transformer.decode(
            query, position, reference, memory, absent_BQ, self.text(videos), refine
        )
        answers = []
        for layer, state in enumerate(states):
            box = references[layer]
            if refine:
                box = moved(self.bbox_head[layer](state), box, length_too=not self.training)
            counts = self.count_head[layer](state.amax(dim=1))
            answers.append(Answer(self.class_head[layer](state), box, counts))
        return Decoded(
            tuple(found), tuple(positions), memory, query, position,
            tuple(states), tuple(references), tuple(answers),
        )  # fmt: skip

    def text(self, videos: Videos) -> Tensor | None:
        """Text that the decoder reads besides the frames; none in PDVC."""
        return None

    def losses(
        self, decoded: Decoded, annotated: Sequence[Annotated], captions: bool = True
    ) -> tuple[dict[str, Tensor], list[list[Pairs]]]:
        """Every loss by its published name, unweighted, and the pairs of each layer."""
        losses: dict[str, Tensor] = {}
        matched = []
        targets, last = [video.target for video in annotated], len(decoded.answers) - 1
        for layer, answer in enumerate(decoded.answers):
            pairs = matching.match(answer, targets, self.config.costs)
            named = matching.losses(answer, targets, pairs, self.config.costs)
            if captions:
                told = self.told(decoded, annotated, pairs, layer)
                each = [
                    sentence_loss(log, video.word_ES[events], video.counts_ES[events])
                    for log, video, (_, events) in zip(told, annotated, pairs, strict=True)
                ]
                named["loss_caption"] = torch.cat(each).sum() / max(sum(map(len, each)), 1)
            suffix = "" if layer == last else f"_{layer}"
            losses.update({name + suffix: loss for name, loss in named.items()})
            matched.append(pairs)
        return losses, matched

    def told(
        self,
        decoded: Decoded,
        annotated: Sequence[Annotated],
        pairs: Sequence[Pairs],
        layer: int = -1,
    ) -> list[Tensor]:
        """Per video, log-probabilities of the words of the matched sentences, [E, S, V]."""
        layer %= len(decoded.states)
        context, captioner = decoded.context(layer), self.caption_head[layer]
        return [
            captioner(context.of(video, queries), one.word_ES[events])
            for video, (one, (queries, events)) in enumerate(zip(annotated, pairs, strict=True))
        ]

    def total(self, losses: Mapping[str, Tensor], proposals_given: bool = False) -> Tensor:
        """The weighted sum; with given proposals only counter and captions are learned."""
        idle = ("loss_ce", "loss_bbox", "loss_giou") if proposals_given else ()
        weights = {k: v for k, v in self.config.weights.items() if not k.startswith(idle)}
        return torch.stack([loss * weights[k] for k, loss in losses.items() if k in weights]).sum()

    @torch.no_grad()
    def propose(self, videos: Videos) -> list[list[Proposal]]:
        """What each query says, best first, for each video."""
        decoded = self(videos)
        word_BQS, log_BQS = self.caption_head[-1].write(  # type: ignore[operator,union-attr]
            decoded.context(len(decoded.states) - 1), self.config.longest_caption
        )
        return proposals(
            decoded.answers[-1], word_BQS, log_BQS, videos.seconds_B, self.vocabulary or {}
        )

    def caption(self, features: NDArray[np.floating] | Tensor, duration: float) -> list[Event]:
        """The events of one video, in time order, from its features [T, F]."""
        feature_TF = torch.as_tensor(features, dtype=torch.float32)
        if (
            feature_TF.ndim != 2
            or feature_TF.shape[1] != self.config.features
            or not feature_TF.shape[0]
        ):
            raise ValueError(
                f"features must be [frames, {self.config.features}], got {tuple(feature_TF.shape)}"
            )
        if not duration > 0:
            raise ValueError(f"duration must be positive, got {duration}")
        feature_TF = resampled(feature_TF, self.config.frames).to(self.query_embed.weight.device)
        valid_BT = torch.ones(1, len(feature_TF), dtype=torch.bool, device=feature_TF.device)
        seconds_B = torch.tensor([duration], dtype=torch.float32, device=feature_TF.device)
        training = self.training
        self.eval()
        try:
            (found,) = self.propose(Videos(feature_TF[None], valid_BT, seconds_B))
        finally:
            self.train(training)
        return to_events(reranked(found, self.config.sentence_weight), self.sources)


def pyramid(levels_BDT: Sequence[Tensor], paddings_BT: Sequence[Tensor]) -> Pyramid:
    """Levels in a row, with their padding."""
    return Pyramid(
        torch.cat(list(levels_BDT), dim=2).mT,
        torch.cat(list(paddings_BT), dim=1),
        tuple(level.shape[2] for level in levels_BDT),
        torch.stack([(~padding).sum(1).float() / padding.shape[1] for padding in paddings_BT], 1),
    )


def resampled(feature_TF: Tensor, frames: int | None) -> Tensor:
    """The nearest of the features at so many evenly spaced places; halves go to the earlier one."""
    if frames is None:
        return feature_TF
    places = torch.arange(frames, dtype=torch.float64) * (len(feature_TF) - 1) / max(frames - 1, 1)
    return feature_TF[(places - 0.5).ceil().long()]


def _repeated(module: nn.Module, times: int, shared: bool) -> nn.ModuleList:
    """One module for each decoder layer: the same one, or copies."""
    return nn.ModuleList(module if shared else copy.deepcopy(module) for _ in range(times))


_Model = TypeVar("_Model", bound=Pdvc)


def load(
    source: str | Path | Mapping[str, Tensor],
    config: Mapping[str, Any] | PdvcConfig | None = None,
    vocabulary: str | Path | Mapping[int, str] | None = None,
    padding: Padding = "zeros",
) -> Pdvc:
    """PDVC from a published checkpoint (.pth) or its state dict, ready to caption.

    `config` holds the published options; without it they come from the `info.json` that the
    published training writes beside its weights, or are those of the released models. `vocabulary`
    is the published vocabulary file, or words by number; without it captions are numbers.
    `padding` is "zeros" for weights trained on a GPU, as the released ones, else "border".
    """
    state, options = read_checkpoint(source)
    if not isinstance(config, PdvcConfig):
        config = read_config(state, options if config is None else config, padding)
    return filled(Pdvc(config), state, source, vocabulary)


def filled(
    model: _Model,
    state: Mapping[str, Tensor],
    source: object,
    vocabulary: str | Path | Mapping[int, str] | None,
) -> _Model:
    """The model with these weights, all of them and no others, and its words."""
    try:
        model.load_state_dict(state)
    except RuntimeError as error:
        where = source if isinstance(source, str | Path) else "state dict"
        what = " ".join(str(error).split())
        raise CheckpointError(f"{where}: the weights do not fit; {what}") from None
    model.vocabulary = read_vocabulary(vocabulary)
    return model.eval()


def read_checkpoint(
    source: str | Path | Mapping[str, Tensor],
) -> tuple[Mapping[str, Tensor], Mapping[str, Any]]:
    """Weights, and the options beside them, if any."""
    if isinstance(source, Mapping):
        return source, {}
    path = Path(source)
    try:
        saved = torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror})") from None
    except (RuntimeError, pickle.UnpicklingError, EOFError, ValueError) as error:
        raise CheckpointError(
            f"{path}: is no checkpoint of tensors ({str(error).splitlines()[0]})"
        ) from None
    state = saved.get("model", saved) if isinstance(saved, dict) else None
    if not isinstance(state, dict) or not all(isinstance(v, Tensor) for v in state.values()):
        raise CheckpointError(f"{path}: no state dict inside; is this a PDVC checkpoint?")
    info = path.parent / "info.json"
    try:
        options = json.loads(info.read_text("utf-8"))["best"]["opt"] if info.is_file() else {}
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{info}: no options under best, opt ({error!r})") from None
    return state, options


def read_vocabulary(source: str | Path | Mapping[int, str] | None) -> Mapping[int, str] | None:
    """Words by number, of a published vocabulary file (`ix_to_word`)."""
    if source is None or isinstance(source, Mapping):
        return source
    try:
        words = json.loads(Path(source).read_text("utf-8"))["ix_to_word"]
        return {int(number): str(word) for number, word in words.items()}
    except OSError as error:
        raise CheckpointError(f"{source}: cannot be read ({error.strerror})") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise CheckpointError(f"{source}: no vocabulary file (ix_to_word: number, word)") from None
