"""The protocols beside dense captions: paragraphs, proposals, chapters, titles."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

import pytest

from starc_eval import compare, score
from starc_eval.annotations import VideoAnnotation, read_proposals
from starc_eval.command import main
from starc_eval.documents import Document, score_documents, words_only
from starc_eval.errors import AnnotationError
from starc_eval.meteor import Meteor, aggregate

WORDS = ["cut", "the", "onion", "fry", "it", "boil", "water", "with", "salt", "and", "serve"]


@pytest.fixture(scope="module")
def meteor(meteor_backend: Any) -> Meteor:
    made: Meteor = meteor_backend("python")
    return made


def video(*captions: str, length: float = 5.0) -> VideoAnnotation:
    spans = tuple((length * n, length * (n + 1)) for n in range(len(captions)))
    return VideoAnnotation(spans, captions, length * len(captions))


def documents(count: int, references: int) -> list[Document]:
    rng = random.Random(count)

    def text() -> str:
        return " ".join(rng.choices(WORDS, k=rng.randint(1, 14)))

    return [
        Document(text() if n else "", tuple(text() for _ in range(1 + n % references)))
        for n in range(count)
    ]


@pytest.mark.parametrize("references", [1, 3])
def test_texts_score_as_with_coco_tools(references: int, meteor: Meteor) -> None:
    """BLEU, CIDEr and ROUGE-L of the tools that PDVC and VidChapters call."""
    bleu = pytest.importorskip("pycocoevalcap.bleu.bleu_scorer").BleuScorer
    cider = pytest.importorskip("pycocoevalcap.cider.cider").Cider
    rouge = pytest.importorskip("pycocoevalcap.rouge.rouge").Rouge
    found = documents(12, references)
    wanted = {n: list(one.references) for n, one in enumerate(found)}
    said = {n: [one.hypothesis] for n, one in enumerate(found)}
    ours = score_documents(found, meteor).metrics
    scorer = bleu(n=4)
    for n in wanted:
        scorer += (said[n][0], wanted[n])
    theirs, _ = scorer.compute_score(option="closest", verbose=0)
    assert [ours[f"Bleu_{n}"] for n in (1, 2, 3, 4)] == pytest.approx(theirs, rel=1e-12)
    assert ours["CIDEr"] == pytest.approx(cider().compute_score(wanted, said)[0], rel=1e-12)
    assert ours["Rouge-L"] == pytest.approx(rouge().compute_score(wanted, said)[0], rel=1e-12)


def test_a_paragraph_by_hand(meteor: Meteor) -> None:
    reference = {"a": video("Cut the onion.", "Fry it!"), "b": video("boil the water")}
    backwards = VideoAnnotation(((5.0, 9.0), (0.0, 5.0)), ("fry it", "cut the onion"), 10.0)
    report = score(
        {"a": backwards, "b": video("Boil water")},
        reference,
        protocol="paragraph",
        meteor=lambda: meteor,
    )
    brevity = math.exp(1 - 8 / 7)  # 7 words said, 8 wanted
    assert report.metrics["Bleu_1"] == pytest.approx(brevity, rel=1e-6)
    assert report.metrics["Bleu_2"] == pytest.approx(brevity * math.sqrt(4 / 5), rel=1e-6)
    rouge = 2.44 * (2 / 3) / (2 / 3 + 1.44)
    assert report.metrics["Rouge-L"] == pytest.approx((1 + rouge) / 2)
    # The first video is perfect in all four orders; of the second only single words meet.
    assert report.metrics["CIDEr"] == pytest.approx((10 + 2.5 * math.exp(-1 / 72)) / 2)
    pairs = [("cut the onion fry it", "cut the onion fry it"), ("boil water", "boil the water")]
    assert report.metrics["METEOR"] == aggregate(meteor.statistics_many(pairs))
    assert "tok:letters" in report.signature and "tiou" not in report.signature
    assert report.per_video["Rouge-L"].tolist() == pytest.approx([1, rouge])


def test_paragraphs_have_several_references_and_missing_videos_count(meteor: Meteor) -> None:
    first = {"a": video("cut the onion"), "b": video("fry it")}
    second = {"a": video("slice an onion up")}
    said = {"a": video("slice an onion up")}
    report = score(said, [first, second], protocol="paragraph", meteor=lambda: meteor)
    assert report.per_video["Rouge-L"].tolist() == [1, 0]
    assert report.notes == ("1 reference videos have no prediction and count as 0",)
    # Only what is a mean over videos can be drawn again by videos.
    assert {one.metric for one in compare(report, report)} == {"CIDEr", "Rouge-L"}


def test_words_of_a_paragraph() -> None:
    assert words_only("Add 1 1/2 cups. Don't\nstir — café!") == "add cups don t stir caf"


def test_proposals_need_no_captions(tmp_path: Path) -> None:
    file = tmp_path / "proposals.json"
    file.write_text(json.dumps({"results": {"v_a": [{"segment": [0, 5], "score": 0.9}]}}))
    assert read_proposals(file)["a"].spans == ((0, 5),)

    def unwanted() -> Meteor:
        raise AssertionError("no captions, no METEOR")

    report = score(file, {"a": video("x", "y")}, protocol="proposals", meteor=unwanted)
    assert (report.metrics["Precision"], report.metrics["Recall"]) == (1, 0.5)
    assert report.metrics["Recall@1s"] == 0.5 and "CIDEr" not in report.metrics
    assert "meteor" not in report.signature
    file.write_text(json.dumps({"results": {"a": [{"score": 0.9}]}}))
    with pytest.raises(AnnotationError, match=r"event 1: expected \[start, end\]"):
        score(file, {"a": video("x")}, protocol="proposals")


def test_chapters_are_dense_captions_under_their_own_name(meteor: Meteor) -> None:
    reference = {"a": video("intro", "mix the dough", "bake it")}
    said = {"a": video("intro", "mix it", "bake it", length=6.0)}
    dense = score(said, reference, meteor=lambda: meteor)
    chapters = score(said, reference, protocol="chapters", meteor=lambda: meteor)
    assert chapters.metrics == dense.metrics and chapters.signature != dense.signature


def test_titles_by_hand(meteor: Meteor) -> None:
    reference = {"a": video("intro", "mix the dough"), "b": video("bake it")}
    said = {"a": video("intro", "mix the flour"), "b": video("bake it")}
    report = score(said, reference, protocol="titles", meteor=lambda: meteor)
    assert report.metrics["Rouge-L"] == pytest.approx((1 + 2 / 3 + 1) / 3)
    # As published the prediction stands in the reference's place; it matters for METEOR.
    pairs = [("intro", "intro"), ("mix the dough", "mix the flour"), ("bake it", "bake it")]
    assert report.metrics["METEOR"] == aggregate(meteor.statistics_many(pairs))
    moved = {**said, "b": video("bake it", length=6.0)}
    with pytest.raises(AnnotationError, match="'b' has other events than references"):
        score(moved, reference, protocol="titles", meteor=lambda: meteor)
    with pytest.raises(AnnotationError, match="one reference"):
        score(said, [reference, reference], protocol="titles", meteor=lambda: meteor)


def test_protocols_named_by_paper_and_year(data: Path, meteor: Meteor) -> None:
    files = data / "eval/own_edge.json", data / "eval/own_edge_ref.json"
    for named, plain in (("pdvc2021", "pdvc2018"), ("vidchapters2023", "chapters")):
        reports = [
            score(*files, protocol=each, allow_missing=True, meteor=lambda: meteor)  # type: ignore[arg-type]
            for each in (named, plain)
        ]
        assert reports[0].metrics == reports[1].metrics
        assert reports[0].notes == reports[1].notes
        assert reports[0].signature == reports[1].signature.replace(f":{plain}", f":{named}")


def test_vid2seq_where_it_differs(meteor: Meteor) -> None:
    """F1 video by video, spans turned round, SODA in the order of the file, no other metrics."""
    reference = {"a": video("cut the onion", "fry it"), "b": video("boil water", "serve it")}
    said = {
        "a": VideoAnnotation(((5.0, 0.0),), ("cut the onion",)),
        "b": VideoAnnotation(((5.0, 10.0), (0.0, 5.0)), ("serve it", "boil water")),
    }
    ours = score(said, reference, protocol="vid2seq2023", meteor=lambda: meteor)
    assert [name for name in ours.metrics if "@" not in name] == [
        "METEOR", "CIDEr", "Precision", "Recall", "F1", "soda_c"
    ]  # fmt: skip
    assert (ours.metrics["Precision"], ours.metrics["Recall"]) == (1, 3 / 4)
    assert ours.metrics["F1"] == pytest.approx((2 / 3 + 1) / 2)
    # In the first video 1 of 1 and 2; in the second one of the two events, for the other is before.
    assert ours.per_video["soda_c"].tolist() == pytest.approx([2 / 3, 1 / 2], abs=1e-7)
    usual = score(said, reference, meteor=lambda: meteor)
    assert usual.metrics["F1"] == pytest.approx(2 * 0.5 * 0.5)  # the span of "a" matches nothing
    assert usual.per_video["soda_c"].tolist() == pytest.approx([0, 1], abs=1e-7)
    assert ours.signature.startswith("metrics:METEOR,CIDEr,soda_c,F1 | tiou:0.3,0.5,0.7,0.9 | tok:")
    differences = {one.metric: one.difference for one in compare(ours, ours)}
    assert {*differences} == {"METEOR", "CIDEr", "soda_c", "F1", "Precision", "Recall"}


def test_vid2seq_is_the_published_protocol_otherwise(data: Path, meteor: Meteor) -> None:
    files = data / "eval/own_small.json", data / "eval/own_small_ref.json"
    ours = score(*files, protocol="vid2seq2023", meteor=lambda: meteor)
    usual = score(*files, meteor=lambda: meteor)
    for name in ("METEOR", "CIDEr", "Precision@0.5", "Recall@0.9", "Precision", "Recall"):
        assert ours.metrics[name] == pytest.approx(usual.metrics[name], abs=1e-12), name


@pytest.mark.parametrize(
    ("protocol", "shown"),
    [
        ("vid2seq2023", "Localisation"),
        ("pdvc2021", "BLEU_4"),
        ("vidchapters2023", "@5s"),
        ("paragraph", "BLEU_4"),
        ("chapters", "@5s"),
        ("proposals", "Localisation"),
        ("titles", "CIDEr"),
    ],
)
def test_each_protocol_prints_its_table(
    protocol: str, shown: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said, reference = tmp_path / "said.json", tmp_path / "reference.json"
    events = [{"sentence": "mix the dough", "timestamp": [0, 5]}]
    said.write_text(json.dumps({"results": {"a": events}}))
    annotation = {"duration": 5, "timestamps": [[0, 5]], "sentences": ["mix the dough"]}
    reference.write_text(json.dumps({"a": annotation}))

    def ran(*options: str) -> tuple[object, str, str]:
        with pytest.raises(SystemExit) as ended:
            main([str(said), str(reference), *options])
        return ended.value.code, *capsys.readouterr()

    code, out, err = ran("--protocol", protocol)
    assert code == 0, err
    assert shown in out and f"protocol:{protocol}" in out
    assert ("SODA_c" in out) == (protocol not in ("paragraph", "proposals", "titles"))
    assert json.loads(ran("--protocol", protocol, "--json")[1])["metrics"]
    code, out, err = ran("--protocol", "nosuch")
    assert code == 2 and "choose from" in err and "published" in err
