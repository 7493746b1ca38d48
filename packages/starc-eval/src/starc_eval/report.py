"""Score a prediction file: all metrics of the published evaluator, with the recipe that made them.

In: predictions and one or more references (files or events per video). Out: a `Report` with every
metric of a protocol under its published name (raw, 0 to 1; CIDEr 0 to 10), the values per video
and a one-line signature: two scores with the same signature can be compared. `compare` tells
whether one system is better than another or whether it is the videos: a paired bootstrap over
videos.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

import numpy as np

from starc_eval import pairs
from starc_eval.annotations import (
    VideoAnnotation,
    annotations_by_video,
    read_predictions,
    read_proposals,
    read_references,
)
from starc_eval.documents import Document, score_documents, words_only
from starc_eval.errors import AnnotationError
from starc_eval.meteor import Meteor, summable
from starc_eval.meteor import score as meteor_score
from starc_eval.ngrams import bleu, cider, ngrams, rouge
from starc_eval.pairs import (
    UNMATCHED,
    Corpus,
    Floats,
    Groups,
    Ints,
    References,
    corpus,
    distinct,
    groups,
)
from starc_eval.soda import soda
from starc_eval.tokens import OneText, tokenise

TIOUS = (0.3, 0.5, 0.7, 0.9)
SECONDS = (1, 3, 5, 10, 30, 60)
CAPTION_METRICS = ("METEOR", "CIDEr", "Rouge-L", "Bleu_1", "Bleu_2", "Bleu_3", "Bleu_4")
LOCALISATION = ("F1", "Precision", "Recall")
METRICS = ("captions", "localisation", "soda")
"""What can be asked for: caption metrics, precision and recall, SODA_c."""
_RESAMPLES = 256
"""Resamples drawn at a time."""

Annotators = Literal["apart", "together"]
Protocol = Literal["published", "pdvc", "pdvc2018", "paragraph", "proposals", "chapters", "titles"]
PROTOCOLS: dict[Protocol, str] = {
    "published": "dense captions, as the papers report them",
    "pdvc": "the same, missing videos count 0",
    "pdvc2018": "the same, predictions without a match paired with PDVC's fixed string of 2018",
    "paragraph": "PDVC's: all captions of a video as one text, missing videos count 0",
    "proposals": "where events lie, whatever their captions say",
    "chapters": "VidChapters': dense captions, boundaries at 3 s, 5 s, tIoU 0.5, 0.7",
    "titles": "VidChapters' with given boundaries: each title against its own",
}
_ZEROED = ("pdvc", "pdvc2018", "paragraph")
"""Protocols in which a missing video counts 0."""
_UNMATCHED = {"pdvc2018": "abc123!@#"}
"""What predictions without a match are paired with, where it is not any unknown word."""
_ONE_TEXT = ("published", "pdvc", "pdvc2018", "chapters")
"""Protocols whose captions can be tokenised as one text."""
_SAME_SPAN = 0.01
"""Seconds by which a given boundary may be off (files round)."""
Videos = Mapping[str, VideoAnnotation]
File = str | Path | Videos


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
    one_text: bool
    """Captions were tokenised as one text."""
    notes: tuple[str, ...]
    """What a reader of the numbers should know."""

    @property
    def signature(self) -> str:
        """One line that makes two scores comparable."""
        names = [name for name in (*CAPTION_METRICS, "soda_c", "F1") if name in self.metrics]
        tious = f"tiou:{','.join(map(str, TIOUS))} | " if self.per_tiou or "F1" in names else ""
        captions = "METEOR" in names or "soda_c" in names
        words = "letters" if self.protocol == "paragraph" else "ptb-3.4.1"
        words += "-one-text" if self.one_text else ""
        tokens = f"tok:{words} | meteor:1.5 | " if captions else ""
        return (
            f"metrics:{','.join(names)} | {tious}{tokens}protocol:{self.protocol} | "
            f"refs:{self.references} | videos:{self.predicted}/{self.total} | "
            f"starc-eval:{version('starc-eval')}"
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
    annotators: Annotators = "apart",
    one_text: bool = False,
    meteor: Callable[[], Meteor] = Meteor,
) -> Report:
    """Score predictions against references; PROTOCOLS says how.

    Reference videos without a prediction are refused unless `allow_missing` (then they are skipped,
    which flatters) or the protocol counts them 0. Several reference files count together. Several
    annotators within one file (ViTT) are scored "apart", each annotation as a video of its own, as
    the published ViTT scores are; or "together", as several files are. `one_text` tokenises the
    captions of a run as lines of one text, as the published evaluator does, instead of alone.
    """
    if not metrics or not set(metrics) <= set(METRICS):
        raise ValueError(f"metrics must be among {METRICS}, got {tuple(metrics)}")
    if protocol not in PROTOCOLS:
        raise ValueError(f"protocol must be among {tuple(PROTOCOLS)}, got {protocol!r}")
    if annotators not in ("apart", "together"):
        raise ValueError(f"annotators must be 'apart' or 'together', got {annotators!r}")
    if one_text and protocol not in _ONE_TEXT:
        raise AnnotationError(
            f"one text: the protocol {protocol} does not have it; leave it out, or take one of "
            f"{', '.join(_ONE_TEXT)}"
        )
    if isinstance(references, str | Path | Mapping):
        references = [references]
    if not references:
        raise ValueError("at least one reference is needed")
    proposals = protocol == "proposals"
    read = read_proposals if proposals else read_predictions
    name, predicted = _named(predictions, "predictions", read)
    annotated = partial(read_references, subset=subset)
    named = [_named(file, "references", annotated) for file in references]
    several = sum(each.video is not None for _, file in named for each in file.values())
    predicted = _by_annotation(predicted, [file for _, file in named], annotators)
    if annotators == "together":
        named = [(source, part) for source, file in named for part in _by_annotator(file)]
    zeroed = protocol in _ZEROED
    videos = _check(name, predicted, named, may_miss=allow_missing or zeroed)
    files = [file for _, file in named]
    scored = videos if zeroed else [video for video in videos if video in predicted]
    if protocol == "paragraph":
        measured = _paragraphs(predicted, files, scored, meteor())
    elif protocol == "titles":
        measured = _titles(name, predicted, named, scored, meteor())
    else:
        wanted = ("localisation",) if proposals else metrics
        unmatched = _UNMATCHED.get(protocol, UNMATCHED)
        events = corpus(predicted, files, scored, unmatched)
        measured = _dense(events, wanted, meteor, one_text=one_text)
    return Report(
        **measured,
        videos=tuple(scored),
        predicted=sum(video in predicted for video in videos),
        total=len(videos),
        events=sum(len(predicted[video].spans) for video in scored if video in predicted),
        references=len(files),
        protocol=protocol,
        one_text=one_text,
        notes=(*_notes(predicted, videos, protocol), *_annotator_notes(several, annotators)),
    )


def _dense(
    events: Corpus, metrics: Sequence[str], meteor: Callable[[], Meteor], *, one_text: bool
) -> dict[str, Any]:
    """What a report says of events in time and their captions."""
    values: dict[str, float] = {}
    per_tiou: dict[str, list[float]] = {}
    per_video: dict[str, Floats] = {}
    soda_by_reference: list[tuple[float, float, float]] = []
    if {"captions", "soda"} & set(metrics):
        scorer = meteor()
        text = OneText(events.captions) if one_text else None
        tokenised = text.tokenised if text else [tokenise(caption) for caption in events.captions]
    if "captions" in metrics:
        grouped = groups(events, TIOUS, shared=text is None)
        grouped = _read_as_one(grouped, text) if text else grouped
        _check_references_have_words(events, grouped, tokenised)
        for name, value_VT in _captions(grouped, tokenised, scorer).items():
            per_tiou[name] = value_VT.mean(0).tolist()
            per_video[name] = value_VT.mean(1)
            values[name] = float(np.mean(per_tiou[name]))
    if "localisation" in metrics:
        values |= _localisation(events, per_video)
    if "soda" in metrics:
        parts = [_one_reference(events, file, text) for file in events.references]
        soda_by_reference, per_video["soda_c"] = _soda(parts, tokenised, scorer)
        values["soda_c"] = float(np.mean([f1 for _, _, f1 in soda_by_reference]))
    quality = pairs.segment_quality(events)
    segments = {
        "Recall@0.5": float(quality.recall_V.mean()),
        "Mean IoU": float(quality.mean_iou_V.mean()),
        "Matched segments": float(quality.matched_V.sum()),
    }
    return {
        "metrics": values,
        "per_tiou": per_tiou,
        "segments": segments,
        "soda_by_reference": soda_by_reference,
        "per_video": per_video,
    }


_NO_TIMES: dict[str, Any] = {"per_tiou": {}, "segments": {}, "soda_by_reference": []}
"""What a report has no room for where only texts are compared."""


def _paragraphs(
    predicted: Videos, references: Sequence[Videos], videos: Sequence[str], meteor: Meteor
) -> dict[str, Any]:
    """A document per video: its predicted captions by start time, against each file's captions."""
    documents = []
    for video in videos:
        said = sorted(predicted.get(video, ()), key=lambda event: (event.start, event.end))
        wanted = [file[video].sentences for file in references if video in file]
        documents.append(
            Document(
                words_only(" ".join(event.caption for event in said)),
                tuple(words_only(" ".join(sentences)) for sentences in wanted),
            )
        )
    metrics, per_video = score_documents(documents, meteor)
    return {**_NO_TIMES, "metrics": metrics, "per_video": per_video}


def _titles(
    name: str,
    predicted: Videos,
    references: Sequence[tuple[str, Videos]],
    videos: Sequence[str],
    meteor: Meteor,
) -> dict[str, Any]:
    """A document per event. As published, the prediction stands in the place of the reference."""
    if len(references) > 1:
        raise AnnotationError("titles: given boundaries are those of one file; name one reference")
    ((source, reference),) = references
    documents = []
    for video in videos:
        said, wanted = (sorted(file[video]) for file in (predicted, reference))
        pairs = list(zip(said, wanted, strict=False))
        far = [a for a, b in pairs if max(abs(a.start - b.start), abs(a.end - b.end)) > _SAME_SPAN]
        if far or len(said) != len(wanted):
            raise AnnotationError(
                f"{name}: video {video!r} has other events than {source}; titles are scored for "
                "given boundaries (starc evaluate --given-boundaries), else --protocol chapters"
            )
        documents += [Document(tokenise(b.caption), (tokenise(a.caption),)) for a, b in pairs]
    metrics, _ = score_documents(documents, meteor)
    return {**_NO_TIMES, "metrics": metrics, "per_video": {}}


def _named(file: File, otherwise: str, read: Callable[[str | Path], Videos]) -> tuple[str, Videos]:
    return (otherwise, file) if isinstance(file, Mapping) else (str(file), read(file))


def _by_annotator(file: Videos) -> list[Videos]:
    """One reference for each annotator: the first annotations of all videos, the second …"""
    annotators: list[dict[str, VideoAnnotation]] = [{}]
    for video, written in annotations_by_video([file]).items():
        annotators += [{} for _ in written[len(annotators) :]]
        for annotator, annotation in enumerate(written):
            annotators[annotator][video] = replace(annotation, video=None)
    return list(annotators)


def _by_annotation(
    predicted: Videos, references: Sequence[Videos], annotators: Annotators
) -> Videos:
    """Predictions under the names that are scored: of annotations (`1_<id>`), or of their videos.

    Published predictions have an entry for each annotation, all of them the same.
    """
    names: dict[str, list[str]] = {}
    for key, each in ((key, each) for file in references for key, each in file.items()):
        if each.video is not None:
            scored, other = (key, each.video) if annotators == "apart" else (each.video, key)
            names.setdefault(scored, [scored]).append(other)
    matched = {
        scored: next(predicted[name] for name in known if name in predicted)
        for scored, known in names.items()
        if any(name in predicted for name in known)
    }
    used = {name for known in names.values() for name in known}
    return matched | {key: each for key, each in predicted.items() if key not in used}


def _annotator_notes(several: int, annotators: Annotators) -> tuple[str, ...]:
    how = {
        "apart": "each is scored as a video of its own, as published for ViTT "
        "(--annotators together: as several references)",
        "together": "they count as several references, unlike published scores of ViTT",
    }[annotators]
    return (f"{several} annotations are by several annotators; {how}",) if several else ()


def _check(
    name: str, predicted: Videos, references: Sequence[tuple[str, Videos]], *, may_miss: bool
) -> list[str]:
    """The reference videos; AnnotationError unless they have events and predictions."""
    for source, file in references:
        for video, annotation in file.items():
            if not annotation.spans:
                raise AnnotationError(
                    f"{source}: video {video!r} has no events, so nothing can be recalled; "
                    "remove it"
                )
    videos = list(dict.fromkeys(video for _, file in references for video in file))
    missing = [video for video in videos if video not in predicted]
    if len(missing) == len(videos):
        raise AnnotationError(
            f"{name}: none of its {len(predicted)} videos is in the reference "
            f"(predictions: {_some(predicted)}; reference: {_some(videos)}); do the files belong "
            "together?"
        )
    if missing and not may_miss:
        raise AnnotationError(
            f"{name}: {len(videos) - len(missing)} of {len(videos)} reference videos "
            f"predicted, missing {_some(missing)}; predict them, or --allow-missing to skip them, "
            "or --protocol pdvc to count them as 0"
        )
    return videos


def _some(names: Sequence[str] | Mapping[str, Any]) -> str:
    first = ", ".join(list(names)[:3])
    return f"{first}, …" if len(names) > 3 else first or "none"


def _notes(predicted: Videos, videos: Sequence[str], protocol: Protocol) -> tuple[str, ...]:
    inside = [predicted[video] for video in videos if video in predicted]
    how = "count as 0" if protocol in _ZEROED else "are left out, which flatters the scores"
    notes = {
        f"reference videos have no prediction and {how}": len(videos) - len(inside),
        "predicted events end before they start and match nothing": sum(
            annotation.backwards for annotation in inside
        ),
        "predicted videos are not in the reference and are ignored": len(predicted) - len(inside),
    }
    return tuple(f"{count} {what}" for what, count in notes.items() if count)


def _read_as_one(grouped: Groups, text: OneText) -> Groups:
    """The groups with captions as they read one after the other, threshold by threshold."""
    captions = [it_U[grouped.pair_I] for it_U in (grouped.hypothesis_U, grouped.reference_U)]
    threshold_I = grouped.group_I % len(TIOUS)
    for t in range(len(TIOUS)):
        for caption_I in captions:
            caption_I[threshold_I == t] = text.numbers(caption_I[threshold_I == t])
    pair_I, hypothesis_U, reference_U = distinct(*captions)
    return replace(grouped, pair_I=pair_I, hypothesis_U=hypothesis_U, reference_U=reference_U)


def _one_reference(events: Corpus, file: References, text: OneText | None) -> Corpus:
    """The corpus with this reference file only, its captions read by video and start if they are
    one text; SODA's own reader does it like that."""
    if text is None:
        return replace(events, references=(file,))

    def read(span_X2: Floats, video_X: Ints, caption_X: Ints) -> Ints:
        order_X = np.lexsort((span_X2[:, 0], video_X))
        order_X = order_X[file.present_V[video_X[order_X]]]
        reading_X = caption_X.copy()
        reading_X[order_X] = text.numbers(caption_X[order_X])
        return reading_X

    caption_P = read(events.span_P2, events.video_P, events.caption_P)
    caption_R = read(file.span_R2, file.video_R, file.caption_R)
    return replace(events, caption_P=caption_P, references=(replace(file, caption_R=caption_R),))


def _captions(grouped: Groups, tokenised: Sequence[str], meteor: Meteor) -> dict[str, Floats]:
    """Each caption metric per video and tIoU, [V, T]."""
    grams = ngrams(tokenised)
    common = grams.common(grouped.hypothesis_U, grouped.reference_U)
    bleu_G4 = bleu(grouped, grams, common)
    by_group = {
        "METEOR": _meteor(grouped, tokenised, meteor),
        "CIDEr": cider(grouped, grams, common),
        "Rouge-L": rouge(grouped, tokenised, common),
        **{f"Bleu_{n + 1}": bleu_G4[:, n] for n in range(4)},
    }
    return {name: by_group[name][grouped.index_VT] for name in CAPTION_METRICS}


def _check_references_have_words(events: Corpus, grouped: Groups, tokenised: Sequence[str]) -> None:
    """The published evaluator stops where every reference of a group is empty; so do we."""
    empty_C = np.array([not text.strip() for text in tokenised], bool)
    reference_I = grouped.reference_U[grouped.pair_I]
    bad_G = (grouped.sums(empty_C[reference_I]) == grouped.size_G) & (grouped.size_G > 0)
    if bad_G.any():
        group = int(np.argmax(bad_G))
        caption = tokenised[reference_I[np.argmax(grouped.group_I == group)]]
        video = events.videos[int(np.argwhere(grouped.index_VT == group)[0, 0])]
        raise AnnotationError(
            f"references: video {video!r}, all matched reference captions are empty once "
            f"tokenised (such as {caption!r:.40}); write a caption there"
        )


def _meteor(grouped: Groups, tokenised: Sequence[str], meteor: Meteor) -> Floats:
    """METEOR of each group: the aggregate over its pairs, not their mean."""
    counts_U = meteor.statistics_of(tokenised, grouped.hypothesis_U, grouped.reference_U)
    total = [grouped.sums(count_U[grouped.pair_I]) for count_U in summable(counts_U).T]
    return meteor_score(np.stack(total, 1))


def _localisation(events: Corpus, per_video: dict[str, Floats]) -> dict[str, float]:
    values: dict[str, float] = {}
    by_overlap = pairs.by_overlap(events, TIOUS)
    by_start = pairs.by_start(events, SECONDS)
    for (precision_VT, recall_VT), suffixes in (
        (by_overlap, [f"@{t}" for t in TIOUS]),
        (by_start, [f"@{s}s" for s in SECONDS]),
    ):
        precision_T, recall_T = precision_VT.mean(0), recall_VT.mean(0)
        f1_T = pairs.f1(precision_T, recall_T)
        for t, suffix in enumerate(suffixes):
            values[f"Recall{suffix}"] = float(recall_T[t])
            values[f"Precision{suffix}"] = float(precision_T[t])
            values[f"F1{suffix}"] = float(f1_T[t])
            per_video[f"Recall{suffix}"] = recall_VT[:, t]
            per_video[f"Precision{suffix}"] = precision_VT[:, t]
    for name in reversed(LOCALISATION):
        values[name] = float(np.mean([values[f"{name}@{t}"] for t in TIOUS]))
    return values


def _soda(
    parts: Sequence[Corpus], tokenised: Sequence[str], meteor: Meteor
) -> tuple[list[tuple[float, float, float]], Floats]:
    """Precision, recall and F1 against each reference file, each a mean over the file's videos;
    and the mean F1 of each video over the files that have it."""

    def score_pairs(hypothesis_X: Ints, reference_X: Ints) -> Floats:
        return meteor_score(meteor.statistics_of(tokenised, hypothesis_X, reference_X))

    by_reference = []
    total_V, files_V = np.zeros(len(parts[0].videos)), np.zeros(len(parts[0].videos))
    for part in parts:
        (file,) = part.references
        scores = soda(part, file, score_pairs)
        present = max(int(file.present_V.sum()), 1)
        precision, recall, f1 = (float(x_V[file.present_V].sum() / present) for x_V in scores)
        by_reference.append((precision, recall, f1))
        total_V += scores.f1_V * file.present_V
        files_V += file.present_V
    return by_reference, total_V / np.maximum(files_V, 1)


@dataclass(frozen=True)
class Difference:
    """The second system minus the first, in one metric (raw, as in `Report.metrics`)."""

    metric: str
    first: float
    second: float
    low: float
    high: float
    probability: float
    """Two-sided: how often a redrawn difference falls on the other side of zero, doubled."""

    @property
    def difference(self) -> float:
        return self.second - self.first

    @property
    def clear(self) -> bool:
        """The interval leaves zero out."""
        return self.low > 0 or self.high < 0


def compare(
    first: Report | Sequence[Report],
    second: Report | Sequence[Report],
    *,
    resamples: int = 10_000,
    seed: int = 0,
) -> list[Difference]:
    """Paired bootstrap of every headline metric that both reports have.

    The interval holds 95 % of the differences when videos are drawn again with replacement. A
    system may be several reports, one for each training seed: a video then counts with its mean.
    """
    systems = [[one] if isinstance(one, Report) else list(one) for one in (first, second)]
    report = systems[0][0]
    for other in (*systems[0], *systems[1]):
        if report.signature != other.signature or report.videos != other.videos:
            raise AnnotationError(
                "the two systems are not scored on the same videos in the same way "
                f"({report.signature} / {other.signature}); score both on the same files"
            )
    if resamples < 1:
        raise ValueError(f"resamples must be positive, got {resamples = }")
    names = _columns(report)
    if not names:
        raise AnnotationError(f"--compare: the protocol {report.protocol} has no scores per video")
    both_VC = [
        np.mean([np.stack([one.per_video[n] for n in names], 1) for one in system], axis=0)
        for system in systems
    ]
    rng = np.random.default_rng(seed)
    videos = len(report.videos)
    blocks: list[Floats] = []
    for start in range(0, resamples, _RESAMPLES):
        size = min(_RESAMPLES, resamples - start)
        weight_XV = rng.multinomial(videos, np.full(videos, 1 / videos), size=size) / videos
        first_XM, second_XM = (_headline(weight_XV @ value_VC, names) for value_VC in both_VC)
        blocks.append(second_XM - first_XM)
    difference_XM = np.concatenate(blocks)
    low_M, high_M = np.quantile(difference_XM, [0.025, 0.975], axis=0).tolist()
    below_M, above_M = (difference_XM <= 0).mean(0), (difference_XM >= 0).mean(0)
    probability_M = np.minimum(1.0, 2 * np.minimum(below_M, above_M)).tolist()
    metrics = [name for name in names if "@" not in name]
    if len(metrics) < len(names):
        metrics += LOCALISATION
    means = [{m: fmean(one.metrics[m] for one in system) for m in metrics} for system in systems]
    return [
        Difference(metric, means[0][metric], means[1][metric], low, high, probability)
        for metric, low, high, probability in zip(
            metrics, low_M, high_M, probability_M, strict=True
        )
    ]


def _columns(report: Report) -> list[str]:
    """The values per video that the headline metrics are made from."""
    names = [name for name in (*CAPTION_METRICS, "soda_c") if name in report.per_video]
    if "F1" in report.metrics:
        names += [f"{name}@{t}" for name in ("Precision", "Recall") for t in TIOUS]
    return names


def _headline(mean_XC: Floats, names: list[str]) -> Floats:
    """Headline metrics from column means; F1 is a harmonic mean of means, so it comes last."""
    captions = sum("@" not in name for name in names)
    if captions == len(names):
        return mean_XC
    precision_XT, recall_XT = np.split(mean_XC[:, captions:], 2, axis=1)
    places = [pairs.f1(precision_XT, recall_XT), precision_XT, recall_XT]
    return np.concatenate([mean_XC[:, :captions], np.stack([x.mean(1) for x in places], 1)], 1)
