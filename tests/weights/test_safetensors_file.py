"""Safetensors as the library wrote them, whole and in parts; and damaged files."""

import itertools
import json
import math
import os

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import refusals
from safetensors.numpy import save_file
from test_checkpoint import TARGETS, assert_same_bits, random_params

from dart_jax.errors import UserError
from dart_jax.models.sharding.placement import Part, Placement
from dart_jax.weights.checkpoint import load_target, save_target
from dart_jax.weights.formats.safetensors_file import open_safetensors


class InParts(Placement):
    """Takes parameters in so many parts along every axis, as if each were another device's."""

    def __init__(self, count=2, first=None):
        self.count, self.first = count, first

    def parts(self, path, shape):
        cuts = [np.linspace(0, size, self.count + 1).astype(int).tolist() for size in shape]
        axes = [list(itertools.starmap(slice, itertools.pairwise(cut))) for cut in cuts]
        return [Part(region, True) for region in itertools.product(*axes)][: self.first]

    def put(self, path, shape, values):
        whole = np.zeros(shape, values[0].dtype)
        for part, value in zip(self.parts(path, shape), values, strict=True):
            whole[part.region] = value
        return jax.device_put(whole)


@pytest.mark.parametrize("config", TARGETS.values(), ids=list(TARGETS))
def test_parts_are_the_whole(tmp_path, config, monkeypatch):
    # Without this, parts that are all of a parameter are cut out of the whole tensor.
    read = "dart_jax.weights.parameters._reader"
    monkeypatch.setattr(read, lambda tensor, whole: tensor.read_part)
    params = random_params(config)
    save_target(tmp_path, config, params)
    assert_same_bits(load_target(tmp_path, place=lambda _: InParts())[1], params)


def test_no_more_is_read_than_the_parts(tmp_path, monkeypatch):
    config, place = TARGETS["experts"], InParts(first=1)
    save_target(tmp_path, config, random_params(config))
    sizes = []

    class Counted(np.memmap):
        def __getitem__(self, region):
            sizes.append(super().__getitem__(region).size)
            return super().__getitem__(region)

    monkeypatch.setattr(np, "memmap", Counted)
    load_target(tmp_path, place=lambda _: place)
    leaves = jax.tree.leaves(random_params(config))
    parts = [place.parts((), leaf.shape)[0].region for leaf in leaves]
    assert sum(sizes) == sum(math.prod(p.stop - p.start for p in part) for part in parts)


def test_numbers_that_are_not_finite_are_counted_once(tmp_path):
    config = TARGETS["untied"]
    params = random_params(config)
    params["norm"]["scale"] = params["norm"]["scale"].at[3].set(jnp.nan)
    save_target(tmp_path, config, params)
    with pytest.raises(Exception, match=r"model\.norm\.weight \(1 of them\)"):
        load_target(tmp_path, place=lambda _: InParts())


DTYPES = [
    *("float64", "float32", "float16", "bfloat16"),
    *("int64", "int32", "int16", "int8", "uint8", "bool"),
]


@pytest.fixture
def path(tmp_path):
    """The file that the tests write."""
    return tmp_path / "model.safetensors"


def test_every_dtype_and_shape(path):
    """Whole, and in regions."""
    shapes = [(), (0,), (7,), (9, 12), (2, 0, 3), (4, 6, 5)]
    rng = np.random.default_rng(0)
    arrays = {
        f"{dtype} {shape}": np.asarray(rng.normal(0, 9, shape)).astype(dtype)
        for dtype in DTYPES
        for shape in shapes
    }
    save_file(arrays, path)
    ours = open_safetensors(path)
    assert ours.keys() == arrays.keys()
    for name, array in arrays.items():
        tensor = ours[name]
        assert (tensor.dtype, tensor.shape) == (array.dtype, array.shape)
        assert tensor.read().dtype == array.dtype
        assert tensor.read().shape == array.shape
        assert tensor.read().tobytes() == array.tobytes()
        for _ in range(10):
            ends = [sorted(rng.integers(0, size + 1, 2).tolist()) for size in array.shape]
            region = tuple(slice(*end) if rng.random() < 0.7 else slice(None) for end in ends)
            part = tensor.read_part(region)
            assert (part.dtype, part.shape) == (array.dtype, array[region].shape)
            assert part.tobytes() == array[region].tobytes()


def report(path):
    message = refusals.report(open_safetensors, path)
    assert str(path) in message
    return message


def test_truncated_and_grown_files(path):
    save_file({"a": np.ones((3, 4), np.float32), "b": np.ones(5, ml_dtypes.bfloat16)}, path)
    data = path.read_bytes()
    for size in range(len(data)):
        path.write_bytes(data[:size])
        assert report(path).endswith("; the file is damaged or incomplete")
    path.write_bytes(data + b"\0")
    report(path)


def test_a_dtype_that_is_not_read(path):
    header = json.dumps({"a": {"dtype": "F8_E4M3", "shape": [8], "data_offsets": [0, 8]}}).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))
    assert "F8_E4M3" in report(path)


def test_a_file_that_shrinks_after_it_was_opened(path):
    save_file({"a": np.ones(100, ml_dtypes.bfloat16)}, path)
    tensor = open_safetensors(path)["a"]
    os.truncate(path, path.stat().st_size - 10)
    for read in (tensor.read, lambda: tensor.read_part((slice(None),))):
        with pytest.raises(UserError, match="the file is damaged or incomplete"):
            read()
