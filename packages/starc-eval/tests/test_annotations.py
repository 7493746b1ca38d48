"""Every format is read; every mistake is named."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from growth import NEAR_LINEAR, growth
from starc_eval.annotations import (
    VIDEO_ENDINGS,
    AnnotatedEvent,
    VideoAnnotation,
    annotations_by_video,
    read_annotations,
    read_predictions,
    read_references,
    video_id,
    write_annotations,
    write_predictions,
)
from starc_eval.errors import AnnotationError, StarcError

SPANS = ((1.0, 4.0), (5.5, 9.0))
TEXTS = ("crack the eggs", "whisk them")
EVENTS = [{"start": s, "end": e, "caption": c} for (s, e), c in zip(SPANS, TEXTS, strict=True)]
RESULT = [{"timestamp": [s, e], "sentence": c} for (s, e), c in zip(SPANS, TEXTS, strict=True)]
ACTIVITYNET = {"duration": 12.0, "timestamps": [list(s) for s in SPANS], "sentences": list(TEXTS)}
FORMATS: dict[str, Any] = {
    "results": {"version": "VERSION 1.0", "results": {"v_eggs": RESULT}, "external_data": {}},
    "bare": {"eggs.mp4": [{"timestamp": r["timestamp"], "caption": r["sentence"]} for r in RESULT]},
    "activitynet": {"v_eggs": ACTIVITYNET},
    "youcook2": {
        "database": {
            "eggs": {
                "duration": 12.0,
                "subset": "validation",
                "annotations": [
                    {"segment": [s, e], "id": 0, "sentence": c}
                    for (s, e), c in zip(SPANS, TEXTS, strict=True)
                ],
            },
            "unlabelled": {"duration": 3.0, "subset": "testing"},
        }
    },
    "captioned": {
        "starc": 1,
        "video": "eggs",
        "duration": 12.0,
        "events": [{**event, "confidence": 0.5, "repeated": False} for event in EVENTS],
    },
    "one line": {"video": "eggs", "duration": 12.0, "events": EVENTS},
}


def put(path: Path, content: Any) -> Path:
    path.write_text(content if isinstance(content, str) else json.dumps(content), "utf-8")
    return path


@pytest.mark.parametrize("name", FORMATS)
def test_every_format(tmp_path: Path, name: str) -> None:
    found = read_predictions(put(tmp_path / "file.json", FORMATS[name]))
    assert list(found) == ["eggs"]
    assert found["eggs"].spans == SPANS
    assert found["eggs"].sentences == TEXTS


def test_json_lines(tmp_path: Path) -> None:
    lines = "\n".join(
        json.dumps({"video": name, "duration": 12, "events": EVENTS}) for name in ("a", "b", "c")
    )
    found = read_references(put(tmp_path / "mine.jsonl", lines + "\n\n"))
    assert list(found) == ["a", "b", "c"]
    assert found["b"].duration == 12.0


def test_vitt_sections_end_where_the_next_begins(tmp_path: Path) -> None:
    record = {
        "id": "FmTp",
        "duration": 20.0,
        "annotations": [{"timestamp": 260, "tag": "Opening"}, {"timestamp": 16000, "tag": "Close"}],
    }
    found = read_references(put(tmp_path / "vitt.json", [record]))
    assert found["FmTp"].spans == ((0.26, 16.0), (16.0, 20.0))
    found = read_references(put(tmp_path / "vitt.json", [record, record]))
    assert [(key, each.video) for key, each in found.items()] == [
        ("0_FmTp", "FmTp"),
        ("1_FmTp", "FmTp"),
    ]
    del record["duration"]
    path = put(tmp_path / "vitt.json", [record])
    with pytest.raises(AnnotationError, match=r"no duration.*starc data convert vitt.json"):
        read_references(path)
    assert read_references(path, open_ended=True)["FmTp"].spans == ((0.26, 16.0), (16.0, 16.0))


def test_vitt_as_vidchapters_prepares_it(tmp_path: Path) -> None:
    """The annotator's number before YouTube's 11 characters; an account may be missing."""
    prepared = dict.fromkeys(("0_abcdefghijk", "1_abcdefghijk", "2_-_bcdefghij"), ACTIVITYNET)
    found = read_references(put(tmp_path / "dev.json", prepared))
    assert [each.video for each in found.values()] == ["abcdefghijk", "abcdefghijk", "-_bcdefghij"]
    assert {video: len(known) for video, known in annotations_by_video([found]).items()} == {
        "abcdefghijk": 2,
        "-_bcdefghij": 1,
    }
    # Ids that only begin like this are left alone.
    plain = dict.fromkeys(("0_cdefghijk", "1_intro"), ACTIVITYNET)
    assert all(each.video is None for each in read_references(put(tmp_path / "a", plain)).values())


def test_annotators_of_our_own_lines(tmp_path: Path) -> None:
    prepared = {"0_abcdefghijk": ACTIVITYNET, "1_abcdefghijk": ACTIVITYNET}
    found = read_references(put(tmp_path / "dev.json", prepared))
    write_annotations(found, tmp_path / "ours.jsonl")
    assert read_references(tmp_path / "ours.jsonl") == found
    plain = read_references(put(tmp_path / "y.json", FORMATS["youcook2"]))
    write_annotations(plain, tmp_path / "ours.jsonl")
    assert read_references(tmp_path / "ours.jsonl") == plain


@pytest.mark.parametrize("mark", [",", ";", "\t"])
def test_csv(tmp_path: Path, mark: str) -> None:
    rows = [["Video", "start", "end", "caption", "duration"]]
    rows += [["eggs.mp4", "1", "4.0", '"crack the eggs"', "12"], ["eggs.mp4", "5.5", "9", '"a\nb"']]
    text = "\n".join(mark.join(row) for row in rows) + "\n\n"
    found = read_references(put(tmp_path / "mine.csv", text))
    assert found == {"eggs": VideoAnnotation(SPANS, ("crack the eggs", "a\nb"), 12.0)}
    with pytest.raises(AnnotationError, match=r"line 2 has no video, caption, and start"):
        read_references(put(tmp_path / "bad.csv", "video,start,end,caption\na,1,x,c\n"))
    ours = "video,start,end,caption,confidence,repeated\na,1,2,c,,false\n"
    with pytest.raises(AnnotationError, match="a prediction file"):
        read_references(put(tmp_path / "ours.csv", ours))
    assert read_predictions(tmp_path / "ours.csv")["a"].sentences == ("c",)


def test_a_subset_of_youcook2(tmp_path: Path) -> None:
    path = put(tmp_path / "yc2.json", FORMATS["youcook2"])
    assert list(read_references(path, subset="validation")) == ["eggs"]
    with pytest.raises(AnnotationError, match="found: validation"):
        read_references(path, subset="training")


@pytest.mark.parametrize("name", ["results", "bare", "captioned"])
def test_predictions_are_no_reference(tmp_path: Path, name: str) -> None:
    with pytest.raises(AnnotationError, match="prediction file, not a reference"):
        read_references(put(tmp_path / "file.json", FORMATS[name]))


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "empty"),
        ("   \n", "empty"),
        ('{"results": {"a": [}', "line 1 column 20"),
        ('{"results": {\n"a": [\n', "line 3"),
        ('{"video": "a", "events": []}\n{"video"', "line 2"),
        ("[1, 2]", "not a format"),
        ("3", "not a format"),
        ('{"a": 1}', "not a format"),
        ('{"results": []}', "'results' must map"),
        ('{"database": 4}', "'database' must map"),
        ('{"results": {"a": {}}}', "expected a list"),
        ('{"results": {"a": [3]}}', "expected an object"),
        ('{"results": {"a": [{"sentence": "x"}]}}', r"expected \[start, end\]"),
        ('{"results": {"a": [{"sentence": "x", "timestamp": [1]}]}}', r"expected \[start, end\]"),
        ('{"results": {"a": [{"sentence": "x", "timestamp": ["1", 2]}]}}', "as a number"),
        ('{"results": {"a": [{"sentence": "x", "timestamp": [true, 2]}]}}', "as a number"),
        ('{"results": {"a": [{"sentence": "x", "timestamp": [NaN, 2]}]}}', "finite"),
        ('{"results": {"a": [{"sentence": "x", "timestamp": [0, Infinity]}]}}', "finite"),
        ('{"results": {"a": [{"sentence": "x", "timestamp": [0, 1e999]}]}}', "finite"),
        ('{"results": {"a": [{"sentence": "x", "timestamp": [0, ' + "9" * 400 + "]}]}}", "finite"),
        ('{"results": {"a": [{"timestamp": [0, 1]}]}}', "no sentence"),
        ('{"results": {"a": [{"sentence": 7, "timestamp": [0, 1]}]}}', "as text"),
        ('{"results": {"a": [], "a": []}}', "'a' occurs twice"),
        ('{"results": {"a": [], "v_a": []}}', "'v_a' occurs twice"),
        ('{"a": {"timestamps": [[0, 1]], "sentences": []}}', "1 timestamps but 0 sentences"),
        ('{"events": []}', "no 'video' id"),
        ("[" * 100_000, "nested too deeply|not valid JSON"),
        ("9" * 5000, "cannot be read|not a format"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, content: str, says: str) -> None:
    path = put(tmp_path / "broken.json", content)
    with pytest.raises(AnnotationError, match=says) as error:
        read_predictions(path)
    assert str(error.value).startswith(str(path))
    assert "\n" not in str(error.value)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(AnnotationError, match="no such file"):
        read_predictions(tmp_path / "none.json")
    with pytest.raises(AnnotationError, match="directory"):
        read_predictions(tmp_path)
    picture = tmp_path / "picture.json"
    picture.write_bytes(b"\x89PNG\xff\xfe")
    with pytest.raises(AnnotationError, match="not a text file"):
        read_predictions(picture)


def test_backwards_events_are_counted_not_refused() -> None:
    assert VideoAnnotation(((1, 2), (3, 3), (5, 4)), ("a", "b", "c")).backwards == 2
    with pytest.raises(ValueError, match="one sentence per span"):
        VideoAnnotation(((1, 2),), ())


@pytest.mark.parametrize("name", ["abc", "v_abc", "abc.mp4", "v_abc.mkv", "v_v_abc", "abc.MPG"])
def test_ids_meet(name: str) -> None:
    assert video_id(name) == "abc"


@pytest.mark.parametrize("name", ["v_", "v_.mp4", "v_v_", ".mp4", "..mp4"])
def test_no_id_is_empty(name: str) -> None:
    assert video_id(name)


KEYS = [
    "results",
    "database",
    "a",
    "v_a",
    "timestamps",
    "sentences",
    "timestamp",
    "sentence",
    "events",
    "video",
    "starc",
    "annotations",
    "segment",
    "duration",
    "tag",
    "id",
]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(KEYS),
            inner,
            max_size=5,
        )
    ),
    max_leaves=12,
)


@settings(
    max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(content=JSON | st.text(max_size=60))
def test_malformed_files_end_in_clear_errors(tmp_path: Path, content: Any) -> None:
    path = put(tmp_path / "fuzz.json", content if isinstance(content, str) else json.dumps(content))
    for read in (read_annotations, read_references):
        try:
            read(path)
        except AnnotationError as error:
            assert "\n" not in str(error)


def test_cut_files_end_in_clear_errors(tmp_path: Path, data: Path) -> None:
    whole = (data / "eval/own_small.json").read_text()
    for length in range(0, len(whole) - 1, 997):
        with pytest.raises(AnnotationError):
            read_predictions(put(tmp_path / "cut.json", whole[:length]))


def test_real_files(shared: Path) -> None:
    folder = shared / "data"
    counts = {
        "yc2/vid2seq_val.json": 436,
        "yc2/pdvc_yc2_val.json": 457,
        "yc2/youcookii_annotations_trainval.json": 1790,
        "anet/val_2.json": 4885,
        "text/tasty_val_anet_format_v2.json": 400,
        "predictions/timechat_yc2_val_pred.json": 415,
    }
    for name, count in counts.items():
        assert len(read_annotations(folder / name)) == count, name


def test_predictions_are_read_as_they_were_written(tmp_path: Path) -> None:
    path = tmp_path / "predictions.json"
    odd = VideoAnnotation(
        ((4.0, 1.0), (0.1, 0.2)), ("back\nwards", "half \ud83d, whole \U0001f600")
    )
    none = VideoAnnotation((), ())
    write_predictions({"odd": odd, "none": none, "ours": [AnnotatedEvent(1.0, 4.0, "crack")]}, path)
    ours = VideoAnnotation(((1.0, 4.0),), ("crack",))
    assert read_predictions(path) == {"odd": odd, "none": none, "ours": ours}


def test_predictions_are_written_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "predictions.json"
    path.write_text("the old ones")
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_predictions({"a": VideoAnnotation(((0.0, float("nan")),), ("x",))}, path)
    assert path.read_text() == "the old ones"
    assert [*tmp_path.iterdir()] == [path]
    with pytest.raises(StarcError, match=r"no/p.json: cannot be written \(No such file"):
        write_predictions({}, tmp_path / "no" / "p.json")


@pytest.mark.parametrize("part", ["v_", ".mp4", "."])
def test_an_id_is_found_in_linear_work(part: str) -> None:
    assert (
        growth(lambda n: ("" if part == "v_" else "a") + part * n, video_id, 20_000) < NEAR_LINEAR
    )


@given(st.text("v_.mp4/ab", max_size=20))
def test_an_id_is_what_taking_off_one_by_one_leaves(name: str) -> None:
    whole, (stem, ending) = name, os.path.splitext(name)
    while ending.lower() in VIDEO_ENDINGS:
        name = stem
        stem, ending = os.path.splitext(name)
    while name.startswith("v_") and name != "v_":
        name = name[2:]
    assert video_id(whole) == name
