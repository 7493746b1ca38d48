"""The paper's ablations as data: rows of overrides, and what the paper reports for each.

Numbers are × 100, on the YouCook2 validation set, and None where the paper prints none. Figures
(kind "figure") are printed without axis values in the text: their points are ours, but for the
ones the text names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Literal

from starc.config import suggest
from starc.errors import ConfigError
from starc.training.recipes import NO_SPEECH, NO_VIDEO

_OFF = ("model.swsa=none", "model.saliency=none", "model.retrieval=none", "model.prompt=none")


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a table, or one point of a figure."""

    name: str
    overrides: tuple[str, ...] = ()
    paper: Mapping[str, float] = field(default_factory=dict)
    datastore: str | None = None
    """A datastore other than the run's own, by the name the user gives it."""
    at: tuple[float, ...] = ()
    """Place in a figure: x, or x and the line or row it belongs to."""


@dataclass(frozen=True, slots=True)
class Ablation:
    """A table or a figure of the paper."""

    title: str
    rows: tuple[Row, ...]
    kind: Literal["table", "figure", "grid"] = "table"
    axes: tuple[str, ...] = ()


def _four(cider: float, meteor: float, soda: float, bleu: float) -> dict[str, float]:
    return {"CIDEr": cider, "METEOR": meteor, "soda_c": soda, "Bleu_4": bleu}


_MARGINALS = {"B": "balanced", "UnB": "relaxed"}
_FULL = _four(80.53, 13.86, 10.73, 6.75)


def _row(name: str, setting: str, *paper: float) -> Row:
    return Row(name, (f"model.{setting}",), _four(*paper) if paper else {})


def _table(title: str, *rows: Row) -> Ablation:
    return Ablation(title, rows)


def _sweep(
    title: str,
    kind: Literal["figure", "grid"],
    settings: Mapping[str, tuple[str, Sequence[float]]],
    *,
    best: tuple[float, ...],
    score: float = 80.53,
    axes: Mapping[str, str] | None = None,
) -> Ablation:
    """A row per combination of values: `settings` name their symbol and values, `axes` the symbols
    a figure shows. The paper's text tells the CIDEr (`score`) of the `best` combination only."""
    rows, axes = [], axes or {symbol: symbol for symbol, _ in settings.values()}
    for values in product(*(choices for _, choices in settings.values())):
        at = {symbol: value for (symbol, _), value in zip(settings.values(), values, strict=True)}
        rows.append(
            Row(
                ", ".join(f"{symbol} {value:g}" for symbol, value in at.items()),
                tuple(f"model.{key}={v:g}" for key, v in zip(settings, values, strict=True)),
                {"CIDEr": score} if values == best else {},
                at=tuple(at[symbol] for symbol in axes),
            )
        )
    return Ablation(title, tuple(rows), kind, tuple(axes.values()))


ABLATIONS: dict[str, Ablation] = {
    "components": _table(
        "Key components",
        Row("Baseline (Vid2Seq)", _OFF, {"CIDEr": 66.29, "METEOR": 12.41}),
        Row("(1) SGSR", ("model.prompt=none",), {"CIDEr": 76.94, "METEOR": 13.60}),
        Row("(2) SaliP", ("model.retrieval=none",), {"CIDEr": 78.74, "METEOR": 13.75}),
        Row("STaRC", (), {"CIDEr": 80.53, "METEOR": 13.86}),
    ),
    "inputs": _table(
        "Video and speech",
        Row("speech only", NO_VIDEO),
        Row("video only", NO_SPEECH),
        Row("both", (), _FULL),
    ),
    "windows": _table(
        "Window sizes of SWSA",
        _row("without SWSA", "swsa=none", 75.82, 13.23, 10.33, 6.49),
        _row("6, 36, 66", "swsa.sizes=6,36,66", 78.46, 13.66, 10.57, 6.66),
        _row("8, 32, 64", "swsa.sizes=8,32,64", 80.53, 13.86, 10.73, 6.75),
        _row("10, 40, 70", "swsa.sizes=10,40,70", 70.52, 13.26, 9.72, 5.92),
        _row("8", "swsa.sizes=8", 78.03, 13.69, 10.62, 6.65),
        _row("8, 32", "swsa.sizes=8,32", 79.35, 13.80, 10.79, 6.73),
        _row("8, 16, 32, 64", "swsa.sizes=8,16,32,64", 79.06, 13.75, 10.62, 6.78),
    ),
    "clustering": _table(
        "Clustering type",
        _row("k-means", "segments.method=kmeans", 75.63, 13.34, 10.46, 6.29),
        _row("uniform (HiCM²)", "segments.method=uniform"),
        _row("adaptive (Sali4Vid)", "segments.method=adaptive", 78.19, 13.69, 10.55, 6.57),
        Row("SGSR", (), _FULL),
    ),
    "pooling": _table(
        "Pooling inside SGSR",
        _row("uniform", "segments.pooling=uniform", 78.95, 13.65, 10.52, 6.68),
        Row("saliency-weighted", (), _FULL),
    ),
    "retrieved": _table(
        "Retrieved captions p",
        _row("3", "retrieval.captions=3", 79.65, 13.79, 10.61, 6.79),
        _row("5", "retrieval.captions=5", 79.12, 13.73, 10.70, 6.67),
        _row("10", "retrieval.captions=10", 80.53, 13.86, 10.73, 6.75),
        _row("15", "retrieval.captions=15", 78.00, 13.81, 10.56, 6.57),
    ),
    "retrieved-form": _table(
        "Retrieved captions as embeddings or as words",
        Row("without retrieval", ("model.retrieval=none",), {}),
        Row("embeddings", (), _FULL),
        Row("words", ("model.retrieval.form=text",), {}),
    ),
    "anchors": _sweep(
        "Anchors K and kept segments k",
        "figure",
        {"transport.anchors": ("K", (6, 8, 10)), "segments.top_k": ("k", (3, 5, 7))},
        best=(8, 5),
        axes={"k": "kept segments k", "K": "anchors K"},
    ),
    "saliency-prompt": _table(
        "Corrupted saliency prompts",
        Row("without SaliP", ("model.prompt=none",), {"CIDEr": 76.94, "METEOR": 13.60}),
        _row("Gaussian noise", "prompt.scores=noise"),
        _row("zero", "prompt.scores=zero"),
        Row("saliency", (), _FULL),
    ),
    "lambda": _sweep(
        "Weight λ of the saliency loss",
        "figure",
        {"loss.saliency_weight": ("λ", (1, 2, 4, 6, 8))},
        best=(6,),
    ),
    "lambda-vitt": _sweep(
        "Weight λ of the saliency loss on ViTT",
        "figure",
        {"loss.saliency_weight": ("λ", (1, 2, 4, 6, 8))},
        best=(2,),
        score=56.04,
    ),
    # The paper: "We set ρ to 0 … This improves CIDEr from 79.61", with all else as in ASOT, whose
    # default is 0.1 (src/train.py, --rho, of github.com/mingu6/action_seg_ot).
    "rho": _table(
        "Temporal prior ρ",
        Row("ρ 0", ("model.transport.temporal_prior=0",), _FULL),
        *(
            Row(f"ρ {value:g}", (f"model.transport.temporal_prior={value:g}",), paper)
            for value, paper in ((0.1, {"CIDEr": 79.61}), (0.2, {}), (0.3, {}))
        ),
    ),
    "tau": _sweep(
        "Temperature τ of the saliency loss",
        "figure",
        {"saliency.temperature": ("τ", (0.1, 0.3, 0.5, 0.7, 1.0))},
        best=(0.5,),
    ),
    "mu-gamma": _sweep(
        "Saliency bias μ and frame penalty γ",
        "grid",
        {
            "transport.saliency_bias": ("μ", (0.05, 0.1, 0.3)),
            "transport.frame_penalty": ("γ", (0.1, 0.3, 0.5)),
        },
        best=(0.1, 0.3),
    ),
    "balance": Ablation(
        "Balanced (B) and unbalanced (UnB) transport",
        tuple(
            Row(
                f"frames {f}, anchors {a}",
                (f"model.transport.frames={frames}", f"model.transport.anchor_marginal={anchors}"),
                _FULL if (f, a) == ("UnB", "B") else {},
            )
            for (f, frames), (a, anchors) in product(_MARGINALS.items(), repeat=2)
        ),
    ),
    "datastore": _table(
        "Datastores",
        Row("CC3M", (), _four(76.65, 13.63, 10.53, 6.63), datastore="cc3m"),
        Row("COCO", (), _four(77.31, 13.57, 10.66, 6.67), datastore="coco"),
        Row("hierarchical", (), _four(77.28, 13.59, 10.42, 6.59), datastore="hierarchical"),
        Row("in-domain", (), _FULL),
    ),
}


def ablation(name: str) -> Ablation:
    if name not in ABLATIONS:
        raise ConfigError(f"ablation {name!r}: unknown; {suggest(name, ABLATIONS)}")
    return ABLATIONS[name]
