"""The file format against the safetensors library, and damaged files."""

import json

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.numpy import save_file

from dart_jax.errors import UserError
from dart_jax.safetensors_file import Tensor, open_safetensors, write_safetensors

DTYPES = ["float64", "float32", "float16", "bfloat16", "int64", "int32", "int8", "uint8", "bool"]


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """Where the tests write."""
    return tmp_path_factory.mktemp("safetensors") / "model.safetensors"


tensors = st.dictionaries(
    st.text(min_size=1, max_size=12).filter(lambda name: name != "__metadata__"),
    st.tuples(st.sampled_from(DTYPES), st.lists(st.integers(0, 4), max_size=3)),
    max_size=5,
)


def random(shapes):
    rng = np.random.default_rng(0)
    return {name: rng.normal(0, 9, shape).astype(dtype) for name, (dtype, shape) in shapes.items()}


@given(tensors)
def test_what_the_library_writes_is_read_and_what_we_write_it_reads(path, shapes):
    arrays = random(shapes)
    save_file(arrays, path)
    for _ in range(2):
        ours = open_safetensors(path)
        assert ours.keys() == arrays.keys()
        for name, array in arrays.items():
            read = ours[name].read()
            assert (read.dtype, read.shape) == (array.dtype, array.shape)
            assert (ours[name].dtype, ours[name].shape) == (array.dtype, array.shape)
            assert read.tobytes() == array.tobytes()
        write_safetensors(path, {n: Tensor(a.shape, a.dtype, a.copy) for n, a in arrays.items()})
    with safe_open(path, "np") as file:
        assert file.metadata() == {"format": "pt"}
        assert set(file.keys()) == set(arrays)
        for name, array in arrays.items():
            assert file.get_tensor(name).tobytes() == array.tobytes()
            assert file.get_tensor(name).dtype == array.dtype


def report(path):
    with pytest.raises(UserError) as error:
        open_safetensors(path)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


def test_truncated_and_grown_files(path):
    save_file(random({"a": ("float32", [3, 4]), "b": ("bfloat16", [5])}), path)
    data = path.read_bytes()
    for size in range(len(data)):
        path.write_bytes(data[:size])
        report(path)
    path.write_bytes(data + b"\0")
    report(path)


GOOD = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


@pytest.mark.parametrize(
    "header",
    [
        [],
        3,
        {"a": 3},
        {"a": {}},
        {"a": GOOD | {"dtype": "F31"}},
        {"a": GOOD | {"dtype": []}},
        {"a": GOOD | {"shape": [-2]}},
        {"a": GOOD | {"shape": [2.0]}},
        {"a": GOOD | {"shape": [True, 2]}},
        {"a": GOOD | {"shape": 2}},
        {"a": GOOD | {"shape": [3]}},
        {"a": GOOD | {"data_offsets": [4, 12]}},
        {"a": GOOD | {"data_offsets": [8, 0]}},
        {"a": GOOD | {"data_offsets": "08"}},
        {"a": GOOD, "b": GOOD},
    ],
)
def test_wrong_headers(path, header):
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(8))
    report(path)


def test_a_file_that_shrinks_after_it_was_opened(path):
    save_file({"a": np.ones(100, ml_dtypes.bfloat16)}, path)
    tensor = open_safetensors(path)["a"]
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(UserError, match="ends too early"):
        tensor.read()
