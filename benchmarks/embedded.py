"""Every score of docs/model-card.md: the embedded model on YouCook2's validation videos.

    python benchmarks/embedded.py [DATA] [--prepared FOLDER] [--model FOLDER] [--beams 4]
        [--ways 0 1 2 3] [--quick]

A way takes some 40 CPU minutes: 0 speech only (the default), 1 with training captions as datastore,
2 and 3 with recognised actions and with simulated vision.

DATA is $STARC_SHARED/data unless named. Features, speech and annotations are prepared first, which
takes some minutes, unless a folder of recipes/prepare_youcook2.py is named. The model's settings
were chosen on the first 100 videos (`choose`); `report` are the other 302.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from measure import row, shared

from starc.inference.pipeline import EMBEDDED
from starc.training.evaluate import Evaluation, evaluate
from starc_eval import score
from starc_eval.annotations import VideoAnnotation, read_references

ROOT = Path(__file__).parents[1]
SHOWN = {"CIDEr": "CIDEr", "METEOR": "METEOR", "soda_c": "SODA_c", "Bleu_4": "BLEU_4"}
SHOWN |= {"F1": "F1", "Precision": "P", "Recall": "R"}
WAYS = (
    # name, features, datastore
    ("speech only, own datastore", "speech", "cooking"),
    ("speech only, training captions", "speech", "datastore"),
    ("speech and recognised actions, own datastore", "evidence", "cooking"),
    ("speech and simulated vision, own datastore", "simulated", "cooking"),
)


def main() -> None:
    """Prepare, caption, score, print."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("data", type=Path, nargs="?")
    arguments.add_argument("--prepared", type=Path)
    arguments.add_argument("--model", type=Path, default=EMBEDDED)
    arguments.add_argument("--beams", type=int, default=4)
    every = range(len(WAYS))
    arguments.add_argument("--ways", type=int, nargs="+", choices=every, default=[0])
    arguments.add_argument(
        "--quick", action="store_true", help="one way, greedily, of prepared data"
    )
    options = arguments.parse_args()
    if options.prepared is None and options.data is None:
        options.data = shared("data")
    if options.quick:
        if options.prepared is None:
            print("skipped: data is prepared in some minutes; name --prepared FOLDER")
            return
        options.ways, options.beams = [0], 1
    with tempfile.TemporaryDirectory() as folder:
        prepared = options.prepared or _prepared(options.data, Path(folder))
        row(["", "videos", *SHOWN.values(), "saliency AUC"])
        row(["---", *["---:"] * (len(SHOWN) + 2)])
        for name, features, store in (WAYS[way] for way in options.ways):
            found = evaluate(
                options.model,
                prepared / "validation.json",
                prepared / f"{features}.safetensors",
                prepared / "speech.json",
                store=prepared / store,
                beams=options.beams,
            )
            for part in ("choose", "report", "validation"):
                row(_cells(f"{name}: {part}", found, read_references(prepared / f"{part}.json")))


def _prepared(data: Path, out: Path) -> Path:
    sys.path.insert(0, str(ROOT / "recipes"))
    from prepare_youcook2 import prepare  # type: ignore[import-not-found]

    prepare(data, out)
    return out


def _cells(name: str, found: Evaluation, wanted: dict[str, VideoAnnotation]) -> list[str]:
    metrics = score({video: found.predictions[video] for video in wanted}, wanted).metrics
    cells = [f"{100 * metrics[key]:.2f}" for key in SHOWN]
    auc = (
        ""
        if found.saliency_auc is None or "validation" not in name
        else f"{found.saliency_auc:.3f}"
    )
    return [name, str(len(wanted)), *cells, auc]


if __name__ == "__main__":
    main()
