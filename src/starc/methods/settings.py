"""Settings of the set prediction methods: frozen dataclasses as in starc.config; no torch here.

Defaults are the published YouCook2 settings of PDVC with LSTM-DSA (cfgs/yc2_tsn_pdvc.yml). Presets
are functions: `pdvc`, `pdvc_light`, `cm2`; `starc.config.override` changes a setting by name.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal

from starc.config import suggest, training_only
from starc.errors import ConfigError

Padding = Literal["border", "zeros"]
GROUPS = 32
"""Groups of the normalisation after each convolution, fixed in the published code."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MatchingConfig:
    """Weights of the matching cost."""

    classes: float = 2.0
    boxes: float = 0.0
    giou: float = 4.0
    alpha: float = 0.25
    gamma: float = 2.0


@dataclass(frozen=True, kw_only=True, slots=True)
class SetLossConfig:
    """Weights and parameters of the losses; every decoder layer has the same weights."""

    classes: float = 2.0
    """cls_loss_coef."""
    boxes: float = 0.0
    """bbox_loss_coef."""
    giou: float = 4.0
    """giou_loss_coef."""
    counter: float = 0.5
    """count_loss_coef."""
    captions: float = 2.0
    """caption_loss_coef."""
    focal_alpha: float = 0.25
    focal_gamma: float = 2.0
    gaussian: bool = True
    """Counts close to the right one weigh less (lloss_gau_mask)."""
    beta: float = 1.0
    """Exponent of that weight (lloss_beta)."""

    def weight(self, name: str) -> float:
        """Weight of a published loss name, 0 if it is only logged."""
        return {
            "loss_ce": self.classes,
            "loss_bbox": self.boxes,
            "loss_giou": self.giou,
            "loss_counter": self.counter,
            "loss_caption": self.captions,
        }.get(name.rstrip("0123456789").removesuffix("_"), 0.0)


@dataclass(frozen=True, kw_only=True, slots=True)
class TextConfig:
    """CM²: text retrieved from a memory bank, attended to by the event queries."""

    width: int = 768
    """Of the text embeddings; frame features must have the same width."""
    windows: int = 50
    """Windows of equal length, each with its own search (window_size)."""
    captions: int = 80
    """Captions averaged for a window (soft_k)."""
    first: bool = False
    """Attend to text before the frames instead of after them (text_crossAttn_loc)."""
    dropout: float = training_only(0.5)
    """In the projection of the text embeddings."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PdvcConfig:
    """A PDVC or CM² model."""

    features: int = 3072
    """Width of the frame features."""
    frames: int | None = 200
    """Features are resampled to this many, nearest; None: not resampled."""
    width: int = 512
    feed_forward: int = 512
    heads: int = 8
    levels: int = 4
    """Of the feature pyramid; each has half as many positions as the one before."""
    encoder_layers: int = 2
    decoder_layers: int = 2
    encoder_points: int = 4
    decoder_points: int = 4
    queries: int = 100
    classes: int = 1
    max_events: int = 20
    """Largest count of the event counter (max_eseq_length)."""
    refine: bool = True
    """Each decoder layer refines the boxes of the previous one (with_box_refine)."""
    captioner: Literal["standard", "light"] = "standard"
    """LSTM with deformable soft attention (DSA), or on the query alone."""
    vocabulary: int = 1607
    """Words; id 0 is start, end and padding."""
    word_width: int = 512
    rnn_width: int = 512
    rnn_layers: int = 1
    caption_attention: int = 512
    """Width of the additive attention of DSA (att_hid_size)."""
    caption_heads: int = 1
    caption_levels: int = 4
    caption_points: int = 4
    shared_captioner: bool = True
    """All decoder layers share one captioning head."""
    caption_words: int = 30
    """Longest caption in greedy decoding (max_caption_len)."""
    sentence_weight: float = 1.0
    """Weight of the sentence score in ranking (ec_alpha)."""
    padding: Padding = "zeros"
    """Sampling outside the video in encoder and decoder: "zeros" as the published CUDA operator,
    "border" as its CPU fallback; the captioner always uses "border"."""
    text: TextConfig | None = None
    """CM²; None: PDVC."""
    dropout: float = training_only(0.1)
    caption_dropout: float = training_only(0.5)
    matching: MatchingConfig = field(default_factory=MatchingConfig, metadata={"training": True})
    loss: SetLossConfig = field(default_factory=SetLossConfig, metadata={"training": True})


def check(config: PdvcConfig) -> None:
    """Raise ConfigError for sizes that no model can have; called when a model is made."""
    if config.width % (2 * config.heads) or config.width % GROUPS:
        raise ConfigError(
            f"width: must be a multiple of {GROUPS} and of 2 heads (found {config.width})"
        )
    if config.text is not None and config.text.width != config.features:
        raise ConfigError(
            f"text.width: retrieval needs the width of the features, {config.features} "
            f"(found {config.text.width})"
        )


def pdvc() -> PdvcConfig:
    """PDVC with LSTM-DSA on YouCook2 (cfgs/yc2_tsn_pdvc.yml)."""
    return PdvcConfig()


def pdvc_light() -> PdvcConfig:
    """PDVC with the light captioner on YouCook2 (cfgs/yc2_tsn_pdvcl.yml)."""
    return PdvcConfig(captioner="light", sentence_weight=0.3)


def cm2() -> PdvcConfig:
    """CM² on YouCook2 (cfgs/yc2_clip_cm2.yml, train_yc2.sh); CLIP features are not resampled."""
    return PdvcConfig(features=768, frames=None, text=TextConfig())


METHODS = {preset.__name__: preset for preset in (pdvc, pdvc_light, cm2)}


def preset(name: str, **changes: Any) -> PdvcConfig:
    """The settings of a method by name, with changes."""
    if name not in METHODS:
        raise ConfigError(f"method {name!r}: unknown; {suggest(name, METHODS)}")
    return replace(METHODS[name](), **changes)
