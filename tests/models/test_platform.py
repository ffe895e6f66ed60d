"""The form of loaded weights, and the choice of a platform."""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_configs import TARGET, copied, prompt_logits, random_params

from dart_jax.errors import UserError
from dart_jax.models.cpu import available
from dart_jax.models.kernels import tiles
from dart_jax.models.platform.execution import Execution
from dart_jax.models.platform.weights import WeightsForm, fuse, pack


@pytest.mark.skipif(not available(), reason="XLA cannot call the C++ core")
def test_packed_weights_compute_the_same():
    """Weights that bfloat16 holds exactly are stored in it, and give the same bits."""
    params = fuse(random_params(TARGET, 0))
    exact = jax.tree.map(lambda x: x.astype(jnp.bfloat16).astype(jnp.float32), copied(params))
    run = partial(prompt_logits, TARGET, tokens=jnp.arange(12, dtype=jnp.int32).reshape(2, 6))
    for given, dtype in ((params, jnp.float32), (exact, jnp.bfloat16)):
        packed = pack(copied(given), tiles.pack_exactly)
        kernel = packed["layers"][0]["mlp"]["gate_up_proj"]["kernel"]
        assert kernel.parts[0].dtype == dtype
        np.testing.assert_allclose(run(packed), run(given), rtol=0, atol=1e-5)
        wide = pack(copied(given), tiles.pack)
        np.testing.assert_array_equal(run(packed), run(wide))
    consumed = copied(params)
    pack(consumed, tiles.pack_exactly)
    assert not consumed  # memory is given back layer by layer


@pytest.mark.skipif(not available(), reason="XLA cannot call the C++ core")
def test_keys_and_values_in_bfloat16():
    """By default beside weights in blocks, where the core can."""
    best, kept = Execution.here(), Execution.here(kv="bfloat16")
    assert kept.target.kv == kept.drafter.kv == "bfloat16"
    blocks = {"lm_head": {"kernel": tiles.pack_int8(jnp.ones((32, 32)))}}
    floats = {"lm_head": {"kernel": tiles.pack(jnp.ones((32, 32)))}}
    assert best.beside(TARGET, blocks) == kept.beside(TARGET, floats) == kept
    assert best.beside(TARGET, floats) == best
    odd, exact = dataclasses.replace(TARGET, head_dim=24), Execution.here(kv="float32")
    assert best.beside(odd, blocks) == best
    assert exact.beside(TARGET, blocks) == exact
    for refused in (
        lambda: kept.on(jax.make_mesh((1,), ("model",))),
        lambda: kept.beside(odd, blocks),
        lambda: Execution.here("dense", kv="bfloat16"),
        lambda: Execution.here(kv="float32", dtype=jnp.bfloat16),
    ):
        with pytest.raises(UserError, match="leave --kv out"):
            refused()


def test_the_choice_of_a_platform():
    fused, native = WeightsForm(fused=True), available()
    best = Execution("native" if native else "dense", weights=WeightsForm("stored", True, native))
    int8 = dataclasses.replace(best, weights=WeightsForm("int8", True, native))
    assert Execution.here() == Execution.of_cpu() == best
    assert Execution.here(weights="int8") == int8
    assert int8.on(jax.make_mesh((1, 1), ("data", "model"))).weights == WeightsForm("int8")
    assert Execution.here(kv="bfloat16", dtype=jnp.bfloat16) == best
    assert Execution.of_gpu(8.0) == Execution("triton", "triton", 8, fused)
    assert Execution.of_gpu(7.5).attention == "dense"  # a T4 has no bfloat16
    assert Execution.here("dense") == dataclasses.replace(best, attention="dense")
    for other in ("triton", "mosaic"):
        with pytest.raises(UserError, match=f"'{other}' needs a.* this is cpu"):
            Execution.here(other)
