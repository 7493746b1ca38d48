"""Moments and highlights: golden numbers of QVHighlights' evaluator, and grounding by hand."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from starc_eval import AnnotationError, compare, score
from starc_eval.annotations import VideoAnnotation
from starc_eval.command import main
from starc_eval.queries import clip_precision, overlap


def test_golden_numbers_of_qvhighlights(data: Path) -> None:
    """Our own queries through the evaluator that came with the paper (moment_detr)."""
    files = data / "eval/own_queries.jsonl", data / "eval/own_queries_ref.jsonl"
    golden = json.loads((data / "eval/own_queries_golden.json").read_text())
    report = score(*files, protocol="qvhighlights2021")
    assert report.metrics == pytest.approx(golden, abs=1e-12)
    assert "protocol:qvhighlights2021 | refs:1 | queries:12/12" in report.signature
    assert {one.metric for one in compare(report, report)} == {*golden}


def test_equal_scores_are_one_level_of_recall() -> None:
    score_C = np.array([0.9, 0.5, 0.5, 0.1, 0.1])
    assert clip_precision(score_C, np.array([0, 1, 1, 0, 0]) > 0) == pytest.approx(2 / 3)
    assert clip_precision(score_C, np.array([1, 0, 0, 0, 1]) > 0) == pytest.approx((1 + 2 / 5) / 2)
    assert clip_precision(score_C, np.zeros(5) > 0) == 0
    assert clip_precision(score_C, np.ones(5) > 0) == 1


def test_overlap_is_exact_at_a_threshold() -> None:
    assert overlap((0, 5), (0, 10)) == 0.5
    assert overlap((3, 3), (3, 3)) == overlap((5, 0), (0, 5)) == overlap((0, 1), (1, 2)) == 0


def record(**more: Any) -> dict[str, Any]:
    return {"qid": 1, "pred_relevant_windows": [[0, 8, 0.5]], **more}


def reference(**more: Any) -> dict[str, Any]:
    windows = {"qid": 1, "duration": 10, "relevant_windows": [[0, 10]]}
    return {**windows, "relevant_clip_ids": [0, 4], "saliency_scores": [[4, 0], [3, 3]], **more}


def write(path: Path, *records: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(each) + "\n" for each in records))
    return path


def test_what_a_file_does_not_have_is_not_scored(tmp_path: Path) -> None:
    wanted = write(tmp_path / "reference.jsonl", reference())
    moments = score(
        write(tmp_path / "a.jsonl", record()), wanted, protocol="qvhighlights2021"
    ).metrics
    assert moments["MR-full-R1@0.7"] == 1 and moments["MR-full-mAP"] == pytest.approx(7 / 10)
    assert not any(name.startswith("HL") for name in moments)
    salient = {"qid": "1", "pred_saliency_scores": [0, 0, 0, 0, 1, 9]}
    highlights = score(
        write(tmp_path / "b.jsonl", salient), wanted, protocol="qvhighlights2021"
    ).metrics
    # The most salient clip lies beyond the video; at "very good" one annotator marked none.
    assert highlights["HL-min-Good-Hit1"] == 0 and "MR-full-mAP" not in highlights
    assert highlights["HL-min-VeryGood-mAP"] == pytest.approx((1 / 5 + 0) / 2)


@pytest.mark.parametrize(
    ("said", "wanted", "message"),
    [
        (record(qid=2), reference(), r"0 of 1 queries predicted, missing 1; predict"),
        ({"vid": "a"}, reference(), "record 1 has no 'qid'"),
        ({"qid": 1}, reference(), "'1' has no pred_relevant_windows or pred_saliency_scores"),
        (record(pred_relevant_windows=[[0]]), reference(), r"expected numbers, found \[\[0\]\]"),
        (record(pred_relevant_windows=[[0, True]]), reference(), "expected numbers"),
        (record(pred_saliency_scores=[float("nan")]), reference(), "expected numbers"),
        (record(pred_saliency_scores=3), reference(), "expected numbers"),
        (record(), reference(relevant_windows=[]), "no relevant window; remove it"),
        (record(), reference(relevant_clip_ids=[0, 5]), "found 5 in 10 s"),
        (record(), reference(relevant_clip_ids=[0, 1.5]), "must be clips"),
        (record(), reference(duration=1e11), "must be clips"),
        (record(), reference(duration=None), "duration: expected numbers"),
        (record(), reference(relevant_clip_ids=[0]), "1 relevant_clip_ids need as many"),
        (record(), reference(relevant_clip_ids=[], saliency_scores=[]), "need as many"),
        (reference(), record(), "in the right order"),
    ],
)
def test_mistakes_name_file_and_query(
    said: dict[str, Any], wanted: dict[str, Any], message: str, tmp_path: Path
) -> None:
    files = write(tmp_path / "said.jsonl", said), write(tmp_path / "reference.jsonl", wanted)
    with pytest.raises(AnnotationError, match=message) as caught:
        score(*files, protocol="qvhighlights2021")
    assert "\n" not in str(caught.value) and ".jsonl: " in str(caught.value)


def test_files_that_are_no_queries(tmp_path: Path) -> None:
    wanted = write(tmp_path / "reference.jsonl", reference())
    bad = tmp_path / "bad.jsonl"
    for text, message in [("", "empty"), ("{", "not JSON Lines"), ("\0", "not text")]:
        bad.write_text(text)
        with pytest.raises(AnnotationError, match=message):
            score(bad, wanted, protocol="qvhighlights2021")
    twice = write(bad, record(), record())
    with pytest.raises(AnnotationError, match="'1' occurs twice"):
        score(twice, wanted, protocol="qvhighlights2021")
    with pytest.raises(AnnotationError, match="no such file"):
        score(tmp_path / "none.jsonl", wanted, protocol="qvhighlights2021")
    with pytest.raises(AnnotationError, match="name two files"):
        score(wanted, [wanted, wanted], protocol="qvhighlights2021")


def test_files_that_have_different_things_are_refused(tmp_path: Path) -> None:
    salient = {"qid": 2, "pred_saliency_scores": [1.0]}
    mixed = write(tmp_path / "mixed.jsonl", record(), salient)
    both = write(tmp_path / "both.jsonl", reference(), reference(qid=2))
    with pytest.raises(
        AnnotationError, match=r"mixed.jsonl: query '2' has no windows, others have"
    ):
        score(mixed, both, protocol="qvhighlights2021")
    extra = write(tmp_path / "extra.jsonl", record(), record(qid=2, pred_saliency_scores=[1.0]))
    with pytest.raises(AnnotationError, match="query '1' has no saliency, others have"):
        score(extra, both, protocol="qvhighlights2021")
    windows = {"qid": 2, "relevant_windows": [[0, 10]]}
    said, wanted = write(tmp_path / "a.jsonl", salient), write(tmp_path / "b.jsonl", windows)
    with pytest.raises(
        AnnotationError, match=r"a.jsonl: has no windows, and .*b.jsonl no saliency"
    ):
        score(said, wanted, protocol="qvhighlights2021")


def test_missing_queries_are_refused_or_skipped(tmp_path: Path) -> None:
    said = write(tmp_path / "said.jsonl", record(), record(qid=3))
    wanted = write(tmp_path / "reference.jsonl", reference(), reference(qid=2))
    with pytest.raises(AnnotationError, match="1 of 2 queries predicted, missing 2"):
        score(said, wanted, protocol="qvhighlights2021")
    report = score(said, wanted, protocol="qvhighlights2021", allow_missing=True)
    assert (report.predicted, report.total, report.videos) == (1, 2, ("1",))
    assert [note.split()[0] for note in report.notes] == ["1", "1"]


SAID = {
    "a": VideoAnnotation(((0, 5), (5, 10), (6, 20)), ("Cut the  onion", "fry it", "Fry it"), 20.0),
}
WANTED = {"a": VideoAnnotation(((0, 10), (6, 20), (1, 2)), ("cut the onion", "fry it", "serve"))}


def test_grounding_by_hand() -> None:
    report = score(SAID, WANTED, protocol="grounding")
    # cut: 0.5 in the first answer; fry: 4/15 in the first, 1 in the second; serve: no answer.
    assert report.metrics == pytest.approx(
        {
            "R1@0.3": 1 / 3,
            "R1@0.5": 1 / 3,
            "R1@0.7": 0,
            "R5@0.3": 2 / 3,
            "R5@0.5": 2 / 3,
            "R5@0.7": 1 / 3,
            "mIoU": (0.5 + 4 / 15) / 3,
        }
    )
    assert report.videos == ("a: cut the onion", "a: fry it", "a: serve")
    assert report.notes == ("1 of 3 queries have no answer and count as 0",)
    assert "mIoU | tiou:0.3,0.5,0.7 | protocol:grounding" in report.signature
    # Any of several annotated spans will do.
    again = {"a": VideoAnnotation(((0, 5),), ("cut the onion",))}
    assert score(SAID, [WANTED, again], protocol="grounding").metrics["R1@0.7"] == 1 / 3


@pytest.mark.parametrize("protocol", ["grounding", "qvhighlights2021"])
def test_the_command_prints_queries(
    protocol: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said, wanted = tmp_path / "said.jsonl", tmp_path / "reference.jsonl"
    if protocol == "grounding":
        write(said, {"video": "a", "events": [{"start": 0, "end": 8, "caption": "fry"}]})
        write(wanted, {"video": "a", "events": [{"start": 0, "end": 10, "caption": "Fry"}]})
    else:
        write(said, record())
        write(wanted, reference())
    rows = tmp_path / "rows.csv"
    options = [str(said), str(wanted), "--protocol", protocol, "--per-video", str(rows)]
    with pytest.raises(SystemExit) as ended:
        main([*options, "--compare", str(said)])
    out, err = capsys.readouterr()
    assert ended.value.code == 0, err
    assert "100.00" in out and f"protocol:{protocol}" in out and "Compared" in out
    with rows.open() as file:
        (row,) = csv.DictReader(file)
    assert row["query"] == ("a: fry" if protocol == "grounding" else "1")
