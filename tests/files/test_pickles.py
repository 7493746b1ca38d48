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
