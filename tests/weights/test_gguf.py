"""GGUF files as targets: what was converted comes back, in every architecture."""

import dataclasses
import json
import re

import gguf
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from blocks import TYPES
from gguf_files import metadata_of, write
from needs import judge, native
from refusals import report
from tiny_configs import prompt_logits
from tokenizers import Regex, pre_tokenizers
from tokenizers_made import TEXTS, byte_fallback, byte_level

from dart_jax.errors import InputWarning, UserError
from dart_jax.models.config import MoEConfig, TargetConfig
from dart_jax.models.kernels.tiles import Tiles
from dart_jax.models.networks.pure import abstract_params
from dart_jax.models.platform.weights import WeightsForm
from dart_jax.models.rope import Rope
from dart_jax.text.tokenizer import Tokenizer
from dart_jax.weights import hub
from dart_jax.weights.checkpoint import load_target, save_target
from dart_jax.weights.generation_file import load_eos, read_options
from dart_jax.weights.gguf import file as gguf_file
from dart_jax.weights.gguf.config import _UNUSED, hf_config, specified
from dart_jax.weights.gguf.names import rope_factors
from dart_jax.weights.gguf.tokenizer import _SPLITS
from dart_jax.weights.target_files import open_target

LLAMA = TargetConfig(
    vocab_size=61,
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    rms_norm_eps=2.0**-17,
    rope=Rope(1e4),
    max_position_embeddings=64,
    model_type="llama",
)
EXPERTS = MoEConfig(5, 2, 48, norm_topk_prob=True)
FACTORS = ("short_factor", (1.25, 1.5)), ("long_factor", (2.0, 5.0))
LENGTH = ("original_max_position_embeddings", 48)
LONG = (*FACTORS, LENGTH, ("factor", 64 / 48), ("attention_factor", 1.5))
BETAS = (("beta_fast", 32.0), ("beta_slow", 1.0), ("attention_factor", 1.25), ("truncate", True))
YARN = Rope(5e5, "yarn", (("factor", 8.0), LENGTH, *BETAS))
GEMMA = {"hidden_act": "gelu_pytorch_tanh", "tie_word_embeddings": True, "num_hidden_layers": 6}
BIASES = {"attention_bias": True, "attention_out_bias": True, "mlp_bias": True}
MIXTRAL = dataclasses.replace(EXPERTS, intermediate_size=64)
SHARED = dataclasses.replace(EXPERTS, norm_topk_prob=False, shared_intermediate_size=28)
# Name -> what is not as in LLAMA.
MODELS = {
    "Llama": {},
    "Llama, biases, tied": {**BIASES, "tie_word_embeddings": True},
    "Mixtral": {"model_type": "mixtral", "moe": MIXTRAL},
    "Mistral": {"model_type": "mistral", "sliding_window": 10},
    "Qwen2": {"model_type": "qwen2", "attention_bias": True},
    "Qwen3": {"model_type": "qwen3", "head_dim": 16},
    "Qwen3-MoE": {"model_type": "qwen3_moe", "moe": EXPERTS},
    "Qwen2-MoE": {"model_type": "qwen2_moe", "attention_bias": True, "moe": SHARED},
    "Phi-3": {"model_type": "phi3", "sliding_window": 10},
    "Phi-3, longrope": {"model_type": "phi3", "rope": Rope(1e4, "longrope", LONG, 0.5)},
    "Gemma": {"model_type": "gemma", **GEMMA},
    "Gemma 2": {
        "model_type": "gemma2",
        **GEMMA,
        "sliding_window": 5,
        "sliding_layers": (0, 2, 4),
        "attn_logit_softcapping": 1.5,
        "final_logit_softcapping": 2.0,
        "query_pre_attn_scalar": 8,
    },
    "Gemma 3": {
        "model_type": "gemma3_text",
        **GEMMA,
        "sliding_window": 5,
        "sliding_layers": (0, 1, 2, 3, 4),
        "query_pre_attn_scalar": 8,
        "rope": Rope(1e6, "linear", (("factor", 8.0),)),
        "sliding_rope": Rope(1e4),
    },
    "Granite": {
        "model_type": "granite",
        "attention_multiplier": 0.25,
        "embedding_multiplier": 3.0,
        "residual_multiplier": 0.5,
        "logits_scaling": 2.5,
    },
    "SmolLM3": {"model_type": "smollm3", "num_hidden_layers": 5, "no_rope_layers": (3,)},
    "Seed-OSS": {"model_type": "seed_oss", "attention_bias": True},
    "OLMo 2": {"model_type": "olmo2"},
    "OLMo 3": {
        "model_type": "olmo3",
        "num_hidden_layers": 4,
        "sliding_window": 7,
        "sliding_layers": (0, 1, 2),
        "rope": YARN,
        "sliding_rope": Rope(5e5),
    },
}


TOKENS = np.random.default_rng(1).integers(0, LLAMA.vocab_size, (1, 20)).astype(np.int32)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "cache"))


def save(directory, config, scale=1.0):
    """A checkpoint in the Hugging Face layout; returns its parameters: numbers to which 1 can be
    added without rounding, if the scale is 1."""
    rng = np.random.default_rng(0)
    params = jax.tree.map(
        lambda p: jnp.asarray(scale * rng.integers(-99, 99, p.shape) / 128, jnp.float32),
        abstract_params(config),
    )
    save_target(directory, config, params, eos=(1,))
    return params


def written(tmp_path, config=LLAMA, **options):
    """A file of a saved model."""
    save(tmp_path / "hf", config)
    return write(tmp_path / "m.gguf", tmp_path / "hf", **options)


def resolved(path):
    return hub.resolve(path, patterns=hub.TARGET)


@pytest.mark.long(keep=5)
@pytest.mark.parametrize("name", MODELS)
def test_what_was_converted_comes_back(name, tmp_path):
    config = dataclasses.replace(LLAMA, **MODELS[name])
    expected = save(tmp_path / "hf", config)
    directory = resolved(write(tmp_path / "m.gguf", tmp_path / "hf"))
    ours, params = load_target(directory)
    assert ours == config
    assert jax.tree.structure(params) == jax.tree.structure(expected)
    jax.tree.map(np.testing.assert_array_equal, params, expected)
    assert load_eos(directory) == (1,)


def test_divisors_of_frequencies(tmp_path):
    """Llama 3's scaling is stored as the numbers that come of it."""
    llama3 = (
        ("factor", 8.0),
        ("low_freq_factor", 1.0),
        ("high_freq_factor", 4.0),
        ("original_max_position_embeddings", 16),
    )
    rope = Rope(100.0, "llama3", llama3)
    factors = Rope(100.0).frequencies(8) / rope.frequencies(8)
    path = written(
        tmp_path,
        dataclasses.replace(LLAMA, rope=Rope(100.0)),
        tensors={"rope_freqs.weight": factors},
    )
    config, _ = open_target(resolved(path))
    np.testing.assert_allclose(config.rope.frequencies(8), rope.frequencies(8), rtol=1e-6)
    assert config.rope.amplitude == 1
    assert config.max_length == LLAMA.max_position_embeddings


@pytest.mark.parametrize("suffix", ["gguf", "GGUF"])
def test_files_of_one_model(suffix, tmp_path):
    """Any of the files that it was split into stands for the model."""
    expected = save(tmp_path / "hf", LLAMA)
    (tmp_path / "split").mkdir()
    first = write(tmp_path / "split" / "m.gguf", tmp_path / "hf", shards=11)
    files = [file.rename(file.with_suffix(f".{suffix}")) for file in sorted(first.parent.iterdir())]
    assert len(files) > 2
    for file in files:
        _, params = load_target(resolved(file))
        jax.tree.map(np.testing.assert_array_equal, params, expected)
    files[1].unlink()
    assert f"lacks {files[1].name} of the files of" in report(resolved, files[0])


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q8_0", "Q4_0", "Q5_1"])
def test_types_of_weights(kind, tmp_path):
    """Matrices are what the package makes of them, whole and in parts."""
    type_ = gguf.GGMLQuantizationType[kind]
    path = written(tmp_path, kinds={"ffn|token_embd|output": type_})
    _, files = open_target(resolved(path))
    reader = {t.name: t for t in gguf.GGUFReader(path).tensors}
    for name, own in (
        ("model.embed_tokens.weight", "token_embd.weight"),
        ("model.layers.1.mlp.down_proj.weight", "blk.1.ffn_down.weight"),
    ):
        tensor, stored = files.tensors[name], reader[own]
        assert stored.tensor_type == type_
        whole = gguf.dequantize(stored.data, stored.tensor_type)
        np.testing.assert_array_equal(tensor.read().astype(np.float32), whole)
        part = tensor.read_part((slice(3, 9), slice(5, 20)))
        np.testing.assert_array_equal(part.astype(np.float32), whole[3:9, 5:20])


WIDE = {"hidden_size": 256, "intermediate_size": 256, "num_attention_heads": 8, "head_dim": 32}


@native
@pytest.mark.parametrize("kind", TYPES)
def test_blocks_stay_as_they_are(kind, tmp_path):
    """Matrices of each type, whatever the order of their rows in the file, and one that several
    share; their weights are those of the floats."""
    for changes in ({}, {"model_type": "phi3", "tie_word_embeddings": True}):
        config = dataclasses.replace(LLAMA, **WIDE, **changes)
        save(tmp_path / "hf", config)
        kinds = {"attn_|ffn_|token_embd": gguf.GGMLQuantizationType[kind]}
        path = write(tmp_path / "m.gguf", tmp_path / "hf", kinds=kinds)
        _, floats = load_target(resolved(path))
        _, blocks = load_target(resolved(path), form=WeightsForm(tiles=True))
        kept = []

        def check(path, stored, floats, kept=kept):
            if isinstance(stored, Tiles):
                assert stored.types == (kind,)
                stored = stored.transposed()
                floats = floats if path[-1].key == "embed_tokens" else floats.T
                kept.append(path)
            np.testing.assert_array_equal(stored, floats)

        is_leaf = lambda x: isinstance(x, Tiles)  # noqa: E731
        jax.tree.map_with_path(check, blocks, floats, is_leaf=is_leaf)
        assert len(kept) == 1 + 7 * config.num_hidden_layers


def test_blocks_that_are_not_finite(tmp_path):
    kinds = {"ffn_up": gguf.GGMLQuantizationType.Q4_1}
    path = written(tmp_path, kinds=kinds)
    tensor = next(t for t in gguf.GGUFReader(path).tensors if t.name == "blk.1.ffn_up.weight")
    content = bytearray(path.read_bytes())
    at = tensor.data_offset + 20 + 2  # the minimum of the second block
    content[at : at + 2] = np.float16(np.inf).tobytes()
    path.write_bytes(content)
    for tiles in (False, True):
        with pytest.raises(
            UserError,
            match=r"infinite in float32, in model.layers.1.mlp.up_proj"
            r".weight \(32 of them\)",
        ):
            load_target(resolved(path), form=WeightsForm(tiles=tiles))


# As in Qwen2's tokenizer.json.
QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def converted(tmp_path, metadata, **changes):
    """The directory for a model with such a tokenizer."""
    size = len(metadata["tokenizer.ggml.tokens"])
    save(tmp_path / "hf", dataclasses.replace(LLAMA, vocab_size=size, **changes))
    return resolved(write(tmp_path / "m.gguf", tmp_path / "hf", tokenizer=metadata))


def test_a_tokenizer_of_bytes(tmp_path):
    """The same ids as before the conversion; chat templates and named tokens are there."""
    original = byte_level()
    split = pre_tokenizers.Split(Regex(QWEN2), "isolated")
    of_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    original.pre_tokenizer = pre_tokenizers.Sequence([split, of_bytes])
    metadata, vocab = metadata_of(original, "qwen2"), original.get_vocab()
    metadata["tokenizer.ggml.bos_token_id"] = vocab["<|im_start|>"]
    metadata["tokenizer.ggml.eos_token_id"] = vocab["</s>"]
    metadata["tokenizer.ggml.padding_token_id"] = 10**6  # there is no such token
    template = "{% for m in messages %}{{ bos_token + m.content + eos_token }}{% endfor %}"
    metadata["tokenizer.chat_template"] = template
    metadata["tokenizer.chat_templates"] = ["tool_use"]
    metadata["tokenizer.chat_template.tool_use"] = "tools"
    directory = converted(tmp_path, metadata)
    tokenizer = Tokenizer.load(directory)
    for text in (*TEXTS, "I'LL pay 12,345 €\n\n  for\tcafe\u0301's", "a<|im_end|>b"):
        assert tokenizer.encode(text) == original.encode(text).ids
    chat = tokenizer.wrapped.apply_chat_template([{"role": "user", "content": "x"}], tokenize=False)
    assert chat == "<|im_start|>x</s>"
    assert tokenizer.wrapped.chat_template["tool_use"] == "tools"
    # One that is named, and one whose text says it.
    assert load_eos(directory) == (vocab["</s>"], vocab["<|im_end|>"])


@pytest.mark.parametrize(
    ("field", "value"),
    [("merges", []), ("scores", None), ("scores", -1e3), ("bos_token_id", None)],
)
def test_a_tokenizer_of_sentencepiece(tmp_path, field, value):
    """Without scores, tokens are in the order of their merges; the usual ones have usual ids."""
    original = byte_fallback()
    metadata = metadata_of(original)
    whole = [value] * len(metadata["tokenizer.ggml.tokens"]) if isinstance(value, float) else value
    metadata[f"tokenizer.ggml.{field}"] = whole
    tokenizer = Tokenizer.load(converted(tmp_path, metadata))
    for text in (*TEXTS, " a  b", "hello日本", "<s>x</s>"):
        ids = original.encode(text).ids
        assert tokenizer.encode(text) == ids
        assert tokenizer.decode(ids) == original.decode(ids)


def test_phi_3_takes_the_spaces_behind_its_tokens(tmp_path):
    metadata = metadata_of(byte_fallback())
    metadata["tokenizer.ggml.tokens"][-1] = "<|end|>"
    metadata["tokenizer.ggml.token_type"][-1] = 3
    tokenizer = Tokenizer.load(converted(tmp_path, metadata, model_type="phi3"))
    assert tokenizer.encode("<|end|>\n a") == tokenizer.encode("<|end|>a")
    assert tokenizer.encode("</s>\n a") == tokenizer.encode("</s>a")
    assert tokenizer.encode("<s>\n a") != tokenizer.encode("<s>a")


def test_spaces_of_gemma(tmp_path):
    """Files hold tokens of spaces as text; nothing comes before a text but `<bos>`."""
    tokens = ["<pad>", "<eos>", "<bos>", "<unk>", "  ", "   ", "▁", "a", "b", "▁a", "ab"]
    metadata = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3, 3, 3, 2, 4, 4, 1, 1, 1, 1, 1],
        "tokenizer.ggml.scores": [0.0] * len(tokens),
        "tokenizer.ggml.bos_token_id": 2,
    }
    tokenizer = Tokenizer.load(converted(tmp_path, metadata, **MODELS["Gemma"]))
    assert tokenizer.encode("a   b a") == [2, 7, 5, 8, 9]
    assert tokenizer.decode([7, 5, 8]) == "a   b"


# Older files, and careless ones: what is read of them is what is read of well-formed ones.


def contents(path):
    """All that is read of a file but its tensors, which the names of these tell."""
    texts = {one.name: json.loads(one.read_text()) for one in resolved(path).glob("*.json")}
    del texts["tokenizer_config.json"]["gguf_directory"]
    texts["gguf.index.json"] = {*texts["gguf.index.json"]["tensors"]}
    return texts


LLAMA3_TOKENS = {"tokenizer.ggml.tokens": ["a", "b", "ab", "<|begin_of_text|>"]}
# What is not as in LLAMA; the metadata of the file; that of the one which says the same.
CARELESS = {
    "no counts": (
        {"model_type": "qwen3", "num_key_value_heads": 4, "head_dim": 16},
        {
            "qwen3.attention.head_count_kv": None,
            "qwen3.attention.key_length": None,
            "qwen3.attention.value_length": None,
            "qwen3.rope.dimension_count": None,
            "qwen3.feed_forward_length": None,
        },
        {},
    ),
    "a value per layer": (
        {},
        {"llama.attention.head_count_kv": [2, 2, 2], "llama.rope.freq_base": [1e4, 1e4, 1e4]},
        {},
    ),
    "values that say nothing": (
        {},
        {
            "llama.attention.clamp_kqv": 0.0,
            "llama.attention.scale": 8**-0.5,
            "llama.attention.sliding_window": 64,
            "llama.expert_count": 0,
            "llama.logit_scale": 1.0,
            "llama.rope.freq_base_swa": 1e4,
            "llama.rope.mrope_section": [2, 1, 1],
            "llama.rope.scale_linear": 1.0,
            "llama.rope.scaling.attn_factor": 1.0,
            "llama.rope.scaling.type": "none",
            "tokenizer.ggml.add_sep_token": True,
        },
        {},
    ),
    "names and fields of Ollama's Gemma 3": (
        MODELS["Gemma 3"],
        {
            "gemma3.rope.freq_base": None,
            "gemma3.rope.global.freq_base": 1e6,
            "gemma3.rope.local.freq_base": 2e4,
        },
        {"gemma3.rope.freq_base_swa": 2e4},
    ),
    "no rule of splitting, Qwen 2": (
        {"model_type": "qwen2", "attention_bias": True},
        {"tokenizer.ggml.pre": "default"},
        {"tokenizer.ggml.pre": "qwen2"},
    ),
    "no rule of splitting, Llama 3": (
        {},
        LLAMA3_TOKENS | {"tokenizer.ggml.pre": ""},
        LLAMA3_TOKENS | {"tokenizer.ggml.pre": "llama-bpe"},
    ),
    "ids that are none": (
        {},
        {"tokenizer.ggml.eos_token_id": 10**6, "tokenizer.ggml.eos_token_ids": [2, 9, 999]},
        {"tokenizer.ggml.eos_token_id": 2, "tokenizer.ggml.eos_token_ids": [9]},
    ),
    "ids in lists": (
        {},
        {"tokenizer.ggml.eos_token_id": [2, 4], "tokenizer.ggml.eos_token_ids": 9},
        {"tokenizer.ggml.eos_token_id": 2, "tokenizer.ggml.eos_token_ids": [4, 9]},
    ),
    "a template by name alone": (
        {},
        {"tokenizer.chat_template.chatml": "x"},
        {"tokenizer.chat_template": "x"},
    ),
}


@pytest.mark.parametrize("name", CARELESS)
def test_older_and_careless_metadata(name, tmp_path):
    changes, careless, proper = CARELESS[name]
    types = {"tokenizer.ggml.token_type": [1, 1, 1, 3]} if "tokenizer.ggml.tokens" in proper else {}
    save(tmp_path / "hf", dataclasses.replace(LLAMA, **changes))
    one = write(tmp_path / "one.gguf", tmp_path / "hf", extra=careless | types)
    other = write(tmp_path / "other.gguf", tmp_path / "hf", extra=proper | types)
    assert contents(one) == contents(other)
    assert not json.loads((resolved(one) / "config.json").read_text())["gguf_notes"]


def test_what_converters_of_gemma_3_left_out_or_made_up(tmp_path):
    """Ollama's: no epsilon, and a cap that the model of 1 B does not have."""
    extra = {"gemma3.attention.layer_norm_rms_epsilon": None}
    path = written(tmp_path, dataclasses.replace(LLAMA, **MODELS["Gemma 3"]), extra=extra)
    files = gguf_file.read(path)
    for cap, expected in ((30.0, None), (20.0, 20)):
        extra = {"gemma3.block_count": 26, "gemma3.final_logit_softcapping": cap}
        config = hf_config(files._replace(metadata=files.metadata | extra), {})
        assert config.get("final_logit_softcapping") == expected
        assert config["rms_norm_eps"] == 1e-6


# What changes nothing alone, as it belongs to what these files do not have.
ALONE = re.compile(
    r"rope\.scaling\.(original_context_length|yarn_(attn_factor|beta_fast|beta_slow))$"
    r"|attention\.(sliding_window_pattern|causal)$"
)


@pytest.mark.parametrize("name", MODELS)
def test_no_field_of_the_specification_is_passed_over(name, tmp_path):
    """Each is used or refused; none that could change the text is only warned about."""
    files = gguf_file.read(written(tmp_path, dataclasses.replace(LLAMA, **MODELS[name])))
    architecture, factors = files.metadata["general.architecture"], rope_factors(files)
    plain = hf_config(files, factors)
    fields = {*specified(), "rope.scale_linear", "rope.of_the_future"} - {*_UNUSED}
    assert len(fields) > 80
    for field in fields:
        for value in (7, 0.375, "text"):
            metadata = {**files.metadata, f"{architecture}.{field}": value}
            try:
                config = hf_config(files._replace(metadata=metadata), factors)
            except UserError:
                continue
            assert "gguf_notes" not in config
            same = files.metadata.get(f"{architecture}.{field}") == value
            assert config != plain or same or ALONE.match(field), field


@pytest.mark.parametrize("rule", [None, "bloom"])
def test_a_rule_of_splitting_that_is_not_known(rule, tmp_path):
    """That of GPT-2 if none is named, as by transformers, and every reader is told; otherwise
    refused. The cure works, and the file's chat template stays."""
    original = byte_level()
    metadata = metadata_of(original, rule or "") | {"tokenizer.chat_template": "{{ messages }}"}
    save(tmp_path / "hf", dataclasses.replace(LLAMA, vocab_size=original.get_vocab_size()))
    path = write(tmp_path / "m.gguf", tmp_path / "hf", tokenizer=metadata)
    if rule is not None:
        assert "the rule 'bloom' (tokenizer.ggml.pre), of which" in report(resolved, path)
    for _ in range(2 * (rule is None)):
        with pytest.warns(InputWarning, match=r"does not say by which rule .* tokenizer\.json"):
            load_target(resolved(path))
    original.save(str(tmp_path / "tokenizer.json"))
    load_target(resolved(path))
    tokenizer = Tokenizer.load(resolved(path))
    assert tokenizer.encode(TEXTS[0]) == original.encode(TEXTS[0]).ids
    assert tokenizer.chat_template == "{{ messages }}"


def test_what_begins_or_ends_a_turn_is_a_control_token(tmp_path):
    """Even where the file has it as text, like no other token of its kind."""
    metadata = metadata_of(byte_level(), "gpt-2")
    texts = ("<|im_start|>", "<|im_end|>")
    ids = [metadata["tokenizer.ggml.tokens"].index(text) for text in texts]
    for id in ids:
        metadata["tokenizer.ggml.token_type"][id] = 1
    assert 3 in metadata["tokenizer.ggml.token_type"]
    directory = converted(tmp_path, metadata)
    tokenizer = Tokenizer.load(directory)
    assert tokenizer.encode("".join(texts)) == ids
    assert {*ids} <= {*tokenizer.special_ids}
    assert load_eos(directory)[-1] == ids[-1]


def test_control_tokens_of_sentencepiece_typed_as_text(tmp_path):
    """Those that look it are, but for what two others make."""
    metadata = metadata_of(byte_fallback())
    tokens = metadata["tokenizer.ggml.tokens"]
    first = len(tokens)
    tokens += ["<|im_start|>", "<|im_end|>", "<|", "e|>", "<|e|>"]
    metadata["tokenizer.ggml.token_type"] += [1] * 5
    metadata["tokenizer.ggml.scores"] += [-1e4] * 5
    tokenizer = Tokenizer.load(converted(tmp_path, metadata))
    ids = tokenizer.encode("<|im_start|>a<|im_end|>")
    assert (ids[1], ids[-1]) == (first, first + 1)
    assert tokenizer.decode(ids[2:-1]) == "a"
    assert {first, first + 1} <= {*tokenizer.special_ids}
    assert first + 4 not in tokenizer.special_ids


def test_how_the_authors_sample(tmp_path):
    """As `generation_config.json` has it."""
    fields = {"temp": 0.7, "top_k": 20, "top_p": 0.8, "min_p": 0.0, "penalty_repeat": 1.05}
    extra = {f"general.sampling.{name}": value for name, value in fields.items()}
    path = written(tmp_path, extra=extra)
    options = read_options(resolved(path))
    sampling = {"temperature": 0.7, "top_k": 20, "top_p": 0.8, "min_p": 0.0, "do_sample": True}
    assert options == {"eos_token_id": [1], "repetition_penalty": 1.05, **sampling}


@pytest.mark.parametrize("name", ["mirostat", "xtc_probability"])
def test_a_way_to_sample_that_is_not_supported(name, tmp_path):
    field = f"general.sampling.{name}"
    path = written(tmp_path, extra={field: 1})
    with pytest.warns(InputWarning, match=f"recommends {field}, which is not supported"):
        load_target(resolved(path))
    load_target(resolved(write(tmp_path / "none.gguf", tmp_path / "hf", extra={field: 0})))


# What lies beside a file.


@pytest.mark.parametrize("own", [None, "of the file", "{% broken"])
def test_a_chat_template_beside_the_file(own, tmp_path):
    """It wins, whatever the file has, and a change of it counts."""
    path = written(tmp_path, extra={"tokenizer.chat_template": own} if own else {})
    assert Tokenizer.load(resolved(path)).chat_template == own
    other = json.dumps({"chat_template": "in a config", "tokenizer_class": "NoSuchTokenizer"})
    (tmp_path / "tokenizer_config.json").write_text(other)
    assert Tokenizer.load(resolved(path)).chat_template == "in a config"
    for text in ("beside: {{ messages[0].content }}", "{{ messages[0].content }} \u2014 later"):
        (tmp_path / "chat_template.jinja").write_text(text, encoding="utf-8")
        assert Tokenizer.load(resolved(path)).chat_template == text
    (tmp_path / "chat_template.jinja").write_text("Grüße", encoding="latin-1")
    assert "chat_template.jinja is not UTF-8 text" in report(resolved, path)


def test_a_tokenizer_beside_the_file(tmp_path):
    """It wins, with its config; another model's is refused."""
    original = byte_level()
    metadata = metadata_of(original, "gpt-2")
    metadata["tokenizer.chat_template"] = "of the file"
    converted(tmp_path, metadata)
    original.add_special_tokens(["<|more|>"])
    original.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|more|>"}))
    directory = resolved(tmp_path / "m.gguf")
    # Written down for those who tell a user where to put one.
    config = json.loads((directory / "tokenizer_config.json").read_text())
    assert config["gguf_directory"] == str(tmp_path)
    tokenizer = Tokenizer.load(directory)
    assert tokenizer.encode("<|more|>") == [original.token_to_id("<|more|>")]
    assert tokenizer.wrapped.eos_token == "<|more|>"
    assert tokenizer.chat_template == "of the file"
    byte_fallback().save(str(tmp_path / "tokenizer.json"))
    assert "tokenizer.json is another model's" in report(resolved, tmp_path / "m.gguf")


DIVISORS = {"rope_freqs.weight": np.ones(4, np.float32)}


@pytest.mark.parametrize(
    ("extra", "tensors", "match"),
    [
        ({"general.architecture": "mamba"}, {}, "architecture 'mamba'; supported in GGUF files"),
        ({"general.type": "adapter"}, {}, "holds no model but what it calls 'adapter'"),
        ({}, {"blk.0.attn_q.scale": np.ones(1)}, r"does not have here: blk\.0\.attn_q\.scale"),
        ({"llama.rope.scaling.factor": 4.0}, DIVISORS, "beside RoPE scaling 'linear'"),
        (
            {},
            {"rope_factors_long.weight": np.ones(4, np.float32)},
            "lacks rope_factors_long.* or rope_factors",
        ),
        ({"llama.attention.causal": False}, {}, "attention is not causal"),
        ({"llama.attention.clamp_kqv": 8.0}, {}, r"= 8\.0, .* gguf-new-metadata --force --remove"),
        ({"llama.attention.sliding_window": "4096"}, {}, "sliding_window = '4096', .* no number"),
        ({"llama.attention.head_count_kv": [2, 1, 2]}, {}, "differs from layer to layer"),
        ({"llama.rope.scale_linear": 2.0}, {}, r"rope\.scale_linear = 2\.0, which"),
        ({"tokenizer.ggml.token_type": [1, 2]}, {}, "has a damaged one"),
        ({"tokenizer.ggml.token_type": None}, {}, r"\(tokenizer\.ggml\.token_type\).*; put the"),
        ({"tokenizer.ggml.token_type": [1] * 61}, {}, "has one without kinds of tokens"),
        ({"tokenizer.ggml.eos_token_id": "2"}, {}, "eos_token_id = '2', which is no number"),
        ({"tokenizer.ggml.eos_token_id": ["2"]}, {}, r"--remove-metadata .*\.eos_token_id"),
        ({"tokenizer.ggml.add_bos_token": "false"}, {}, "add_bos_token = 'false', which"),
        ({"tokenizer.ggml.merges": None}, {}, r"without merges \(tokenizer\.ggml\.merges\)"),
        ({"tokenizer.ggml.precompiled_charsmap": [1]}, {}, "the option precompiled_charsmap"),
    ],
)
def test_refused_by_name(tmp_path, extra, tensors, match):
    path = written(tmp_path, extra=extra, tensors=tensors)
    assert re.search(match, report(resolved, path))


def test_a_field_that_is_not_known(tmp_path):
    """Every reader is told, not only the first."""
    path = written(tmp_path, extra={"llama.new_option": 3})
    for _ in range(2):
        with pytest.warns(InputWarning, match="new_option"):
            load_target(resolved(path))


def test_damaged_files(tmp_path):
    """Cut off, or gone after the first time."""
    path = written(tmp_path)
    directory, whole = resolved(path), path.read_bytes()
    for size in (10, 400, len(whole) // 2):
        path.write_bytes(whole[:size])
        assert "the GGUF file is damaged or incomplete" in report(resolved, path)
    path.unlink()
    assert f"no file {path}" in report(load_target, directory)


# The judge: transformers' own reader.
# With what its configs have where the files do not say.
THEIRS = {
    "Llama": {},
    "Qwen2-MoE": {
        "moe": dataclasses.replace(SHARED, intermediate_size=1408, shared_intermediate_size=5632)
    },
    "Gemma 2": {
        "query_pre_attn_scalar": 256,
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
    },
}


@pytest.fixture(scope="module")
def torch():
    torch = judge("torch")
    import transformers

    transformers.logging.set_verbosity_error()
    return torch


@pytest.mark.long
@pytest.mark.parametrize("name", THEIRS)
@pytest.mark.filterwarnings("ignore")
def test_logits_are_those_of_transformers(name, tmp_path, torch):
    import transformers

    config = dataclasses.replace(LLAMA, **MODELS[name] | THEIRS[name])
    save(tmp_path / "hf", config, scale=0.2)
    kinds = {r"ffn_down\.|attn_v": gguf.GGMLQuantizationType.Q4_1}
    path = write(tmp_path / "m.gguf", tmp_path / "hf", kinds=kinds)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path, gguf_file=path.name, dtype=torch.float32
    )
    with torch.no_grad():
        theirs = model.eval()(torch.from_numpy(TOKENS).long()).logits.numpy()
    ours, params = load_target(resolved(path))
    if config.query_pre_attn_scalar is not None:
        ours = dataclasses.replace(ours, query_pre_attn_scalar=config.query_pre_attn_scalar)
    np.testing.assert_allclose(prompt_logits(ours, params, TOKENS), theirs, rtol=0, atol=1e-4)


def test_texts_are_split_as_by_transformers():
    """By every rule that both know."""
    theirs = pytest.importorskip("transformers.integrations.gguf.gguf_tokenizer_mapping")
    rules = [rule for rule in _SPLITS if rule in theirs.GGUF_PRE_TOKENIZER_SPLITS]
    assert {"llama-bpe", "qwen2", "tekken", "gpt-4o"} <= {*rules}
    texts = [*TEXTS, "I'LL pay 12,345 €\n\n  for\tIt'sCamelCase/x//\n/y ÀÉz 1234567\r\n \n"]
    for rule in rules:
        expected = pre_tokenizers.Split(Regex(theirs.GGUF_PRE_TOKENIZER_SPLITS[rule]), "isolated")
        ours = pre_tokenizers.Split(Regex(_SPLITS[rule]), "isolated")
        for text in texts:
            assert ours.pre_tokenize_str(text) == expected.pre_tokenize_str(text), rule
