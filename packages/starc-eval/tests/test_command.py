"""`starc-eval` as a person runs it, in an environment that need not have starc or torch."""

import csv
import json
import os
import re
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

import starc_eval
from starc_eval.command import parser

README = (Path(__file__).parents[1] / "README.md").read_text("utf-8")


def ran(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "starc_eval", *map(str, arguments)],
        capture_output=True,
        encoding="utf-8",
        env={**os.environ, "NO_COLOR": "1"},
        timeout=300,
    )


def test_a_table_with_its_signature(data: Path) -> None:
    done = ran(data / "eval/own_small.json", data / "eval/own_small_ref.json")
    assert done.returncode == 0 and done.stderr == "", done.stderr
    *_, counted, signature = done.stdout.splitlines()
    assert counted == "40 of 40 videos predicted, 234 events"
    assert signature.endswith(f"refs:1 | videos:40/40 | starc-eval:{version('starc-eval')}")
    assert any(line.split()[:2] == ["CIDEr", "253.04"] for line in done.stdout.splitlines())


def test_json_rows_per_video_and_a_comparison(data: Path, tmp_path: Path) -> None:
    files = [data / "eval/own_small.json", data / "eval/own_small_ref.json"]
    golden = json.loads((data / "eval/golden.json").read_text())["own_small"]["metrics"]["CIDEr"]
    rows = tmp_path / "rows.csv"
    done = ran(*files, "--json", "--compare", files[0], "--per-video", rows)
    report = json.loads(done.stdout)
    assert report["first"]["metrics"]["CIDEr"] == pytest.approx(golden, abs=1e-12)
    assert {each["difference"] for each in report["differences"]} == {0.0}
    with rows.open() as file:
        values = [float(row["CIDEr"]) for row in csv.DictReader(file)]
    assert len(values) == 40 and sum(values) / 40 == pytest.approx(golden, abs=1e-12)


def test_metrics_are_chosen_by_name(data: Path, tmp_path: Path) -> None:
    files = data / "eval/own_small.json", data / "eval/own_small_ref.json"
    rows = tmp_path / "rows.csv"
    done = ran(*files, "--metrics", "soda_m, segmentation,repetition", "--per-video", rows)
    assert done.returncode == 0 and done.stderr == "", done.stderr
    for words in ("SODA_m", "Pk", "WindowDiff", "Boundary similarity", "Localised duplicates"):
        assert words in done.stdout
    assert "CIDEr" not in done.stdout
    (line,) = [line.split() for line in done.stdout.splitlines() if line.startswith("Duplicates")]
    assert len(line) == 3  # of predictions and of references
    with rows.open() as file:
        assert {"soda_m", "Pk", "Rep_4"} <= {*next(csv.reader(file))}
    done = ran(*files, "--metrics", "soda,bertscore")
    assert done.returncode == 2 and "'bertscore' is not one of captions" in done.stderr
    done = ran(*files, "--metrics", "soda", "--protocol", "paragraph")
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert "paragraph does not have soda" in done.stderr


def test_a_file_that_is_there_is_replaced_only_if_asked(data: Path, tmp_path: Path) -> None:
    files = [data / "eval/own_small.json", data / "eval/own_small_ref.json"]
    rows = tmp_path / "rows.csv"
    rows.write_text("mine")
    done = ran(*files, "--per-video", rows)
    assert done.returncode == 1 and done.stdout == "" and rows.read_text() == "mine"
    assert done.stderr == f"starc-eval: {rows}: is there already; --overwrite replaces it\n"
    assert ran(*files, "--per-video", rows, "--overwrite").returncode == 0
    assert rows.read_text().startswith("video,")


def test_bad_input_is_one_line_and_exit_2(data: Path, tmp_path: Path) -> None:
    predictions, reference = data / "eval/own_small.json", data / "eval/own_small_ref.json"
    (tmp_path / "broken.json").write_text('{"results": ')
    for files, says in [
        ((tmp_path / "broken.json", reference), "line 1 column 13"),
        ((predictions, predictions), "prediction file, not a reference"),
        ((tmp_path / "missing.json", reference), "no such file"),
    ]:
        done = ran(*files)
        assert done.returncode == 2 and done.stdout == ""
        assert says in done.stderr and done.stderr.count("\n") == 1
        assert done.stderr.startswith("starc-eval: ")


def test_it_needs_neither_starc_nor_torch(data: Path) -> None:
    code = (
        "import sys; sys.modules.update(dict.fromkeys(['torch', 'starc', 'typer', 'rich']))\n"
        "from starc_eval import score\n"
        f"report = score({str(data / 'eval/own_small.json')!r}, "
        f"{str(data / 'eval/own_small_ref.json')!r})\n"
        "assert round(report.metrics['CIDEr'], 4) == 2.5304"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, encoding="utf-8")
    assert done.returncode == 0, done.stderr


def test_the_readme_names_every_option() -> None:
    options = {name for action in parser()._actions for name in action.option_strings}
    named = re.findall(r"`(--[\w-]+)", README)
    assert {*named} == {name for name in options if name.startswith("--")} - {"--help", "--version"}


def test_the_python_of_the_readme_runs(data: Path, tmp_path: Path) -> None:
    for name, source in (("predictions", ""), ("other", ""), ("reference", "_ref")):
        shutil.copy(data / f"eval/own_small{source}.json", tmp_path / f"{name}.json")
    (block,) = re.findall(r"```python\n(.*?)```", README, flags=re.S)
    done = subprocess.run([sys.executable, "-c", block], cwd=tmp_path, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()


def test_public_names() -> None:
    assert {*starc_eval.__all__} == {"AnnotationError", "Report", "StarcError", "compare", "score"}
    for name in starc_eval.__all__:
        assert getattr(starc_eval, name).__module__.startswith("starc_eval.")
    with pytest.raises(AttributeError, match="nosuch"):
        _ = starc_eval.nosuch


def test_no_module_imports_starc() -> None:
    for file in Path(starc_eval.__file__).parent.glob("*.py"):
        text = file.read_text("utf-8")
        assert "from starc." not in text and "import starc\n" not in text, file.name
