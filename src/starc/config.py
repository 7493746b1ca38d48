"""Every number of the model, as frozen dataclasses: one per stage, nested in `Config`.

Defaults are those of the `paper` preset. A preset is a function (`paper`, `published`, `tiny`,
`vid2seq`), a variant `dataclasses.replace` or `apply_overrides(config, ["transport.anchors=10"])`.
`to_dict` and `from_dict` are the `config.json` beside the weights. Each place where paper and
published code differ is one of these settings: docs/deviations.md. Nothing here imports torch.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from starc import settings
from starc.errors import ConfigError

Stride = Literal["half", "tile"] | int | tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class TemporalConfig:
    """Temporal encoder: a pre-norm transformer over the frames."""

    features: int = 768
    """Width of the frame features, of the anchors and of the datastore. If it is not the width of
    the T5 the features enter through a linear layer (ours; the published code has none)."""
    positions: int = 100
    """Learned positions; T of the paper. Longer videos reuse the nearest one."""
    depth: int = 12
    """Blocks."""
    heads: int = 12
    """Attention heads of a block."""
    feed_forward: int = 2048
    """Hidden width of a block's feed-forward layer."""
    dropout: float = 0.1
    """Probability, after positions and inside blocks."""
    projection: bool = True
    """A linear layer after the encoder (published name proj_v2t) makes X. Vid2Seq has none where
    the widths of encoder and T5 agree."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SwsaConfig:
    """Sliding-window self-attention (SWSA)."""

    sizes: tuple[int, ...] = (8, 32, 64)
    """w1, w2, w3 in frames; any number of sizes."""
    stride: Stride = "half"
    """Frames between window starts: "half" a window, "tile" (a whole window, as published), one
    number for all sizes or one per size. The paper gives none."""
    partial: bool = True
    """The last window of a size may reach beyond the video. Published: no, so with 100 frames the
    frames 96 to 99 lie in no window, and windows longer than the video are skipped."""

    def steps(self) -> tuple[int, ...]:
        """Stride of each size, in frames."""
        if self.stride == "tile":
            return self.sizes
        if self.stride == "half":
            return tuple(max(1, size // 2) for size in self.sizes)
        if isinstance(self.stride, int):
            return (self.stride,) * len(self.sizes)
        return tuple(int(step) for step in self.stride)


@dataclass(frozen=True, kw_only=True, slots=True)
class SaliencyConfig:
    """Highlight detection: frame-level saliency P_s and the saliency prior p_s."""

    second_pass: bool = False
    """Pool the global feature over a second pass of X' through the temporal encoder, and give the
    decoder that pass at inference (published). Paper: pool X' itself."""
    standardise: bool = False
    """p_s = sigmoid of P_s standardised per video (published) instead of sigmoid(P_s)."""
    temperature: float = 0.5
    """τ of the listwise loss."""
    align_labels: bool = True
    """Highlight labels lie on the real frames. Published: stretched over all padded positions."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TransportConfig:
    """Fused Gromov-Wasserstein transport of frames to anchors (SGSR)."""

    anchors: int = 8
    """K, learned anchors; also the clusters of k-means."""
    entropy: float = 0.07
    """ε in training (default of ASOT)."""
    inference_entropy: float = 0.04
    """ε at inference."""
    structure: float = 0.3
    """α in training: weight of the temporal structure against the cost."""
    inference_structure: float = 0.6
    """α at inference."""
    radius: float = 0.04
    """Frames closer than this fraction of the video are coupled by C^v."""
    saliency_bias: float = 0.1
    """μ: how much a salient frame lowers its cost."""
    centre: bool = False
    """The bias is μ (p_s − mean p_s) as published, instead of μ p_s. It moves no assignment but
    enters the step size."""
    frames: Literal["relaxed", "balanced"] = "relaxed"
    """Frame marginal: drawn towards p_s by γ KL, or equal to it."""
    anchor_marginal: Literal["relaxed", "balanced"] = "balanced"
    """Anchor marginal: drawn towards 1/K by γ_a KL, or equal to it."""
    frame_penalty: float = 0.3
    """γ, weight of the KL divergence of relaxed frames. The main text calls .3 ρ; the appendix
    and the code say γ."""
    anchor_penalty: float = 0.12
    """γ_a, weight of the KL divergence of relaxed anchors."""
    temporal_prior: float = 0.0
    """ρ, weight of |n/F − k/K| added to the cost."""
    steps: int = 25
    """Mirror-descent iterations. Not converged by design: more steps give other segments."""
    bounded_step: bool = True
    """Never step further than 1 / (ε + γ), beyond which masses swing instead of settling. As
    published there is no bound: short videos may end worse than they began."""
    projection_steps: int = 50
    """Sinkhorn iterations inside each step when both marginals are balanced."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SegmentsConfig:
    """Cutting a video into segments, choosing and pooling them."""

    method: Literal["transport", "uniform", "adaptive", "kmeans"] = "transport"
    """SGSR; `top_k` equal windows (HiCM²); a cut where neighbouring frames differ (Sali4Vid);
    runs of k-means clusters."""
    top_k: int = 5
    """k, segments kept for retrieval; fewer when the video has fewer."""
    pooling: Literal["saliency", "uniform"] = "saliency"
    """Weights of the frames in a segment's feature."""
    threshold: float = 1.0
    """Of `adaptive`: cut where the change exceeds the video's mean by this many deviations."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RetrievalConfig:
    """Captions from the datastore."""

    captions: int = 10
    """p, captions averaged per segment; fewer when the datastore holds fewer."""
    exclude_own: bool = True
    """Hide a video's own captions while training on it. Published: no (a leak)."""
    mask_missing: bool = True
    """A video with fewer segments than its neighbours has fewer retrieval tokens. Published: the
    missing ones are the projection's bias, and attended."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PromptConfig:
    """Saliency prompts (SaliP): one memory token per frame."""

    scores: Literal["saliency", "zero", "noise"] = "saliency"
    """What the prompt tells: P_s; nothing; P_s corrupted by Gaussian noise (ablations)."""
    noise: float = 1.0
    """Standard deviation of that noise, in units of P_s."""


@dataclass(frozen=True, kw_only=True, slots=True)
class T5Settings:
    """T5 v1.0 with tied embeddings and time tokens after its vocabulary."""

    width: int = 768
    """d_model; width of X and of the whole decoder memory."""
    head_width: int = 64
    """d_kv."""
    feed_forward: int = 3072
    """d_ff."""
    layers: int = 12
    """Encoder (speech) layers."""
    decoder_layers: int = 12
    """Decoder layers."""
    heads: int = 12
    """Attention heads."""
    text_vocabulary: int = 32100
    """Ids of text, sentinels included; time ids follow."""
    bins: int = 100
    """Time tokens."""
    dropout: float = 0.1
    """Probability, everywhere in T5."""
    attention_dropout: float | None = None
    """Of attention weights; None: as everywhere. 0 lets a processor train much faster."""
    feed_forward_activation: str = "relu"
    """Activation in the feed-forward layers: relu, gelu, gelu_new or silu, as in transformers."""
    relative_buckets: int = 32
    """Buckets of the relative position bias."""
    relative_distance: int = 128
    """Distance, in tokens, from which all positions share the last bucket."""
    recompute: bool = False
    """Gradient checkpointing: layers forget their activations and compute them again in the
    backward pass. Same numbers, less memory, about a third more time."""

    @property
    def vocabulary(self) -> int:
        """V: text and time ids."""
        return self.text_vocabulary + self.bins


@dataclass(frozen=True, kw_only=True, slots=True)
class LossConfig:
    """What training minimises."""

    label_smoothing: float = 0.1
    """Of the cross-entropy."""
    saliency_weight: float = 6.0
    """λ: 6 for YouCook2, 2 for ViTT. The published code halves and truncates it: 6.0 acts as 3."""
    saliency_in_denoising: bool = False
    """Add λ times the saliency loss in the denoising pass again (published)."""
    denoising_weight: float = 1.0
    """Weight of Vid2Seq's speech denoising loss; 0 turns the pass off."""
    denoising_video: Literal["plain", "refined"] = "plain"
    """Video tokens of the denoising pass: X as in the generative pass, or X' refined once more
    (what the repaired published code does)."""
    anchor_weight: float = 0.1
    """Weight of the cross-entropy that teaches the anchors the transport plan. Published: 0, the
    anchors stay where they started."""
    anchor_temperature: float = 0.1
    """Of the softmax over frame-anchor similarities in that loss (default of ASOT)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    """A whole model. None turns a part off; with all parts off the model is Vid2Seq."""

    temporal: TemporalConfig = field(default_factory=TemporalConfig)
    swsa: SwsaConfig | None = field(default_factory=SwsaConfig)
    saliency: SaliencyConfig | None = field(default_factory=SaliencyConfig)
    transport: TransportConfig = field(default_factory=TransportConfig)
    segments: SegmentsConfig = field(default_factory=SegmentsConfig)
    retrieval: RetrievalConfig | None = field(default_factory=RetrievalConfig)
    prompt: PromptConfig | None = field(default_factory=PromptConfig)
    t5: T5Settings = field(default_factory=T5Settings)
    loss: LossConfig = field(default_factory=LossConfig)
    decoder_video: Literal["refined", "plain"] = "refined"
    """Video tokens at inference: X' (the paper), or X, as the decoder saw them in training."""
    window: float = 0.0
    """Seconds of a look. Training cuts longer videos into parts about this long, anew in each
    epoch; at inference overlapping windows are captioned and joined. 0: videos whole, as in the
    paper."""
    mask_padding: bool = True
    """Zero frames after the end of a short video take part in nothing. Published: they take part
    in saliency, transport, segments and attention."""


def paper() -> Config:
    """What the paper describes, padding masked, anchors that learn: the default for training."""
    return Config()


def published() -> Config:
    """Same weights and inputs give the same numbers as the authors' code."""
    return Config(
        swsa=SwsaConfig(stride="tile", partial=False),
        saliency=SaliencyConfig(second_pass=True, standardise=True, align_labels=False),
        transport=TransportConfig(centre=True, bounded_step=False),
        retrieval=RetrievalConfig(exclude_own=False, mask_missing=False),
        loss=LossConfig(
            saliency_weight=3.0,
            saliency_in_denoising=True,
            denoising_video="refined",
            anchor_weight=0.0,
        ),
        mask_padding=False,
    )


def vid2seq() -> Config:
    """Vid2Seq, the baseline: no SWSA, no saliency, no retrieval, no prompts."""
    return Config(
        temporal=TemporalConfig(projection=False),
        swsa=None,
        saliency=None,
        retrieval=None,
        prompt=None,
    )


def tiny() -> Config:
    """The paper's model at a size for tests: a forward pass takes milliseconds."""
    return Config(
        temporal=TemporalConfig(features=64, depth=2, heads=4, feed_forward=128),
        t5=T5Settings(
            width=64,
            head_width=16,
            feed_forward=128,
            layers=2,
            decoder_layers=2,
            heads=4,
            text_vocabulary=1100,
        ),
    )


PRESETS = {"paper": paper, "published": published, "vid2seq": vid2seq, "tiny": tiny}


def preset(name: str) -> Config:
    """The preset of that name."""
    if name not in PRESETS:
        raise ConfigError(f"preset {name!r}: unknown; {settings.suggest(name, PRESETS)}")
    return PRESETS[name]()


def to_dict(config: Config) -> dict[str, Any]:
    """Plain dictionaries, ready for `json.dump`."""
    return dataclasses.asdict(config)


def from_dict(data: Mapping[str, Any]) -> Config:
    """The inverse of `to_dict`; strict: an unknown or missing key is a ConfigError."""
    config: Config = settings.build(Config, data, "config")
    check(config)
    return config


def apply_overrides(config: Config, overrides: Sequence[str]) -> Config:
    """The config with `key=value` settings applied from left to right.

    Keys are dotted paths ("transport.anchors=10"); "retrieval=none" turns a part off and
    "retrieval=on" gives it its defaults. Values are read as the type of the field.
    """
    for override in overrides:
        config = settings.override(config, override)
    check(config)
    return config


def check(config: Config) -> None:
    """Raise ConfigError for values that no model can have.

    Called once all overrides are in (their order does not matter) and when a model is made.
    """
    temporal, t5 = config.temporal, config.t5
    for part in dataclasses.fields(config):
        value = getattr(config, part.name)
        if dataclasses.is_dataclass(value):
            _check_numbers(part.name, value)
    if t5.width % temporal.heads:
        raise ConfigError(
            f"temporal.heads: {temporal.heads} does not divide t5.width {t5.width}; "
            "choose a divisor"
        )
    if config.swsa is not None:
        steps = config.swsa.steps()
        if not config.swsa.sizes or min(config.swsa.sizes + steps) < 1:
            raise ConfigError("swsa: sizes and strides must be at least one frame")
        if len(steps) != len(config.swsa.sizes):
            raise ConfigError(
                f"swsa.stride: {len(steps)} strides for {len(config.swsa.sizes)} sizes; "
                "give one, or one per size"
            )
    if not (math.isfinite(config.window) and config.window >= 0):
        raise ConfigError(f"window: must be at least 0 seconds (found {config.window})")
    if config.prompt is not None and config.saliency is None:
        raise ConfigError("prompt: needs saliency scores; set saliency=on or prompt=none")


def _check_numbers(where: str, part: Any) -> None:
    zero_allowed = {
        "noise",
        "label_smoothing",
        "temporal_prior",
        "saliency_bias",
    }
    for spec in dataclasses.fields(part):
        value, name = getattr(part, spec.name), f"{where}.{spec.name}"
        if isinstance(value, bool) or not isinstance(value, int | float):
            continue
        share = "structure" in spec.name or "dropout" in spec.name
        zero = share or spec.name in zero_allowed or spec.name.endswith("weight")
        if not math.isfinite(value) or value < 0 or (value == 0 and not zero):
            raise ConfigError(
                f"{name}: must be {'at least' if zero else 'above'} 0 (found {value})"
            )
        if (share or spec.name == "label_smoothing") and value > 1:
            raise ConfigError(f"{name}: must be at most 1 (found {value})")
