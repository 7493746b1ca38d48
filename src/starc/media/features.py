"""Frame features of videos, and the files that hold them.

`extract` makes them, for captioning and for training alike. Four forms hold {video: features
[n, D]}: a folder of .npy (or .mp4.npy), a .safetensors file, a .pth dictionary as published, and
HDF5. Ours also carry the times of the frames and their provenance (encoder, sampling rule,
version), so that training and inference cannot part company unnoticed; `verify` compares a file
with a fresh extraction. Nothing in a file is trusted: wrong shapes and NaN are errors, pickles are
read as weights only.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import os
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from pickle import UnpicklingError
from tokenize import TokenError
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from starc.errors import MissingExtra, Stopped, VideoError
from starc.files.atomic import replacing_path, sweep
from starc.media.container import MediaLimits
from starc.media.encoders import ImageEncoder
from starc.media.video import open_video
from starc.types import Frame
from starc_eval.annotations import VIDEO_ENDINGS
from starc_eval.reading import regular

FPS = 1.0
"""Frames per second; `choose` picks among these."""
RULE = "ffmpeg fps filter, shorter side to size, bicubic, centre crop"
TIMES = ".times"
"""`video.times` holds the seconds of the frames of `video`."""
PROVENANCE = "provenance.json"
TORCH = (".pth", ".pt")
HDF5 = (".h5", ".hdf5")
BROKEN = (
    OSError, ValueError, TypeError, RuntimeError, EOFError, SafetensorError, UnpicklingError,
    LookupError, AttributeError, OverflowError, MemoryError, SyntaxError, TokenError,
)  # fmt: skip
"""What the readers of damaged files raise; a header of .npy is parsed as Python."""


@dataclass(frozen=True, slots=True)
class FrameFeatures:
    """The features of one video."""

    features_TD: Tensor
    times_T: Tensor
    """Seconds of each frame; float64."""
    duration: float = 0.0
    """Seconds of the video: as its header states, unless its pictures tell otherwise."""
    frames: int = 0
    """Frames that the video has at 1 FPS, chosen or not."""
    provenance: Mapping[str, str] = field(default_factory=dict)
    """Encoder, sampling rule and version that made them."""


def count_frames(video: Path, *, limits: MediaLimits | None = None) -> FrameFeatures:
    """The frames of a video at 1 FPS without looking at them: times and no features, [T, 0]."""
    with open_video(video, limits) as opened:
        count, stated = opened.count(FPS), opened.info.duration
    return FrameFeatures(
        torch.zeros(count, 0),
        torch.arange(count, dtype=torch.float64) / FPS,
        duration=_duration(stated, count),
        frames=count,
        provenance={"frames": "not used"},
    )


def _duration(stated: float, frames: int) -> float:
    """Seconds as stated, unless the pictures tell otherwise.

    A download that broke off states its whole length; times would be stretched over it.
    """
    shown = frames / FPS
    return stated if abs(stated - shown) <= 1.5 / FPS else shown


def extract(
    video: Path,
    encoder: ImageEncoder,
    *,
    choose: Callable[[int], Sequence[int]] | None = None,
    limits: MediaLimits | None = None,
    stop: threading.Event | None = None,
) -> FrameFeatures:
    """Features of the frames of a video at 1 FPS.

    `choose(count)` gives the indices, ascending, of the frames to use, and no others are decoded;
    None takes all. `stop` ends it from another thread with `Stopped`.
    """
    times: list[float] = []
    repeats: list[int] = []  # of each picture: a few kilobytes can claim one for hours
    with open_video(video, limits) as opened:
        stated = opened.info.duration
        count = opened.count(FPS) if choose else 0
        indices = choose(count) if choose else None

        def watched() -> Iterator[Frame]:
            last = None
            for frame in opened.frames(FPS, encoder.size, indices):
                if stop is not None and stop.is_set():
                    raise Stopped(str(video))
                times.append(frame.time)
                if frame.rgb_HWC is last:
                    repeats[-1] += 1
                    continue
                last = frame.rgb_HWC
                repeats.append(1)
                yield frame

        features_TD = encoder.encode(watched()).detach().float().cpu()
        features_TD = features_TD.repeat_interleave(torch.tensor(repeats, dtype=torch.long), dim=0)
    count = count if choose else len(times)
    return FrameFeatures(
        features_TD,
        torch.tensor(times, dtype=torch.float64),
        duration=_duration(stated, count),
        frames=count,
        provenance={
            "encoder": encoder.name,
            "width": str(encoder.width),
            "fps": f"{FPS:g}",
            "size": str(encoder.size),
            "rule": RULE,
            "frames": "chosen" if choose else "all",
            "starc": importlib.metadata.version("starc"),
        },
    )


def verify(path: Path, video: Path, encoder: ImageEncoder, *, name: str | None = None) -> float:
    """The largest difference between the features of a video in a file and a fresh extraction.

    `name` is the video's in the file, else that of `video` itself. Where the file holds chosen
    frames, their times say which.
    """
    with FeatureStore.open(path) as store:
        name = name or Path(video).stem
        stored_TD, times_T = store[name], store.times(name)
        chosen = store.provenance.get("frames") == "chosen"
    indices = (times_T * FPS).floor().int().tolist()
    fresh = extract(
        video, encoder, choose=(lambda count: [n for n in indices if n < count]) if chosen else None
    )
    if stored_TD.shape != fresh.features_TD.shape:
        raise VideoError(
            f"{path}: features of {Path(video).name} are {list(stored_TD.shape)}, fresh ones "
            f"{list(fresh.features_TD.shape)}; another video, rate or encoder"
        )
    return float((stored_TD - fresh.features_TD).abs().max())


def save_features(path: Path, videos: Mapping[str, FrameFeatures]) -> None:
    """Write features in the form that the name asks for; whole or not at all.

    A name without suffix is a folder of .npy, to which videos may be added in many calls.
    """
    path = Path(path)
    provenance = _common_provenance(videos)
    features = {name: video.features_TD.contiguous() for name, video in videos.items()}
    times = {name + TIMES: video.times_T.contiguous() for name, video in videos.items()}
    if path.suffix == ".safetensors":
        with _replacing(path) as target:
            metadata = {"provenance": json.dumps(provenance)}
            save_file({**features, **times}, target, metadata=metadata)
    elif path.suffix in TORCH:
        with _replacing(path) as target:
            torch.save(features, target)
        rows = {name: times_T.tolist() for name, times_T in times.items()}
        _write_json(path.with_name(path.name + ".json"), {**provenance, "times": rows})
    elif path.suffix in HDF5:
        # In memory: the library crashes on a full disk.
        with _h5py().File(path, "w", driver="core", backing_store=False) as file:
            file.attrs["provenance"] = json.dumps(provenance)
            for name, tensor in {**features, **times}.items():
                file.create_dataset(name, data=tensor.numpy())
            file.flush()
            with _replacing(path) as target:
                target.write_bytes(file.id.get_file_image())
    elif not path.suffix or path.is_dir():
        path.mkdir(parents=True, exist_ok=True)
        before = _read_json(path / PROVENANCE)
        if before and before != provenance:
            raise VideoError(
                f"{path}: holds features made otherwise ({_difference(before, provenance)}); "
                "use another folder"
            )
        _write_json(path / PROVENANCE, provenance)
        for name, tensor in {**times, **features}.items():
            with _replacing(path / f"{name}.npy") as target, target.open("wb") as file:
                np.save(file, tensor.numpy(), allow_pickle=False)
    else:
        raise _unknown_form(path)


def extract_all(
    videos: Mapping[str, Path], target: Path, encoder: ImageEncoder
) -> Iterator[tuple[Path, VideoError | None]]:
    """Extract videos by name into a feature file; each comes back with what is wrong with it.

    A video is kept as soon as it is done. Those of a single file wait in a folder beside it, where
    the next call finds what an interrupted one has done; it goes when no video has failed.
    """
    target, failed = Path(target), False
    if target.suffix not in ("", ".safetensors", *TORCH, *HDF5) and not target.is_dir():
        raise _unknown_form(target)
    single = bool(target.suffix) and not target.is_dir()
    folder = target.with_name(f".{target.name}.parts") if single else target
    before = _read_json(folder / PROVENANCE)
    if before.get("encoder", encoder.name) != encoder.name:
        raise VideoError(
            f"{folder}: holds features of {before['encoder']}, not {encoder.name}; remove it"
        )
    done = set(_open_folder(folder).ids) if folder.is_dir() else set()
    for name, video in videos.items():
        if name not in done:
            try:
                extracted = extract(video, encoder)
            except VideoError as error:
                failed = True
                yield video, error
                continue
            folder.mkdir(parents=True, exist_ok=True)
            save_features(folder, {name: extracted})
        yield video, None
    if single and folder.is_dir():
        store = _open_folder(folder)
        made = {
            name: FrameFeatures(store[name], store.times(name), provenance=store.provenance)
            for name in store.ids
        }
        save_features(target, made)
        if not failed:
            shutil.rmtree(folder)


class FeatureStore(Mapping[str, Tensor]):
    """Features by video: `store[video]` is a checked float32 tensor [n, D].

    A video is also known with or without the prefix "v_" that some annotations add.
    """

    def __init__(
        self,
        path: Path,
        entries: Mapping[str, Any],
        read: Callable[[Any], Tensor],
        provenance: Mapping[str, str],
        close: Callable[[], None] = lambda: None,
    ) -> None:
        self.path, self._entries, self._read = path, entries, read
        self.provenance, self.close = dict(provenance), close
        self.ids = tuple(
            name
            for name in entries
            if not (name.endswith(TIMES) and name.removesuffix(TIMES) in entries)
        )
        self._names = frozenset(self.ids)
        self.width = int(self.provenance["width"]) if "width" in self.provenance else None

    @classmethod
    def open(cls, path: Path, *, width: int | None = None) -> FeatureStore:
        """Open a feature file or folder; `width` is the D that is expected of it."""
        path = Path(path)
        if not path.exists():
            raise VideoError(f"{path}: no such features; make them with starc features")
        try:
            if path.is_dir():
                store = _open_folder(path)
            elif path.suffix == ".safetensors":
                store = _open_safetensors(path)
            elif path.suffix in TORCH:
                store = _open_pth(path)
            elif path.suffix in HDF5:
                store = _open_hdf5(path)
            else:
                raise _unknown_form(path)
        except BROKEN as error:
            reason = _short(error)
            raise VideoError(f"{path}: not a feature file ({reason}); write it again") from error
        if not store.ids:
            raise VideoError(f"{path}: no features in it; make them with starc features")
        store.width = width or store.width
        return store

    def __iter__(self) -> Iterator[str]:
        return iter(self.ids)

    def __len__(self) -> int:
        return len(self.ids)

    def __contains__(self, video: object) -> bool:
        return isinstance(video, str) and self._find(video) is not None

    def __getitem__(self, video: str) -> Tensor:
        name = self._name(video)
        where, features_TD = f"{self.path}: {name}", self._tensor(name)
        if features_TD.ndim != 2 or not len(features_TD):
            raise VideoError(
                f"{where}: not frames by width (found {list(features_TD.shape)}); extract it again"
            )
        self.width = self.width or features_TD.shape[1]
        if features_TD.shape[1] != self.width:
            raise VideoError(
                f"{where}: wrong width ({features_TD.shape[1]}, expected {self.width}); "
                "use features of one encoder"
            )
        features_TD = features_TD.to(torch.float32)
        if not torch.isfinite(features_TD).all():
            raise VideoError(f"{where}: features that are no numbers (NaN or infinite)")
        return features_TD

    def times(self, video: str) -> Tensor:
        """Seconds of the frames of a video, [n] float64; k / fps where the file holds none."""
        name, count = self._name(video), len(self[video])
        if name + TIMES not in self._entries:
            fps = float(self.provenance.get("fps", FPS))
            return torch.arange(count, dtype=torch.float64) / fps
        times_T = self._tensor(name + TIMES).to(torch.float64)
        if times_T.shape != (count,) or not torch.isfinite(times_T).all():
            raise VideoError(
                f"{self.path}: {name}: not a time per frame (found {list(times_T.shape)} for "
                f"{count} frames); extract it again"
            )
        return times_T

    def __enter__(self) -> FeatureStore:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _tensor(self, name: str) -> Tensor:
        try:
            tensor = self._read(self._entries[name])
            if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_complex():
                raise ValueError(f"{tensor.layout}, {tensor.dtype}: not a plain array of numbers")
            return tensor
        except BROKEN as error:
            raise VideoError(
                f"{self.path}: {name}: cannot be read ({_short(error)}); extract it again"
            ) from error

    def _name(self, video: str) -> str:
        name = self._find(video)
        if name is None:
            raise VideoError(
                f"{self.path}: no features of {video!r} among {len(self)} videos; extract them"
            )
        return name

    def _find(self, video: str) -> str | None:
        names = (video, f"v_{video}", video.removeprefix("v_"))
        return next((name for name in names if name in self._names), None)


def _open_folder(path: Path) -> FeatureStore:
    entries = {}
    for file in sorted(path.glob("*.npy")):
        name, times = file.name.removesuffix(".npy"), ""
        if name.endswith(TIMES):
            name, times = name.removesuffix(TIMES), TIMES
        stem, ending = os.path.splitext(name)
        entries[(stem if ending.lower() in VIDEO_ENDINGS else name) + times] = file

    def read(file: Path) -> Tensor:
        return torch.from_numpy(np.load(regular(file), allow_pickle=False))

    return FeatureStore(path, entries, read, _read_json(path / PROVENANCE))


def _open_safetensors(path: Path) -> FeatureStore:
    file: Any = safe_open(regular(path), framework="pt")
    provenance = json.loads((file.metadata() or {}).get("provenance", "{}"))
    names = {key: key for key in sorted(file.keys())}
    return FeatureStore(path, names, file.get_tensor, provenance)


def _open_pth(path: Path) -> FeatureStore:
    with regular(path).open("rb") as file:
        zipped = file.read(2) == b"PK"
    entries = torch.load(path, map_location="cpu", weights_only=True, mmap=zipped)
    if not isinstance(entries, dict) or not all(
        isinstance(name, str) and isinstance(value, Tensor) for name, value in entries.items()
    ):
        raise ValueError("expected a dictionary of tensors")
    provenance = _read_json(Path(f"{path}.json"))
    times = dict(provenance.pop("times", {}))
    entries |= {name: torch.tensor(row, dtype=torch.float64) for name, row in times.items()}
    return FeatureStore(path, entries, lambda value: value, provenance)


def _open_hdf5(path: Path) -> FeatureStore:
    h5py = _h5py()
    file = h5py.File(path, "r")
    return FeatureStore(
        path,
        {name: item for name, item in file.items() if isinstance(item, h5py.Dataset)},
        lambda item: torch.from_numpy(np.asarray(item[()])),
        json.loads(file.attrs.get("provenance", "{}")),
        file.close,
    )


def _unknown_form(path: Path) -> VideoError:
    return VideoError(
        f"{path}: unknown form of features ({path.suffix or 'no suffix'}); "
        "use .safetensors, .pth, .h5 or a folder of .npy"
    )


def _short(error: Exception) -> str:
    return " ".join(str(error).split())[:160]


def _h5py() -> Any:
    try:
        return importlib.import_module("h5py")
    except ImportError:
        raise MissingExtra("h5py", "hdf5") from None


def _common_provenance(videos: Mapping[str, FrameFeatures]) -> dict[str, str]:
    for name in videos:
        if not name or "/" in name or "\0" in name or name in {".", ".."}:
            raise ValueError(f"a video's name must do as a file name, got {name!r}")
    first, *others = [dict(video.provenance) for video in videos.values()] or [{}]
    for other in others:
        if other != first:
            raise ValueError(f"one file, one way of making it: {_difference(first, other)}")
    return first


def _difference(a: Mapping[str, str], b: Mapping[str, str]) -> str:
    key = next(key for key in sorted({*a, *b}) if a.get(key) != b.get(key))
    return f"{key}: {a.get(key)} and {b.get(key)}"


@contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    """A temporary file that becomes `path` when all has gone well."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        sweep([path])  # these may be large
        with replacing_path(path) as part:
            yield part
    except (OSError, SafetensorError, RuntimeError) as error:  # a full disk is any of them
        reason = getattr(error, "strerror", None) or _short(error)
        raise VideoError(f"{path}: cannot be written ({reason}); free some space?") from error


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    with _replacing(path) as target:
        target.write_text(json.dumps(value, indent=1) + "\n", "utf-8")


def _read_json(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text("utf-8"))) if path.is_file() else {}
