"""Devices whose memory is too small: what is refused, before anything is read or allocated."""

from functools import partial
from typing import Any

import jax
import pytest

from dart_jax import DartModel
from dart_jax.engine.config import EngineConfig
from dart_jax.errors import UserError
from dart_jax.model import DEMO
from dart_jax.models.platform.device_memory import DeviceMemory, device_memory
from dart_jax.programs.model_choice import ModelChoice


def held(model):
    return sum(leaf.nbytes for leaf in jax.tree.leaves(model.params))


@pytest.fixture
def memory(monkeypatch):
    """Gives the device so many bytes, all free."""

    def give(size):
        for module in ("loading", "engine.pools"):
            monkeypatch.setattr(f"dart_jax.{module}.device_memory", lambda: DeviceMemory(size, 0))

    return give


def test_of_a_device():
    one = DeviceMemory(100, 30)
    assert (one.free, one.left) == (70, 60)
    if jax.default_backend() == "cpu":
        assert device_memory() is None


def test_weights_that_do_not_fit(memory, capsys):
    load = partial(DartModel.from_pretrained, DEMO / "target", dtype="float32", mesh="model=1")
    size = held(load())
    memory(size - 1)
    with pytest.raises(UserError, match=r"^the weights take .* GB of .* --weights int8 \("):
        load()
    memory(2 * size)
    assert " MB of a device are left" in repr(load())
    assert held(load(weights="int8")) < size / 2
    ModelChoice(target=str(DEMO / "target"), dtype="float32", mesh="model=1").load()
    line = capsys.readouterr().err
    assert f" {DEMO / 'target'}: float32: {size / 1e6:,.0f} MB; " in line
    memory(size // 50)
    with pytest.raises(UserError, match=r" of it are free; pass a smaller model$"):
        load()


def test_keys_and_values_that_do_not_fit(memory):
    model = DartModel.from_pretrained(DEMO / "target")
    options: dict[str, Any] = {"slots": 4, "max_length": 256}
    most = model.engine(EngineConfig(**options)).runner.kv_bytes
    memory(2 * most)
    assert model.engine(EngineConfig(**options)).runner.kv_bytes == most
    memory(most // 2)  # fewer requests at once
    less = model.engine(EngineConfig(**options)).runner.kv_bytes
    assert most // 4 <= less <= most // 2
    with pytest.raises(UserError, match=r" free; lower --kv-memory or --max-length$"):
        model.engine(EngineConfig(**options, kv_memory=str(most)))
    with pytest.raises(UserError, match=r"^keys and values take .* lower --max-new-tokens or the"):
        model.engine(EngineConfig(**options, offline=True))
    memory(100)
    with pytest.raises(UserError, match=r"lower --kv-memory or --max-length$"):
        model.engine(EngineConfig(**options))
