"""RoPE frequencies against those of transformers, for every kind of scaling."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from needs import judge

from dart_jax.errors import UserError
from dart_jax.models.rope import Rope


def factors(low, high):
    return st.floats(low, high, allow_nan=False)


LENGTHS = st.integers(16, 40000)
SCALINGS = st.one_of(
    st.just({"rope_type": "default"}),
    st.fixed_dictionaries({"rope_type": st.just("linear"), "factor": factors(1, 40)}),
    st.fixed_dictionaries({"rope_type": st.just("dynamic"), "factor": factors(1, 40)}),
    st.fixed_dictionaries(
        {
            "rope_type": st.just("llama3"),
            "factor": factors(1, 40),
            "low_freq_factor": factors(0.5, 2),
            "high_freq_factor": factors(2.5, 8),
            "original_max_position_embeddings": LENGTHS,
        }
    ),
    st.fixed_dictionaries(
        {"rope_type": st.just("yarn"), "factor": factors(1, 40)},
        optional={
            "original_max_position_embeddings": LENGTHS,
            "beta_fast": factors(10, 64),
            "beta_slow": factors(0.5, 4),
            "attention_factor": factors(0.5, 2),
            "mscale": factors(0.5, 2),
            "mscale_all_dim": factors(0.5, 2),
            "truncate": st.booleans(),
        },
    ),
)


@settings(max_examples=200)
@given(
    SCALINGS,
    st.sampled_from([1e4, 5e5, 1e6, 150.0]),
    st.sampled_from([8, 10, 64, 128]),
    LENGTHS,
    st.booleans(),
)
def test_frequencies_are_those_of_transformers(scaling, theta, head_dim, length, nested):
    judge("torch")
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    given = {"head_dim": head_dim, "max_position_embeddings": length}
    if nested:
        given["rope_parameters"] = {**scaling, "rope_theta": theta}
    else:
        given |= {"rope_scaling": dict(scaling), "rope_theta": theta}
    rope = Rope.from_json(json.loads(json.dumps(given)), 1e4)
    theirs = LlamaRotaryEmbedding(LlamaConfig(**given))
    np.testing.assert_allclose(rope.frequencies(head_dim), theirs.inv_freq.numpy(), rtol=1e-5)
    np.testing.assert_allclose(rope.amplitude, theirs.attention_scaling, rtol=1e-12)
    written = rope.to_json() | {"max_position_embeddings": length}
    assert Rope.from_json(json.loads(json.dumps(written))) == rope


@settings(max_examples=50)
@given(
    st.sampled_from([(8, 1.0), (16, 0.5), (32, 0.75), (128, 0.25)]),
    st.integers(0, 2**32 - 1),
    st.fixed_dictionaries(
        {}, optional={"factor": factors(0.5, 40), "attention_factor": factors(0.5, 2)}
    ),
)
def test_longrope_of_part_of_a_head_is_that_of_transformers(heads, seed, options):
    judge("torch")
    from transformers import Phi3Config
    from transformers.models.phi3.modeling_phi3 import Phi3RotaryEmbedding

    head_dim, share = heads
    lists = np.random.default_rng(seed).uniform(1, 9, (2, int(head_dim * share) // 2)).tolist()
    scaling = {"type": "longrope", "short_factor": lists[0], "long_factor": lists[1], **options}
    given = {
        "hidden_size": 4 * head_dim,
        "num_attention_heads": 4,
        "max_position_embeddings": 4096,
        "original_max_position_embeddings": 512,
        "partial_rotary_factor": share,
        "rope_theta": 1e4,
    }
    rope = Rope.from_json({**given, "rope_scaling": scaling}, partial=True)
    theirs = Phi3RotaryEmbedding(Phi3Config(**{**given, "rope_scaling": dict(scaling)}))
    np.testing.assert_allclose(rope.frequencies(head_dim), theirs.inv_freq.numpy(), rtol=1e-5)
    np.testing.assert_allclose(rope.amplitude, theirs.attention_scaling, rtol=1e-12)
    rope.check(head_dim)
    with pytest.raises(UserError, match="rope short_factor values for"):
        rope.check(2 * head_dim)
    # Beyond the original length transformers changes to the long factors.
    assert rope.longest(4096) == 512
    written = rope.to_json() | {"max_position_embeddings": 4096}
    assert Rope.from_json(json.loads(json.dumps(written)), partial=True) == rope


LLAMA3 = {"type": "llama3", "factor": 2, "low_freq_factor": 4, "high_freq_factor": 4}


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ({"rope_theta": None}, "rope_theta"),
        ({"rope_theta": "1e4"}, "rope_theta"),
        ({"rope_scaling": {"rope_type": "ntk"}}, "ntk"),
        ({"rope_scaling": {"rope_type": ["yarn"]}}, "yarn"),
        ({"rope_scaling": 4}, "rope parameters 4"),
        ({"rope_scaling": {"type": "longrope"}}, "short_factor, long_factor"),
        ({"rope_scaling": {"type": "longrope", "short_factor": 2, "long_factor": [2]}}, "short_f"),
        ({"rope_scaling": {"type": "longrope", "short_factor": [2], "long_factor": [0]}}, "long_f"),
        ({"rope_scaling": {"type": "linear"}}, "factor"),
        ({"rope_scaling": {"type": "linear", "factor": True}}, "factor"),
        ({"rope_scaling": {"type": "llama3", "factor": 2}}, "low_freq_factor, high_freq_"),
        ({"rope_scaling": LLAMA3}, "low_freq_factor"),
        ({"rope_scaling": {"type": "yarn", "factor": 2, "truncate": 1}}, "truncate"),
        ({"rope_scaling": {"type": "yarn", "factor": 2, "rope_theta": 1}}, "rope_theta"),
        ({"rope_scaling": {"partial_rotary_factor": 0.5}}, "partial_rotary"),
    ],
)
def test_unsupported_settings_are_refused_by_name(given, name):
    with pytest.raises(UserError, match=name):
        Rope.from_json({"rope_theta": 1e4, "max_position_embeddings": 64} | given)


@pytest.mark.parametrize("part", [None, 1.0, 1])
def test_a_rotary_factor_of_one_is_accepted(part):
    assert Rope.from_json({"rope_theta": 1e4, "partial_rotary_factor": part}) == Rope(1e4)


def test_the_top_level_original_length_takes_precedence():
    scaling = {"type": "yarn", "factor": 2.0, "original_max_position_embeddings": 32}
    given = {"rope_theta": 1e4, "rope_scaling": scaling, "max_position_embeddings": 128}
    assert Rope.from_json(given).longest(64) == 64
    assert Rope.from_json(given | {"original_max_position_embeddings": 16}).longest(16) == 32
    del scaling["original_max_position_embeddings"]
    assert Rope.from_json(given).longest(64) == 256
