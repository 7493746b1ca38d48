"""The whole evaluator: golden numbers of the published one, and answers where that one crashes."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from starc_eval import compare, report, score
from starc_eval.annotations import VideoAnnotation, read_predictions, read_references
from starc_eval.errors import AnnotationError
from starc_eval.meteor import Meteor, aggregate
from starc_eval.report import Report

OWN = ["own_small", "own_medium", "own_edge"]


@pytest.fixture(scope="module", params=["c", "python"])
def meteor(request: pytest.FixtureRequest, meteor_backend: Any) -> Meteor:
    """Both back ends must give the same numbers."""
    return meteor_backend(request.param)


def assert_golden(report: Report, golden: dict[str, Any]) -> None:
    for name, value in golden["metrics"].items():
        assert report.metrics[name] == pytest.approx(value, abs=1e-12, rel=0), name
    for name, values in golden["per_tiou"].items():
        if name in report.per_tiou:
            assert report.per_tiou[name] == pytest.approx(values, abs=1e-12, rel=0), name
    for scores, expected in zip(report.soda_by_reference, golden.get("soda_prf", []), strict=False):
        assert scores == pytest.approx(tuple(expected), abs=1e-12, rel=0)


@pytest.mark.parametrize("case", OWN)
def test_own_cases(case: str, data: Path, meteor: Meteor) -> None:
    golden = json.loads((data / "eval/golden.json").read_text())[case]
    report = score(
        data / f"eval/{case}.json",
        data / f"eval/{case}_ref.json",
        allow_missing=True,
        meteor=lambda: meteor,
    )
    assert_golden(report, golden)


REFERENCES = {
    "yc2_a_perfect": ["yc2_val"],
    "yc2_b_jitter": ["yc2_val"],
    "yc2_d_edge": ["yc2_val"],
    "anet_b_jitter": ["anet_val_1"],
    "anet_d_edge": ["anet_val_1"],
    "multi_e_jitter": ["multi_ref1", "multi_ref2"],
    "tiny_f_jitter": ["tiny_ref"],
}


@pytest.mark.parametrize("case", REFERENCES)
def test_published_numbers(case: str, shared: Path, meteor: Meteor) -> None:
    folder = shared / "parity/eval"
    golden = json.loads((folder / "GOLDEN.json").read_text())[case]
    report = score(
        folder / f"{case}.json",
        [folder / f"refs/{name}.json" for name in REFERENCES[case]],
        allow_missing=True,
        meteor=lambda: meteor,
    )
    assert_golden(report, golden)


@pytest.fixture(scope="module")
def fast(meteor_backend: Any) -> Any:
    """A maker of the quickest `Meteor` there is."""
    meteor = meteor_backend("auto")
    return lambda: meteor


REFERENCE = {
    "a": VideoAnnotation(((0, 10), (20, 30)), ("crack the eggs", "whisk the eggs"), 40.0),
    "b": VideoAnnotation(((0, 10), (20, 30)), ("heat the pan", "add butter to the pan"), 40.0),
}


def test_missing_videos_are_refused_or_counted(fast: Any) -> None:
    half = {"a": REFERENCE["a"], "z": REFERENCE["b"]}
    with pytest.raises(AnnotationError, match="1 of 2 reference videos predicted, missing b"):
        score(half, REFERENCE, meteor=fast)
    skipped = score(half, REFERENCE, allow_missing=True, meteor=fast)
    zeroed = score(half, REFERENCE, protocol="pdvc", meteor=fast)
    assert (skipped.predicted, skipped.total, skipped.events) == (1, 2, 2)
    for name, value in zeroed.metrics.items():
        assert value == pytest.approx(skipped.metrics[name] / 2), name
    assert skipped.signature != zeroed.signature
    assert "flatters" in skipped.notes[0]
    assert "count as 0" in zeroed.notes[0]
    assert "1 predicted videos are not in the reference" in skipped.notes[1]


def test_perfect_predictions_with_the_published_protocol_of_pdvc_agree(fast: Any) -> None:
    published = score(REFERENCE, REFERENCE, meteor=fast)
    assert published.metrics == score(REFERENCE, REFERENCE, protocol="pdvc", meteor=fast).metrics
    assert published.metrics["F1"] == pytest.approx(1)
    assert published.metrics["soda_c"] == pytest.approx(1)
    assert published.segments == {
        "Recall@0.5": 1.0,
        "Mean IoU": pytest.approx(1),
        "Matched segments": 4.0,
    }


def test_the_fixed_string_of_pdvc_2018(fast: Any) -> None:
    """An unmatched prediction is paired with `abc123!@#`, which METEOR reads as four words."""
    predicted = {
        "a": VideoAnnotation(((0, 10), (50, 60)), ("crack the eggs", "mail a @ b")),
        "b": REFERENCE["b"],
    }
    new = score(predicted, REFERENCE, protocol="pdvc", meteor=fast)
    old = score(predicted, REFERENCE, protocol="pdvc2018", meteor=fast)
    pairs = [("crack the eggs", "crack the eggs"), ("mail a @ b", "abc123!@#")]
    expected = aggregate(fast().statistics_many(pairs))
    assert old.per_video["METEOR"][0] == pytest.approx(expected, rel=1e-12)
    assert old.metrics["METEOR"] < new.metrics["METEOR"]
    assert {old.metrics[name] - new.metrics[name] for name in ("F1", "soda_c", "Bleu_1")} == {0}
    assert "protocol:pdvc2018" in old.signature


def test_captions_as_one_text(fast: Any) -> None:
    """A last letter keeps its stop unless the next caption opens a sentence."""
    spans = ((0, 10), (20, 30))
    said = {"a": VideoAnnotation(spans, ("this is plan B.", "it is over"))}
    wanted = {"a": VideoAnnotation(spans, ("this is plan B.", "Then it is over"))}
    apart, together = (
        score(said, wanted, one_text=one_text, meteor=fast) for one_text in (False, True)
    )
    found = together.per_tiou["Bleu_1"][0] / apart.per_tiou["Bleu_1"][0]
    assert found == pytest.approx(6 / 7)  # all words but "b.", which is "b" in the reference
    assert together.metrics["soda_c"] < apart.metrics["soda_c"]
    assert "tok:ptb-3.4.1-one-text" in together.signature
    with pytest.raises(AnnotationError, match="the protocol titles does not have it"):
        score(said, wanted, protocol="titles", one_text=True, meteor=fast)


def test_ids_with_and_without_prefix(tmp_path: Path, data: Path, fast: Any) -> None:
    content = json.loads((data / "eval/own_small.json").read_text())
    renamed = {"results": {f"v_{name}": x for name, x in content["results"].items()}}
    (tmp_path / "renamed.json").write_text(json.dumps(renamed))
    reference = data / "eval/own_small_ref.json"
    plain = score(data / "eval/own_small.json", reference, meteor=fast)
    assert score(tmp_path / "renamed.json", reference, meteor=fast).metrics == plain.metrics


def test_order_of_videos_and_events_changes_nothing(data: Path, fast: Any) -> None:
    predicted = read_predictions(data / "eval/own_small.json")
    reference = read_references(data / "eval/own_small_ref.json")
    backwards = {name: predicted[name] for name in reversed(predicted)}
    flipped = {
        name: VideoAnnotation(x.spans[::-1], x.sentences[::-1], x.duration)
        for name, x in reference.items()
    }
    one = score(predicted, reference, metrics=["captions", "localisation"], meteor=fast)
    other = score(backwards, flipped, metrics=["captions", "localisation"], meteor=fast)
    assert one.metrics == pytest.approx(other.metrics, abs=1e-12)


def test_predictions_that_overlap_nothing_score_nothing(fast: Any) -> None:
    apart = {name: VideoAnnotation(((90, 95),), ("crack the eggs",)) for name in REFERENCE}
    assert max(score(apart, REFERENCE, meteor=fast).metrics.values()) < 1e-12


def test_a_subset_of_metrics_needs_no_meteor() -> None:
    def unwanted() -> Meteor:
        raise AssertionError("METEOR was made")

    report = score(REFERENCE, REFERENCE, metrics=["localisation"], meteor=unwanted)
    assert "F1" in report.metrics
    assert "CIDEr" not in report.metrics
    assert "CIDEr" not in report.signature


@pytest.mark.parametrize(
    ("predicted", "reference", "says"),
    [
        ({"z": REFERENCE["a"]}, REFERENCE, "none of its 1 videos is in the reference"),
        ({}, REFERENCE, "none of its 0 videos"),
        (REFERENCE, {**REFERENCE, "b": VideoAnnotation((), ())}, "video 'b' has no events"),
        (
            {"a": VideoAnnotation(((0, 10),), ("x",))},
            {"a": VideoAnnotation(((0, 10),), (". . .",))},
            "video 'a', all matched reference captions are empty",
        ),
    ],
)
def test_answers_where_the_published_evaluator_crashes(
    predicted: Any, reference: Any, says: str, fast: Any
) -> None:
    with pytest.raises(AnnotationError, match=says):
        score(predicted, reference, meteor=fast)


def test_wrong_calls() -> None:
    with pytest.raises(ValueError, match="protocol"):
        score(REFERENCE, REFERENCE, protocol="pvdc")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="metrics"):
        score(REFERENCE, REFERENCE, metrics=["spice"])
    with pytest.raises(ValueError, match="at least one reference"):
        score(REFERENCE, [])


def test_a_hundred_thousand_events_in_one_video(fast: Any) -> None:
    many = VideoAnnotation(
        tuple((float(n % 900), float(n % 900 + 7)) for n in range(100_000)),
        tuple(f"stir the pan {n % 50} times" for n in range(100_000)),
    )
    report = score({"a": many}, {"a": REFERENCE["a"]}, meteor=fast)
    assert report.events == 100_000
    assert all(np.isfinite(value) for value in report.metrics.values())


def test_compare(data: Path, fast: Any) -> None:
    reference = data / "eval/own_medium_ref.json"
    first = score(data / "eval/own_medium.json", reference, meteor=fast)
    same = compare(first, first, resamples=200)
    assert all(each.difference == each.low == each.high == 0 for each in same)
    assert all(each.probability == 1 for each in same)

    predicted = read_predictions(data / "eval/own_medium.json")
    worse = {
        name: VideoAnnotation(x.spans[::2], x.sentences[::2], x.duration)
        for name, x in predicted.items()
    }
    second = score(worse, reference, meteor=fast)
    differences = {each.metric: each for each in compare(first, second, resamples=500)}
    assert differences["Recall"].clear and differences["Recall"].difference < 0
    assert differences["F1"].difference == second.metrics["F1"] - first.metrics["F1"]
    for each in differences.values():
        assert each.low <= each.difference <= each.high
    again = {each.metric: each for each in compare(first, second, resamples=500)}
    assert again == differences

    # Trainings from several seeds are one system: a video counts with its mean.
    seeds = {each.metric: each for each in compare(first, [first, second], resamples=500)}
    for name, each in differences.items():
        assert seeds[name].difference == pytest.approx(each.difference / 2, abs=1e-12)
    assert seeds["METEOR"].low == pytest.approx(differences["METEOR"].low / 2, abs=1e-12)

    with pytest.raises(AnnotationError, match="not scored on the same videos"):
        compare(first, score(REFERENCE, REFERENCE, meteor=fast))
    with pytest.raises(AnnotationError, match="not scored on the same videos"):
        compare(first, [first, score(REFERENCE, REFERENCE, meteor=fast)])


def test_annotators_apart_and_together() -> None:
    """Apart as the published evaluator scores ViTT, a video per account; together as files."""
    first = VideoAnnotation(((0, 10), (10, 20)), ("stir the soup", "serve it"), 20.0)
    second = VideoAnnotation(((0, 14), (14, 20)), ("cook a soup", "put it on a plate"), 20.0)
    third = VideoAnnotation(((3, 9),), ("cut bread",), 12.0)
    said = VideoAnnotation(((0, 9), (13, 20)), ("stir the soup", "put it on a plate"), 20.0)
    accounts = {
        "0_soup": replace(first, video="soup"),
        "1_soup": replace(second, video="soup"),
        "0_bread": replace(third, video="bread"),
    }
    predicted = {"soup": said, "bread": third}
    apart = score(predicted, accounts)
    as_published = score({"a": said, "b": said, "c": third}, {"a": first, "b": second, "c": third})
    assert apart.metrics == as_published.metrics
    assert apart.total == 3 and "annotators" in apart.notes[0]
    for keyed in (predicted, {key: predicted[each.video] for key, each in accounts.items()}):
        assert score(keyed, accounts).metrics == apart.metrics
        together = score(keyed, accounts, annotators="together")
        files = score(predicted, [{"soup": first, "bread": third}, {"soup": second}])
        assert together.metrics == files.metrics != apart.metrics
        assert (together.total, together.references) == (2, 2)
        assert not any("ignored" in note for note in together.notes)


def test_a_caption_without_spaces_is_refused_where_it_is(fast: Any) -> None:
    hostile = {**REFERENCE, "a": VideoAnnotation(((0, 10),), ("%." * 16_000,))}
    with pytest.raises(AnnotationError, match=r"predictions: video 'a' .*without a space.*write"):
        score(hostile, REFERENCE, meteor=fast)
    assert score(hostile, REFERENCE, protocol="proposals").events == 3


def many_over_each_other(n: int) -> VideoAnnotation:
    return VideoAnnotation(
        tuple((k / n, 10 + k / n) for k in range(n)), tuple(f"stir {k} times" for k in range(n))
    )


def test_more_overlapping_pairs_than_are_scored_are_refused(fast: Any) -> None:
    predicted, wanted = {"a": many_over_each_other(1001)}, {"a": many_over_each_other(1000)}
    with pytest.raises(AnnotationError, match=r"^a: 1,001,000 pairs .* predict fewer events"):
        score(predicted, wanted, metrics=["soda"], meteor=fast)
    assert score(predicted, wanted, metrics=["localisation"]).metrics["Recall"] == 1


def test_soda_keeps_the_counts_of_few_pairs_in_memory(
    fast: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    predicted = {"a": many_over_each_other(40)}
    whole = score(predicted, predicted, metrics=["soda"], meteor=fast)
    asked: list[int] = []

    class Counting:
        def statistics_of(self, texts: Any, hypothesis_X: Any, reference_X: Any) -> Any:
            asked.append(len(hypothesis_X))
            return fast().statistics_of(texts, hypothesis_X, reference_X)

    monkeypatch.setattr(report, "PART", 100)
    parts = score(predicted, predicted, metrics=["soda"], meteor=Counting)  # type: ignore[arg-type]
    assert sum(asked) == 1600 and max(asked) == 100
    assert parts.metrics == whole.metrics
