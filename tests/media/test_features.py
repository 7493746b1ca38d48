"""Feature files: every form gives back what was written, and bad ones are refused."""

import json
import pickle
import threading
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import av
import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from starc.cli import app
from starc.errors import MissingExtra, VideoError
from starc.media import features as module
from starc.media.encoders import ImageEncoder
from starc.media.features import (
    FeatureStore,
    FrameFeatures,
    Stopped,
    extract,
    save_features,
    verify,
)
from starc.media.video import probe
from starc.model.inputs import spread
from starc.types import Frame
from support.clips import write_clip

FAST_START = {"movflags": "faststart"}
FORMS = ["folder", "a.safetensors", "a.pth", "a.h5"]


class MeanColour:
    """An encoder so small that it can be worked out by hand."""

    name = "mean-colour"
    width = 3
    size = 16

    def encode(self, frames: Iterable[Frame]) -> torch.Tensor:
        means = [torch.from_numpy(frame.rgb_HWC.mean((0, 1))) for frame in frames]
        return torch.stack(means).float()


def made(seed: int, frames: int = 5) -> FrameFeatures:
    generator = torch.Generator().manual_seed(seed)
    return FrameFeatures(
        torch.randn(frames, 4, generator=generator),
        torch.arange(frames, dtype=torch.float64) + 0.25,
        provenance={"encoder": "made", "width": "4", "fps": "1"},
    )


def path_of(form: str, folder: Path) -> Path:
    if form.endswith(".h5"):
        pytest.importorskip("h5py")
    return folder / form


@pytest.mark.parametrize("form", FORMS)
def test_round_trip(form: str, tmp_path: Path) -> None:
    videos = {"abc-_1": made(1), "v_xyz": made(2, 9)}
    path = path_of(form, tmp_path)
    save_features(path, videos)
    with FeatureStore.open(path) as store:
        assert store.ids == ("abc-_1", "v_xyz")
        assert store.provenance == {"encoder": "made", "width": "4", "fps": "1"}
        assert store.width == 4 and len(store) == 2
        for name, one in videos.items():
            torch.testing.assert_close(store[name], one.features_TD, rtol=0, atol=0)
            torch.testing.assert_close(store.times(name), one.times_T, rtol=0, atol=0)
        assert "xyz" in store and "v_abc-_1" in store and "other" not in store
        torch.testing.assert_close(store["xyz"], videos["v_xyz"].features_TD)
        with pytest.raises(VideoError, match="no features of 'other' among 2 videos"):
            store["other"]
    left = sorted(file.name for file in tmp_path.iterdir())
    assert not [name for name in left if name.startswith(".")]


def test_folder_grows(tmp_path: Path) -> None:
    for n in range(3):
        save_features(tmp_path / "all", {f"video{n}": made(n)})
    assert FeatureStore.open(tmp_path / "all").ids == ("video0", "video1", "video2")
    other = FrameFeatures(
        torch.zeros(1, 4), torch.zeros(1), provenance={"encoder": "another", "width": "4"}
    )
    with pytest.raises(VideoError, match="holds features made otherwise"):
        save_features(tmp_path / "all", {"d": other})


def test_published_forms(tmp_path: Path) -> None:
    np.save(tmp_path / "abc.mp4.npy", np.ones((3, 768), np.float16))
    store = FeatureStore.open(tmp_path, width=768)
    assert store.ids == ("abc",) and store["abc"].dtype == torch.float32
    torch.save({"abc": torch.ones(3, 768)}, tmp_path / "clip.pth")
    assert FeatureStore.open(tmp_path / "clip.pth")["abc"].shape == (3, 768)
    torch.save(
        {"abc": torch.ones(3, 8)}, tmp_path / "old.pth", _use_new_zipfile_serialization=False
    )
    assert FeatureStore.open(tmp_path / "old.pth")["abc"].shape == (3, 8)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        (torch.ones(3, 5), "wrong width \\(5, expected 4\\)"),
        (torch.full((3, 4), float("nan")), "no numbers"),
        (torch.ones(3), "not frames by width"),
        (torch.ones(0, 4), "not frames by width"),
    ],
)
def test_bad_features(form: str, tensor: torch.Tensor, message: str, tmp_path: Path) -> None:
    path = path_of(form, tmp_path)
    save_features(
        path,
        {
            "good": made(1),
            "wrong": FrameFeatures(tensor, torch.zeros(3), provenance=made(1).provenance),
        },
    )
    with FeatureStore.open(path) as store:
        assert store["good"].shape == (5, 4)
        with pytest.raises(VideoError, match=message) as caught:
            store["wrong"]
        assert str(caught.value).startswith(f"{path}: wrong: ")


class Evil:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return eval, ("1/0",)


def test_bad_files(tmp_path: Path) -> None:
    with pytest.raises(VideoError, match="no such features"):
        FeatureStore.open(tmp_path / "missing.pth")
    with pytest.raises(VideoError, match="no features in it"):
        FeatureStore.open(tmp_path)
    (tmp_path / "a.txt").write_text("x")
    with pytest.raises(VideoError, match="unknown form"):
        FeatureStore.open(tmp_path / "a.txt")
    for name in ("a.safetensors", "a.pth", "a.h5"):
        if name == "a.h5":
            pytest.importorskip("h5py")
        (tmp_path / name).write_bytes(b"not at all")
        with pytest.raises(VideoError, match="not a feature file") as caught:
            FeatureStore.open(tmp_path / name)
        assert "\n" not in str(caught.value)
    (tmp_path / "evil.pth").write_bytes(pickle.dumps({"a": Evil()}, protocol=2))
    with pytest.raises(VideoError, match="not a feature file"):
        FeatureStore.open(tmp_path / "evil.pth")
    torch.save([1, 2], tmp_path / "list.pth")
    with pytest.raises(VideoError, match="expected a dictionary of tensors"):
        FeatureStore.open(tmp_path / "list.pth")
    folder = tmp_path / "folder"
    folder.mkdir()
    np.save(folder / "a.npy", np.array([Evil()], dtype=object), allow_pickle=True)
    with pytest.raises(VideoError, match="cannot be read"):
        FeatureStore.open(folder)["a"]


@pytest.mark.parametrize(
    "tensor", [torch.ones(3, 3).to_sparse(), torch.ones(3, 3, dtype=torch.complex64)]
)
def test_tensors_that_are_no_plain_arrays(tensor: torch.Tensor, tmp_path: Path) -> None:
    torch.save({"a": tensor}, tmp_path / "f.pth")
    with pytest.raises(VideoError, match=r"a: cannot be read .*not a plain array"):
        FeatureStore.open(tmp_path / "f.pth")["a"]


def test_wrong_calls(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="as a file name"):
        save_features(tmp_path / "a", {"../up": made(1)})
    other = FrameFeatures(torch.zeros(1, 4), torch.zeros(1), provenance={"encoder": "another"})
    with pytest.raises(ValueError, match="one file, one way"):
        save_features(tmp_path / "a.pth", {"a": made(1), "b": other})
    with pytest.raises(VideoError, match="unknown form"):
        save_features(tmp_path / "a.txt", {"a": made(1)})


def test_without_h5py(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(module.importlib, "import_module", missing)
    with pytest.raises(MissingExtra, match="h5py"):
        save_features(tmp_path / "a.h5", {"a": made(1)})


def test_a_full_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "save_file", full)
    with pytest.raises(VideoError, match="No space left"):
        save_features(tmp_path / "a.safetensors", {"a": made(1)})
    assert list(tmp_path.iterdir()) == []


def test_extract(tmp_path: Path) -> None:
    encoder = MeanColour()
    assert isinstance(encoder, ImageEncoder)
    video = write_clip(tmp_path / "a.mp4", seconds=7)
    found = extract(video, encoder)
    assert found.features_TD.shape == (7, 3) and found.times_T.shape == (7,)
    assert found.provenance["encoder"] == "mean-colour" and found.provenance["fps"] == "1"
    assert found.frames == 7 and found.duration == pytest.approx(7)
    some = extract(video, encoder, choose=lambda count: spread(count, 3))
    torch.testing.assert_close(some.features_TD, found.features_TD[[0, 2, 4]])
    assert some.times_T.tolist() == found.times_T[[0, 2, 4]].tolist()
    assert some.frames == 7 and some.duration == found.duration


def test_a_video_that_breaks_off_is_as_long_as_its_pictures(tmp_path: Path) -> None:
    whole = write_clip(tmp_path / "a.mp4", seconds=20, size=(320, 240))
    path = tmp_path / "cut.mp4"
    with av.open(str(whole)) as source, av.open(str(path), "w", options=FAST_START) as target:
        stream = target.add_stream_from_template(source.streams.video[0])
        for packet in source.demux(video=0):
            if packet.size:
                packet.stream = stream
                target.mux(packet)
    path.write_bytes(path.read_bytes()[: whole.stat().st_size // 2])
    for choose in (None, lambda count: spread(count, 3)):
        features = extract(path, MeanColour(), choose=choose)
        assert features.duration == features.frames < 15
    assert probe(path).duration == pytest.approx(20)


def test_a_picture_that_stands_for_an_hour_is_encoded_once(tmp_path: Path) -> None:
    seen: list[Frame] = []

    class Counting(MeanColour):
        def encode(self, frames: Iterable[Frame]) -> torch.Tensor:
            seen.extend(frames)
            return super().encode(seen)

    video = write_clip(tmp_path / "still.mkv", times=[0.0, 1800.0, 3600.0])
    features = extract(video, Counting())
    assert len(features.features_TD) == len(features.times_T) >= 3600 and len(seen) == 2
    assert features.features_TD[1:1700].unique(dim=0).shape[0] == 1


def test_extraction_stops_when_asked(tmp_path: Path) -> None:
    stop, seen = threading.Event(), []

    class Stopping(MeanColour):
        def encode(self, frames: Iterable[Frame]) -> torch.Tensor:
            for frame in frames:
                seen.append(frame)
                stop.set()
            return torch.zeros(len(seen), 3)

    with pytest.raises(Stopped):
        extract(write_clip(tmp_path / "a.mp4", seconds=7), Stopping(), stop=stop)
    assert len(seen) == 1


def test_times_that_a_file_lacks_or_has_wrong(tmp_path: Path) -> None:
    np.save(tmp_path / "abc.mp4.npy", np.ones((3, 8), np.float32))
    assert FeatureStore.open(tmp_path).times("v_abc").tolist() == [0, 1, 2]
    (tmp_path / "provenance.json").write_text('{"fps": "2"}')
    assert FeatureStore.open(tmp_path).times("abc").tolist() == [0, 0.5, 1]
    for wrong in ([0.0, 1.0], [0.0, 1.0, float("nan")]):
        np.save(tmp_path / "abc.times.npy", np.array(wrong))
        store = FeatureStore.open(tmp_path)
        assert store.ids == ("abc",)
        with pytest.raises(VideoError, match="abc: not a time per frame"):
            store.times("abc")
    torch.save({"a": torch.ones(3, 8)}, tmp_path / "a.pth")
    for wrong in ("[1]", '{"times": 3}', '{"times": {"a.times": ["x"]}}'):
        (tmp_path / "a.pth.json").write_text(wrong)
        with pytest.raises(VideoError, match="not a feature file"):
            FeatureStore.open(tmp_path / "a.pth")


@pytest.mark.parametrize("form", FORMS)
def test_verify(form: str, tmp_path: Path) -> None:
    video = write_clip(tmp_path / "a.mp4", seconds=7)
    encoder = MeanColour()
    path = path_of(form, tmp_path)
    for chosen in (False, True):
        choose = (lambda count: spread(count, 3)) if chosen else None
        found = extract(video, encoder, choose=choose)
        if chosen:
            path = path.with_name(f"some-{path.name}")
        save_features(path, {"a": found})
        assert verify(path, video, encoder) == 0
        moved = replace(found, features_TD=found.features_TD + 0.5)
        save_features(path, {"a": moved})
        assert verify(path, video, encoder, name="a") == pytest.approx(0.5, abs=1e-4)
    with pytest.raises(VideoError, match="another video, rate or encoder"):
        verify(path, write_clip(tmp_path / "b.mp4", seconds=2), encoder, name="a")


def test_provenance_is_plain_json(tmp_path: Path) -> None:
    save_features(tmp_path / "all", {"a": made(1)})
    assert json.loads((tmp_path / "all" / "provenance.json").read_text())["encoder"] == "made"


@pytest.mark.parametrize("form", FORMS)
def test_many_videos_survive_bad_ones_and_interruptions(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("starc.media.encoders.load_image_encoder", lambda name: MeanColour())
    folder, target = tmp_path / "videos", path_of(form, tmp_path)
    folder.mkdir()
    for name in "abd":
        write_clip(folder / f"{name}.mp4", seconds=2)
    (folder / "c.mp4").write_bytes(b"not a video")
    extracted: list[str] = []

    def watched(video: Path, encoder: ImageEncoder) -> FrameFeatures:
        if stop == Path(video).stem:
            raise KeyboardInterrupt
        extracted.append(Path(video).stem)
        return extract(video, encoder)

    monkeypatch.setattr(module, "extract", watched)
    line, stop = ["features", str(folder), "-o", str(target)], "b"
    assert CliRunner().invoke(app, line).exit_code == 130 and extracted == ["a"]
    assert target.exists() == (form == "folder")
    stop = ""
    ended = CliRunner().invoke(app, line)
    assert ended.exit_code == 3 and extracted == ["a", "b", "c", "d"]
    assert "skipped: " in ended.stderr and "c.mp4" in ended.stderr and "4/4: " in ended.stderr
    with FeatureStore.open(target) as store:
        assert store.ids == ("a", "b", "d") and store.provenance["encoder"] == "mean-colour"
        assert store.times("d").tolist() == extract(folder / "d.mp4", MeanColour()).times_T.tolist()
    write_clip(folder / "c.mp4", seconds=2)
    assert CliRunner().invoke(app, line).exit_code == 0 and extracted[4:] == ["c"]
    assert FeatureStore.open(target).ids == ("a", "b", "c", "d")
    assert sorted(path.name for path in tmp_path.iterdir() if path.name[0] == ".") == []
    write_clip(tmp_path / "a.mkv", seconds=2)
    ended = CliRunner().invoke(app, [*line, str(tmp_path / "a.mkv")])
    assert "videos go by name" in str(ended.exception)
    (tmp_path / "a.mkv").write_bytes(b"")
    alone = ["features", str(tmp_path / "a.mkv"), "-o", str(tmp_path / "other")]
    assert CliRunner().invoke(app, alone).exit_code == 1
