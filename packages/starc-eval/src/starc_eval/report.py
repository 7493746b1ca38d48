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
from starc_eval.queries import GROUNDING_TIOUS, Scores, find_moments, ground, read_queries
from starc_eval.repetition import LOCALISED, REPETITION, repeats, repetition
from starc_eval.segmentation import NEAR, SEGMENTATION, UNIT, segmentation
from starc_eval.soda import Soda, soda
from starc_eval.soda_merged import MERGED, Texts, soda_merged
from starc_eval.tokens import LONGEST_RUN, OneText, tokenise, too_long

TIOUS = (0.3, 0.5, 0.7, 0.9)
SECONDS = (1, 3, 5, 10, 30, 60)
CAPTION_METRICS = ("METEOR", "CIDEr", "Rouge-L", "Bleu_1", "Bleu_2", "Bleu_3", "Bleu_4")
LOCALISATION = ("F1", "Precision", "Recall")
LOCALISED_DUPLICATES = "Localised_duplicates"
USUAL_METRICS = ("captions", "localisation", "soda")
"""What is computed unless asked: caption metrics, precision and recall, SODA_c."""
METRICS = (*USUAL_METRICS, "soda_m", "segmentation", "repetition")
"""What can be asked for."""
# fmt: off
_HEADLINE = (
    *CAPTION_METRICS, "soda_c", "soda_m", *LOCALISATION, *SEGMENTATION, *REPETITION,
    LOCALISED_DUPLICATES,
)
# fmt: on
"""Metrics that stand for a system, in the order of signatures and comparisons."""
_RESAMPLES = 256
"""Resamples drawn at a time."""

Annotators = Literal["apart", "together"]
# fmt: off
Protocol = Literal[
    "published", "pdvc", "pdvc2018", "paragraph", "proposals", "chapters", "titles", "grounding",
    "vid2seq2023", "pdvc2021", "vidchapters2023", "qvhighlights2021",
]
# fmt: on
PROTOCOLS: dict[Protocol, str] = {
    "published": "dense captions, as the papers report them",
    "pdvc": "the same, missing videos count 0",
    "pdvc2018": "the same, predictions without a match paired with PDVC's fixed string of 2018",
    "paragraph": "PDVC's: all captions of a video as one text, missing videos count 0",
    "proposals": "where events lie, whatever their captions say",
    "chapters": "VidChapters': dense captions, boundaries at 3 s, 5 s, tIoU 0.5, 0.7",
    "titles": "VidChapters' with given boundaries: each title against its own",
    "grounding": "where the moment lies that a sentence names: R@1, R@5 by tIoU, mean tIoU",
    "vid2seq2023": "dense captions as Vid2Seq's own evaluator scores them",
    "pdvc2021": "pdvc2018, with which the paper's scores were made",
    "vidchapters2023": "chapters",
    "qvhighlights2021": "moments and highlights of queries in QVHighlights' files",
}
_SAME_AS: dict[Protocol, Protocol] = {"pdvc2021": "pdvc2018", "vidchapters2023": "chapters"}
"""Protocols that are another under the name of a paper."""
QUERIES = ("grounding", "qvhighlights2021")
"""Protocols of queries, which have no captions to score."""
_ZEROED = ("pdvc", "pdvc2018", "paragraph")
"""Protocols in which a missing video counts 0."""
_UNMATCHED = {"pdvc2018": "abc123!@#"}
"""What predictions without a match are paired with, where it is not any unknown word."""
_DENSE = ("published", "pdvc", "pdvc2018", "chapters", "vid2seq2023")
"""Protocols of events and their captions, in which metrics can be chosen and captions can be
tokenised as one text."""
_WITHOUT_CAPTIONS = ("localisation", "segmentation")
"""Metrics of proposals."""
MOST_PAIRS = 1_000_000
"""Of a video's predicted and reference events that overlap: each pair is compared by METEOR."""
PART = 1 << 16
"""Pairs whose counts are in memory at once."""
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
    reference_repetition: dict[str, float]
    """How much the references repeat themselves, beside the same metrics of the predictions."""
    videos: tuple[str, ...]
    """What has been scored: videos, or queries in a protocol of QUERIES."""
    per_video: dict[str, Floats]
    """A value for each of `videos`."""
    predicted: int
    """Reference videos that have a prediction (qvhighlights2021: queries)."""
    total: int
    """Reference videos (qvhighlights2021: queries)."""
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
        names = [name for name in _HEADLINE if name in self.metrics]
        names = [name for name in names if name not in ("Precision", "Recall")]  # F1 stands for all
        names = [*self.metrics] if self.protocol in QUERIES else names
        tious: Sequence[float] = TIOUS if self.per_tiou or "F1" in names else ()
        tious = GROUNDING_TIOUS if self.protocol == "grounding" else tious
        words = "letters" if self.protocol == "paragraph" else "ptb-3.4.1"
        words += "-one-text" if self.one_text else ""
        parts = {
            "metrics": ",".join(names),
            "tiou": ",".join(map(str, tious)),
            "tok": words if {"METEOR", "soda_c", "soda_m", "Rep_4"} & {*names} else "",
            "meteor": "1.5" if {"METEOR", "soda_c", "soda_m"} & {*names} else "",
            "merged": str(MERGED) if "soda_m" in names else "",
            "boundaries": f"{UNIT:g}s,near-{NEAR * UNIT:g}s" if "Pk" in names else "",
            "protocol": self.protocol,
            "refs": str(self.references),
            self.counted: f"{self.predicted}/{self.total}",
            "starc-eval": version("starc-eval"),
        }
        return " | ".join(f"{key}:{value}" for key, value in parts.items() if value)

    @property
    def counted(self) -> str:
        """What `predicted` and `total` count."""
        return "queries" if self.protocol == "qvhighlights2021" else "videos"

    def to_json(self) -> dict[str, Any]:
        """Everything but the values per video."""
        return {
            "metrics": self.metrics,
            "per_tiou": self.per_tiou,
            "segments": self.segments,
            "soda_by_reference": self.soda_by_reference,
            "reference_repetition": self.reference_repetition,
            self.counted: {"predicted": self.predicted, "total": self.total},
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
    metrics: Sequence[str] | None = None,
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
    `metrics`, some of METRICS, are USUAL_METRICS unless given.
    """
    if metrics is not None and (not metrics or not set(metrics) <= set(METRICS)):
        raise ValueError(f"metrics must be among {METRICS}, got {tuple(metrics)}")
    if protocol not in PROTOCOLS:
        raise ValueError(f"protocol must be among {tuple(PROTOCOLS)}, got {protocol!r}")
    if annotators not in ("apart", "together"):
        raise ValueError(f"annotators must be 'apart' or 'together', got {annotators!r}")
    kind = _SAME_AS.get(protocol, protocol)
    if one_text and kind not in _DENSE:
        raise AnnotationError(
            f"one text: the protocol {protocol} does not have it; leave it out, or take one of "
            f"{', '.join(_DENSE)}"
        )
    wanted = _wanted(kind, metrics)
    if isinstance(references, str | Path | Mapping):
        references = [references]
    if not references:
        raise ValueError("at least one reference is needed")
    if kind == "qvhighlights2021":
        return _queries(predictions, references, allow_missing=allow_missing)
    read = read_proposals if kind == "proposals" else read_predictions
    name, predicted = _named(predictions, "predictions", read)
    annotated = partial(read_references, subset=subset)
    named = [_named(file, "references", annotated) for file in references]
    several = sum(each.video is not None for _, file in named for each in file.values())
    predicted = _by_annotation(predicted, [file for _, file in named], annotators)
    if annotators == "together":
        named = [(source, part) for source, file in named for part in _by_annotator(file)]
    if kind not in ("proposals", "grounding"):
        _check_runs([(name, predicted), *named])
    zeroed = kind in _ZEROED
    videos = _check(name, predicted, named, may_miss=allow_missing or zeroed)
    files = [file for _, file in named]
    scored = videos if zeroed else [video for video in videos if video in predicted]
    notes = [*_notes(predicted, videos, kind), *_annotator_notes(several, annotators)]
    rows: Sequence[str] = scored
    if kind == "paragraph":
        measured = _paragraphs(predicted, files, scored, meteor())
    elif kind == "titles":
        measured = _titles(name, predicted, named, scored, meteor())
    elif kind == "grounding":
        found = ground(predicted, files, scored)
        measured, rows = _from_queries(found), found.queries
        if unanswered := len(rows) - found.answered:
            notes.append(f"{unanswered} of {len(rows)} queries have no answer and count as 0")
    else:
        if kind == "vid2seq2023":
            predicted, *files = (_forwards(file) for file in (predicted, *files))
        events = corpus(predicted, files, scored, _UNMATCHED.get(kind, UNMATCHED))
        measured = _dense(events, wanted, meteor, one_text=one_text, vid2seq=kind == "vid2seq2023")
        if "segmentation" in wanted:
            per_video = _segmentation(predicted, files, scored)
            measured["per_video"] |= per_video
            measured["metrics"] |= {each: float(x_V.mean()) for each, x_V in per_video.items()}
    return Report(
        **measured,
        videos=tuple(rows),
        predicted=sum(video in predicted for video in videos),
        total=len(videos),
        events=sum(len(predicted[video].spans) for video in scored if video in predicted),
        references=len(files),
        protocol=protocol,
        one_text=one_text,
        notes=tuple(notes),
    )


def _wanted(protocol: Protocol, metrics: Sequence[str] | None) -> Sequence[str]:
    """The metrics to compute; AnnotationError where the protocol does not have them."""
    has: Sequence[str] = METRICS if protocol in _DENSE else ()
    has = _WITHOUT_CAPTIONS if protocol == "proposals" else has
    if metrics is None:
        return [name for name in USUAL_METRICS if name in has]
    if missing := [name for name in metrics if name not in has]:
        rest = f"it has {', '.join(has)}" if has else "its metrics cannot be chosen"
        raise AnnotationError(
            f"metrics: the protocol {protocol} does not have {', '.join(missing)}; {rest}"
        )
    return metrics


def _queries(predictions: File, references: Sequence[File], *, allow_missing: bool) -> Report:
    """The report on QVHighlights' files."""
    if (
        len(references) > 1
        or isinstance(predictions, Mapping)
        or isinstance(references[0], Mapping)
    ):
        raise AnnotationError(
            "qvhighlights2021: name two files in QVHighlights' format, predictions and reference"
        )
    predicted = read_queries(predictions, annotated=False)
    annotated = read_queries(references[0], annotated=True)
    missing = [name for name in annotated if name not in predicted]
    if len(missing) == len(annotated) or (missing and not allow_missing):
        raise AnnotationError(
            f"{predictions}: {len(annotated) - len(missing)} of {len(annotated)} queries "
            f"predicted, missing {_some(missing)}; predict them, or --allow-missing to skip them"
        )
    found = find_moments(predicted, {k: q for k, q in annotated.items() if k in predicted})
    if not found.metrics:
        said, wanted = (
            "windows" if next(iter(each.values())).moments is None else "saliency"
            for each in (predicted, annotated)
        )
        raise AnnotationError(
            f"{predictions}: has no {said}, and {references[0]} no {wanted}; give files that have "
            "one of them in common"
        )
    counts = {
        "queries have no prediction and are left out, which flatters the scores": len(missing),
        "predicted queries are not in the reference and are ignored": len(
            predicted.keys() - annotated.keys()
        ),
    }
    return Report(
        **_from_queries(found),
        videos=found.queries,
        predicted=len(annotated) - len(missing),
        total=len(annotated),
        events=sum(len(predicted[name].moments or ()) for name in found.queries),
        references=1,
        protocol="qvhighlights2021",
        one_text=False,
        notes=tuple(f"{count} {what}" for what, count in counts.items() if count),
    )


def _from_queries(found: Scores) -> dict[str, Any]:
    return {**_NO_TIMES, "metrics": found.metrics, "per_video": found.per_query}


def _forwards(file: Videos) -> Videos:
    """The annotations with spans that end before they start turned round."""
    return {
        video: replace(each, spans=tuple((min(span), max(span)) for span in each.spans))
        for video, each in file.items()
    }


def _dense(
    events: Corpus,
    metrics: Sequence[str],
    meteor: Callable[[], Meteor],
    *,
    one_text: bool,
    vid2seq: bool,
) -> dict[str, Any]:
    """What a report says of events in time and their captions.

    In `vid2seq` all predictions of a video count, METEOR and CIDEr alone compare captions, F1 is a
    mean over videos, and SODA takes events in the order of their file.
    """
    if vid2seq:
        events = replace(events, captioned_P=np.ones_like(events.captioned_P))
    values: dict[str, float] = {}
    per_tiou: dict[str, list[float]] = {}
    per_video: dict[str, Floats] = {}
    soda_by_reference: list[tuple[float, float, float]] = []
    reference_repetition: dict[str, float] = {}
    if {"captions", "soda", "soda_m"} & set(metrics):
        _check_pairs(events)
        scorer = meteor()
    if {"captions", "soda", "soda_m", "repetition"} & set(metrics):
        text = OneText(events.captions) if one_text else None
        tokenised = text.tokenised if text else [tokenise(caption) for caption in events.captions]
    if "captions" in metrics:
        grouped = groups(events, TIOUS, shared=text is None)
        grouped = _read_as_one(grouped, text) if text else grouped
        _check_references_have_words(events, grouped, tokenised)
        for name, value_VT in _captions(grouped, tokenised, scorer).items():
            if vid2seq and name not in ("METEOR", "CIDEr"):
                continue
            per_tiou[name] = value_VT.mean(0).tolist()
            per_video[name] = value_VT.mean(1)
            values[name] = float(np.mean(per_tiou[name]))
    if "localisation" in metrics:
        values |= (_localisation_by_video if vid2seq else _localisation)(events, per_video)
    if {"soda", "soda_m"} & set(metrics):
        parts = [_one_reference(events, file, text) for file in events.references]
    if "soda" in metrics:
        ordered = [_in_file_order(part) for part in parts] if vid2seq else parts
        soda_by_reference, per_video["soda_c"] = _soda(ordered, _scored_soda(tokenised, scorer))
        values["soda_c"] = float(np.mean([f1 for _, _, f1 in soda_by_reference]))
    if "soda_m" in metrics:
        merged, per_video["soda_m"] = _soda(parts, _scored_soda_merged(tokenised, scorer))
        values["soda_m"] = float(np.mean([f1 for _, _, f1 in merged]))
    if "repetition" in metrics:
        alone = [tokenise(caption) for caption in events.captions] if text else tokenised
        repeated, reference_repetition = _repetition(events, alone)
        per_video |= repeated
        values |= {name: float(value_V.mean()) for name, value_V in repeated.items()}
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
        "reference_repetition": reference_repetition,
        "per_video": per_video,
    }


_NO_TIMES: dict[str, Any] = {
    "per_tiou": {},
    "segments": {},
    "soda_by_reference": [],
    "reference_repetition": {},
}
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


def _check_runs(files: Sequence[tuple[str, Videos]]) -> None:
    for source, file in files:
        for video, annotation in file.items():
            for caption in filter(too_long, annotation.sentences):
                raise AnnotationError(
                    f"{source}: video {video!r} has a caption with over {LONGEST_RUN:,} characters "
                    f"without a space ({caption!r:.40}…); write words"
                )


def _check_pairs(events: Corpus) -> None:
    for file in events.references:
        pairs_V = np.bincount(events.video_P[file.prediction_O], minlength=len(events.videos))
        for v in np.flatnonzero(pairs_V > MOST_PAIRS).tolist():
            raise AnnotationError(
                f"{events.videos[v]}: {pairs_V[v]:,} pairs of its predicted and reference events "
                f"overlap, and up to {MOST_PAIRS:,} are scored; predict fewer events, or score "
                "the localisation alone"
            )


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


def _localisation_by_video(events: Corpus, per_video: dict[str, Floats]) -> dict[str, float]:
    """Precision and recall by tIoU, and the F1 of their means over tIoUs video by video."""
    precision_VT, recall_VT = pairs.by_overlap(events, TIOUS)
    for name, value_VT in (("Precision", precision_VT), ("Recall", recall_VT)):
        per_video |= {f"{name}@{t}": value_V for t, value_V in zip(TIOUS, value_VT.T, strict=True)}
        per_video[name] = value_VT.mean(1)
    per_video["F1"] = pairs.f1(per_video["Precision"], per_video["Recall"])
    names = [name for name in per_video if name.partition("@")[0] in LOCALISATION]
    return {name: float(per_video[name].mean()) for name in names}


def _in_file_order(part: Corpus) -> Corpus:
    """The corpus for a SODA that does not sort: an event's start is its place in the file."""

    def places(span_X2: Floats) -> Floats:
        return np.stack([np.arange(len(span_X2), dtype=np.float64), span_X2[:, 1]], 1)

    files = tuple(replace(file, span_R2=places(file.span_R2)) for file in part.references)
    return replace(part, span_P2=places(part.span_P2), references=files)


def _segmentation(
    predicted: Videos, files: Sequence[Videos], videos: Sequence[str]
) -> dict[str, Floats]:
    """Boundary measures per video, the mean over the files that have it."""
    nothing = VideoAnnotation((), ())
    mean_V3 = np.array(
        [
            np.mean(
                [
                    segmentation(predicted.get(video, nothing), file[video])
                    for file in files
                    if video in file
                ],
                axis=0,
            )
            for video in videos
        ]
    )
    return dict(zip(SEGMENTATION, mean_V3.T, strict=True))


def _repetition(
    events: Corpus, tokenised: Sequence[str]
) -> tuple[dict[str, Floats], dict[str, float]]:
    """Repetition per video, and that of the references, the mean over files and videos."""
    videos = len(events.videos)

    def by_video(span_X2: Floats, video_X: Ints) -> list[Ints]:
        order_X = np.lexsort((span_X2[:, 0], video_X))
        return np.split(order_X, np.searchsorted(video_X[order_X], np.arange(1, videos)))

    def read(events_X: Ints, caption_X: Ints) -> list[str]:
        return [tokenised[caption] for caption in caption_X[events_X].tolist()]

    localised_P = np.zeros(len(events.video_P), bool)
    for file in events.references:
        localised_P[file.prediction_O[file.iou_O >= LOCALISED]] = True
    rows, localised = [], []
    for events_X in by_video(events.span_P2, events.video_P):
        captions = read(events_X, events.caption_P)
        rows.append(repetition(captions))
        repeated = np.array(repeats(captions), bool)[localised_P[events_X]]
        localised.append(float(repeated.mean()) if len(repeated) else 0.0)
    wanted = [
        repetition(read(events_X, file.caption_R))
        for file in events.references
        for events_X in by_video(file.span_R2, file.video_R)
        if len(events_X)
    ]
    values = dict(zip(REPETITION, np.array(rows, np.float64).T, strict=True))
    values[LOCALISED_DUPLICATES] = np.array(localised, np.float64)
    return values, dict(zip(REPETITION, np.mean(wanted, axis=0).tolist(), strict=True))


ScoreSoda = Callable[[Corpus, References], Soda]


def _scored_soda(tokenised: Sequence[str], meteor: Meteor) -> ScoreSoda:
    score_pairs = partial(_meteor_in_parts, meteor, tokenised)
    return lambda part, file: soda(part, file, score_pairs)


def _scored_soda_merged(tokenised: Sequence[str], meteor: Meteor) -> ScoreSoda:
    def score_texts(hypotheses: Texts, references: Texts) -> Floats:
        number = {text: n for n, text in enumerate(dict.fromkeys((*hypotheses, *references)))}
        texts = [" ".join(tokenised[caption] for caption in text) for text in number]
        hypothesis_X, reference_X = (
            np.array([number[text] for text in side], np.int64) for side in (hypotheses, references)
        )
        return _meteor_in_parts(meteor, texts, hypothesis_X, reference_X)

    return lambda part, file: soda_merged(part, file, score_texts)


def _meteor_in_parts(
    meteor: Meteor, texts: Sequence[str], hypothesis_X: Ints, reference_X: Ints
) -> Floats:
    """METEOR of each pair; in parts, so that their counts are not all in memory at once."""
    cuts = range(PART, len(hypothesis_X), PART)
    parts_X = zip(np.split(hypothesis_X, cuts), np.split(reference_X, cuts), strict=True)
    return np.concatenate([meteor_score(meteor.statistics_of(texts, *part)) for part in parts_X])


def _soda(
    parts: Sequence[Corpus], scored: ScoreSoda
) -> tuple[list[tuple[float, float, float]], Floats]:
    """Precision, recall and F1 against each reference file, each a mean over the file's videos;
    and the mean F1 of each video over the files that have it."""
    by_reference = []
    total_V, files_V = np.zeros(len(parts[0].videos)), np.zeros(len(parts[0].videos))
    for part in parts:
        (file,) = part.references
        scores = scored(part, file)
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
    metrics, placed = _columns(report)
    names = [*metrics, *placed]
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
        first_XM, second_XM = (
            _headline(weight_XV @ value_VC, len(metrics)) for value_VC in both_VC
        )
        blocks.append(second_XM - first_XM)
    difference_XM = np.concatenate(blocks)
    low_M, high_M = np.quantile(difference_XM, [0.025, 0.975], axis=0).tolist()
    below_M, above_M = (difference_XM <= 0).mean(0), (difference_XM >= 0).mean(0)
    probability_M = np.minimum(1.0, 2 * np.minimum(below_M, above_M)).tolist()
    metrics += LOCALISATION if placed else ()
    means = [{m: fmean(one.metrics[m] for one in system) for m in metrics} for system in systems]
    return [
        Difference(metric, means[0][metric], means[1][metric], low, high, probability)
        for metric, low, high, probability in zip(
            metrics, low_M, high_M, probability_M, strict=True
        )
    ]


def _columns(report: Report) -> tuple[list[str], list[str]]:
    """The headline metrics that are means over videos, and the values per video that precision,
    recall and F1 are made from."""
    parts = [f"{name}@{t}" for name in ("Precision", "Recall") for t in TIOUS]
    if report.protocol in QUERIES:
        return [*report.per_video], []
    placed = parts if "F1" in report.metrics and "F1" not in report.per_video else []
    return [name for name in _HEADLINE if name in report.per_video], placed


def _headline(mean_XC: Floats, direct: int) -> Floats:
    """Headline metrics from column means: the first are these means, F1 is a harmonic mean of
    means, so it comes last."""
    if direct == mean_XC.shape[1]:
        return mean_XC
    precision_XT, recall_XT = np.split(mean_XC[:, direct:], 2, axis=1)
    places = [pairs.f1(precision_XT, recall_XT), precision_XT, recall_XT]
    return np.concatenate([mean_XC[:, :direct], np.stack([x.mean(1) for x in places], 1)], 1)
