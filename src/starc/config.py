"""Every number of a model, as frozen dataclasses: one per stage, nested in `Config`.

Defaults are those of the `paper` preset. A preset is a function (`paper`, `published`, `tiny`,
`vid2seq`), a variant `dataclasses.replace` or `apply_overrides(config, ["transport.anchors=10"])`.
`to_dict` and `from_dict` are the `config.json` beside the weights: all that inference needs, and
nothing that only training needs (`training_only` fields stay in the recipe). Each place where paper
and published code differ is one of these settings: docs/deviations.md. Nothing here imports torch.

`build` and `override` at the end read any such dataclass, strictly: an unknown name is a
ConfigError that suggests the nearest one, a value of the wrong type says what was expected.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from starc.errors import ConfigError

SPECIAL_IDS = 3
"""Ids of a causal decoder before its tokenizer's: padding, end, unknown."""
SENTINELS = 100
"""Ids after them that mark hidden spans of speech."""
EVENT_TOKENS = 3
"""The shortest event: start, end, a word."""
MODEL_VERSION = 2
"""Of `config.json`, under the key `starc_model`, by which a model folder is known to be ours."""
Stride = Literal["half", "tile"] | int | tuple[int, ...]
Value = TypeVar("Value")


def training_only(default: Value) -> Value:
    """A field that inference does without: it belongs to a recipe and stays out of config.json."""
    made: Value = field(default=default, metadata={"training": True})
    return made


def added(default: Value) -> Value:
    """A field that older folders do without: for them it is the default."""
    made: Value = field(default=default, metadata={"added": True})
    return made


@dataclass(frozen=True, kw_only=True, slots=True)
class InputConfig:
    """What a model is given: frames and speech, and who encodes them."""

    frames: int = 100
    """T: longer videos are thinned out evenly, shorter ones padded."""
    speech_tokens: int = 1000
    """Speech is cut here, its end id included."""
    image_encoder: str = "openai/clip-vit-large-patch14"
    """Who makes the frame features: a CLIP folder or hub id, or efficientnet-lite0."""
    text_encoder: str = "openai/clip-vit-large-patch14"
    """Who embeds the captions of the datastore: a CLIP folder or hub id, or minilm."""
    joint_space: bool = False
    """Features are vectors of pictures and speech together (joint.safetensors maps into it)."""
    familiar_speech: float = added(0.0)
    """A video whose speech is less like the datastore than this, and whose frames are farther than
    `familiar_frames`, is not captioned unasked (inference/models.py); 0: not looked at."""
    familiar_frames: float = added(0.0)
    """Distance of its frames from those of training, of which 1 is ordinary; 0: not looked at."""
    video: bool = added(True)
    """The decoder sees the video. Without it (speech only) nothing that is made of frames is left:
    no saliency, no retrieval."""
    speech: bool = added(True)
    """The decoder hears what is said; without it every video is silent."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Windowing:
    """When a video exceeds the context window, and how it is then cut into overlapping windows."""

    seconds: float = 400.0
    """Length of a window: with 100 frames one every 4 s, somewhat above the mean of YouCook2's
    training videos (320 s); half of all events (14 s and more) then have three frames or more."""
    longest: float = 800.0
    """Videos up to this long are taken in whole: more than 99 of 100 of YouCook2."""
    overlap: float = 0.25
    """Part of a window, at least, that its neighbour also sees: 100 s hold 99 of 100 events."""
    in_training: bool = False
    """Training also cuts videos, into parts about `seconds` long and anew in each epoch."""

    def __post_init__(self) -> None:
        if not 0 < self.seconds <= self.longest:
            raise ValueError(
                f"windowing needs 0 < seconds <= longest, got {self.seconds = }, {self.longest = }"
            )
        if not 0 < self.overlap < 1:
            raise ValueError(f"windowing needs 0 < overlap < 1, got {self.overlap = }")


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
    """Of a block's attention; they divide the decoder's width."""
    feed_forward: int = 2048
    """Hidden width of a block's feed-forward layer."""
    dropout: float = training_only(0.1)
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
    temperature: float = training_only(0.5)
    """τ of the listwise loss."""
    align_labels: bool = training_only(True)
    """Highlight labels lie on the real frames. Published: stretched over all padded positions."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TransportConfig:
    """Fused Gromov-Wasserstein transport of frames to anchors (SGSR)."""

    anchors: int = 8
    """K, learned anchors; also the clusters of k-means."""
    entropy: float = training_only(0.07)
    """ε in training (default of ASOT)."""
    inference_entropy: float = 0.04
    """ε at inference."""
    structure: float = training_only(0.3)
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
    form: Literal["embedding", "text"] = "embedding"
    """R: a token per segment, the mean of its captions' embeddings; or the nearest captions as
    words, which a pretrained language model can read."""
    text_captions: int = 2
    """Of `text`: captions of each segment that are read."""
    text_tokens: int = 128
    """Of `text`: most tokens of a video's captions together."""
    exclude_own: bool = training_only(True)
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
class T5Config:
    """T5 with time tokens after its vocabulary."""

    width: int = 768
    """d_model; width of X and of the whole decoder memory."""
    head_width: int = 64
    """d_kv."""
    feed_forward: int = 3072
    """d_ff."""
    layers: int = 12
    """Of the encoder (speech)."""
    decoder_layers: int = 12
    """Blocks of the decoder."""
    heads: int = 12
    """Of each attention."""
    text_vocabulary: int = 32100
    """Ids of text, sentinels included; time ids follow."""
    bins: int = 100
    """Time tokens."""
    dropout: float = training_only(0.1)
    """Probability, everywhere in T5."""
    attention_dropout: float | None = training_only(None)
    """Of attention weights; None: as everywhere. 0 lets a processor train much faster."""
    feed_forward_activation: str = "relu"
    """Activation in the feed-forward layers: relu, gelu, gelu_new or silu, as in transformers;
    gated-gelu is T5 v1.1, whose output layer is its own."""
    relative_buckets: int = 32
    """Buckets of the relative position bias."""
    relative_distance: int = 128
    """Distance, in tokens, from which all positions share the last bucket."""
    recompute: bool = training_only(False)
    """Gradient checkpointing: layers forget their activations and compute them again in the
    backward pass. Same numbers, less memory, about a third more time."""

    @property
    def vocabulary(self) -> int:
        """V: text and time ids."""
        return self.text_vocabulary + self.bins

    @property
    def gated(self) -> bool:
        """T5 v1.1: a gate in the feed-forward layers, and an output layer of its own."""
        return self.feed_forward_activation.startswith("gated-")


@dataclass(frozen=True, kw_only=True, slots=True)
class LlamaConfig:
    """A Llama-family language model with tied embeddings; defaults are SmolLM2-135M's."""

    width: int = 576
    """Of the embeddings; as decoder also the width of X and of the whole prefix."""
    feed_forward: int = 1536
    """Hidden width of a layer's feed-forward part."""
    layers: int = 30
    heads: int = 9
    key_value_heads: int = 3
    """Each serves heads / key_value_heads query heads."""
    head_width: int = 64
    words: int = 49152
    """Ids of its own tokenizer."""
    bins: int = 100
    """Time tokens."""
    rope_base: float = 100_000.0
    """Base of the rotary positions' speeds."""
    norm_epsilon: float = 1e-5
    """Added to the mean square in RMSNorm."""
    lora: int = 0
    """Rank of the trained change of each matrix, the rest frozen; 0 trains all weights."""
    lora_from: int = 0
    """The first layer that is changed."""
    recompute: bool = training_only(False)
    """Gradient checkpointing, as in T5."""

    @property
    def text_vocabulary(self) -> int:
        """Ids of text with ours before and after it; time ids follow."""
        return SPECIAL_IDS + self.words + SENTINELS

    @property
    def vocabulary(self) -> int:
        """V: text and time ids."""
        return self.text_vocabulary + self.bins

    def __post_init__(self) -> None:
        if self.head_width % 2 or self.heads % self.key_value_heads:
            raise ValueError(
                f"llama needs an even head_width and heads in whole groups, got "
                f"{self.head_width = }, {self.heads = }, {self.key_value_heads = }"
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class SpanConfig:
    """The span head: when things happen, from what is said (decoder/span_head.py)."""

    layers: int = 5
    """Of the writer's language model, whose states it reads; below `lora_from`."""
    width: int = 96
    """Of the recurrent states, each way."""
    members: int = 2
    """Networks from different seeds, whose logits are averaged."""
    bin: float = 2.0
    """Seconds of a bin."""
    most_starts: float = 0.35
    """Mean probability of a start above which steps follow each other too fast for these bins:
    shorter ones are taken, and seconds below count accordingly less. On validation videos the mean
    is .19 (95 % lie below .38)."""
    shortest: float = 6.0
    longest: float = 90.0
    """Seconds of a span."""
    typical: float = 20.0
    """Seconds from which longer and shorter spans are less likely."""
    reward: float = 2.5
    """For each span: more gives more of them."""
    inside: float = 1.0
    """Weight of what goes on inside."""
    full_inside: float = 32.0
    """Seconds from which on it has that weight; shorter spans less."""
    length: float = 1.0
    """Weight of the squared distance from the typical length, in logarithms."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WriterConfig:
    """The caption writer: a language model that captions given spans from speech and retrieval."""

    llama: LlamaConfig = field(default_factory=LlamaConfig)
    spans: SpanConfig | None = None
    """Where something is said, spans come from this head instead of the decoder."""
    retrieved: int = 2
    """Captions of the datastore that it reads for each event; 0: none."""
    max_tokens: int = 40
    """Of a caption."""
    max_repeated_tokens: int = 3
    """So many tokens in a row at most stand twice in a caption."""
    calibration: tuple[float, ...] = (0.0, 1.0, 0.0)
    """Logit of being right = a · logit of the span's confidence + b · logit of the caption's
    probability + c, fitted on validation videos."""

    def __post_init__(self) -> None:
        if len(self.calibration) != 3:
            raise ValueError(f"writer needs three numbers, got {self.calibration = }")


MOST_BEAMS = 64
"""Memory and time grow with them; from about ten on, captions do not get better."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BeamSearch:
    """How to search. The defaults are the published ones."""

    beams: int = 4
    """Hypotheses kept per video; 1 is greedy."""
    max_tokens: int = 256
    """Longest output, the end id included; training cuts targets here."""
    min_tokens: int = 0
    """So many tokens come before the end id (`min_new_tokens` of transformers; its `min_length`
    counts the start id too and is one more)."""
    length_penalty: float = 1.0
    """Scores are divided by length to this power: above 0 favours long outputs."""
    repetition_penalty: float = 1.0
    """Above 1 makes ids that were already said less likely."""
    rules: Literal["published", "transformers"] = "published"
    """Small print of beam search: of the transformers before 4.36 that made the published numbers,
    or of today's. They differ in how length is counted and when a search stops."""
    grammar: bool = False
    """Time tokens only where they may stand, in order (beam_search.py)."""
    token_type_first: bool = False
    """Under the grammar, decide first whether a word, a time or the end comes next, by the mass of
    each kind; then take a quantile of the times instead of the likeliest. For models that are
    surer of what happens than of when."""
    quantiles: tuple[float, float] = (0.5, 0.68)
    """Of starts and of ends, where `token_type_first` is on."""
    max_repeated_words: int | None = None
    """Where `token_type_first` is on, at most so many words in a row are said twice; None: any
    number. A small model likes to give neighbouring events the same caption."""

    def __post_init__(self) -> None:
        if self.beams < 1 or self.max_tokens < 1:
            raise ValueError(f"search needs {self.beams = } and {self.max_tokens = } of at least 1")
        if self.beams > MOST_BEAMS:
            raise ValueError(f"search has at most {MOST_BEAMS} beams, got {self.beams = }")
        if not 0 <= self.min_tokens <= self.max_tokens:
            raise ValueError(f"search needs 0 <= {self.min_tokens = } <= {self.max_tokens = }")
        if not (math.isfinite(self.repetition_penalty) and self.repetition_penalty > 0):
            raise ValueError(f"search needs a positive penalty, got {self.repetition_penalty = }")
        if not math.isfinite(self.length_penalty):
            raise ValueError(f"search needs a finite penalty, got {self.length_penalty = }")
        if self.rules not in ("published", "transformers"):
            raise ValueError(f"search knows the rules published and transformers: {self.rules = }")
        if not all(0 < part < 1 for part in self.quantiles):
            raise ValueError(f"search needs quantiles between 0 and 1, got {self.quantiles = }")
        most = self.max_repeated_words
        if most is not None and (most < 1 or not self.token_type_first):
            raise ValueError(
                f"search needs token_type_first and {self.max_repeated_words = } of at least 1"
            )
        if self.token_type_first and not self.grammar:
            raise ValueError("search by kind needs the grammar: set grammar=True too")
        if self.grammar and self.max_tokens < EVENT_TOKENS:
            raise ValueError(f"an event needs three tokens, got {self.max_tokens = }")


@dataclass(frozen=True, kw_only=True, slots=True)
class LossConfig:
    """What training minimises."""

    target: Literal["events", "speech"] = added("events")
    """What the decoder learns to say of a video: its annotated events; or, as in Vid2Seq's
    pretraining, what is spoken in it, which it then does not hear."""
    label_smoothing: float = 0.1
    """Of the cross-entropy."""
    saliency_weight: float = 6.0
    """λ: 6 for YouCook2, 2 for ViTT. The published code halves and truncates it: 6.0 acts as 3."""
    saliency_in_denoising: bool = False
    """Add λ times the saliency loss in the denoising pass again (published)."""
    denoising_weight: float = 1.0
    """Weight of Vid2Seq's speech denoising loss; 0 turns the pass off."""
    corruption: float = 0.25
    """Share of speech tokens hidden for denoising."""
    corrupted_span: float = 5.0
    """Mean length of a hidden span, in tokens."""
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

    inputs: InputConfig = field(default_factory=InputConfig)
    windowing: Windowing | None = field(default_factory=Windowing)
    """None takes in any video whole."""
    temporal: TemporalConfig = field(default_factory=TemporalConfig)
    swsa: SwsaConfig | None = field(default_factory=SwsaConfig)
    saliency: SaliencyConfig | None = field(default_factory=SaliencyConfig)
    transport: TransportConfig = field(default_factory=TransportConfig)
    segments: SegmentsConfig = field(default_factory=SegmentsConfig)
    retrieval: RetrievalConfig | None = field(default_factory=RetrievalConfig)
    prompt: PromptConfig | None = field(default_factory=PromptConfig)
    t5: T5Config = field(default_factory=T5Config)
    llama: LlamaConfig | None = field(default=None, metadata={"added": True})
    """A Llama-family decoder in T5's place: T_in becomes its prefix."""
    writer: WriterConfig | None = field(default=None, metadata={"added": True})
    """A language model that writes the captions of the spans which the decoder has found."""
    decoding: BeamSearch = field(default_factory=BeamSearch)
    loss: LossConfig = field(default_factory=LossConfig, metadata={"training": True})
    decoder_video: Literal["refined", "plain"] = "refined"
    """Video tokens at inference: X' (the paper), or X, as the decoder saw them in training."""
    mask_padding: bool = True
    """Zero frames after the end of a short video take part in nothing. Published: they take part
    in saliency, transport, segments and attention."""

    @property
    def decoder(self) -> Literal["t5", "causal"]:
        """Which kind of language model writes the events."""
        return "t5" if self.llama is None else "causal"

    @property
    def language_model(self) -> T5Config | LlamaConfig:
        """The settings of that language model."""
        return self.t5 if self.llama is None else self.llama


def paper() -> Config:
    """What the paper describes, padding masked, anchors that learn: the default for training."""
    return Config()


def published() -> Config:
    """Same weights and inputs give the same numbers as the authors' code."""
    return Config(
        windowing=None,
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
        t5=T5Config(
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
    if name not in PRESETS:
        raise ConfigError(f"preset {name!r}: unknown; {suggest(name, PRESETS)}")
    return PRESETS[name]()


def to_dict(config: Any, *, training: bool = False) -> dict[str, Any]:
    """Plain dictionaries, ready for `json.dump`; `training` includes what only training needs."""
    values = {}
    for spec in dataclasses.fields(config):
        if training or not spec.metadata.get("training"):
            value = getattr(config, spec.name)
            nested = dataclasses.is_dataclass(value)
            values[spec.name] = to_dict(value, training=training) if nested else value
    return values


def from_dict(data: Mapping[str, Any]) -> Config:
    """The inverse of `to_dict`; strict: an unknown or missing key is a ConfigError."""
    config: Config = build(Config, data, "config")
    check(config)
    return config


def apply_overrides(config: Config, overrides: Sequence[str]) -> Config:
    """The config with `key=value` settings applied from left to right.

    Keys are dotted paths ("transport.anchors=10"); "retrieval=none" turns a part off and
    "retrieval=on" gives it its defaults. Values are read as the type of the field.
    """
    for text in overrides:
        config = override(config, text)
    check(config)
    return config


def with_training_of(config: Any, other: Any) -> Any:
    """`config` with what only training needs taken from `other`, a recipe's model."""
    changes = {}
    for spec in dataclasses.fields(config):
        ours, theirs = getattr(config, spec.name), getattr(other, spec.name, None)
        if spec.metadata.get("training") and theirs is not None:
            changes[spec.name] = theirs
        elif dataclasses.is_dataclass(ours) and dataclasses.is_dataclass(theirs):
            changes[spec.name] = with_training_of(ours, theirs)
    return dataclasses.replace(config, **changes)


def with_sizes_of(config: Config, other: Config) -> Config:
    """`config` with the sizes, inputs, windows and decoding of a model it starts from."""
    other = with_training_of(other, config)
    projection = config.temporal.projection or other.temporal.projection
    transport = config.transport
    if other.retrieval is not None:
        transport = dataclasses.replace(transport, anchors=other.transport.anchors)
    return dataclasses.replace(
        config,
        inputs=other.inputs,
        windowing=other.windowing,
        decoding=other.decoding,
        temporal=dataclasses.replace(other.temporal, projection=projection),
        t5=other.t5,
        llama=other.llama,
        transport=transport,
    )


def check(config: Config) -> None:
    """Raise ConfigError for values that no model can have.

    Called once all overrides are in (their order does not matter) and when a model is made.
    """
    temporal, width = config.temporal, config.language_model.width
    for part in dataclasses.fields(config):
        value = getattr(config, part.name)
        if dataclasses.is_dataclass(value) and not hasattr(value, "__post_init__"):
            _check_numbers(part.name, value)
    if (bins := config.language_model.bins) < 2:
        raise ConfigError(f"bins: a span needs two moments at least (found {bins})")
    if width % temporal.heads:
        raise ConfigError(
            f"temporal.heads: {temporal.heads} does not divide the decoder's width {width}; "
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
    if not config.inputs.video and (config.saliency or config.retrieval or config.swsa):
        raise ConfigError(
            "inputs.video: without video there is nothing to refine, score or segment; set "
            "swsa=none, saliency=none, retrieval=none, prompt=none too (--no-video does)"
        )
    if not config.inputs.video and not config.inputs.speech:
        raise ConfigError("inputs: neither video nor speech is left; keep one of them")
    if config.prompt is not None and config.saliency is None:
        raise ConfigError("prompt: needs saliency scores; set saliency=on or prompt=none")


def _check_numbers(where: str, part: Any) -> None:
    zero_allowed = {
        "noise",
        "label_smoothing",
        "temporal_prior",
        "saliency_bias",
        "lora",
        "lora_from",
        "familiar_speech",
        "familiar_frames",
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


def override(config: Any, text: str) -> Any:
    """The dataclass with one `dotted.key=value` applied; `part=none` and `part=on` switch parts."""
    key, equals, value = (part.strip() for part in text.partition("="))
    if not equals:
        raise ConfigError(f"{text!r}: no value; write {key}=VALUE")
    return _replaced(config, key.split("."), value, key)


def suggest(name: str, known: Iterable[str]) -> str:
    """Words for an error message: the nearest known name, or all of them."""
    names = list(known)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    return f"did you mean {near[0]!r}?" if near else f"known: {', '.join(names)}"


def _part(hint: Any) -> type | None:
    """The dataclass of a field that is one, or one or None."""
    for option in (hint, *typing.get_args(hint)):
        if isinstance(option, type) and dataclasses.is_dataclass(option):
            return option
    return None


def build(kind: type, data: Any, where: str) -> Any:
    """A dataclass from plain dictionaries, checking names and types."""
    if not isinstance(data, Mapping):
        raise ConfigError(f"{where}: expected an object (found {data!r})")
    hints = typing.get_type_hints(kind)
    for name in data:
        if name not in hints:
            raise ConfigError(f"{where}.{name}: unknown setting; {suggest(name, hints)}")
    optional = {spec.name for spec in dataclasses.fields(kind) if spec.metadata}
    if missing := [name for name in hints if name not in data and name not in optional]:
        raise ConfigError(f"{where}: missing {', '.join(missing)}; write all settings")
    values = {
        name: build(part, data[name], f"{where}.{name}")
        if (part := _part(hint)) and data[name] is not None
        else _typed(data[name], hint, f"{where}.{name}")
        for name, hint in hints.items()
        if name in data
    }
    try:
        return kind(**values)
    except ValueError as error:
        raise ConfigError(f"{where}: {error}") from None


def _typed(value: Any, hint: Any, where: str) -> Any:
    """The JSON value as the field's type: lists become tuples, whole numbers floats."""
    origin, options = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        for option in options:
            with suppress(ConfigError):
                return _typed(value, option, where)
    elif origin is tuple and isinstance(value, list | tuple):
        return tuple(_typed(item, options[0], where) for item in value)
    elif hint is float and type(value) in (int, float):
        with suppress(OverflowError):  # of a whole number with 400 digits
            return float(value)
    elif type(value) is hint or (origin is Literal and value in options):
        return value
    raise ConfigError(f"{where}: expected {_describe(hint)} (found {value!r})")


def _describe(hint: Any) -> str:
    origin, options = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType, Literal):
        return " or ".join(one if isinstance(one, str) else _describe(one) for one in options)
    if origin is tuple:
        return "numbers joined by commas"
    if dataclasses.is_dataclass(hint):
        return "on"
    names = {int: "a whole number", float: "a number", bool: "true or false", type(None): "none"}
    return names.get(hint, "text")


def _replaced(part: Any, path: list[str], text: str, key: str) -> Any:
    """The dataclass with the setting at `path` read from `text`."""
    (name, *rest), hints = path, typing.get_type_hints(type(part))
    if name not in hints:
        raise ConfigError(f"{key}: unknown setting {name!r}; {suggest(name, hints)}")
    inner = _part(hints[name])
    value = getattr(part, name)
    if rest:
        if inner is None:
            raise ConfigError(f"{key}: {name!r} has no settings of its own")
        value = _replaced(inner() if value is None else value, rest, text, key)
    elif inner is not None and text == "on":
        value = inner()
    else:
        value = _typed(_plain(text, hints[name]), hints[name], key)
    try:
        return dataclasses.replace(part, **{name: value})
    except ValueError as error:
        raise ConfigError(f"{key}: {error}") from None


def _plain(text: str, hint: Any) -> Any:
    """Text of the command line as a JSON-like value."""
    if hint is str:
        return text
    words = {"none": None, "true": True, "false": False}
    if text.lower() in words:
        return words[text.lower()]
    items = text.strip("()[]").rstrip(",").split(",")
    if typing.get_origin(hint) is tuple:
        return [_plain(item.strip(), typing.get_args(hint)[0]) for item in items if item.strip()]
    if "tuple" in str(hint) and len(items) > 1:
        return [_plain(item.strip(), int) for item in items]
    for kind in (int, float):
        with suppress(ValueError):
            return kind(text)
    return text
