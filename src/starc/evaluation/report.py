"""Score a prediction file: all metrics of the published evaluator, with the recipe that made them.

In: predictions and one or more references (files or events per video). Out: a `Report` with every
metric under its published name (raw, 0 to 1; CIDEr 0 to 10), the values per video and a one-line
signature: two scores with the same signature can be compared.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import numpy as np

from starc.errors import AnnotationError
from starc.evaluation import localisation
from starc.evaluation.bleu import bleu
from starc.evaluation.cider import cider
from starc.evaluation.meteor import Meteor
from starc.evaluation.ngrams import ngrams
from starc.evaluation.pairs import Corpus, Floats, Groups, corpus, groups, sums
from starc.evaluation.rouge import rouge
from starc.evaluation.soda import soda
from starc.evaluation.tokens import tokenise
from starc.files.annotations import VideoAnnotation, read_predictions, read_references

TIOUS = (0.3, 0.5, 0.7, 0.9)
SECONDS = (1, 3, 5, 10, 30, 60)
CAPTION_METRICS = ("METEOR", "CIDEr", "Rouge-L", "Bleu_1", "Bleu_2", "Bleu_3", "Bleu_4")
METRICS = ("captions", "localisation", "soda")
"""What can be asked for: caption metrics, precision and recall, SODA_c."""

Protocol = Literal["published", "pdvc"]
File = str | Path | Mapping[str, VideoAnnotation]


@dataclass(frozen=True)
class Report:
    """Scores of one system, and what they were made from."""

    metrics: dict[str, float]
    """Published names: METEOR, CIDEr, Rouge-L, Bleu_1..4, soda_c, Recall, Precision, F1, @…"""
    per_tiou: dict[str, list[float]]
    """Caption metrics at each of TIOUS."""
    segments: dict[str, float]
    """Recall@0.5, mean IoU and matched segments of the paper's correlation figure."""
    soda_by_reference: list[tuple[float, float, float]]
    """SODA_c precision, recall and F1 against each reference file."""
    videos: tuple[str, ...]
    per_video: dict[str, Floats]
    """A value for each of `videos`."""
    predicted: int
    """Reference videos that have a prediction."""
    total: int
    """Reference videos."""
    events: int
    """Predicted events in them."""
    references: int
    protocol: Protocol
    notes: tuple[str, ...]
    """What a reader of the numbers should know."""

    @property
    def signature(self) -> str:
        """One line that makes two scores comparable."""
        known = [name for name in (*CAPTION_METRICS, "soda_c", "F1") if name in self.metrics]
        return " | ".join(
            [
                "metrics:" + ",".join(known),
                "tiou:" + ",".join(map(str, TIOUS)),
                "tok:ptb-3.4.1",
                "meteor:1.5",
                f"protocol:{self.protocol}",
                f"refs:{self.references}",
                f"videos:{self.predicted}/{self.total}",
                f"starc:{version('starc')}",
            ]
        )

    def to_json(self) -> dict[str, Any]:
        """Everything but the values per video."""
        return {
            "metrics": self.metrics,
            "per_tiou": self.per_tiou,
            "segments": self.segments,
            "soda_by_reference": self.soda_by_reference,
            "videos": {"predicted": self.predicted, "total": self.total},
            "events": self.events,
            "protocol": self.protocol,
            "notes": list(self.notes),
            "signature": self.signature,
        }


def score(
    predictions: File,
    references: File | Sequence[File],
    *,
    protocol: Protocol = "published",
    allow_missing: bool = False,
    subset: str | None = None,
    metrics: Sequence[str] = METRICS,
    meteor: Callable[[], Meteor] = Meteor,
) -> Report:
    """Score predictions against references, as the published evaluator does.

    Reference videos without a prediction are refused unless `allow_missing` (then they are skipped,
    which flatters) or the protocol is `pdvc` (then they count 0).
    """
    unknown = set(metrics) - set(METRICS)
    if unknown or not metrics:
        raise ValueError(f"metrics must be among {METRICS}, got {tuple(metrics)}")
    if protocol not in ("published", "pdvc"):
        raise ValueError(f"protocol must be 'published' or 'pdvc', got {protocol!r}")
    if isinstance(references, str | Path | Mapping):
        references = [references]
    names = [str(file) if isinstance(file, str | Path) else "references" for file in references]
    predicted = predictions if isinstance(predictions, Mapping) else read_predictions(predictions)
    files = [
        file if isinstance(file, Mapping) else read_references(file, subset=subset)
        for file in references
    ]
    source = "predictions" if isinstance(predictions, Mapping) else str(predictions)
    _check_references(files, names)
    known = list(dict.fromkeys(name for file in files for name in file))
    common = [name for name in known if name in predicted]
    _check_coverage(source, predicted, known, common, protocol, allow_missing)
    laid_out = corpus(predicted, files, common if protocol == "published" else known)
    return _report(laid_out, predicted, known, protocol, metrics, meteor)


def _check_references(files: Sequence[Mapping[str, VideoAnnotation]], names: Sequence[str]) -> None:
    if not files:
        raise ValueError("at least one reference is needed")
    for file, name in zip(files, names, strict=True):
        for video, annotated in file.items():
            if not annotated.spans:
                raise AnnotationError(
                    f"{name}: video {video!r} has no events, so nothing can be recalled; remove it"
                )


def _check_coverage(
    source: str,
    predicted: Mapping[str, VideoAnnotation],
    known: Sequence[str],
    common: Sequence[str],
    protocol: Protocol,
    allow_missing: bool,
) -> None:
    if not common:
        raise AnnotationError(
            f"{source}: none of its {len(predicted)} videos is in the reference "
            f"(predictions: {_some(predicted)}; reference: {_some(known)}); do the files belong "
            "together?"
        )
    missing = [name for name in known if name not in predicted]
    if missing and protocol == "published" and not allow_missing:
        raise AnnotationError(
            f"{source}: {len(common)} of {len(known)} reference videos predicted, missing "
            f"{_some(missing)}; predict them, or --allow-missing to skip them, or --protocol pdvc "
            "to count them as 0"
        )


def _some(names: Sequence[str] | Mapping[str, Any]) -> str:
    first = ", ".join(list(names)[:3])
    return f"{first}, …" if len(names) > 3 else first or "none"


def _report(
    laid_out: Corpus,
    predicted: Mapping[str, VideoAnnotation],
    known: Sequence[str],
    protocol: Protocol,
    metrics: Sequence[str],
    make_meteor: Callable[[], Meteor],
) -> Report:
    values: dict[str, float] = {}
    per_tiou: dict[str, list[float]] = {}
    per_video: dict[str, Floats] = {}
    soda_by_reference: list[tuple[float, float, float]] = []
    if {"captions", "soda"} & set(metrics):
        meteor = make_meteor()
        tokenised = [tokenise(caption) for caption in laid_out.captions]
    if "captions" in metrics:
        for name, value_VT in _captions(laid_out, tokenised, meteor).items():
            per_tiou[name] = value_VT.mean(0).tolist()
            per_video[name] = value_VT.mean(1)
            values[name] = float(np.mean(per_tiou[name]))
    if "localisation" in metrics:
        values |= _localisation(laid_out, per_video)
    if "soda" in metrics:
        values["soda_c"] = _soda(
            laid_out, tokenised, meteor, protocol, soda_by_reference, per_video
        )
    quality = localisation.segment_quality(laid_out)
    return Report(
        metrics=values,
        per_tiou=per_tiou,
        segments={
            "Recall@0.5": float(quality.recall_V.mean()),
            "Mean IoU": float(quality.mean_iou_V.mean()),
            "Matched segments": float(quality.matched_V.sum()),
        },
        soda_by_reference=soda_by_reference,
        videos=laid_out.videos,
        per_video=per_video,
        predicted=int(laid_out.predicted_V.sum()),
        total=len(known),
        events=len(laid_out.video_P),
        references=len(laid_out.references),
        protocol=protocol,
        notes=_notes(laid_out, predicted, known, protocol),
    )


def _captions(laid_out: Corpus, tokenised: Sequence[str], meteor: Meteor) -> dict[str, Floats]:
    """Each caption metric per video and tIoU, [V, T]."""
    grouped = groups(laid_out, TIOUS)
    _check_references_have_words(laid_out, grouped, tokenised)
    grams = ngrams(tokenised)
    bleu_G4 = bleu(grouped, grams)
    by_group = {
        "METEOR": _meteor(grouped, tokenised, meteor),
        "CIDEr": cider(grouped, grams),
        "Rouge-L": rouge(grouped, tokenised),
        **{f"Bleu_{n + 1}": bleu_G4[:, n] for n in range(4)},
    }
    return {name: by_group[name][grouped.index_VT] for name in CAPTION_METRICS}


def _check_references_have_words(
    laid_out: Corpus, grouped: Groups, tokenised: Sequence[str]
) -> None:
    """The published evaluator stops where every reference of a group is empty; so do we."""
    empty_C = np.array([not text.strip() for text in tokenised], bool)
    groups_total = len(grouped.size_G)
    empty_I = empty_C[grouped.reference_U[grouped.pair_I]]
    empty_G = sums(grouped.group_I, empty_I, groups_total)
    bad_G = np.flatnonzero((empty_G == grouped.size_G) & (grouped.size_G > 0))
    if len(bad_G):
        place = int(np.flatnonzero(grouped.group_I == bad_G[0])[0])
        caption = laid_out.captions[grouped.reference_U[grouped.pair_I[place]]]
        video = laid_out.videos[int(np.argwhere(grouped.index_VT == bad_G[0])[0, 0])]
        raise AnnotationError(
            f"references: video {video!r}, all matched reference captions are empty once "
            f"tokenised (such as {caption!r:.40}); write a caption there"
        )


def _meteor(grouped: Groups, tokenised: Sequence[str], meteor: Meteor) -> Floats:
    """METEOR of each group: the aggregate over its pairs, not their mean."""
    pairs = [
        (tokenised[hypothesis], tokenised[reference])
        for hypothesis, reference in zip(
            grouped.hypothesis_U.tolist(), grouped.reference_U.tolist(), strict=True
        )
    ]
    statistics = meteor.statistics_many(pairs)
    members: list[list[tuple[int, ...]]] = [[] for _ in grouped.size_G]
    for group, pair in zip(grouped.group_I.tolist(), grouped.pair_I.tolist(), strict=True):
        members[group].append(statistics[pair])
    for group, caption in zip(grouped.group_N.tolist(), grouped.hypothesis_N.tolist(), strict=True):
        members[group].append(meteor.unmatched(tokenised[caption]))
    return np.array([meteor.aggregate(group) if group else 0.0 for group in members], np.float64)


def _localisation(laid_out: Corpus, per_video: dict[str, Floats]) -> dict[str, float]:
    values: dict[str, float] = {}
    overlap = localisation.by_overlap(laid_out, TIOUS)
    start = localisation.by_start(laid_out, SECONDS)
    for found, suffixes in (
        (overlap, [f"@{t}" for t in TIOUS]),
        (start, [f"@{s}s" for s in SECONDS]),
    ):
        precision_T, recall_T = found.precision_VT.mean(0), found.recall_VT.mean(0)
        f1_T = localisation.f1(precision_T, recall_T)
        for t, suffix in enumerate(suffixes):
            values[f"Recall{suffix}"] = float(recall_T[t])
            values[f"Precision{suffix}"] = float(precision_T[t])
            values[f"F1{suffix}"] = float(f1_T[t])
            per_video[f"Recall{suffix}"] = found.recall_VT[:, t]
            per_video[f"Precision{suffix}"] = found.precision_VT[:, t]
    for name in ("Recall", "Precision", "F1"):
        values[name] = float(np.mean([values[f"{name}@{t}"] for t in TIOUS]))
    return values


def _soda(
    laid_out: Corpus,
    tokenised: Sequence[str],
    meteor: Meteor,
    protocol: Protocol,
    by_reference: list[tuple[float, float, float]],
    per_video: dict[str, Floats],
) -> float:
    """Mean over reference files of the mean over their videos."""
    total_V, files_V = np.zeros(len(laid_out.videos)), np.zeros(len(laid_out.videos))
    for file in laid_out.references:
        found = soda(laid_out, file, tokenised, meteor.score_many)
        here_V = file.present_V
        by_reference.append(
            (
                float(found.precision_V[here_V].mean()) if here_V.any() else 0.0,
                float(found.recall_V[here_V].mean()) if here_V.any() else 0.0,
                float(found.f1_V[here_V].mean()) if here_V.any() else 0.0,
            )
        )
        total_V += found.f1_V * here_V
        files_V += here_V
    per_video["soda_c"] = total_V / np.maximum(files_V, 1)
    return float(np.mean([f1 for _, _, f1 in by_reference]))


def _notes(
    laid_out: Corpus,
    predicted: Mapping[str, VideoAnnotation],
    known: Sequence[str],
    protocol: Protocol,
) -> tuple[str, ...]:
    notes = []
    inside = [predicted[name] for name in laid_out.videos if name in predicted]
    missing = len(known) - sum(name in predicted for name in known)
    if missing:
        how = "count as 0" if protocol == "pdvc" else "are left out, which flatters the scores"
        notes.append(f"{missing} reference videos have no prediction and {how}")
    backwards = sum(annotated.backwards for annotated in inside)
    if backwards:
        notes.append(f"{backwards} predicted events end before they start and match nothing")
    extra = len(predicted) - len(inside)
    if extra:
        notes.append(f"{extra} predicted videos are not in the reference and are ignored")
    return tuple(notes)
