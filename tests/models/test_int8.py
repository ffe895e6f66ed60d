"""Weights in 8 bits with a scale for each output, against numpy and the weights that they are."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P
from tiny_configs import TARGET, copied, prompt_logits, random_params

from dart_jax.models.config import MoEConfig
from dart_jax.models.kernels.int8 import Int8, round_kernel, round_params, sums, times
from dart_jax.models.platform.weights import WeightsForm, untie
from dart_jax.models.sharding.rules import model_specs
from dart_jax.weights.checkpoint import load_target, save_target

# All experts for each row: rounding does not choose others.
EXPERTS = dataclasses.replace(
    TARGET, model_type="qwen2_moe", moe=MoEConfig(4, 4, 16, True, shared_intermediate_size=24)
)


def weights_of(params):
    """The float32 numbers that weights stand for."""

    def one(x):
        return x.values.astype(jnp.float32) * x.scale[..., None, :] if isinstance(x, Int8) else x

    return jax.tree.map(one, params, is_leaf=lambda x: isinstance(x, Int8))


TOKENS = jnp.arange(12, dtype=jnp.int32).reshape(2, 6)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_a_product_against_numpy(dtype):
    w = np.random.default_rng(0).normal(size=(70, 20)) * (np.arange(20) != 3)
    w = np.asarray(jnp.asarray(w, dtype), np.float64)
    x = jnp.asarray(np.random.default_rng(1).normal(size=(2, 3, 70)), dtype)
    scale = np.abs(w).max(axis=0) / 127
    exact = w / np.where(scale == 0, 1, scale)
    kernel = round_kernel(jnp.asarray(w, dtype))
    assert (kernel.values.dtype, kernel.scale.dtype) == (jnp.int8, jnp.float32)
    tie = np.abs(exact % 1 - 0.5) < 1e-4  # float32 may round it either way
    values = np.where(tie, kernel.values, np.rint(exact))
    assert np.abs(values - exact).max() < 0.5001
    np.testing.assert_array_equal(kernel.values, values)
    expected = (np.asarray(x, np.float64) @ values) * scale
    np.testing.assert_allclose(kernel.scale, scale, rtol=1e-6)
    np.testing.assert_allclose(sums(x, kernel), expected, rtol=1e-5, atol=1e-5)
    assert times(x, kernel).dtype == dtype
    np.testing.assert_array_equal(times(x, kernel), sums(x, kernel).astype(dtype))
    again = round_kernel(jnp.asarray(w.T, dtype), transposed=True)
    jax.tree.map(np.testing.assert_array_equal, again, kernel)


@pytest.mark.long(keep=1)
@pytest.mark.parametrize("config", [TARGET, EXPERTS], ids=["dense", "experts"])
@pytest.mark.parametrize("fused", [False, True])
def test_logits(config, fused):
    params = random_params(config, 0)
    prepared = WeightsForm("int8", fused).prepare(copied(params))
    expected = prompt_logits(config, weights_of(prepared), TOKENS)
    actual = prompt_logits(config, prepared, TOKENS)
    np.testing.assert_allclose(actual, expected, rtol=0, atol=2e-5)
    stored = np.asarray(prompt_logits(config, params, TOKENS))
    error = np.linalg.norm(actual - stored) / np.linalg.norm(stored)
    assert 0 < error < 0.03


def test_matrices_are_rounded_and_the_rest_stays():
    params = random_params(EXPERTS, 0)
    given = copied(params)
    result = round_params(given)
    assert not given  # memory is given back matrix by matrix
    layer, before = result["layers"][0], params["layers"][0]
    for matrix in (
        layer["self_attn"]["q_proj"]["kernel"],
        layer["mlp"]["experts"]["gate_proj"],
        layer["mlp"]["shared_expert"]["up_proj"]["kernel"],
    ):
        assert isinstance(matrix, Int8)
    assert result["embed_tokens"] is params["embed_tokens"]
    for name in ("router", "shared_expert_gate"):
        assert layer["mlp"][name]["kernel"] is before["mlp"][name]["kernel"]
    jax.tree.map(np.testing.assert_array_equal, round_params(copied(result)), result)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_rounded_as_they_are_loaded(tmp_path, dtype):
    config = dataclasses.replace(TARGET, tie_word_embeddings=False)
    save_target(tmp_path, config, random_params(config, 0))
    loaded, found = load_target(tmp_path, dtype, form=WeightsForm("int8"))
    expected = round_params(load_target(tmp_path, dtype)[1])
    assert loaded == config
    assert isinstance(found["lm_head"]["kernel"], Int8)
    jax.tree.map(np.testing.assert_array_equal, found, expected)


def test_a_tied_head():
    params = random_params(TARGET, 0)
    config, found = untie(TARGET, params, WeightsForm("int8"))
    assert not config.tie_word_embeddings
    expected = round_kernel(params["embed_tokens"].T)
    jax.tree.map(np.testing.assert_array_equal, found["lm_head"]["kernel"], expected)


def test_specs_of_several_devices():
    specs = model_specs(EXPERTS, jax.eval_shape(round_params, random_params(EXPERTS, 0)))
    layer = specs["layers"][0]
    out, into = (layer["self_attn"][name]["kernel"] for name in ("q_proj", "o_proj"))
    assert out == Int8(P(None, "model"), P("model"))
    assert into == Int8(P("model", None), P())
    experts = Int8(P("model", None, None), P("model", None))
    assert layer["mlp"]["experts"]["down_proj"] == experts
