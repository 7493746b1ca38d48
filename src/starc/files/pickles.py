"""Reading published pickles without running them.

A pickle is a program that may call any function it names. This reader knows six names, all of
numpy's way to store numbers and strings, and answers each with a stand-in that builds just that;
every other name is an error. What comes out is made of dict, list, str, numbers and arrays.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from typing import IO, Any

import numpy as np


def load(data: bytes) -> Any:
    """The plain data in a pickle; pickle.UnpicklingError for anything else, and nothing is run."""
    try:
        return _Plain(io.BytesIO(data)).load()
    except pickle.UnpicklingError:
        raise
    except Exception as error:
        # A damaged pickle can fail in any way at all (IndexError, KeyError, struct.error ...).
        raise pickle.UnpicklingError(f"{type(error).__name__}: {error}") from error


def load_strings(file: IO[bytes]) -> list[Any]:
    """The items of an .npy file of strings, be they stored as text or as a pickle of objects."""
    version = np.lib.format.read_magic(file)
    read_header = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }[version]
    _, _, dtype = read_header(file)
    if dtype.hasobject:
        array = load(file.read())
    else:
        file.seek(0)
        array = np.load(file, allow_pickle=False)
    return np.asarray(array).ravel().tolist()


class _Plain(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        # numpy 2 writes numpy._core where numpy 1 wrote numpy.core.
        known = _KNOWN.get((module.replace("numpy._core", "numpy.core"), name))
        if known is None:
            raise pickle.UnpicklingError(f"it wants to call {module}.{name}")
        return known

    def persistent_load(self, pid: Any) -> Any:
        raise pickle.UnpicklingError("it refers to objects outside itself")


class _Dtype:
    """Stands for a numpy.dtype: plain numbers, strings or objects, in either byte order.

    The order is not in its name: a pickle sets it afterwards, with what else a dtype may be.
    """

    def __init__(self, text: str, *_: object) -> None:
        self.dtype = np.dtype(text)
        if self.dtype.kind not in "biufSUO" or self.dtype.fields is not None:
            raise pickle.UnpicklingError(f"it holds an array of {text!r}")

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, order, subarray, names, fields, size, *_ = state
        plain = subarray is None and names is None and fields is None
        if not plain or order not in ("<", ">", "|", "=") or size not in (-1, self.dtype.itemsize):
            raise pickle.UnpicklingError(f"it changes what {self.dtype.name} means")
        self.dtype = self.dtype.newbyteorder(order)

    def read(self, data: Any) -> np.ndarray[Any, Any]:
        """Stored values, in this machine's byte order; Python 2 stored them as text."""
        data = data.encode("latin1") if isinstance(data, str) else data
        return np.frombuffer(data, self.dtype).astype(self.native, copy=False)

    @property
    def native(self) -> np.dtype[Any]:
        return self.dtype.newbyteorder("=")


class _Array(np.ndarray[Any, Any]):
    """Stands for numpy.ndarray, which a pickle only hands on to `_empty`; filled afterwards."""

    def __new__(cls, *_: object) -> _Array:
        raise pickle.UnpicklingError("it makes an array of memory that it does not fill")

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        version, shape, stored, fortran, data = state
        data = data if stored.dtype.hasobject else stored.read(data).tobytes()
        super().__setstate__((version, shape, stored.native, fortran, data))


def _empty(kind: object, *_: object) -> np.ndarray[Any, Any]:
    if kind is not _Array:
        raise pickle.UnpicklingError("it holds an array of an unknown kind")
    return np.empty((0,), np.int8).view(_Array)


def _scalar(stored: _Dtype, data: bytes) -> Any:
    return stored.read(data)[0]


def _encode(text: str, encoding: str = "latin1") -> bytes:
    return text.encode("latin1" if encoding == "latin1" else "ascii")


def _from_buffer(data: Any, stored: _Dtype, shape: tuple[int, ...], order: str) -> Any:
    return stored.read(data).reshape(shape, order="F" if order == "F" else "C")


_KNOWN: dict[tuple[str, str], Callable[..., Any] | object] = {
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Dtype,
    ("numpy.core.multiarray", "_reconstruct"): _empty,
    ("numpy.core.multiarray", "scalar"): _scalar,
    ("numpy.core.numeric", "_frombuffer"): _from_buffer,
    ("_codecs", "encode"): _encode,
}
