"""Pickles are read as data; nothing in them is run."""

import contextlib
import io
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from starc.files import pickles


@pytest.mark.parametrize("protocol", range(6))
def test_pickle_protocols(protocol: int) -> None:
    data = {"a": {"start": np.array([1.5]), "end": [np.float64(2)], "text": np.array(["é"])}}
    found = pickles.load(pickle.dumps(data, protocol=protocol))
    assert found["a"]["start"].tolist() == [1.5]
    assert found["a"]["end"] == [2.0]
    assert found["a"]["text"].tolist() == ["é"]


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("kind", ["f8", "f4", "f2", "i4", "u2", "i1", "?", "U5", "S5"])
@pytest.mark.parametrize("order", "<>")
def test_both_byte_orders(order: str, kind: str, protocol: int) -> None:
    values = np.array([["ab", "é"], ["", "wörld"]] if kind == "U5" else [[1, 0], [1, 1]])
    array = values.astype(order + kind, order="F")
    found = pickles.load(pickle.dumps({"a": array, "again": array}, protocol=protocol))
    for one in found.values():
        assert one.dtype == array.dtype.newbyteorder("=") and one.dtype.isnative
        assert one.tolist() == array.tolist()


def test_arrays_without_values_and_of_python_2() -> None:
    for protocol in range(3, 6):
        for array in (np.empty((0, 4), ">f4"), np.array([], object), np.array(3.0)):
            found = pickles.load(pickle.dumps(array, protocol=protocol))
            assert found.shape == array.shape and found.tolist() == array.tolist()
    assert pickles.load(PYTHON_2).tolist() == [1, 2]


PYTHON_2 = rb"""cnumpy.core.multiarray
_reconstruct
(cnumpy
ndarray
(I0
tS'b'
tR(I1
(I2
tcnumpy
dtype
(S'i2'
I0
I1
tR(I3
S'>'
NNNI-1
I-1
I0
tbI00
S'\x00\x01\x00\x02'
tb."""
"""numpy.array([1, 2], ">i2")"""


def test_a_dtype_is_not_built_into_another() -> None:
    """What BUILD may set is the byte order alone."""
    for state in (
        (3, "<", None, ("a",), {"a": (np.dtype("f8"), 0)}, 8, 1, 0),
        (3, "<", (np.dtype("f4"), (2,)), None, None, 8, 1, 0),
        (3, "<", None, None, None, 4, 4, 0),
        (3, "!", None, None, None, -1, -1, 0),
        (3,),
        None,
    ):
        with pytest.raises(pickle.UnpicklingError):
            pickles.load(_built("f8", state))
    assert pickles.load(_built("f8", (3, ">", None, None, None, -1, -1, 0))) is not None


def _built(text: str, state: object) -> bytes:
    """A pickle of numpy.dtype(text) with a BUILD of some state."""
    made = b"cnumpy\ndtype\n" + pickle.dumps((text,), protocol=0)[:-1] + b"R"
    return made + pickle.dumps(state, protocol=0)[:-1] + b"b."


@given(st.binary(max_size=200))
@settings(deadline=None, max_examples=200)
def test_any_bytes_are_a_pickle_or_an_error(data: bytes) -> None:
    for candidate in (data, pickle.dumps({"a": np.arange(3)})[: len(data)] + data):
        with contextlib.suppress(pickle.UnpicklingError):
            pickles.load(candidate)


@pytest.mark.parametrize(
    "array",
    [
        np.array(["one", "thrée"]),
        np.array(["one", "thrée"], dtype=object),
        np.array([np.str_("one"), "thrée"], dtype=object),
        np.array([["one"], ["thrée"]], dtype=object),
    ],
)
def test_arrays_of_strings(array: np.ndarray) -> None:
    file = io.BytesIO()
    np.save(file, array, allow_pickle=True)
    file.seek(0)
    assert pickles.load_strings(file) == ["one", "thrée"]


def test_arrays_of_strings_run_nothing() -> None:
    file = io.BytesIO()
    np.save(file, np.array([print], dtype=object), allow_pickle=True)
    file.seek(0)
    with pytest.raises(pickle.UnpicklingError, match=r"wants to call builtins\.print"):
        pickles.load_strings(file)
