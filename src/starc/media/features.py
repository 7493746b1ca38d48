"""Feature files: what `starc features` writes and training reads.

Four forms hold {video: features [n, D]}: a folder of .npy (or .mp4.npy), a .safetensors file, a
.pth dictionary as published, and HDF5. Ours carry their provenance (encoder, sampling rule,
version) so that training and inference cannot part company unnoticed; `verify` compares a file
with a fresh extraction. Nothing in a file is trusted: wrong shapes and NaN are errors, pickles
are read as weights only.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import pickle
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from starc.errors import MissingExtra, VideoError
from starc.files.atomic import replacing_path
from starc.media.container import Limits
from starc.media.encoders import ImageEncoder
from starc.media.video import count_frames, sample_frames, spread
from starc.types import Frame

RULE = "ffmpeg fps filter, shorter side to size, bicubic, centre crop"
TIMES = ".times"
"""In our safetensors files, `video.times` holds the seconds of the frames of `video`."""
PROVENANCE = "provenance.json"
VIDEO_SUFFIXES = (".mp4", ".mkv", ".webm", ".avi", ".mov")
HDF5 = (".h5", ".hdf5")


@dataclass(frozen=True, slots=True)
class Features:
    """The features of one video."""

    features_TD: Tensor
    times_T: Tensor
    """Seconds of each frame; float64."""
    provenance: Mapping[str, str] = field(default_factory=dict)
    """Encoder, sampling rule and version that made them."""


def extract(
    video: Path,
    encoder: ImageEncoder,
    *,
    fps: float = 1.0,
    most: int | None = None,
    limits: Limits | None = None,
) -> Features:
    """Features of a video's frames; `most` keeps that many, spread evenly, and decodes no more."""
    indices = spread(count_frames(video, fps=fps, limits=limits), most) if most else None
    times: list[float] = []

    def noted() -> Iterator[Frame]:
        for frame in sample_frames(
            video, fps=fps, size=encoder.size, indices=indices, limits=limits
        ):
            times.append(frame.time)
            yield frame

    features_TD = encoder.encode(noted())
    provenance = {
        "encoder": encoder.name,
        "width": str(encoder.width),
        "fps": f"{fps:g}",
        "size": str(encoder.size),
        "rule": RULE,
        "most": str(most or "all"),
        "starc": _version(),
    }
    return Features(features_TD, torch.tensor(times, dtype=torch.float64), provenance)


def verify(
    path: Path, video: Path, encoder: ImageEncoder, *, name: str | None = None, fps: float = 1.0
) -> float:
    """The largest difference between the features of a video in a file and a fresh extraction.

    `name` is the video's in the file, else that of `video` itself.
    """
    with FeatureStore.open(path) as store:
        stored_TD = store[name or Path(video).stem]
        most = store.provenance.get("most", "all")
    fresh_TD = extract(
        video, encoder, fps=fps, most=None if most == "all" else int(most)
    ).features_TD
    if stored_TD.shape != fresh_TD.shape:
        raise VideoError(
            f"{path}: features of {Path(video).name} are {list(stored_TD.shape)}, fresh ones "
            f"{list(fresh_TD.shape)}; another video, rate or encoder"
        )
    return float((stored_TD - fresh_TD).abs().max())


def save_features(path: Path, videos: Mapping[str, Features]) -> None:
    """Write features in the form that the name asks for; whole or not at all.

    A name without suffix is a folder of .npy, to which videos may be added in many calls.
    """
    path = Path(path)
    provenance = _common_provenance(videos)
    if path.suffix == ".safetensors":
        tensors = {}
        for name, one in videos.items():
            tensors[name] = one.features_TD.contiguous()
            tensors[name + TIMES] = one.times_T.contiguous()
        with _replacing(path) as target:
            save_file(tensors, target, metadata={"provenance": json.dumps(provenance)})
    elif path.suffix in {".pth", ".pt"}:
        with _replacing(path) as target:
            torch.save({name: one.features_TD for name, one in videos.items()}, target)
        _write_json(path.with_name(path.name + ".json"), provenance)
    elif path.suffix in HDF5:
        with _replacing(path) as target, _h5py().File(target, "w") as file:
            file.attrs["provenance"] = json.dumps(provenance)
            for name, one in videos.items():
                file.create_dataset(name, data=one.features_TD.numpy())
    elif not path.suffix or path.is_dir():
        _save_folder(path, videos, provenance)
    else:
        raise VideoError(
            f"{path}: unknown form of features ({path.suffix}); "
            "use .safetensors, .pth, .h5 or a folder"
        )


def _save_folder(path: Path, videos: Mapping[str, Features], provenance: Mapping[str, str]) -> None:
    path.mkdir(parents=True, exist_ok=True)
    before = _read_json(path / PROVENANCE)
    if before and before != dict(provenance):
        raise VideoError(
            f"{path}: holds features made otherwise ({_difference(before, provenance)}); "
            "use another folder"
        )
    _write_json(path / PROVENANCE, provenance)
    for name, one in videos.items():
        with _replacing(path / f"{name}.npy") as target, target.open("wb") as file:
            np.save(file, one.features_TD.numpy(), allow_pickle=False)


class FeatureStore(Mapping[str, Tensor]):
    """Features by video: `store[video]` is a checked float32 tensor [n, D].

    A video is also found with or without the prefix "v_" that some annotations add.
    """

    def __init__(
        self,
        path: Path,
        names: Mapping[str, Any],
        read: Callable[[Any], Tensor],
        provenance: Mapping[str, str],
        close: Callable[[], None] = lambda: None,
    ) -> None:
        self.path, self._names, self._read = path, dict(names), read
        self.provenance, self.close = dict(provenance), close
        self.width: int | None = None
        if "width" in self.provenance:
            self.width = int(self.provenance["width"])

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
            elif path.suffix in {".pth", ".pt"}:
                store = _open_pth(path)
            elif path.suffix in HDF5:
                store = _open_hdf5(path)
            else:
                raise VideoError(
                    f"{path}: unknown form of features ({path.suffix or 'no suffix'}); "
                    "use .safetensors, .pth, .h5 or a folder of .npy"
                )
        except (
            OSError,
            ValueError,
            RuntimeError,
            SafetensorError,
            pickle.UnpicklingError,
        ) as error:
            reason = " ".join(str(error).split())[:160]
            raise VideoError(f"{path}: not a feature file ({reason}); write it again") from error
        if not len(store):
            raise VideoError(f"{path}: no features in it; make them with starc features")
        store.width = width or store.width
        return store

    @property
    def ids(self) -> tuple[str, ...]:
        return tuple(self._names)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __contains__(self, video: object) -> bool:
        return isinstance(video, str) and self._find(video) is not None

    def __getitem__(self, video: str) -> Tensor:
        found = self._find(video)
        if found is None:
            raise VideoError(
                f"{self.path}: no features of {video!r} among {len(self)} videos; extract them"
            )
        where = f"{self.path}: {found}"
        try:
            features_TD = self._read(self._names[found])
        except (OSError, ValueError, RuntimeError, EOFError, SafetensorError) as error:
            reason = " ".join(str(error).split())[:160]
            raise VideoError(f"{where}: cannot be read ({reason}); extract it again") from error
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

    def __enter__(self) -> FeatureStore:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _find(self, video: str) -> str | None:
        for name in (video, f"v_{video}", video.removeprefix("v_")):
            if name in self._names:
                return name
        return None


def _open_folder(path: Path) -> FeatureStore:
    names = {}
    for file in sorted(path.glob("*.npy")):
        name = file.name.removesuffix(".npy")
        suffix = next((ending for ending in VIDEO_SUFFIXES if name.endswith(ending)), "")
        names[name.removesuffix(suffix)] = file

    def read(file: Path) -> Tensor:
        return torch.from_numpy(np.load(file, allow_pickle=False))

    return FeatureStore(path, names, read, _read_json(path / PROVENANCE))


def _open_safetensors(path: Path) -> FeatureStore:
    file: Any = safe_open(path, framework="pt")
    keys = set(file.keys())
    names = {key: key for key in sorted(keys) if key.removesuffix(TIMES) not in keys - {key}}
    metadata = file.metadata() or {}
    return FeatureStore(path, names, file.get_tensor, json.loads(metadata.get("provenance", "{}")))


def _open_pth(path: Path) -> FeatureStore:
    found = torch.load(path, map_location="cpu", weights_only=True, mmap=_is_zip(path))
    if not isinstance(found, dict) or not all(
        isinstance(name, str) and isinstance(value, Tensor) for name, value in found.items()
    ):
        raise ValueError("expected a dictionary of tensors")
    return FeatureStore(path, found, lambda value: value, _read_json(Path(f"{path}.json")))


def _open_hdf5(path: Path) -> FeatureStore:
    h5py = _h5py()
    file = h5py.File(path, "r")
    names = {name: item for name, item in file.items() if isinstance(item, h5py.Dataset)}
    return FeatureStore(
        path,
        names,
        lambda item: torch.from_numpy(np.asarray(item[()])),
        json.loads(file.attrs.get("provenance", "{}")),
        file.close,
    )


def _h5py() -> Any:
    try:
        return importlib.import_module("h5py")
    except ImportError:
        raise MissingExtra("h5py", "hdf5") from None


def _is_zip(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(2) == b"PK"


def _common_provenance(videos: Mapping[str, Features]) -> dict[str, str]:
    for name in videos:
        if not name or "/" in name or "\0" in name or name in {".", ".."}:
            raise ValueError(f"a video's name must do as a file name, got {name!r}")
    found = [dict(one.provenance) for one in videos.values()]
    for other in found[1:]:
        if other != found[0]:
            raise ValueError(f"one file, one way of making it: {_difference(found[0], other)}")
    return found[0] if found else {}


def _difference(a: Mapping[str, str], b: Mapping[str, str]) -> str:
    key = next(key for key in sorted({*a, *b}) if a.get(key) != b.get(key))
    return f"{key}: {a.get(key)} and {b.get(key)}"


@contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    """A temporary file that becomes `path` when all has gone well."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing_path(path) as part:
            yield part
    except OSError as error:
        raise VideoError(
            f"{path}: cannot be written ({error.strerror}); free some space?"
        ) from error


def _write_json(path: Path, value: Mapping[str, str]) -> None:
    with _replacing(path) as target:
        target.write_text(json.dumps(dict(value), indent=1) + "\n", "utf-8")


def _read_json(path: Path) -> dict[str, str]:
    return dict(json.loads(path.read_text("utf-8"))) if path.is_file() else {}


def _version() -> str:
    try:
        return importlib.metadata.version("starc")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"
