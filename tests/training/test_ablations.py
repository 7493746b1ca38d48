"""Every table and figure of the paper from the command line, and the datastores of its rows."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from starc.cli import app
from starc.errors import ConfigError
from starc.retrieval import datastore
from starc.retrieval.datastore import CaptionStore
from starc.retrieval.hierarchy import HierarchicalStore
from starc.training.ablations import (
    SHOWN,
    Result,
    best,
    finished,
    named_datastores,
    run_rows,
    slug,
    with_hierarchy,
    write,
)
from starc.training.tables import ABLATIONS, Ablation, Row, ablation
from starc_eval import score
from starc_eval.annotations import prediction_file, read_predictions
from support.small_training import SMALL, WIDTH, files


@pytest.fixture(scope="module")
def arguments(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """All that `starc ablate NAME tiny` needs but the folder, for videos of a few frames."""
    folder = tmp_path_factory.mktemp("data")
    given = [*files(folder), "--datastore", str(folder / "datastore"), "--jobs", "2"]
    for setting in SMALL:
        given += ["--set", setting]
    for name in ("cc3m", "coco"):
        captions = [f"{name} {n}" for n in range(20)]
        CaptionStore(captions, torch.randn(20, WIDTH)).save(folder / name)
    return given


def ran(name: str, folder: Path, arguments: list[str]) -> str:
    """What the command prints, once it has ended well."""
    more = []
    if name == "datastore":
        data = Path(arguments[arguments.index("--datastore") + 1]).parent
        for other in ("cc3m", "coco"):
            more += ["--with", f"{other}={data / other}"]
    result = CliRunner().invoke(
        app, ["ablate", name, "tiny", "--run", str(folder), *arguments, *more]
    )
    assert result.exit_code == 0, f"{result.output}\n{result.exception}"
    return result.output


@pytest.mark.slow
@pytest.mark.parametrize("name", ABLATIONS)
def test_every_ablation(name: str, tmp_path: Path, arguments: list[str]) -> None:
    chosen = ablation(name)
    folder = tmp_path / "run"
    ran(name, folder, arguments)
    table = (folder / "table.md").read_text().splitlines()
    with (folder / "table.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["row"] for row in rows] == [row.name for row in chosen.rows]
    for row, expected, line in zip(rows, chosen.rows, table[2:], strict=False):
        assert line.startswith(f"| {expected.name} | ") and "not run" not in line
        assert row["problem"] == "" and row["seeds"] == "1"
        assert all(0 <= float(row[metric]) <= 1000 for metric in SHOWN)
        recipe = json.loads((folder / f"{slug(expected.name)}-seed0/recipe.json").read_text())
        assert recipe["train"]["epochs"] == 1
    if chosen.kind != "table":
        assert (folder / "figure.png").read_bytes().startswith(b"\x89PNG")
    recipes = {(folder / f"{slug(row.name)}-seed0/recipe.json").read_text() for row in chosen.rows}
    assert len(recipes) == (1 if name == "datastore" else len(chosen.rows))


@pytest.mark.slow
def test_an_ablation_goes_on_where_it_stopped(tmp_path: Path, arguments: list[str]) -> None:
    folder = tmp_path / "run"
    assert "done" in ran("pooling", folder, arguments)
    before = (folder / "table.md").read_text()
    assert "done" not in ran("pooling", folder, arguments)
    shutil.rmtree(folder / "uniform-seed0")
    assert ran("pooling", folder, arguments).count("done") == 1
    assert (folder / "table.md").read_text() == before
    assert all(finished(place) and "CIDEr" in best(place) for place in folder.glob("*-seed0"))
    assert "| minus uniform | CIDEr" in before


def test_rows_are_compared_with_the_first_video_by_video(tmp_path: Path, eval_data: Path) -> None:
    reference, predicted = eval_data / "own_medium_ref.json", eval_data / "own_medium.json"
    every_other = {name: list(x)[::2] for name, x in read_predictions(predicted).items()}
    worse = tmp_path / "worse.json"
    worse.write_text(prediction_file(every_other))
    metrics = dict.fromkeys(SHOWN, 0.5)
    results = [
        Result(Row("whole"), (metrics, metrics), predictions=(predicted, predicted)),
        Result(Row("fewer"), (metrics, metrics), predictions=(worse, predicted)),
        Result(Row("lost"), (), problem="out of memory"),
    ]
    written, _ = write(ablation("pooling"), results, tmp_path, references=[reference])
    table = written.read_text().splitlines()
    start = next(n for n, line in enumerate(table) if line.startswith("| minus whole | CIDEr"))
    assert [line.split(" | ")[0] for line in table[start + 2 :] if line[:1] == "|"] == ["| fewer"]
    recall = table[start + 2].split(" | ")[-1]
    fewer, whole = (score(file, reference).metrics["Recall"] for file in (worse, predicted))
    assert recall.startswith(f"**{50 * (fewer - whole):+.2f} (-")
    # Without the first row, or with one row, there is nothing to compare with.
    for some in (results[1:], results[:1], [results[2], *results[:2]]):
        assert (
            "minus"
            not in write(ablation("pooling"), some, tmp_path, references=[reference])[0].read_text()
        )


def test_a_hierarchical_datastore_is_built_from_the_own(tmp_path: Path) -> None:
    chosen, own = ablation("datastore"), tmp_path / "own"
    CaptionStore([f"step {n}" for n in range(32)], torch.randn(32, WIDTH)).save(own)
    found = with_hierarchy(chosen, {}, own, tmp_path)["hierarchical"]
    assert isinstance(datastore.open_datastore(found), HierarchicalStore)
    assert len(datastore.open_datastore(found)) == 32 + 4 + 1
    written = (found / "datastore.json").stat().st_mtime_ns
    assert with_hierarchy(chosen, {}, own, tmp_path)["hierarchical"] == found
    assert (found / "datastore.json").stat().st_mtime_ns == written
    given = {"hierarchical": tmp_path / "mine"}
    assert with_hierarchy(chosen, given, own, tmp_path) == given
    assert with_hierarchy(chosen, {}, None, tmp_path) == {}
    assert with_hierarchy(ablation("pooling"), {}, own, tmp_path) == {}


def test_datastores_of_rows_by_name() -> None:
    chosen = ablation("datastore")
    assert named_datastores(chosen, ["coco=a=b", "hierarchical"]) == {"coco": Path("a=b")}
    with pytest.raises(ConfigError, match="did you mean 'coco'"):
        named_datastores(chosen, ["cocoa=x"])
    with pytest.raises(ConfigError, match="write --with coco=FOLDER"):
        named_datastores(chosen, ["coco"])
    with pytest.raises(ConfigError, match="no row of this table"):
        named_datastores(ablation("pooling"), ["coco=x"])


def test_rows_do_not_run_what_lies_in_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "starc").mkdir()
    (tmp_path / "starc/__init__.py").write_text("open('ran', 'w').close()")
    monkeypatch.chdir(tmp_path)
    table = Ablation("One", (Row("as it is"),))
    (result,) = run_rows(table, ["nothing"], tmp_path / "run", datastores={}, own=None)
    assert result.problem and not (tmp_path / "ran").exists()
