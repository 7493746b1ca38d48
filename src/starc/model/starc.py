"""STaRC: the wires between the stages, for training and for inference the same.

    clip_BTD ─temporal→ X ─swsa→ X' ─saliency→ P_s ─transport, segments, datastore→ R
    memory = [video ; saliency prompts S ; retrieved R ; speech Y] ─T5 or a causal decoder→ events

`forward` gives losses and `generate` gives token ids; both go through `encode`. Switched-off parts
are absent, and with all of them off this is Vid2Seq. Where paper and published code differ a
setting decides (docs/deviations.md).
"""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from starc.config import BeamSearch, Config, check
from starc.decoder import beam_search
from starc.decoder.beam_search import Decoded
from starc.decoder.llama import CausalDecoder
from starc.decoder.t5 import END, PAD, T5
from starc.errors import DatastoreError, VideoError
from starc.model import saliency, segments, transport
from starc.model.inputs import Batch, padded_ids
from starc.model.saliency import SaliencyHead
from starc.model.swsa import SlidingWindowAttention
from starc.model.temporal import TemporalEncoder
from starc.retrieval.datastore import Datastore
from starc.types import Retrieved, Segment

__all__ = ["Batch", "Encoded", "Generated", "Losses", "STaRC", "VideoEncoding"]

Neighbours = tuple[list[int], list[float]]
"""Of one segment: indices of the captions in the datastore, and their similarities."""


class VideoEncoding(NamedTuple):
    """What the video says, before the speech joins it."""

    video_BTD: Tensor
    """The decoder's video tokens: X in training, X' (or its second pass) at inference."""
    refined_BTD: Tensor
    """X'."""
    mask_BT: Tensor
    """Frames that take part."""
    saliency_BT: Tensor | None
    """P_s; None where saliency is off."""
    prompt_BTD: Tensor | None
    """S."""
    retrieved_BSD: Tensor | None
    """R, one token per kept segment, best first; or the words of what was retrieved."""
    retrieved_mask_BS: Tensor | None
    segments: list[list[Segment]]
    """All segments of each video in order of time; empty where retrieval is off."""
    plan: transport.Plan | None


class Encoded(NamedTuple):
    """The decoder's memory, and what a reader may want to see of how it came about."""

    video: VideoEncoding
    memory_BMD: Tensor
    memory_mask_BM: Tensor


class Losses(NamedTuple):
    """L = caption + λ saliency + denoising + anchors, each already weighted in `total`."""

    total: Tensor
    caption: Tensor
    """Cross-entropy of the events."""
    denoising: Tensor | None
    """Cross-entropy of the spans cut out of the speech."""
    saliency: Tensor | None
    repeated_saliency: Tensor | None
    """The saliency loss of the denoising pass, where it is counted again."""
    anchors: Tensor | None


class Generated(NamedTuple):
    """Token ids per video, and the memory they were read from."""

    decoded: list[Decoded]
    encoded: Encoded


class STaRC(nn.Module):
    """Saliency training for retrieval and captioning."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        check(config)
        self.config = config
        width, features = config.language_model.width, config.temporal.features
        self.feature_projection = nn.Linear(features, width) if features != width else None
        recompute = config.language_model.recompute
        self.temporal = TemporalEncoder(width, config.temporal, recompute=recompute)
        self.video_projection = nn.Linear(width, width) if config.temporal.projection else None
        self.swsa = SlidingWindowAttention(width, config.swsa) if config.swsa else None
        self.saliency = SaliencyHead(width) if config.saliency else None
        self.prompt_projection = nn.Linear(1, width) if config.prompt else None
        embedded = config.retrieval is not None and config.retrieval.form == "embedding"
        self.retrieved_projection = nn.Linear(features, width) if embedded else None
        self.anchor_KD: nn.Parameter | None = None
        if config.retrieval and config.segments.method == "transport":
            anchor_KD = torch.empty(config.transport.anchors, features)
            nn.init.normal_(anchor_KD, std=features**-0.5)
            self.anchor_KD = nn.Parameter(anchor_KD, requires_grad=config.loss.anchor_weight > 0)
        if config.llama is None:
            self.t5 = T5(config.t5)
        else:
            self.causal = CausalDecoder(config.llama)
        if self.video_projection is not None:
            # A fresh projection changes nothing, so that Vid2Seq weights keep their sense.
            nn.init.eye_(self.video_projection.weight)
            nn.init.zeros_(self.video_projection.bias)
        if not config.inputs.video:  # several processes must not wait for gradients of these
            for part in (self.feature_projection, self.temporal, self.video_projection):
                if part is not None:
                    part.requires_grad_(False)

    @property
    def decoder(self) -> T5 | CausalDecoder:
        """The language model that reads T_in and writes events."""
        return self.t5 if self.config.llama is None else self.causal

    def forward(self, batch: Batch, store: Datastore | None, share: Tensor | None = None) -> Losses:
        """Training: L = CE + λ L_saliency, the denoising loss of Vid2Seq, the anchors' loss.

        `share` weighs each loss by its part of a batch that several processes or steps share, in
        the order of `Losses`; the sum over them is the loss of the whole batch in one piece.
        """
        config = self.config.loss
        encoded = self.encode(batch, store)
        losses: dict[str, Tensor | None] = {
            "caption": self.caption_loss(encoded, batch.wanted("target_BL")),
            "denoising": None,
            "saliency": self.saliency_loss(encoded.video, batch),
            "repeated_saliency": None,
            "anchors": None,
        }
        if self.anchor_KD is not None and encoded.video.plan is not None and config.anchor_weight:
            losses["anchors"] = transport.anchor_loss(
                batch.clip_BTD,
                self.anchor_KD,
                encoded.video.plan,
                encoded.video.mask_BT,
                temperature=config.anchor_temperature,
            )
        if config.denoising_weight:
            video = encoded.video
            if config.denoising_video == "refined":
                video = self.encode_video(video.refined_BTD, batch, store)
            speech_BL = batch.wanted("denoising_speech_BL")
            noisy = self.build_memory(video, speech_BL, speech_BL != PAD)
            target_BL = batch.wanted("denoising_target_BL")
            losses["denoising"] = self.caption_loss(noisy, target_BL)
            if config.saliency_in_denoising:
                losses["repeated_saliency"] = self.saliency_loss(video, batch)
        weights = {
            "caption": 1.0,
            "saliency": config.saliency_weight,
            "denoising": config.denoising_weight,
            "repeated_saliency": config.denoising_weight * config.saliency_weight,
            "anchors": config.anchor_weight,
        }
        if share is not None:
            shares = dict(zip(losses, share, strict=True))
            losses = {
                name: None if loss is None else loss * shares[name] for name, loss in losses.items()
            }
        parts = [w * loss for name, w in weights.items() if (loss := losses[name]) is not None]
        return Losses(total=sum(parts[1:], parts[0]), **losses)  # type: ignore[arg-type]

    @torch.no_grad()
    def generate(
        self,
        batches: Sequence[Batch],
        store: Datastore | None,
        search: BeamSearch,
        given: Sequence[Sequence[int]] | None = None,
    ) -> list[Generated]:
        """Inference: the ids of the events of each video, which may have `given` times.

        Each batch is encoded alone, so that its numbers are its own; decoding, which takes nearly
        all the time, serves all of them at once.
        """
        encoded = [self.encode(batch, store, inference=True) for batch in batches]
        memory_BMD = pad_sequence([row for one in encoded for row in one.memory_BMD], True)
        mask_BM = pad_sequence([row for one in encoded for row in one.memory_mask_BM], True)
        decoded = iter(beam_search.generate(self.decoder, memory_BMD, mask_BM, search, given))
        return [Generated(list(islice(decoded, len(one.memory_BMD))), one) for one in encoded]

    def encode(self, batch: Batch, store: Datastore | None, *, inference: bool = False) -> Encoded:
        """Everything before the decoder. Training and inference share it.

        `inference` chooses the decoder's video tokens and the constants of the transport; it says
        nothing of dropout, so losses can be computed in evaluation mode.
        """
        video = self.encode_video(self.encode_frames(batch), batch, store, inference=inference)
        return self.build_memory(video, batch.speech_BL, batch.speech_mask_BL)

    def encode_frames(self, batch: Batch) -> Tensor:
        """X: features through the temporal encoder and a linear layer."""
        clip_BTD = batch.clip_BTD
        if clip_BTD.shape[-1] != self.config.temporal.features:
            raise VideoError(
                f"{batch.ids[0]}: features are {clip_BTD.shape[-1]} wide, the model needs "
                f"{self.config.temporal.features}; starc features --model makes them so"
            )
        if self.feature_projection is not None:
            clip_BTD = self.feature_projection(clip_BTD)
        attended_BT = batch.frame_mask_BT if self.config.mask_padding else None
        x_BTD: Tensor = self.temporal(clip_BTD, attended_BT)
        return x_BTD if self.video_projection is None else self.video_projection(x_BTD)

    def encode_video(
        self, x_BTD: Tensor, batch: Batch, store: Datastore | None, *, inference: bool = False
    ) -> VideoEncoding:
        """Refine, score, segment and retrieve: X in, all memory tokens but the speech out."""
        # Without `mask_padding`, padding counts as video.
        attended_BT = batch.frame_mask_BT if self.config.mask_padding else None
        mask_BT = torch.ones_like(batch.frame_mask_BT) if attended_BT is None else attended_BT
        refined_BTD = x_BTD if self.swsa is None else self.swsa(x_BTD, attended_BT)
        plain = not inference or self.config.decoder_video == "plain"
        video_BTD = x_BTD if plain else refined_BTD
        saliency_BT, prior_BT = None, mask_BT.to(x_BTD.dtype)
        if self.saliency is not None and self.config.saliency is not None:
            pooled_BTD = refined_BTD
            if self.config.saliency.second_pass:
                pooled_BTD = self.temporal(refined_BTD, attended_BT)
                if not plain and self.prompt_projection is not None:
                    video_BTD = pooled_BTD
                elif inference:
                    video_BTD = x_BTD
            saliency_BT = self.saliency(refined_BTD, pooled_BTD, attended_BT)
            prior_BT = saliency.prior(
                saliency_BT.detach().float(), mask_BT, standardise=self.config.saliency.standardise
            )
        retrieved = self.retrieve(batch, prior_BT.float(), mask_BT, store, inference=inference)
        return VideoEncoding(
            video_BTD,
            refined_BTD,
            mask_BT,
            saliency_BT,
            self.prompt(saliency_BT, batch.ids),
            *retrieved,
        )

    def prompt(self, saliency_BT: Tensor | None, videos: Sequence[str]) -> Tensor | None:
        """SaliP: S = Linear(P_s), one token per frame; or of zeros, or of P_s with noise.

        Outside training a video's noise is always the same.
        """
        if saliency_BT is None or self.prompt_projection is None or self.config.prompt is None:
            return None
        if self.config.prompt.scores == "zero":
            saliency_BT = torch.zeros_like(saliency_BT)
        elif self.config.prompt.scores == "noise":
            noise_BT = torch.randn_like(saliency_BT)
            if not self.training:
                seeds = [torch.Generator().manual_seed(zlib.crc32(v.encode())) for v in videos]
                frames = saliency_BT.shape[1]
                noise_BT = torch.stack([torch.randn(frames, generator=one) for one in seeds])
            saliency_BT = saliency_BT + self.config.prompt.noise * noise_BT.to(saliency_BT)
        return self.prompt_projection(saliency_BT[..., None])  # type: ignore[no-any-return]

    def retrieve(
        self,
        batch: Batch,
        prior_BT: Tensor,
        mask_BT: Tensor,
        store: Datastore | None,
        *,
        inference: bool,
    ) -> tuple[Tensor | None, Tensor | None, list[list[Segment]], transport.Plan | None]:
        """SGSR: segments of the video, and the mean embedding of the captions nearest to each.

        Or those captions as words. Only what reads them learns here: segments and search carry no
        gradient. Transport runs in float32 whatever the model's precision: its plans are too sharp
        for less.
        """
        if self.config.retrieval is None:
            return None, None, [[] for _ in batch.ids], None
        if store is None or not len(store):
            raise DatastoreError(
                f"{batch.ids[0]}: retrieval is on but the datastore is empty; "
                "build one, or set retrieval=none"
            )
        clip_BTD = batch.clip_BTD.float()
        with torch.autocast(clip_BTD.device.type, enabled=False):
            cut, plan = self.segment(clip_BTD, prior_BT, mask_BT, inference=inference)
            weight_BT = prior_BT + 1e-6
            if self.config.segments.pooling == "uniform":
                weight_BT = torch.ones_like(prior_BT)
            ranked = [segments.ranked(video) for video in cut]
            query_BSD, real_BS = segments.pool(clip_BTD, weight_BT, ranked)
            own = self.config.retrieval.exclude_own and not inference
            mean_BSD, rows = self.search(query_BSD, real_BS, store, batch.ids if own else None)
        retrieved = iter(
            tuple(Retrieved(store.captions[n], score) for n, score in zip(*row, strict=True))
            for row in rows
        )
        for number, best in enumerate(ranked):
            of_segment = {segment.first: next(retrieved) for segment in best}
            cut[number] = [
                dataclasses.replace(segment, captions=of_segment.get(segment.first, ()))
                for segment in cut[number]
            ]
        if self.retrieved_projection is None:
            return *self.read_captions(cut, batch), cut, plan
        if not self.config.retrieval.mask_missing:
            real_BS = torch.ones_like(real_BS)
        mean_BSD = mean_BSD.to(self.retrieved_projection.weight.dtype)
        return self.retrieved_projection(mean_BSD), real_BS, cut, plan

    def read_captions(
        self, cut: Sequence[Sequence[Segment]], batch: Batch
    ) -> tuple[Tensor, Tensor]:
        """The nearest captions of each video's segments, the surest segment first, as tokens."""
        options, encode = self.config.retrieval, batch.encode
        assert options is not None
        if encode is None:
            raise ValueError("retrieved captions are read as text: the batch needs `encode`")
        rows = []
        for video in cut:
            texts = dict.fromkeys(
                one.caption
                for segment in segments.ranked(video)
                for one in segment.captions[: options.text_captions]
            )
            rows.append([n for text in texts for n in encode(text)][: options.text_tokens] or [END])
        token_BL = padded_ids(rows).to(batch.clip_BTD.device)
        return self.decoder.encode(token_BL, token_BL != PAD), token_BL != PAD

    def segment(
        self, clip_BTD: Tensor, prior_BT: Tensor, mask_BT: Tensor, *, inference: bool
    ) -> tuple[list[list[Segment]], transport.Plan | None]:
        """The segments of each video and, where it is what cuts them, the transport plan."""
        options, plan = self.config.transport, None
        if self.anchor_KD is not None:
            anchor_KD = self.anchor_KD.float()
            problem = transport.pose(
                clip_BTD, anchor_KD, prior_BT, mask_BT, options, inference=inference
            )
            plan = transport.solve(problem, options)
        cut = segments.find(
            clip_BTD, prior_BT, mask_BT, plan, self.config.segments, clusters=options.anchors
        )
        return cut, plan

    def search(
        self, query_BSD: Tensor, real_BS: Tensor, store: Datastore, own: Sequence[str] | None
    ) -> tuple[Tensor, list[Neighbours]]:
        """Mean of the p unit embeddings nearest to each query, and who they are, row by row.

        `own` names the videos whose captions are hidden from their own queries, which makes one
        search per video; None lets one search serve the batch.
        """
        assert self.config.retrieval is not None
        counts: list[int] = real_BS.sum(1).tolist()
        query_SD = query_BSD[real_BS]
        groups = [query_SD] if own is None else list(query_SD.split_with_sizes(counts))
        names = [None] if own is None else own
        mean_SD: list[Tensor] = []
        rows: list[Neighbours] = []
        for group_SD, name in zip(groups, names, strict=True):
            hits = store.search(group_SD, k=self.config.retrieval.captions, exclude=name)
            index_SR = hits.index_SR
            if not self.config.mask_padding:
                # A segment of nothing but padding has a query of zeros, equally near to every
                # caption: it gets what torch.topk names first among equals, as published.
                equal_N = torch.zeros(len(store), device=index_SR.device)
                first_R = equal_N.topk(index_SR.shape[1]).indices
                real_S1 = group_SD.any(1, keepdim=True).to(index_SR.device)
                index_SR = torch.where(real_S1, index_SR, first_R)
            mean_SD.append(store.embedding_ND[index_SR].mean(1).to(query_SD))
            rows += zip(index_SR.tolist(), hits.score_SR.tolist(), strict=True)
        mean_BSD = torch.zeros_like(query_BSD)
        mean_BSD[real_BS] = torch.cat(mean_SD)
        return mean_BSD, rows

    def build_memory(
        self, video: VideoEncoding, speech_BL: Tensor, speech_mask_BL: Tensor
    ) -> Encoded:
        """T_in = [X' ; S ; R ; Y] with its mask. Only the speech goes through an encoder, T5's."""
        speech_BLD = self.decoder.encode(speech_BL, speech_mask_BL)
        parts = (
            (video.video_BTD, video.mask_BT),
            (video.prompt_BTD, video.mask_BT),
            (video.retrieved_BSD, video.retrieved_mask_BS),
            (speech_BLD, speech_mask_BL.bool()),
        )
        heard = parts if self.config.inputs.video else parts[-1:]
        present = [(tokens, mask) for tokens, mask in heard if tokens is not None]
        memory_BMD = torch.cat([tokens for tokens, _ in present], dim=1)
        masks = [mask for _, mask in present if mask is not None]
        return Encoded(video, memory_BMD, torch.cat(masks, dim=1))

    def caption_loss(self, encoded: Encoded, target_BL: Tensor) -> Tensor:
        """Cross-entropy of target ids given the memory."""
        return self.decoder.loss(
            encoded.memory_BMD,
            encoded.memory_mask_BM,
            target_BL,
            target_BL != PAD,
            label_smoothing=self.config.loss.label_smoothing,
        )

    def saliency_loss(self, video: VideoEncoding, batch: Batch) -> Tensor | None:
        """L_saliency of these scores; None where saliency is off."""
        if video.saliency_BT is None or self.config.saliency is None:
            return None
        return saliency.loss(
            video.saliency_BT,
            batch.wanted("salient_BT"),
            video.mask_BT,
            temperature=self.config.saliency.temperature,
        )
