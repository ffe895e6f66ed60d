"""Targets in the forms in which people have them: what transformers reads, with the same logits."""

import dataclasses
import functools
import json
import re
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from needs import judge
from refusals import report
from safetensors.numpy import load_file, save_file
from test_checkpoint import change_config, change_tensors
from tiny_configs import prompt_logits

from dart_jax.errors import InputWarning, UserError
from dart_jax.models.config import TargetConfig
from dart_jax.models.networks.pure import abstract_params
from dart_jax.models.rope import Rope
from dart_jax.weights.checkpoint import load_target, save_target
from dart_jax.weights.generation_file import load_eos

LLAMA = TargetConfig(
    vocab_size=61,
    hidden_size=16,
    intermediate_size=24,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=4,
    rope=Rope(1e4),
    max_position_embeddings=64,
    model_type="llama",
)
TIED = dataclasses.replace(LLAMA, tie_word_embeddings=True)
TOKENS = np.random.default_rng(0).integers(0, LLAMA.vocab_size, (1, 9)).astype(np.int32)
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
WEIGHTS = "model.safetensors"


def noise(*shape, seed=1):
    return np.random.default_rng(seed).normal(0, 0.5, shape).astype(np.float32)


@functools.cache
def random_params(config):
    rng = np.random.default_rng(2)
    return jax.tree.map(
        lambda leaf: jnp.asarray(rng.normal(0, 0.3, leaf.shape), jnp.float32),
        abstract_params(config),
    )


def target(directory, config=LLAMA):
    save_target(directory, config, random_params(config))
    return directory


def our_logits(directory):
    config, params = load_target(directory)
    return np.asarray(prompt_logits(config, params, TOKENS))


def sharded(directory):
    """Writes the model in shards; returns their index, and the file of each tensor."""
    save_target(directory, LLAMA, random_params(LLAMA), max_shard_size=4000)
    path = directory / f"{WEIGHTS}.index.json"
    return path, json.loads(path.read_text())["weight_map"]


def another_tensor_in_an_earlier_shard(directory):
    _, index = sharded(directory)
    other = directory / next(file for file in index.values() if file < index["model.norm.weight"])
    save_file(load_file(other) | {"model.norm.weight": noise(16)}, other, {"format": "pt"})


def shards_in_a_folder(directory):
    path, index = sharded(directory)
    (directory / "parts").mkdir()
    for file in {*index.values()}:
        (directory / file).rename(directory / "parts" / file)
    index = {name: f"./parts/{file}" for name, file in index.items()}
    path.write_text(json.dumps({"metadata": {}, "weight_map": index}))


def of(changes=None, config=LLAMA, **fields):
    """Writes a model with other tensors and other fields of its config; None takes one out."""

    def write(directory):
        target(directory, config)
        change_tensors(directory, changes or (lambda tensors: tensors))
        path = directory / "config.json"
        json_config = json.loads(path.read_text()) | fields
        path.write_text(json.dumps({n: x for n, x in json_config.items() if x is not None}))

    return write


OTHER_ENDS = {
    "score.weight": noise(3, 16),
    "v_head.summary.weight": noise(1, 16),
    "optimizer.state.0.exp_avg": noise(3),
    "optimizer.state.0.step": np.array(3),
}
BUFFERS = {
    "model.layers.0.self_attn.rotary_emb.inv_freq": noise(2),
    "model.layers.0.self_attn.rotary_emb.cos_cached": noise(8, 4),
    "model.layers.1.self_attn.q_proj.bias": np.zeros(16, np.float32),
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
# What writes a checkpoint into a directory.
SITUATIONS = {
    "a head beside a tied embedding": of(lambda t: t | {HEAD: noise(61, 16)}, TIED),
    "a head equal to a tied embedding": of(lambda t: t | {HEAD: t[EMBEDDING]}, TIED),
    "tied under the name of the head": of(lambda t: {HEAD: t.pop(EMBEDDING), **t}, TIED),
    "saved without a head": of(
        lambda t: {n.removeprefix("model."): a for n, a in t.items()},
        TIED,
        architectures=["LlamaModel"],
    ),
    "another tensor in an earlier shard": another_tensor_in_an_earlier_shard,
    "shards in a folder": shards_in_a_folder,
    "saved inside a wrapper": of(lambda t: {f"model.{n}": a for n, a in t.items()}),
    "layers beyond the config": of(num_hidden_layers=2),
    "heads for other ends": of(lambda t: t | OTHER_ENDS),
    "buffers and zero biases": of(lambda t: t | BUFFERS),
    "unknown rope parameters": of(rope_scaling=YARN | {"attn_factor": 0.5, "finetuned": True}),
    "a magnitude of nothing": of(rope_scaling=YARN | {"mscale": 1, "mscale_all_dim": 0.0}),
    "fields of nobody": of(scale_emb=12, unused_switch=False, pretraining_tp=2, max_length=7),
    "another class": of(architectures=["LlamaForTokenClassification"]),
    "an old spelling": of(architectures=["LLaMAForCausalLM"], hidden_act="swish", rope_theta=None),
}
WARNINGS = {
    "a head beside a tied embedding": "holds a head .* that is not the embedding; both are used",
    "layers beyond the config": r"nor by transformers: model\.layers\.2\.\* \(9\)",
    "heads for other ends": r"(?=.*score\.\* \(1\))(?=.*v_head\.\* \(1\)).*optimizer\.\* \(2\)",
    "unknown rope parameters": "'yarn' has no parameters attn_factor, finetuned",
    "another class": "names the architecture .*; read as model_type 'llama' says",
}


def test_a_missing_head_may_be_the_embedding(tmp_path):
    target(tmp_path, TIED)
    change_config(tmp_path, tie_word_embeddings=False)
    message = (
        "missing lm_head.weight (if the embedding is the head, set tie_word_embeddings to true"
    )
    assert message in report(load_target, tmp_path)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"is_causal": False}, "is_causal=False, which is not supported"),
        ({"is_encoder_decoder": True}, "is_encoder_decoder=True"),
        ({"add_cross_attention": True}, "add_cross_attention=True"),
        ({"per_layer_config": {"0": {"head_dim": 8}}}, "per_layer_config="),
        ({"transformers_weights": "other.safetensors"}, "transformers_weights="),
        (
            {"quantization_config": {"quant_method": "awq", "bits": 4}},
            "quantization_config='awq', and quantised weights are read from GGUF files only; pass",
        ),
        ({"text_config": {"compression_config": {"quant_method": "x"}}}, "compression_config='x'"),
        ({"quantization": {"bits": 4, "group_size": 64}}, "quantization={'bits': 4, 'group_size'"),
        (
            {"architectures": ["XverseForCausalLM"], "auto_map": {"AutoModelForCausalLM": "x.Y"}},
            r"its own code \(auto_map\) computes",
        ),
    ],
)
def test_fields_that_change_the_result_are_refused(tmp_path, fields, message):
    target(tmp_path)
    change_config(tmp_path, **fields)
    with pytest.raises(UserError, match=message):
        load_target(tmp_path)
    (tmp_path / "adapter_config.json").write_text("{}")
    assert "not read: merge it into its base" in report(load_target, tmp_path)


@pytest.mark.parametrize(
    ("generation", "config", "eos"),
    [
        ({"eos_token_id": [3, 5]}, {"eos_token_id": 7}, (3, 5)),
        ({"temperature": 0.5}, {"eos_token_id": 7}, (7,)),
        (None, {"text_config": {"eos_token_id": [7, 8]}}, (7, 8)),
        (None, {"eos_token_id": 9, "text_config": {"eos_token_id": 7}}, (9,)),
        ({"eos_token_id": None}, {}, ()),
    ],
)
def test_ids_that_end_a_text(tmp_path, generation, config, eos):
    (tmp_path / "config.json").write_text(json.dumps(config))
    if generation is not None:
        (tmp_path / "generation_config.json").write_text(json.dumps(generation))
    assert load_eos(tmp_path, 10) == eos


def test_ids_that_end_a_text_but_cannot_be_written(tmp_path):
    path = tmp_path / "generation_config.json"
    path.write_text('{"eos_token_id": [3, 10, -1]}')
    with pytest.warns(InputWarning, match="the target cannot write eos_token_id 10, -1"):
        assert load_eos(tmp_path, 10) == (3,)
    path.write_text('{"eos_token_id": [true]}')
    assert "eos_token_id must be an integer or a list of them" in report(load_eos, tmp_path)


@pytest.fixture(scope="module")
def their_logits():
    torch = judge("torch")
    import transformers

    transformers.logging.set_verbosity_error()

    def logits(directory):
        model = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype="float32")
        with torch.no_grad():
            return model.eval()(torch.from_numpy(TOKENS).long()).logits.numpy()

    return logits


@pytest.mark.parametrize("situation", SITUATIONS)
def test_what_people_have_gives_the_logits_of_transformers(tmp_path, their_logits, situation):
    SITUATIONS[situation](tmp_path)
    message = WARNINGS.get(situation)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", InputWarning)
        ours = our_logits(tmp_path)
    texts = {str(one.message) for one in caught if one.category is InputWarning}
    assert len(texts) == (message is not None)
    assert all(re.search(message, text) for text in texts)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = their_logits(tmp_path)
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-4)
