"""`starc score` and `starc doctor` as a person runs them."""

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


def starc(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "starc", *map(str, arguments)],
        capture_output=True,
        encoding="utf-8",
        env={**os.environ, "COLUMNS": "120", "NO_COLOR": "1", **environment},
        timeout=300,
    )


def test_a_table_with_its_signature(eval_data: Path) -> None:
    ran = starc("score", eval_data / "own_small.json", eval_data / "own_small_ref.json")
    assert ran.returncode == 0, ran.stderr
    assert "40 of 40 videos predicted, 234 events" in ran.stdout
    assert "protocol:published | refs:1 | videos:40/40" in ran.stdout
    assert any(line.split()[:2] == ["CIDEr", "253.04"] for line in ran.stdout.splitlines())
    assert ran.stderr == ""


def test_json_and_rows_per_video(eval_data: Path, tmp_path: Path) -> None:
    rows = tmp_path / "rows.csv"
    ran = starc(
        "score", eval_data / "own_small.json", eval_data / "own_small_ref.json", "--json",
        "--per-video", rows,
    )  # fmt: skip
    golden = json.loads((eval_data / "golden.json").read_text())["own_small"]
    report = json.loads(ran.stdout)
    assert report["metrics"]["CIDEr"] == pytest.approx(golden["metrics"]["CIDEr"], abs=1e-12)
    with rows.open() as file:
        table = list(csv.DictReader(file))
    assert len(table) == 40
    mean = sum(float(row["CIDEr"]) for row in table) / 40
    assert mean == pytest.approx(golden["metrics"]["CIDEr"], abs=1e-12)


def test_compare_prints_both(eval_data: Path) -> None:
    files = [eval_data / "own_small.json", eval_data / "own_small_ref.json"]
    ran = starc("score", *files, "--compare", files[0])
    assert ran.returncode == 0, ran.stderr
    assert "95 % interval" in ran.stdout
    ran = starc("score", *files, "--compare", files[0], "--json")
    assert {each["difference"] for each in json.loads(ran.stdout)["differences"]} == {0.0}


def test_bad_input_is_one_line_and_exit_2(eval_data: Path, tmp_path: Path) -> None:
    predictions, reference = eval_data / "own_small.json", eval_data / "own_small_ref.json"
    rows = tmp_path / "rows.csv"
    half = json.loads(predictions.read_text())
    half["results"].pop("video000")
    (tmp_path / "half.json").write_text(json.dumps(half))
    (tmp_path / "broken.json").write_text('{"results": ')
    (tmp_path / "none.json").write_text('{"results": {}}')
    for files, says in [
        ((tmp_path / "half.json", reference), "39 of 40 reference videos predicted"),
        ((tmp_path / "broken.json", reference), "line 1 column 13"),
        ((tmp_path / "none.json", reference), "none of its 0 videos"),
        ((predictions, predictions), "prediction file, not a reference"),
        ((tmp_path / "missing.json", reference), "no such file"),
    ]:
        ran = starc("score", *files, "--per-video", rows)
        assert ran.returncode == 2, (says, ran)
        assert says in ran.stderr
        assert ran.stderr.count("\n") == 1
        assert ran.stdout == ""
        assert not rows.exists()
    ran = starc("score", tmp_path / "half.json", reference, "--allow-missing")
    assert ran.returncode == 0
    assert "note: 1 reference videos have no prediction" in ran.stderr
    assert starc("score", predictions, reference, "--protocol", "mine").returncode == 2
    ran = starc("score", predictions, reference, "--metrics", "soda,mine")
    assert ran.returncode == 2 and "'mine' is not one of captions" in " ".join(ran.stderr.split())
    ran = starc("score", predictions, reference, "--per-video", tmp_path / "no" / "rows.csv")
    assert ran.returncode == 2
    assert "there is no folder" in ran.stderr


def test_metrics_that_are_asked_for(eval_data: Path) -> None:
    files = eval_data / "own_small.json", eval_data / "own_small_ref.json"
    ran = starc("score", *files, "--metrics", "segmentation,repetition", "--json")
    assert ran.returncode == 0, ran.stderr
    names = {*json.loads(ran.stdout)["metrics"]}
    assert {"Pk", "WindowDiff", "Boundary_similarity", "Rep_4"} <= names and "CIDEr" not in names


def test_help_needs_no_torch() -> None:
    code = (
        "import sys; sys.argv = ['starc', '--help']\n"
        "from starc.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'transformers', 'numpy', 'av'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, encoding="utf-8")
    assert ran.returncode == 0, ran.stderr
    assert "score" in ran.stdout


def test_doctor() -> None:
    ran = starc("doctor")
    assert ran.returncode == 0, ran.stderr
    assert "torch" in ran.stdout
    findings = {
        finding["name"]: finding for finding in json.loads(starc("doctor", "--json").stdout)
    }
    assert findings["torch"]["ok"]
    assert findings["fast METEOR"]["ok"]
    assert all(finding["advice"] for finding in findings.values() if not finding["ok"])
