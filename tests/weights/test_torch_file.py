"""Weights that PyTorch wrote: read without it, and never executed."""

import collections
import contextlib
import io
import os
import pickle
import zipfile

import numpy as np
import pytest
import refusals
from needs import judge

from dart_jax.errors import UserError
from dart_jax.weights.formats.torch_file import open_torch

torch = judge("torch")

DTYPES = [
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
]


@pytest.fixture
def path(tmp_path):
    """The file that the tests write."""
    return tmp_path / "pytorch_model.bin"


def report(path):
    message = refusals.report(open_torch, path)
    assert str(path) in message
    return message


def test_every_dtype_shape_and_view(path):
    shapes = [(), (0,), (7,), (3, 4), (2, 0, 3)]
    tensors = {
        f"{dtype} {shape}": (torch.randn(shape) * 50).to(dtype)
        for dtype in DTYPES
        for shape in shapes
    }
    base = torch.arange(60).reshape(5, 12)
    tensors |= {
        "base": base,
        "transposed": base.T,
        "rows": base[2:4],
        "columns": base[:, 3:9:2],
        "broadcast": base[0].expand(3, 12),
        "last": base[-1, -1],
    }
    torch.save(tensors, path)
    ours = open_torch(path)
    assert list(ours) == list(tensors)
    for name, tensor in tensors.items():
        read = ours[name].read()
        assert read.shape == ours[name].shape == tuple(tensor.shape)
        assert read.dtype == ours[name].dtype
        assert str(tensor.dtype) == f"torch.{read.dtype.name}"
        bits = tensor.contiguous().reshape(-1).view(torch.uint8).numpy()
        assert np.ascontiguousarray(read).tobytes() == bits.tobytes()


def test_what_is_no_dictionary_of_tensors(path):
    for content in ([torch.ones(2)], {"a": 3}, {"a": {"b": torch.ones(2)}}, torch.ones(2)):
        torch.save(content, path)
        report(path)
    torch.save(torch.nn.Linear(2, 2), path)
    assert "torch.nn.modules.linear.Linear" in report(path)
    torch.save({"a": torch.ones(2).to(torch.float8_e4m3fn)}, path)
    assert "torch._utils._rebuild_" in report(path)
    torch.save({"a": torch.ones(2)}, path)
    with zipfile.ZipFile(path) as archive:
        content = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in content.items():
            archive.writestr(name, b"big" if name.endswith("byteorder") else data)
    assert "big-endian" in report(path)
    torch.save({"a": torch.ones(2)}, path, _use_new_zipfile_serialization=False)
    assert "not a zip file" in report(path)


class Call:
    """Calls a function when it is unpickled."""

    def __init__(self, function, *args):
        self.call = function, args

    def __reduce__(self):
        return self.call


def write(path, pickled, data=b""):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", pickled)
        archive.writestr("archive/data/0", data)


def test_code_is_never_run(path, tmp_path):
    marker = tmp_path / "ran"
    for evil in (
        Call(os.system, f"touch {marker}"),
        Call(eval, f"open({str(marker)!r}, 'w')"),
        Call(getattr, dict, "get"),
        Call(pickle.loads, pickle.dumps(1)),
    ):
        write(path, pickle.dumps({"a": evil}))
        assert "which weights do not need" in report(path)
    assert not marker.exists()


class Forged(pickle.Pickler):
    """Writes tuples as identifiers of storages."""

    def persistent_id(self, obj):
        return obj if isinstance(obj, tuple) and obj[:1] in (("storage",), ("module",)) else None


def forge(path, pid, *view):
    """A file of one tensor over a storage of 64 bytes."""
    buffer = io.BytesIO()
    more = (False, collections.OrderedDict())
    Forged(buffer).dump({"a": Call(torch._utils._rebuild_tensor_v2, pid, *view, *more)})
    write(path, buffer.getvalue(), bytes(64))


def test_a_tensor_never_reaches_beyond_its_storage(path):
    floats = ("storage", torch.FloatStorage, "0", "cpu", 16)
    forge(path, floats, 0, (4, 4), (4, 1))
    assert open_torch(path)["a"].read().tolist() == np.zeros((4, 4)).tolist()
    for view in (
        (1, (4, 4), (4, 1)),
        (0, (5, 4), (4, 1)),
        (0, (4, 4), (5, 1)),
        (-1, (4,), (1,)),
        (0, (4,), (-1,)),
        (0, (4, 4), (1,)),
        (0, (2**62, 4), (0, 2**62)),
        (0, ("4",), (1,)),
        (0.0, (4,), (1,)),
    ):
        forge(path, floats, *view)
        report(path)
    for pid in (
        ("storage", torch.FloatStorage, "0", "cpu", 17),
        ("storage", torch.DoubleStorage, "0", "cpu", 16),
        ("storage", torch.FloatStorage, "1", "cpu", 16),
        ("storage", "float32", "0", "cpu", 16),
        ("module", torch.FloatStorage, "0", "cpu", 16),
        ("storage",),
    ):
        forge(path, pid, 0, (4, 4), (4, 1))
        report(path)


def test_every_damage_is_reported(path):
    torch.save({"a": torch.arange(8.0), "b": torch.ones(3).half()}, path)
    data = bytearray(path.read_bytes())
    for size in range(0, len(data), 61):
        path.write_bytes(data[:size])
        report(path)
    rng = np.random.default_rng(0)
    for at in rng.choice(len(data), 150, replace=False):
        changed = data.copy()
        changed[at] ^= 1 << rng.integers(8)
        path.write_bytes(changed)
        with contextlib.suppress(UserError):  # and nothing else
            for tensor in open_torch(path).values():
                tensor.read()
