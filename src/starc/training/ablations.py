"""Run the rows of a table of the paper, each a training of its own, and write the table.

A row is a `starc train` in its own folder and its own process, so rows run in parallel where
asked, a killed ablation goes on with the rows (and inside the row) that are not done, and one
failing row does not stop the others. The table has the paper's figures beside ours, and under it
each row is compared with the first, video by video.
"""

from __future__ import annotations

import csv
import io
import json
import re
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from starc.config import suggest
from starc.errors import ConfigError, StarcError
from starc.files.atomic import replacing
from starc.retrieval.captions import FACTS, read_facts
from starc.retrieval.datastore import open_datastore
from starc.retrieval.hierarchy import HICM2, MEDOIDS, HierarchicalStore
from starc.training.run import METRICS, PREDICTIONS, RECIPE, wait_until_free
from starc.training.tables import Ablation, Row
from starc_eval import compare, score
from starc_eval.meteor import Meteor

SHOWN = {"CIDEr": "CIDEr", "METEOR": "METEOR", "soda_c": "SODA_c", "Bleu_4": "BLEU_4"}
SHOWN |= {"F1": "F1", "Precision": "P", "Recall": "R"}
HIERARCHICAL = "hierarchical"
"""The datastore that can be built from the run's own."""


@dataclass(frozen=True, slots=True)
class Result:
    """The best validation of a row, over seeds."""

    row: Row
    metrics: tuple[Mapping[str, float], ...]
    """A dictionary per finished seed, raw."""
    problem: str | None = None
    predictions: tuple[Path, ...] = ()
    """Of the same validations."""

    def mean(self, name: str) -> float | None:
        """Mean over seeds, × 100."""
        values = [100 * each[name] for each in self.metrics]
        return statistics.fmean(values) if values else None

    def spread(self, name: str) -> float | None:
        """Standard deviation over seeds, × 100; None for one seed."""
        values = [100 * each[name] for each in self.metrics]
        return statistics.stdev(values) if len(values) > 1 else None


def run_rows(
    ablation: Ablation,
    arguments: Sequence[str],
    folder: Path,
    *,
    datastores: Mapping[str, Path],
    own: Path | None,
    seeds: Sequence[int] = (0,),
    jobs: int = 1,
    on_line: Callable[[str], None] = lambda line: None,
) -> list[Result]:
    """Train every row with every seed; `arguments` are those of `starc train`, recipe first."""
    if jobs < 1 or not seeds:
        raise ConfigError(f"an ablation needs a job and a seed (found {jobs} and {len(seeds)})")
    folder.mkdir(parents=True, exist_ok=True)
    datastores = with_hierarchy(ablation, datastores, own, folder)

    def run(row: Row, seed: int) -> str | None:
        place = folder / f"{slug(row.name)}-seed{seed}"
        wait_until_free(place)  # a killed ablation may have left its row at work
        if finished(place):
            return None
        store = datastores.get(row.datastore) if row.datastore else own
        if row.datastore and store is None:
            return f"no datastore given (--with {row.datastore}=FOLDER)"
        command = [sys.executable, "-P", "-m", "starc", "train", *arguments, "--run", str(place)]
        for override in (*row.overrides, f"train.seed={seed}"):
            command += ["--set", override]
        command += ["--datastore", str(store)] if store else []
        command += ["--resume"] if (place / RECIPE).exists() else []
        ended = subprocess.run(command, capture_output=True, text=True)
        if ended.returncode:
            return (ended.stderr.strip() or f"exit {ended.returncode}").splitlines()[-1]
        on_line(f"{row.name}, seed {seed}: done")
        return None

    with ThreadPoolExecutor(max_workers=jobs) as pool:
        waiting = {
            (row.name, seed): pool.submit(run, row, seed) for row in ablation.rows for seed in seeds
        }
    results = []
    for row in ablation.rows:
        problems = [waiting[row.name, seed].result() for seed in seeds]
        runs = [
            folder / f"{slug(row.name)}-seed{seed}"
            for seed, problem in zip(seeds, problems, strict=True)
            if problem is None
        ]
        shown = with_own_figures(row, datastores.get(row.datastore or ""))
        metrics = tuple(map(best, runs))
        predictions = tuple(run / "best" / PREDICTIONS for run in runs)
        problem = next((problem for problem in problems if problem), None)
        results.append(Result(shown, metrics, problem, predictions))
    return results


def named_datastores(ablation: Ablation, pairs: Sequence[str]) -> dict[str, Path]:
    """`coco=FOLDER` as a datastore by its name in the table; `hierarchical` alone is built."""
    names = [row.datastore for row in ablation.rows if row.datastore]
    folders = {}
    for name, _, folder in (pair.partition("=") for pair in pairs):
        if name not in names:
            hint = suggest(name, names) if names else "no row of this table has its own"
            raise ConfigError(f"--with {name}: unknown datastore; {hint}")
        if folder:
            folders[name] = Path(folder)
        elif name != HIERARCHICAL:
            raise ConfigError(f"--with {name}: a folder is missing; write --with {name}=FOLDER")
    return folders


def with_hierarchy(
    ablation: Ablation, datastores: Mapping[str, Path], own: Path | None, folder: Path
) -> Mapping[str, Path]:
    """A hierarchical datastore of the run's own captions, where a row needs one and none is given.

    An ablation that goes on finds it where it was built.
    """
    wanted = any(row.datastore == HIERARCHICAL for row in ablation.rows)
    if not wanted or own is None or HIERARCHICAL in datastores:
        return datastores
    built = folder / "datastore-hierarchical"
    if not built.exists():
        HierarchicalStore(open_datastore(own).exact).save(built)
    return {**datastores, HIERARCHICAL: built}


def with_own_figures(row: Row, store: Path | None) -> Row:
    """The row; without the paper's figures where its datastore is made in another way.

    The paper's hierarchical one is HiCM²'s memory, written by a language model.
    """
    if row.datastore != HIERARCHICAL or store is None or not (store / FACTS).is_file():
        return row
    source = read_facts(store).get("summaries", MEDOIDS)
    return row if source == HICM2 else replace(row, name=f"{row.name} ({source})", paper={})


def slug(name: str) -> str:
    """A row's name as a folder's."""
    return re.sub(r"[^\w.]+", "-", name.lower()).strip("-")


def finished(folder: Path) -> bool:
    """The run has trained to its last step and validated."""
    lines = _lines(folder)
    steps = [line["steps"] for line in lines if "steps" in line]
    return bool(steps) and any("validation" in line and line["step"] == steps[-1] for line in lines)


def best(folder: Path) -> dict[str, float]:
    """The best validation of a run, by the metric its recipe selects."""
    select = json.loads((folder / RECIPE).read_text("utf-8"))["train"]["select"]
    validations: list[dict[str, float]] = [
        line["validation"] for line in _lines(folder) if "validation" in line
    ]
    if not validations:
        raise StarcError(f"{folder}: no validation in {METRICS}; give --validation annotations")
    return max(validations, key=lambda metrics: metrics[select])


def markdown(ablation: Ablation, results: Sequence[Result]) -> str:
    """The table, with the paper's numbers in brackets."""
    lines = [
        f"| {ablation.title} | " + " | ".join(SHOWN.values()) + " |",
        "|---|" + "---:|" * len(SHOWN),
    ]
    for result in results:
        if result.problem and not result.metrics:
            lines.append(
                f"| {result.row.name} | not run: {result.problem} |" + " |" * (len(SHOWN) - 1)
            )
            continue
        cells = [_cell(result, name) for name in SHOWN]
        lines.append(f"| {result.row.name} | " + " | ".join(cells) + " |")
    lines.append("")
    lines.append("× 100; in brackets the paper's number on YouCook2 with its full-size model.")
    return "\n".join(lines) + "\n"


def significance(results: Sequence[Result], references: Sequence[Path], subset: str | None) -> str:
    """Each row minus the first, with the interval of a paired bootstrap over validation videos."""
    meteor = cache(Meteor)
    scored = [
        (
            result.row.name,
            [score(each, references, subset=subset, meteor=meteor) for each in result.predictions],
        )
        for result in results
        if references and result.predictions and all(each.is_file() for each in result.predictions)
    ]
    if len(scored) < 2 or scored[0][0] != results[0].row.name:
        return ""
    lines = [
        f"| minus {scored[0][0]} | " + " | ".join(SHOWN.values()) + " |",
        "|---|" + "---:|" * len(SHOWN),
    ]
    for name, reports in scored[1:]:
        by_metric = {each.metric: each for each in compare(scored[0][1], reports)}
        cells = []
        for each in (by_metric[metric] for metric in SHOWN):
            text = f"{100 * each.difference:+.2f} ({100 * each.low:+.2f} … {100 * each.high:+.2f})"
            cells.append(f"**{text}**" if each.clear else text)
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    lines += ["", "In brackets 95 % of a paired bootstrap over videos, a video counting with its"]
    lines += ["mean over seeds; bold where that leaves zero out."]
    return "\n".join(lines) + "\n"


def rows(results: Sequence[Result]) -> str:
    """The same as CSV."""
    text = io.StringIO()
    writer = csv.writer(text)
    columns = [f"{name}{suffix}" for name in SHOWN for suffix in ("", " sd", " paper")]
    writer.writerow(["row", "seeds", *columns, "problem"])
    for result in results:
        cells: list[float | str | None] = []
        for name in SHOWN:
            cells += [result.mean(name), result.spread(name), result.row.paper.get(name)]
        writer.writerow([result.row.name, len(result.metrics), *cells, result.problem or ""])
    return text.getvalue()


def write(
    ablation: Ablation,
    results: Sequence[Result],
    folder: Path,
    *,
    references: Sequence[Path] = (),
    subset: str | None = None,
) -> list[Path]:
    """table.md, table.csv and the plot of a figure; `references` of validation compare the rows."""
    written = [folder / "table.md", folder / "table.csv"]
    tables = [markdown(ablation, results), significance(results, references, subset)]
    texts = ("\n".join(table for table in tables if table), rows(results))
    for path, text in zip(written, texts, strict=True):
        with replacing(path) as file:
            file.write(text)
    if ablation.kind != "table" and any(result.metrics for result in results):
        from starc.training.figures import plot_ablation

        written.append(plot_ablation(ablation, results, folder / "figure.png"))
    return written


def _cell(result: Result, name: str) -> str:
    mean, spread, paper = result.mean(name), result.spread(name), result.row.paper.get(name)
    text = "–" if mean is None else f"{mean:.2f}"
    text += f" ± {spread:.2f}" if spread is not None else ""
    return text + (f" ({paper:.2f})" if paper is not None else "")


def _lines(folder: Path) -> list[dict[str, Any]]:
    path = folder / METRICS
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text("utf-8").splitlines() if line.endswith("}")]
