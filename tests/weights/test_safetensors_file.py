"""What the safetensors library wrote, and damaged files."""

import json

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from dart_jax.errors import UserError
from dart_jax.weights.safetensors_file import open_safetensors

DTYPES = [
    *("float64", "float32", "float16", "bfloat16", "float8_e4m3fn"),
    *("int64", "int32", "int16", "int8", "uint8", "bool"),
]


@pytest.fixture
def path(tmp_path):
    """Where the tests write."""
    return tmp_path / "model.safetensors"


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_and_shape(path, dtype):
    shapes = [(), (0,), (7,), (3, 4), (2, 0, 3), (2, 3, 4)]
    rng = np.random.default_rng(0)
    arrays = {str(shape): rng.normal(0, 9, shape) for shape in shapes}
    arrays = {name: np.asarray(array).astype(dtype) for name, array in arrays.items()}
    save_file(arrays, path)
    ours = open_safetensors(path)
    assert ours.keys() == arrays.keys()
    for name, array in arrays.items():
        read = ours[name].read()
        assert (read.dtype, read.shape) == (array.dtype, array.shape)
        assert (ours[name].dtype, ours[name].shape) == (array.dtype, array.shape)
        assert read.tobytes() == array.tobytes()


def test_names_come_in_the_order_of_the_file(path):
    save_file({"a": np.ones(3, np.int8), "b": np.ones(3), "c": np.ones(3, np.float32)}, path)
    assert list(open_safetensors(path)) == ["b", "c", "a"]


def report(path):
    with pytest.raises(UserError) as error:
        open_safetensors(path)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_truncated_and_grown_files(path):
    save_file({"a": np.ones((3, 4), np.float32), "b": np.ones(5, ml_dtypes.bfloat16)}, path)
    data = path.read_bytes()
    for size in range(len(data)):
        path.write_bytes(data[:size])
        assert report(path).endswith("; the file is damaged or incomplete")
    path.write_bytes(data + b"\0")
    report(path)


@pytest.mark.parametrize("dtype", ["F8_E5M2", "F8_E8M0", "F31"])
def test_dtypes_that_are_not_read(path, dtype):
    header = json.dumps({"a": {"dtype": dtype, "shape": [8], "data_offsets": [0, 8]}}).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))
    assert dtype in report(path)


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn"])
def test_a_file_that_shrinks_after_it_was_opened(path, dtype):
    save_file({"a": np.ones(100).astype(ml_dtypes.bfloat16).astype(dtype)}, path)
    tensor = open_safetensors(path)["a"]
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - 10)
    with pytest.raises(UserError, match="the file is damaged or incomplete"):
        tensor.read()
