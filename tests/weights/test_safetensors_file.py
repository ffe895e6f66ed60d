"""Safetensors as the library wrote them, whole and in parts; and damaged files."""

import itertools
import json
import math

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from quantized_files import fp8, write
from safetensors.numpy import save_file
from test_checkpoint import TARGET, TARGETS, assert_same_bits, random_params

from dart_jax.errors import UserError
from dart_jax.models.sharding.placement import Part, Placement
from dart_jax.weights import safetensors_file
from dart_jax.weights.checkpoint import load_target, save_target
from dart_jax.weights.safetensors_file import open_safetensors


class InParts(Placement):
    """Takes parameters in so many parts along every axis, as if each were another device's."""

    def __init__(self, count=2, kept=None):
        self.count, self.kept = count, kept

    def parts(self, path, shape):
        cuts = [np.linspace(0, size, self.count + 1).astype(int).tolist() for size in shape]
        axes = [list(itertools.starmap(slice, itertools.pairwise(cut))) for cut in cuts]
        return [Part(region, True) for region in itertools.product(*axes)][: self.kept]

    def put(self, path, shape, values):
        whole = np.zeros(shape, values[0].dtype)
        for part, value in zip(self.parts(path, shape), values, strict=True):
            whole[part.region] = value
        return jax.device_put(whole)


@pytest.mark.long(keep=4)
@pytest.mark.parametrize("config", TARGETS.values(), ids=list(TARGETS))
def test_parts_are_the_whole(tmp_path, config, monkeypatch):
    # Without this, parts that are all of a parameter are cut out of the whole tensor.
    read = "dart_jax.weights.parameters._reader"
    monkeypatch.setattr(read, lambda tensor, whole: tensor.read_part)
    params = random_params(config)
    save_target(tmp_path, config, params)
    assert_same_bits(load_target(tmp_path, place=lambda _: InParts())[1], params)


def test_parts_of_a_quantised_target(tmp_path):
    target, quantization = (TARGET, random_params(TARGET)), {"weight_block_size": [20, 12]}
    of_blocks = lambda name, weight: fp8(weight, (20, 12))  # noqa: E731
    write(tmp_path, target, {"quant_method": "fp8", "fmt": "e4m3"} | quantization, of_blocks)
    assert_same_bits(load_target(tmp_path, place=lambda _: InParts())[1], load_target(tmp_path)[1])


def test_no_more_is_read_than_the_parts(tmp_path, monkeypatch):
    config = TARGETS["qwen3_moe"]
    save_target(tmp_path, config, random_params(config))
    sizes = []
    read = safetensors_file._read_part

    def counted(*args):
        part = read(*args)
        sizes.append(part.size)
        return part

    monkeypatch.setattr(safetensors_file, "_read_part", counted)
    load_target(tmp_path, place=lambda _: InParts(kept=1))
    place = InParts(kept=1)
    leaves = jax.tree.leaves(random_params(config))
    parts = [place.parts((), leaf.shape)[0].region for leaf in leaves]
    assert sum(sizes) == sum(math.prod(p.stop - p.start for p in part) for part in parts)


def test_regions_of_tensors(tmp_path):
    rng = np.random.default_rng(0)
    arrays = {
        "x": rng.normal(size=7).astype(np.float32),
        "y": rng.normal(size=(9, 12)).astype(ml_dtypes.bfloat16),
        "fp8": rng.normal(size=(5, 3)).astype(ml_dtypes.float8_e4m3fn),
        "empty": np.empty((3, 0), np.float32),
        "z": rng.normal(size=(4, 6, 5)).astype(np.float16),
    }
    save_file(arrays, tmp_path / "file")
    tensors = open_safetensors(tmp_path / "file")
    for name, array in arrays.items():
        for _ in range(100):
            ends = [sorted(rng.integers(0, size + 1, 2).tolist()) for size in array.shape]
            whole = rng.random(array.ndim) < 0.3
            region = tuple(
                slice(None) if all_ else slice(*end) for all_, end in zip(whole, ends, strict=True)
            )
            read_part = tensors[name].read_part
            assert read_part is not None
            part = read_part(region)
            assert (part.dtype, part.shape) == (array.dtype, array[region].shape)
            assert part.tobytes() == array[region].tobytes()


def test_numbers_that_are_not_finite_are_counted_once(tmp_path):
    config = TARGETS["untied"]
    params = random_params(config)
    params["norm"]["scale"] = params["norm"]["scale"].at[3].set(jnp.nan)
    save_target(tmp_path, config, params)
    with pytest.raises(Exception, match=r"model\.norm\.weight \(1 of them\)"):
        load_target(tmp_path, place=lambda _: InParts())


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
