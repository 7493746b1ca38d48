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


def _windows(sizes: str, *paper: float) -> Row:
    return Row(sizes.replace(",", ", "), (f"model.swsa.sizes={sizes}",), _four(*paper))


def _retrieved(captions: int, *paper: float) -> Row:
    return Row(str(captions), (f"model.retrieval.captions={captions}",), _four(*paper))


def _sweep(
    title: str,
    kind: Literal["figure", "grid"],
    settings: Mapping[str, tuple[str, Sequence[float]]],
    *,
    best: tuple[float, ...],
    axes: Mapping[str, str],
) -> Ablation:
    """A row per combination of values: `settings` name their symbol and values, `axes` the symbols
    a figure shows. The paper's text tells the CIDEr of the `best` combination only."""
    rows = []
    for values in product(*(choices for _, choices in settings.values())):
        at = {symbol: value for (symbol, _), value in zip(settings.values(), values, strict=True)}
        rows.append(
            Row(
                ", ".join(f"{symbol} {value:g}" for symbol, value in at.items()),
                tuple(f"model.{key}={v:g}" for key, v in zip(settings, values, strict=True)),
                {"CIDEr": 80.53} if values == best else {},
                at=tuple(at[symbol] for symbol in axes),
            )
        )
    return Ablation(title, tuple(rows), kind, tuple(axes.values()))


ABLATIONS: dict[str, Ablation] = {
    "components": Ablation(
        "Key components",
        (
            Row("Baseline (Vid2Seq)", _OFF, {"CIDEr": 66.29, "METEOR": 12.41}),
            Row("(1) SGSR", ("model.prompt=none",), {"CIDEr": 76.94, "METEOR": 13.60}),
            Row("(2) SaliP", ("model.retrieval=none",), {"CIDEr": 78.74, "METEOR": 13.75}),
            Row("STaRC", (), {"CIDEr": 80.53, "METEOR": 13.86}),
        ),
    ),
    "windows": Ablation(
        "Window sizes of SWSA",
        (
            Row("without SWSA", ("model.swsa=none",), _four(75.82, 13.23, 10.33, 6.49)),
            _windows("6,36,66", 78.46, 13.66, 10.57, 6.66),
            _windows("8,32,64", 80.53, 13.86, 10.73, 6.75),
            _windows("10,40,70", 70.52, 13.26, 9.72, 5.92),
            _windows("8", 78.03, 13.69, 10.62, 6.65),
            _windows("8,32", 79.35, 13.80, 10.79, 6.73),
            _windows("8,16,32,64", 79.06, 13.75, 10.62, 6.78),
        ),
    ),
    "clustering": Ablation(
        "Clustering type",
        (
            Row("k-means", ("model.segments.method=kmeans",), _four(75.63, 13.34, 10.46, 6.29)),
            Row("uniform (HiCM²)", ("model.segments.method=uniform",)),
            Row(
                "adaptive (Sali4Vid)",
                ("model.segments.method=adaptive",),
                _four(78.19, 13.69, 10.55, 6.57),
            ),
            Row("SGSR", (), _FULL),
        ),
    ),
    "pooling": Ablation(
        "Pooling inside SGSR",
        (
            Row("uniform", ("model.segments.pooling=uniform",), _four(78.95, 13.65, 10.52, 6.68)),
            Row("saliency-weighted", (), _FULL),
        ),
    ),
    "retrieved": Ablation(
        "Retrieved captions p",
        (
            _retrieved(3, 79.65, 13.79, 10.61, 6.79),
            _retrieved(5, 79.12, 13.73, 10.70, 6.67),
            _retrieved(10, 80.53, 13.86, 10.73, 6.75),
            _retrieved(15, 78.00, 13.81, 10.56, 6.57),
        ),
    ),
    "anchors": _sweep(
        "Anchors K and kept segments k",
        "figure",
        {"transport.anchors": ("K", (6, 8, 10)), "segments.top_k": ("k", (3, 5, 7))},
        best=(8, 5),
        axes={"k": "kept segments k", "K": "anchors K"},
    ),
    "saliency-prompt": Ablation(
        "Corrupted saliency prompts",
        (
            Row("without SaliP", ("model.prompt=none",), {"CIDEr": 76.94, "METEOR": 13.60}),
            Row("Gaussian noise", ("model.prompt.scores=noise",)),
            Row("zero", ("model.prompt.scores=zero",)),
            Row("saliency", (), _FULL),
        ),
    ),
    "lambda": _sweep(
        "Weight λ of the saliency loss",
        "figure",
        {"loss.saliency_weight": ("λ", (1, 2, 4, 6, 8))},
        best=(6,),
        axes={"λ": "λ"},
    ),
    "tau": _sweep(
        "Temperature τ of the saliency loss",
        "figure",
        {"saliency.temperature": ("τ", (0.1, 0.3, 0.5, 0.7, 1.0))},
        best=(0.5,),
        axes={"τ": "τ"},
    ),
    "mu-gamma": _sweep(
        "Saliency bias μ and frame penalty γ",
        "grid",
        {
            "transport.saliency_bias": ("μ", (0.05, 0.1, 0.3)),
            "transport.frame_penalty": ("γ", (0.1, 0.3, 0.5)),
        },
        best=(0.1, 0.3),
        axes={"μ": "μ", "γ": "γ"},
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
    "datastore": Ablation(
        "Datastores",
        (
            Row("CC3M", (), _four(76.65, 13.63, 10.53, 6.63), datastore="cc3m"),
            Row("COCO", (), _four(77.31, 13.57, 10.66, 6.67), datastore="coco"),
            Row("hierarchical", (), _four(77.28, 13.59, 10.42, 6.59), datastore="hierarchical"),
            Row("in-domain", (), _FULL),
        ),
    ),
}


def ablation(name: str) -> Ablation:
    if name not in ABLATIONS:
        raise ConfigError(f"ablation {name!r}: unknown; {suggest(name, ABLATIONS)}")
    return ABLATIONS[name]
