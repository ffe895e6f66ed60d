"""The `config.json` of a GGUF file: its metadata in the words of `transformers`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from dart_jax.errors import UserError
from dart_jax.weights.gguf.file import GgufFiles

# Fields that say what others or the tensors say, too, or nothing about the computation here.
_UNUSED = (
    "expert_feed_forward_length",
    "expert_shared_feed_forward_length",
    "rope.dimension_sections",
    "rope.scaling.finetuned",
    "tensor_data_layout",
    "vocab_size",
)


class Fields:
    """The fields of one architecture, which remember what was asked for."""

    def __init__(self, files: GgufFiles):
        self.files = files
        self.architecture = files.metadata.get("general.architecture")
        self.asked: set[str] = set()

    def __call__(self, name: str, default: Any = None) -> Any:
        """The value of a field; of a list with the same value for all layers, that value."""
        self.asked.add(name)
        value = self.files.metadata.get(f"{self.architecture}.{name}", default)
        if isinstance(value, list) and name.startswith(("attention.head_count", "feed_forward")):
            if len(set(value)) > 1:
                raise UserError(
                    f"{self.files.paths[0]}: {name} differs from layer to layer, which is not "
                    "supported"
                )
            value = value[0]
        return value

    def need(self, name: str) -> Any:
        """The value of a field that every model has."""
        value = self(name)
        if value is None:
            raise UserError(f"{self.files.paths[0]} lacks {self.architecture}.{name}")
        return value

    def shape(self, tensor: str) -> tuple[int, ...] | None:
        """The shape of a tensor; None if there is none of that name."""
        stored = self.files.tensors.get(tensor)
        return None if stored is None else stored.shape

    def rest(self) -> list[str]:
        """The fields that nobody asked for."""
        names = self.files.metadata
        prefix = f"{self.architecture}."
        own = [name.removeprefix(prefix) for name in names if name.startswith(prefix)]
        return [name for name in own if name not in self.asked and name not in _UNUSED]


def hf_config(files: GgufFiles, factors: Mapping[str, list[float]]) -> dict[str, Any]:
    """Returns the `config.json` of a model.

    Args:
      files: the model.
      factors: divisors of RoPE's frequencies, by the name of their tensor.

    Raises:
      UserError: its architecture is not supported, or a field is missing.
    """
    of = Fields(files)
    if (kind := files.metadata.get("general.type", "model")) != "model":
        raise UserError(
            f"{files.paths[0]} holds no model but what it calls {kind!r}; pass the model's file"
        )
    if of.architecture not in _ARCHITECTURES:
        raise UserError(
            f"{files.paths[0]} holds a model of architecture {of.architecture!r}; supported in "
            f"GGUF files are {', '.join(_ARCHITECTURES)}"
        )
    if of("attention.causal", True) is False:
        raise UserError(f"{files.paths[0]} holds a model whose attention is not causal")
    width, heads = of.need("embedding_length"), of.need("attention.head_count")
    head = of("attention.key_length", width // heads)
    if of("attention.value_length", head) != head:
        raise UserError(f"{files.paths[0]}: keys and values of different lengths are not supported")
    embedding = of.shape("token_embd.weight")
    if embedding is None:
        raise UserError(f"{files.paths[0]} lacks token_embd.weight; is it one part of a model?")
    config = {
        "vocab_size": embedding[0],
        "hidden_size": width,
        "intermediate_size": of("feed_forward_length"),
        "num_hidden_layers": of.need("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": of("attention.head_count_kv", heads),
        "head_dim": head,
        "rms_norm_eps": of.need("attention.layer_norm_rms_epsilon"),
        "max_position_embeddings": of.need("context_length"),
        "tie_word_embeddings": of.shape("output.weight") is None,
        "rope_theta": of("rope.freq_base", 10000.0),
    }
    config |= _rope_scaling(of, config, factors) | _ARCHITECTURES[of.architecture](of)
    rotated = of("rope.dimension_count", head)
    if rotated != head:
        config["partial_rotary_factor"] = rotated / head
    config["gguf_fields_not_used"] = of.rest() or None  # whoever reads the config names them
    return {name: value for name, value in config.items() if value is not None}


def _rope_scaling(
    of: Fields, config: Mapping[str, Any], factors: Mapping[str, list[float]]
) -> dict[str, Any]:
    """The scaling of RoPE's frequencies: by divisors that are stored, or by a formula."""
    length = config["max_position_embeddings"]
    original = of("rope.scaling.original_context_length")
    attention = of("rope.scaling.attn_factor")
    factor = of("rope.scaling.factor")
    kind = of("rope.scaling.type", "none" if factor is None else "linear")
    if "rope_freqs.weight" in factors and kind != "none":
        raise UserError(
            f"{of.files.paths[0]} holds divisors of frequencies (rope_freqs) beside RoPE scaling "
            f"{kind!r}, which is not supported"
        )
    if "rope_freqs.weight" in factors:  # Llama 3's
        both = dict.fromkeys(("short_factor", "long_factor"), factors["rope_freqs.weight"])
        scaling = {"rope_type": "longrope", "factor": 1.0, "attention_factor": 1.0, **both}
        return {"rope_scaling": scaling, "original_max_position_embeddings": length}
    if "rope_factors_short.weight" in factors:
        scaling = {
            "rope_type": "longrope",
            "short_factor": factors["rope_factors_short.weight"],
            "long_factor": factors["rope_factors_long.weight"],
        }
        if attention is not None:
            scaling["attention_factor"] = attention
        return {"rope_scaling": scaling, "original_max_position_embeddings": original or length}
    if kind == "none" or (kind == "linear" and factor in (None, 0, 1)):
        return {}
    if kind == "linear":
        return {"rope_scaling": {"rope_type": "linear", "factor": factor}}
    if kind == "longrope":
        raise UserError(f"{of.files.paths[0]} lacks rope_factors_long and rope_factors_short")
    if kind != "yarn":
        raise UserError(f"{of.files.paths[0]}: RoPE scaling {kind!r} is not supported")
    scaling = {
        "rope_type": "yarn",
        "factor": factor,
        "original_max_position_embeddings": original,
        "attention_factor": of("rope.scaling.yarn_attn_factor", attention),
        "beta_fast": of("rope.scaling.yarn_beta_fast"),
        "beta_slow": of("rope.scaling.yarn_beta_slow"),
    }
    return {"rope_scaling": {name: value for name, value in scaling.items() if value is not None}}


def _llama(of: Fields) -> dict[str, Any]:
    """Llama, and what is computed like it: Mistral, and Mixtral's experts."""
    experts = of("expert_count")
    if not experts:
        return {"model_type": "llama", **_biases(of)}
    return {
        "model_type": "mixtral",
        "num_local_experts": experts,
        "num_experts_per_tok": of.need("expert_used_count"),
    }


def _biases(of: Fields) -> dict[str, Any]:
    """Biases of linear layers: those for which there are tensors."""
    return {
        "attention_bias": of.shape("blk.0.attn_q.bias") is not None,
        "mlp_bias": of.shape("blk.0.ffn_up.bias") is not None,
    }


def _seed(of: Fields) -> dict[str, Any]:
    out = of.shape("blk.0.attn_output.bias") is not None
    return {"model_type": "seed_oss", "attention_out_bias": out, **_biases(of)}


def _granite(of: Fields) -> dict[str, Any]:
    return {
        "model_type": "granite",
        "attention_multiplier": of.need("attention.scale"),
        "embedding_multiplier": of("embedding_scale", 1.0),
        "residual_multiplier": of("residual_scale", 1.0),
        "logits_scaling": of("logit_scale", 1.0),
        **_biases(of),
    }


def _gemma2(of: Fields) -> dict[str, Any]:
    return {
        "model_type": "gemma2",
        "sliding_window": of("attention.sliding_window", 4096),
        "attn_logit_softcapping": of("attn_logit_softcapping", 50.0),
        "final_logit_softcapping": of("final_logit_softcapping", 30.0),
        "query_pre_attn_scalar": _query_scalar(of, largest=46),
    }


def _gemma3(of: Fields) -> dict[str, Any]:
    pattern = of("attention.sliding_window_pattern", 6)
    return {
        "model_type": "gemma3_text",
        "sliding_window": of.need("attention.sliding_window"),
        "rope_local_base_freq": of("rope.freq_base_swa", 10000.0),
        "final_logit_softcapping": of("final_logit_softcapping"),
        "query_pre_attn_scalar": _query_scalar(of, largest=62),
        **_pattern(of, pattern),
    }


def _query_scalar(of: Fields, largest: int) -> float:
    """The square of the divisor of Gemma's scores, which files do not hold: in the largest model of
    a generation, which its layers tell apart, it is not the head's size."""
    width, heads = of.need("embedding_length"), of.need("attention.head_count")
    return width // heads if of("block_count") == largest else of.need("attention.key_length")


def _olmo(of: Fields) -> dict[str, Any]:
    """OLMo 2, or OLMo 3 where layers have a sliding window."""
    window = of("attention.sliding_window")
    if not window:
        return {"model_type": "olmo2"}
    return {
        "model_type": "olmo3",
        "sliding_window": window,
        "rope_local_base_freq": of("rope.freq_base_swa", of("rope.freq_base")),
        **_pattern(of, of("attention.sliding_window_pattern", 4)),
    }


def _pattern(of: Fields, pattern: int | list[bool]) -> dict[str, Any]:
    """Kinds of layers: a sliding window in all but every n-th, or in those marked."""
    layers = range(of.need("block_count"))
    windowed = [bool((i + 1) % pattern) for i in layers] if isinstance(pattern, int) else pattern
    kinds = {True: "sliding_attention", False: "full_attention"}
    return {"layer_types": [kinds[bool(windowed[i % len(windowed)])] for i in layers]}


def _phi3(of: Fields) -> dict[str, Any]:
    return {"model_type": "phi3", "sliding_window": of("attention.sliding_window") or None}


def _qwen_moe(of: Fields, model_type: str, *, renormalized: bool) -> dict[str, Any]:
    """Mixtures of experts of Qwen; their widths are those of the tensors."""
    config: dict[str, Any] = {
        "model_type": model_type,
        "num_experts": of.need("expert_count"),
        "num_experts_per_tok": of.need("expert_used_count"),
        "norm_topk_prob": of("expert_weights_norm", renormalized),
    }
    widths = {"moe_intermediate_size": "exps", "shared_expert_intermediate_size": "shexp"}
    for name, kind in widths.items():
        if shape := of.shape(f"blk.0.ffn_gate_{kind}.weight"):
            config[name] = shape[-2]
    return config


# `general.architecture` -> the fields that its models have besides those of all.
_ARCHITECTURES: dict[str, Callable[[Fields], dict[str, Any]]] = {
    "gemma": lambda _: {"model_type": "gemma"},
    "gemma2": _gemma2,
    "gemma3": _gemma3,
    "granite": _granite,
    "llama": _llama,
    "olmo2": _olmo,
    "phi3": _phi3,
    "qwen2": lambda _: {"model_type": "qwen2"},
    "qwen2moe": lambda of: _qwen_moe(of, "qwen2_moe", renormalized=False),
    "qwen2vl": lambda _: {"model_type": "qwen2"},  # for text alone, M-RoPE is RoPE
    "qwen3": lambda _: {"model_type": "qwen3"},
    "qwen3moe": lambda of: _qwen_moe(of, "qwen3_moe", renormalized=True),
    "seed_oss": _seed,
    "smollm3": lambda of: {"model_type": "smollm3", **_biases(of)},
}
