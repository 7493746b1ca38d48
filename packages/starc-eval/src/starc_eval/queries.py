"""Queries instead of captions: which moment is meant, and which moments are highlights.

Two protocols. `grounding`: every sentence of a reference is a query, the prediction names its spans
in order of belief; recall at 1 and 5 by tIoU, and the mean tIoU of the first. `qvhighlights2021`:
QVHighlights' JSON Lines (Lei et al. 2021), a record per query, scored as its evaluator does:
moments by recall at 1 and mean average precision, highlights by mAP and HIT@1 over clips of 2 s.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from starc_eval.annotations import VideoAnnotation
from starc_eval.errors import AnnotationError
from starc_eval.pairs import Floats
from starc_eval.reading import read_text

GROUNDING_TIOUS = (0.3, 0.5, 0.7)
MOMENT_TIOUS = tuple(round(0.5 + 0.05 * n, 2) for n in range(10))
CLIP = 2
"""Seconds of a clip, which has one saliency."""
LEVELS = {"Fair": 2, "Good": 3, "VeryGood": 4}
"""From which of the annotators' marks, 0 to 4, on a clip is a highlight."""
_WINDOWS = 10
"""Predicted moments of a query that count for mean average precision."""
_CLIPS = 10**6
"""Clips of a video; more is a mistake in the file."""
Span = tuple[float, float]


class Scores(NamedTuple):
    """Means over queries, and the values of each query."""

    metrics: dict[str, float]
    queries: tuple[str, ...]
    per_query: dict[str, Floats]
    answered: int


class Query(NamedTuple):
    """What a file says of a query: moments and, clip by clip, saliency."""

    moments: tuple[tuple[float, float, float], ...] | None
    """Start, end and score, as the file orders them."""
    saliency: Floats | None
    """By clip; in a reference [clips, annotators]."""


def overlap(a: Span, b: Span) -> float:
    """Temporal IoU; empty and reversed spans overlap nothing."""
    inter = min(a[1], b[1]) - max(a[0], b[0])
    return inter / (max(a[1], b[1]) - min(a[0], b[0])) if inter > 0 else 0.0


def ground(
    predicted: Mapping[str, VideoAnnotation],
    references: Sequence[Mapping[str, VideoAnnotation]],
    videos: Sequence[str],
) -> Scores:
    """Recall of the moments that the references' sentences name.

    A query that a video has several times, or in several files, may be answered by any of its
    spans. One without an answer counts 0.
    """
    values: dict[str, list[float]] = {
        **{f"R{n}@{t}": [] for n in (1, 5) for t in GROUNDING_TIOUS},
        "mIoU": [],
    }
    names, answered = [], 0
    for video in videos:
        said = _by_query([predicted[video]] if video in predicted else [])
        wanted = _by_query([file[video] for file in references if video in file])
        for query, spans in wanted.items():
            best = [max(overlap(one, span) for span in spans) for one in said.get(query, ())[:5]]
            answered += bool(best)
            names.append(f"{video}: {query}")
            for t in GROUNDING_TIOUS:
                values[f"R1@{t}"].append(float(any(x >= t for x in best[:1])))
                values[f"R5@{t}"].append(float(any(x >= t for x in best)))
            values["mIoU"].append(best[0] if best else 0.0)
    return _means(names, values, answered)


def _by_query(files: Sequence[VideoAnnotation]) -> dict[str, list[Span]]:
    """Spans of each sentence; capitals and white space do not matter."""
    spans: dict[str, list[Span]] = {}
    for start, end, sentence in (event for file in files for event in file):
        spans.setdefault(" ".join(sentence.casefold().split()), []).append((start, end))
    return spans


def find_moments(predicted: Mapping[str, Query], annotated: Mapping[str, Query]) -> Scores:
    """The measures of QVHighlights under their published names, for what the files have: moments,
    highlights or both. Every annotated query must be predicted."""
    values: dict[str, list[float]] = {}
    for name, wanted in annotated.items():
        said = predicted[name]
        if said.moments is not None and wanted.moments is not None:
            for key, value in _moments(said.moments, wanted.moments).items():
                values.setdefault(key, []).append(value)
        if said.saliency is not None and wanted.saliency is not None:
            for level, mark in LEVELS.items():
                precision, hit = _highlights(said.saliency, wanted.saliency >= mark)
                values.setdefault(f"HL-min-{level}-mAP", []).append(precision)
                values.setdefault(f"HL-min-{level}-Hit1", []).append(hit)
    return _means([*annotated], values, len(annotated))


def _means(names: Sequence[str], values: Mapping[str, Sequence[float]], answered: int) -> Scores:
    arrays = {name: np.array(each, np.float64) for name, each in values.items()}
    means = {name: float(array.mean()) for name, array in arrays.items()}
    return Scores(means, tuple(names), arrays, answered)


Moments = Sequence[tuple[float, float, float]]


def _moments(said: Moments, wanted: Moments) -> dict[str, float]:
    """Recall of the first moment, and average precision of the first `_WINDOWS` by score."""
    spans = [one[:2] for one in wanted]
    first = max((overlap(said[0][:2], span) for span in spans), default=0.0) if said else 0.0
    ranked = sorted(said[:_WINDOWS], key=lambda one: -one[2])
    overlaps = [[overlap(one[:2], span) for span in spans] for one in ranked]
    precisions = {t: _detection_precision(overlaps, len(spans), t) for t in MOMENT_TIOUS}
    return {
        "MR-full-R1@0.5": float(first >= 0.5),
        "MR-full-R1@0.7": float(first >= 0.7),
        "MR-full-mAP@0.5": precisions[0.5],
        "MR-full-mAP@0.75": precisions[0.75],
        "MR-full-mAP": float(np.mean([*precisions.values()])),
    }


def _detection_precision(overlaps: Sequence[Sequence[float]], wanted: int, tiou: float) -> float:
    """Interpolated average precision; each moment takes the best reference that is still free."""
    free = set(range(wanted))
    hits = []
    for row in overlaps:
        found = max((r for r in free if row[r] >= tiou), key=row.__getitem__, default=None)
        hits.append(found is not None)
        free.discard(-1 if found is None else found)
    if not wanted or not hits:
        return 0.0
    hit_X = np.array(hits, np.float64)
    precision_X = np.cumsum(hit_X) / np.arange(1, len(hits) + 1)
    best_X = np.maximum.accumulate(precision_X[::-1])[::-1]
    return float(best_X @ hit_X / wanted)


def _highlights(said_C: Floats, highlight_CA: np.ndarray[Any, Any]) -> tuple[float, float]:
    """Average precision, the mean over annotators, and whether the clip that is most salient is a
    highlight for any of them."""
    clips = len(highlight_CA)
    top = int(np.argmax(said_C)) if len(said_C) else clips
    hit = float(top < clips and highlight_CA[top].any())
    score_C = np.zeros(clips)
    score_C[: len(said_C)] = said_C[:clips]
    precisions = [clip_precision(score_C, highlight_C) for highlight_C in highlight_CA.T]
    return float(np.mean(precisions)), hit


def clip_precision(score_C: Floats, highlight_C: np.ndarray[Any, Any]) -> float:
    """Interpolated average precision over the levels of recall: equal scores are one level.

    0 where no clip is a highlight.
    """
    if not highlight_C.any():
        return 0.0
    order = np.argsort(-score_C, kind="stable")
    ends = np.append(np.flatnonzero(np.diff(score_C[order])), len(order) - 1)
    found = np.cumsum(highlight_C[order])[ends]
    best = np.maximum.accumulate((found / (ends + 1))[::-1])[::-1]
    return float(best[np.diff(found, prepend=0) > 0].mean())


def read_queries(path: str | Path, *, annotated: bool) -> dict[str, Query]:
    """QVHighlights' JSON Lines: predictions, or if `annotated` references."""
    path = Path(path)
    queries: dict[str, Query] = {}
    for number, record in enumerate(_records(path), start=1):
        where = f"{path}: record {number}"
        if not isinstance(record, dict) or "qid" not in record:
            raise AnnotationError(f"{where} has no 'qid'; give QVHighlights' JSON Lines")
        name = str(record["qid"])
        where = f"{path}: query {name!r}"
        if name in queries:
            raise AnnotationError(f"{where} occurs twice; keep one of them")
        query = (_reference if annotated else _answer)(where, record)
        if query.moments is None and query.saliency is None:
            wanted = "relevant_windows or saliency_scores"
            wanted = wanted if annotated else "pred_relevant_windows or pred_saliency_scores"
            raise AnnotationError(f"{where} has no {wanted}; are the files in the right order?")
        queries[name] = query
    if not queries:
        raise AnnotationError(f"{path}: the file is empty; was it written completely?")
    for what, missing in (
        ("windows", [name for name, each in queries.items() if each.moments is None]),
        ("saliency", [name for name, each in queries.items() if each.saliency is None]),
    ):
        if 0 < len(missing) < len(queries):
            raise AnnotationError(
                f"{path}: query {missing[0]!r} has no {what}, others have; complete or remove it"
            )
    return queries


def _records(path: Path) -> list[Any]:
    try:
        return [json.loads(line) for line in read_text(path).splitlines() if line.strip()]
    except OSError as error:
        raise AnnotationError(f"{path}: {str(error.strerror).lower()}; check the path") from None
    except (ValueError, RecursionError):
        raise AnnotationError(
            f"{path}: not JSON Lines; a query is a line of QVHighlights' format"
        ) from None


def _answer(where: str, record: Mapping[str, Any]) -> Query:
    moments = saliency = None
    if (windows := record.get("pred_relevant_windows")) is not None:
        rows = _numbers(where, "pred_relevant_windows", windows, width=(2, 3))
        moments = tuple((row[0], row[1], row[2] if len(row) > 2 else 0.0) for row in rows)
    if (scores := record.get("pred_saliency_scores")) is not None:
        (row,) = _numbers(where, "pred_saliency_scores", [scores])
        saliency = np.array(row, np.float64)
    return Query(moments, saliency)


def _reference(where: str, record: Mapping[str, Any]) -> Query:
    moments = saliency = None
    if (windows := record.get("relevant_windows")) is not None:
        rows = _numbers(where, "relevant_windows", windows, width=(2,))
        if not rows:
            raise AnnotationError(f"{where} has no relevant window; remove it")
        moments = tuple((row[0], row[1], 0.0) for row in rows)
    if (marks := record.get("saliency_scores")) is not None:
        rows = _numbers(where, "saliency_scores", marks)
        ((duration,),) = _numbers(where, "duration", [[record.get("duration")]])
        (clips,) = _numbers(where, "relevant_clip_ids", [record.get("relevant_clip_ids")])
        count = int(duration / CLIP)
        if len(rows) != len(clips) or len({len(row) for row in rows}) != 1 or not rows[0]:
            raise AnnotationError(
                f"{where}: {len(clips)} relevant_clip_ids need as many saliency_scores, each with "
                "a mark of every annotator"
            )
        if not 0 < count <= _CLIPS or not all(0 <= c < count and c == int(c) for c in clips):
            raise AnnotationError(
                f"{where}: relevant_clip_ids must be clips of {CLIP} s within the duration, found "
                f"{max(clips):g} in {duration:g} s"
            )
        saliency = np.zeros((count, len(rows[0])))
        saliency[np.array(clips, np.int64)] = rows
    return Query(moments, saliency)


def _numbers(
    where: str, what: str, rows: Any, width: tuple[int, ...] | None = None
) -> list[list[float]]:
    """Rows of finite numbers, or an error that names the query."""
    good = isinstance(rows, list) and all(
        isinstance(row, list)
        and (width is None or len(row) in width)
        and all(type(x) in (int, float) and abs(x) < 1e12 and not math.isnan(x) for x in row)
        for row in rows
    )
    if not good:
        raise AnnotationError(f"{where}, {what}: expected numbers, found {rows!r:.60}")
    return [[float(x) for x in row] for row in rows]
