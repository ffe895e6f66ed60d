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


# Situations: each writes a checkpoint into a directory, and returns the warning to expect.


def head_beside_a_tied_embedding(directory):
    target(directory, TIED)
    change_tensors(directory, lambda t: t | {HEAD: noise(61, 16)})
    return "holds a head .* that is not the embedding; both are used"


def head_equal_to_a_tied_embedding(directory):
    target(directory, TIED)
    change_tensors(directory, lambda t: t | {HEAD: t[EMBEDDING]})


def tied_under_the_name_of_the_head(directory):
    target(directory, TIED)
    change_tensors(directory, lambda t: {HEAD: t.pop(EMBEDDING), **t})


def saved_without_a_head(directory):
    target(directory, TIED)
    change_config(directory, architectures=["LlamaModel"])
    change_tensors(directory, lambda t: {n.removeprefix("model."): a for n, a in t.items()})


def another_tensor_in_an_earlier_shard(directory):
    save_target(directory, LLAMA, random_params(LLAMA), max_shard_size=4000)
    index = json.loads((directory / f"{WEIGHTS}.index.json").read_text())["weight_map"]
    other = directory / next(file for file in index.values() if file < index["model.norm.weight"])
    wrong = {"model.norm.weight": noise(16)}
    save_file(load_file(other) | wrong, other, {"format": "pt"})


def shards_in_a_folder(directory):
    save_target(directory, LLAMA, random_params(LLAMA), max_shard_size=4000)
    path = directory / f"{WEIGHTS}.index.json"
    index = json.loads(path.read_text())
    (directory / "parts").mkdir()
    for file in {*index["weight_map"].values()}:
        (directory / file).rename(directory / "parts" / file)
    index["weight_map"] = {n: f"./parts/{file}" for n, file in index["weight_map"].items()}
    path.write_text(json.dumps(index))


def saved_inside_a_wrapper(directory):
    target(directory)
    change_tensors(directory, lambda t: {f"model.{n}": a for n, a in t.items()})


def layers_beyond_the_config(directory):
    target(directory)
    change_config(directory, num_hidden_layers=2)
    return r"not used, nor by transformers: model\.layers\.2\.\* \(9\)"


def heads_for_other_ends(directory):
    target(directory)
    others = {"score.weight": noise(3, 16), "v_head.summary.weight": noise(1, 16)}
    states = {"optimizer.state.0.exp_avg": noise(3), "optimizer.state.0.step": np.array(3)}
    change_tensors(directory, lambda t: t | others | states)
    return r"(?=.*score\.\* \(1\))(?=.*v_head\.\* \(1\)).*optimizer\.\* \(2\)"


def buffers_and_zero_biases(directory):
    target(directory)
    others = {
        "model.layers.0.self_attn.rotary_emb.inv_freq": noise(2),
        "model.layers.0.self_attn.rotary_emb.cos_cached": noise(8, 4),
        "model.layers.1.self_attn.q_proj.bias": np.zeros(16, np.float32),
    }
    change_tensors(directory, lambda t: t | others)


def unknown_rope_parameters(directory):
    target(directory)
    scaling = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
    change_config(directory, rope_scaling=scaling | {"attn_factor": 0.5, "finetuned": True})
    return "'yarn' has no parameters attn_factor, finetuned"


def a_magnitude_of_nothing(directory):
    target(directory)
    scaling = {"type": "yarn", "factor": 4, "mscale": 1, "mscale_all_dim": 0.0}
    change_config(directory, rope_scaling=scaling | {"original_max_position_embeddings": 16})


def fields_of_nobody(directory):
    target(directory)
    change_config(directory, scale_emb=12, unused_switch=False, pretraining_tp=2, max_length=7)


def another_class(directory):
    target(directory)
    change_config(directory, architectures=["LlamaForTokenClassification"])
    return "names the architecture .*; read as model_type 'llama' says"


def an_old_spelling(directory):
    target(directory)
    change_config(directory, architectures=["LLaMAForCausalLM"], hidden_act="swish")
    change_config(directory, rope_theta=None, rope_scaling=None)
    text = json.loads((directory / "config.json").read_text())
    del text["rope_theta"]
    (directory / "config.json").write_text(json.dumps(text))


SITUATIONS = (
    *(head_beside_a_tied_embedding, head_equal_to_a_tied_embedding, saved_without_a_head),
    *(tied_under_the_name_of_the_head, another_tensor_in_an_earlier_shard, shards_in_a_folder),
    *(saved_inside_a_wrapper, layers_beyond_the_config, heads_for_other_ends),
    *(buffers_and_zero_biases, unknown_rope_parameters, a_magnitude_of_nothing),
    *(fields_of_nobody, another_class, an_old_spelling),
)


def test_a_missing_head_may_be_the_embedding(tmp_path):
    target(tmp_path, TIED)
    expected = our_logits(tmp_path)
    change_config(tmp_path, tie_word_embeddings=False)
    with pytest.raises(UserError, match=r"missing lm_head\.weight \(if the embedding is the head"):
        load_target(tmp_path)
    change_config(tmp_path, tie_word_embeddings=True)  # as the message says
    np.testing.assert_array_equal(our_logits(tmp_path), expected)


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


def test_adapters_are_refused(tmp_path):
    target(tmp_path)
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(UserError, match=r"holds an adapter .* not read: merge it into its base"):
        load_target(tmp_path)


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
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [3, 10, -1]}')
    with pytest.warns(InputWarning, match="the target cannot write eos_token_id 10, -1"):
        assert load_eos(tmp_path, 10) == (3,)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [true]}')
    with pytest.raises(UserError, match="eos_token_id must be an integer or a list of them"):
        load_eos(tmp_path)


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


@pytest.mark.parametrize("situation", SITUATIONS, ids=lambda s: s.__name__)
def test_what_people_have_gives_the_logits_of_transformers(tmp_path, their_logits, situation):
    message = situation(tmp_path)
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
