"""The paper's figures, drawn from trained models and ablation results. Needs matplotlib."""

from __future__ import annotations

import csv
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

from starc.errors import ConfigError, MissingExtra
from starc.files.atomic import replacing
from starc.model.checkpoint import Loaded
from starc.training.dataset import Videos, usable_events
from starc.training.evaluate import (
    INDICATORS,
    VideoAnalysis,
    analyse,
    area_under_curve,
    as_annotations,
    caption_videos,
    correlation,
    headline_scores,
    open_model,
    retrieving_segments,
    segment_quality,
)
from starc.training.tables import Ablation
from starc.types import Event
from starc_eval import score

if TYPE_CHECKING:
    from starc.training.ablations import Result

_EVENT, _SEGMENT, _LINE, _OTHER = "#8fc9a3", "#9db7d9", "#1f3a5f", "#c2571a"
_LETTERS, _LINES = 180, 7
"""Small letters that fit side by side in a panel, and lines of them in a strip."""
_NAMES = {
    "uniform": "uniform (HiCM²)",
    "adaptive": "adaptive (Sali4Vid)",
    "kmeans": "k-means",
    "transport": "SGSR (ours)",
}


def _pyplot() -> Any:
    try:
        import matplotlib
    except ImportError:
        raise MissingExtra("matplotlib, which draws figures,", "plots") from None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def saliency_over_time(analysed_videos: Sequence[VideoAnalysis], path: Path) -> Path:
    """Saliency over time, events behind it, means inside and outside in the title."""
    shown = [analysed for analysed in analysed_videos if analysed.saliency_T is not None]
    figure, axes = _timelines(shown)
    for axis, analysed in zip(axes, shown, strict=True):
        assert analysed.saliency_T is not None
        axis.plot(_times(analysed), analysed.saliency_T.tolist(), color=_LINE, linewidth=1.4)
        axis.set_ylabel("saliency $p_s$")
        if means := analysed.contrast():
            title = f"{analysed.video}   inside {means[0]:.3f}, outside {means[1]:.3f}"
            axis.set_title(title, loc="left", fontsize=9)
    return _save(figure, path)


def transition_sharpness(analysed_videos: Sequence[VideoAnalysis], path: Path) -> Path:
    """How much X and X' change from frame to frame."""
    figure, axes = _timelines(analysed_videos)
    for axis, analysed in zip(axes, analysed_videos, strict=True):
        before, after = analysed.sharpness_T.tolist(), analysed.refined_sharpness_T.tolist()
        axis.plot(_times(analysed), before, color=_OTHER, linewidth=1.2, label="X")
        axis.plot(_times(analysed), after, color=_LINE, linewidth=1.2, label="X'")
        axis.set_ylabel("change")
        axis.legend(loc="upper right", fontsize=8, frameon=False)
    return _save(figure, path)


def anchors_over_time(analysed_videos: Sequence[VideoAnalysis], path: Path) -> Path:
    """Which anchor each frame is assigned to."""
    shown = [analysed for analysed in analysed_videos if analysed.anchor_T is not None]
    figure, axes = _timelines(shown, height=1.5)
    for axis, analysed in zip(axes, shown, strict=True):
        assert analysed.anchor_T is not None
        axis.step(_times(analysed), analysed.anchor_T.tolist(), where="mid", color=_LINE)
        axis.set_ylabel("anchor")
        axis.set_yticks(range(int(analysed.anchor_T.max()) + 1))
        axis.tick_params(axis="y", labelsize=6)
    return _save(figure, path)


def segmentations(analysed: VideoAnalysis, path: Path) -> Path:
    """The annotated events above what each way of cutting finds, with the caption it retrieves."""
    frame = analysed.duration / len(analysed.salient_T)
    strips = {"annotated": [(one.start, one.end, one.caption, True) for one in analysed.events]}
    for method, segments in analysed.segments.items():
        captions = [one.captions[0].caption if one.captions else "" for one in segments]
        strips[_NAMES[method]] = [
            (segment.first * frame, segment.stop * frame, caption, segment.kept)
            for segment, caption in zip(segments, captions, strict=True)
        ]
    return _strips(strips, analysed.duration, path)


def account(
    events: Sequence[Event], predicted: Sequence[Event], duration: float, title: str, path: Path
) -> Path:
    """The annotated events of a video above what the model says of it."""
    said = {"annotated": events, title: predicted}
    strips = {
        name: [(one.start, one.end, one.caption, True) for one in moments]
        for name, moments in said.items()
    }
    return _strips(strips, duration, path)


def saliency_by_place(analysed_videos: Sequence[VideoAnalysis], path: Path) -> list[Path]:
    """How salient frames of a whole dataset are inside and outside events: figure and numbers."""
    means, inside, outside, areas = {}, list[float](), list[float](), list[float]()
    for one in analysed_videos:
        if (contrast := one.contrast()) is None or one.saliency_T is None:
            continue
        within_T = one.salient_T.bool()
        inside += one.saliency_T[within_T].tolist()
        outside += one.saliency_T[~within_T].tolist()
        means[one.video] = contrast
        areas += [area for area in [area_under_curve(one.saliency_T, within_T)] if area is not None]
    if not means:
        return []
    better = fmean(a > b for a, b in means.values())
    figure, axis = _pyplot().subplots(figsize=(6.4, 3.6), constrained_layout=True)
    for values, colour, name in ((inside, _LINE, "inside"), (outside, _OTHER, "outside")):
        label = f"{name} events: mean {fmean(values):.3f} ({len(values)} frames)"
        axis.hist(values, bins=40, density=True, alpha=0.55, color=colour, label=label)
    axis.set_xlabel("saliency $p_s$")
    axis.set_yticks([])
    axis.legend(frameon=False, fontsize=8)
    shown = f"{len(means)} videos: inside above outside in {better:.0%}, AUC {fmean(areas):.3f}"
    axis.set_title(shown, loc="left", fontsize=9)
    with replacing(path.with_suffix(".csv")) as file:
        writer = csv.writer(file)
        writer.writerow(["video", "inside", "outside"])
        writer.writerows([video, *pair] for video, pair in means.items())
        writer.writerow(["all frames", fmean(inside), fmean(outside)])
    return [_save(figure, path), path.with_suffix(".csv")]


def _strips(
    strips: Mapping[str, Sequence[tuple[float, float, str, bool]]], duration: float, path: Path
) -> Path:
    """A strip per name: start, end, text and whether it is kept, of each span."""
    figure, axes = _panels(len(strips), height=1.3)
    for axis, (name, spans) in zip(axes, strips.items(), strict=True):
        colour = _EVENT if name == "annotated" else _SEGMENT
        for start, end, caption, kept in spans:
            axis.axvspan(start, end, color=colour, alpha=0.9 if kept else 0.25, linewidth=0)
            axis.axvline(start, color="white", linewidth=1)
            letters = int(_LETTERS * (end - start) / duration)
            if kept and letters >= 4:
                text = "\n".join(textwrap.wrap(caption, letters, max_lines=_LINES, placeholder="…"))
                axis.text((start + end) / 2, 0.5, text, ha="center", va="center", fontsize=6)
        axis.set_yticks([])
        axis.set_title(name, loc="left", fontsize=9)
        axis.set_xlim(0, duration)
    return _save(figure, path)


def quality_against_captions(models: Mapping[str, Mapping[str, float]], path: Path) -> Path:
    """Segment quality (x) against CIDEr and METEOR (y): a point per model, and Pearson's r."""
    figure, axes = _pyplot().subplots(
        2, 3, figsize=(10.5, 5.8), sharex="col", sharey="row", constrained_layout=True
    )
    for row, metric in zip(axes, ("CIDEr", "METEOR"), strict=True):
        row[0].set_ylabel(f"{metric} × 100")
        y = [100 * values[metric] for values in models.values()]
        for axis, indicator in zip(row, INDICATORS, strict=True):
            x = [values[indicator] for values in models.values()]
            for number, point in enumerate(zip(x, y, strict=True)):
                axis.scatter(*point, color=f"C{number % 10}", s=44, label=list(models)[number])
            if (r := correlation(x, y)) is not None:
                axis.axline(
                    (fmean(x), fmean(y)), slope=r * stdev(y) / stdev(x), color="0.7", zorder=0
                )
                axis.set_title(f"r = {r:.2f}", loc="right", fontsize=9)
            axis.margins(0.12)
            axis.locator_params(axis="x", nbins=5)
    for axis, name in zip(axes[1], INDICATORS, strict=True):
        axis.set_xlabel(f"{name} per video" if name == "Matched segments" else name)
    handles, names = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside right upper", frameon=False, fontsize=8)
    return _save(figure, path, dpi=150)


def plot_ablation(ablation: Ablation, results: Sequence[Result], path: Path) -> Path:
    """CIDEr of a figure's points: a line (per group), or a coloured grid."""
    figure, axis = _pyplot().subplots(figsize=(5.4, 3.8), constrained_layout=True)
    done = [result for result in results if result.metrics]
    if ablation.kind == "grid":
        columns = sorted({result.row.at[0] for result in done})
        rows = sorted({result.row.at[1] for result in done})
        values = [[float("nan")] * len(columns) for _ in rows]
        for result in done:
            column, row = columns.index(result.row.at[0]), rows.index(result.row.at[1])
            values[row][column] = mean = result.mean("CIDEr") or 0.0
            axis.text(column, row, f"{mean:.2f}", ha="center", va="center", fontsize=9)
        axis.imshow(values, cmap="YlGn", aspect="auto", origin="lower")
        axis.set_xticks(range(len(columns)), [f"{value:g}" for value in columns])
        axis.set_yticks(range(len(rows)), [f"{value:g}" for value in rows])
        axis.set_ylabel(ablation.axes[1])
    else:
        lines: dict[tuple[float, ...], list[Result]] = {}
        for result in done:
            lines.setdefault(result.row.at[1:], []).append(result)
        for group, members in lines.items():
            label = f"{ablation.axes[1]} = {group[0]:g}" if group else None
            x = [member.row.at[0] for member in members]
            y = [member.mean("CIDEr") for member in members]
            spread = [member.spread("CIDEr") or 0 for member in members]
            axis.errorbar(x, y, yerr=spread, marker="o", capsize=3, label=label)
        if len(lines) > 1:
            axis.legend(frameon=False, fontsize=8)
        axis.set_ylabel("CIDEr × 100")
    axis.set_xlabel(ablation.axes[0])
    axis.set_title(ablation.title, loc="left", fontsize=10)
    return _save(figure, path, dpi=150)


def _panels(count: int, height: float) -> tuple[Any, list[Any]]:
    """A figure of `count` panels below each other, over time."""
    size = (9, height * max(count, 1) + 0.6)
    figure, axes = _pyplot().subplots(
        max(count, 1), 1, figsize=size, squeeze=False, constrained_layout=True
    )
    if count:
        axes[count - 1, 0].set_xlabel("seconds")
    return figure, list(axes[:count, 0])


def _timelines(videos: Sequence[VideoAnalysis], height: float = 1.8) -> tuple[Any, list[Any]]:
    """A panel per video, with its events behind."""
    figure, axes = _panels(len(videos), height)
    for axis, analysed in zip(axes, videos, strict=True):
        for event in analysed.events:
            axis.axvspan(event.start, event.end, color=_EVENT, alpha=0.45, linewidth=0)
        axis.set_xlim(0, analysed.duration)
        axis.set_title(analysed.video, loc="left", fontsize=9)
    return figure, axes


def _times(analysed: VideoAnalysis) -> list[float]:
    frames = len(analysed.salient_T)
    return [(t + 0.5) * analysed.duration / frames for t in range(frames)]


def _save(figure: Any, path: Path, dpi: int = 140) -> Path:
    figure.savefig(path, dpi=dpi)
    _pyplot().close(figure)
    return path


def draw(
    model: Path,
    annotations: Path | Sequence[Path],
    features: Path,
    speech: Path | None,
    target: Path,
    *,
    videos: int,
    subset: str | None = None,
) -> list[Path]:
    """The figures of one model: of some videos, and of saliency over all of them."""
    loaded = open_model(model)
    read = Videos.read(annotations, features, speech, subset=subset)
    analysed_videos = list(analyse(loaded, read, range(min(videos, len(read)))))
    target.mkdir(parents=True, exist_ok=True)
    drawn = [transition_sharpness(analysed_videos, target / "sharpness.png")]
    if loaded.config.saliency is not None:
        drawn.append(saliency_over_time(analysed_videos, target / "saliency.png"))
        everywhere = analyse(loaded, read, range(len(read)), methods=())
        drawn += saliency_by_place(list(everywhere), target / "saliency-inside-outside.png")
    if any(analysed.anchor_T is not None for analysed in analysed_videos):
        drawn.append(anchors_over_time(analysed_videos, target / "anchors.png"))
    drawn += _accounts(loaded, replace(read, ids=read.ids[:videos]), target)
    return drawn + [
        segmentations(analysed, target / f"segments-{analysed.video}.png")
        for analysed in analysed_videos
        if analysed.segments
    ]


def _accounts(loaded: Loaded, videos: Videos, target: Path) -> list[Path]:
    """The video that the model describes best and, as a failure case, the worst one."""
    predictions = caption_videos(loaded, videos)
    references = {video: videos.annotations[video] for video in videos.ids}
    report = score(as_annotations(predictions, videos), references, metrics=("soda",))
    ranked = sorted(zip(report.per_video["soda_c"].tolist(), report.videos, strict=True))
    chosen = {"qualitative": ranked[-1], "failure": ranked[0]}
    return [
        account(
            tuple(usable_events(videos.annotations[video])),
            predictions[video].events,
            videos.annotations[video].duration or 0.0,
            f"{video}, predicted: SODA_c {100 * value:.2f}",
            target / f"{name}.png",
        )
        for name, (value, video) in chosen.items()
        if name == "qualitative" or len(ranked) > 1
    ]


def correlate(
    models: Sequence[Path],
    annotations: Path | Sequence[Path],
    features: Path,
    speech: Path | None,
    target: Path,
    *,
    videos: int | None,
    subset: str | None = None,
) -> list[Path]:
    """Segment quality of several models against their CIDEr and METEOR: a figure and a table."""
    read = Videos.read(annotations, features, speech, subset=subset)
    read = replace(read, ids=read.ids[:videos])
    # A short name for each folder: a run's own, and whole paths where those are not enough.
    named = {(path.parent if path.name in ("best", "last") else path).name: path for path in models}
    if len(named) < len(models):
        named = {str(path): path for path in models}
    rows = {name: _qualities(model, read) for name, model in named.items()}
    target.mkdir(parents=True, exist_ok=True)
    columns = (*INDICATORS, "CIDEr", "METEOR")
    with replacing(target / "correlation.csv") as file:
        writer = csv.writer(file)
        writer.writerow(["model", *columns])
        for name, values in rows.items():
            writer.writerow([name, *(values[column] for column in columns)])
    return [quality_against_captions(rows, target / "correlation.png"), target / "correlation.csv"]


def _qualities(model: Path, videos: Videos) -> dict[str, float]:
    loaded = open_model(model)
    if loaded.config.retrieval is None:
        raise ConfigError(f"{model}: retrieves nothing, so it has no segments; leave it out")
    predictions = caption_videos(loaded, videos)
    fit = segment_quality(retrieving_segments(predictions, videos), videos)
    return fit | headline_scores(as_annotations(predictions, videos), videos)
