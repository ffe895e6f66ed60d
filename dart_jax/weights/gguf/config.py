"""The `config.json` of a GGUF file: its metadata in the words of `transformers`."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

from dart_jax.errors import UserError
from dart_jax.weights.gguf.file import GgufFiles, copy_without

# Fields that say what others or the tensors say, too, or nothing about the computation here.
_UNUSED = (
    *("attention.layer_norm_epsilon", "classifier.output_labels", "decoder_start_token_id"),
    *("expert_feed_forward_length", "expert_shared_count", "expert_shared_feed_forward_length"),
    *("pooling_type", "rope.scaling.finetuned", "tensor_data_layout", "vocab_size"),
    *("rope.dimension_sections", "rope.mrope_section"),  # the same; the latter is Ollama's
    "use_parallel_residual",  # of GPT-NeoX; early converters wrote it for all
)
# Fields of which a 1 changes nothing, as little as a 0 in any.
_FACTORS = (
    *("attention.output_scale", "embedding_scale", "logit_scale", "residual_scale"),
    *("expert_group_count", "expert_group_used_count", "expert_weights_scale"),
    *("interleave_moe_layer_step", "moe_every_n_layers", "rope.scaling.alpha"),
    "rope.scale_linear",  # the older name of rope.scaling.factor
    "expert_gating_func",  # softmax
)
# Tensors with divisors of RoPE's frequencies, which are part of the config: Llama 3's, and others'.
ROPE_FACTORS = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")
# The one field that is a text.
_TEXT = "rope.scaling.type"
# Fields that have a value per layer where that matters.
_PATTERNS = ("attention.sliding_window_pattern",)


class Fields:
    """Fields of one architecture, which remember what was asked for."""

    def __init__(self, files: GgufFiles):
        self.files, self.path = files, files.paths[0]
        self.architecture = files.metadata.get("general.architecture")
        self.asked: set[str] = set()

    def __call__(self, name: str, default: Any = None) -> Any:
        """Returns the value of a field, no text but one; of a list with the same value for all
        layers, that."""
        self.asked.add(name)
        value = self.files.metadata.get(f"{self.architecture}.{name}", default)
        if isinstance(value, list) and name not in _PATTERNS:
            if len(set(value)) > 1:
                raise self.refusal(name, "differs from layer to layer and is not supported")
            value = value[0] if value else default
        if isinstance(value, str) and name != _TEXT:
            raise self.refusal(name, "is no number")
        return value

    def need(self, name: str, default: float | None = None) -> Any:
        """Returns the value of a field that every model has, a number."""
        value = self(name, default)
        if value is None:
            raise UserError(f"{self.path} lacks {self.architecture}.{name}")
        if not isinstance(value, int | float) or not value > 0:
            raise self.refusal(name, "is no positive number")
        return value

    def shape(self, tensor: str) -> tuple[int, ...] | None:
        """Returns the shape of a tensor, or None if there is none of that name."""
        stored = self.files.tensors.get(tensor)
        return None if stored is None else stored.shape

    def fixed(self, name: str, *values: Any) -> None:
        """Refuses a field that has none of the values with which it changes nothing."""
        value = self(name)
        if value is not None and not any(_same(value, one) for one in values):
            raise self.refusal(name)

    def refusal(self, name: str, why: str = "is not supported and changes the text") -> UserError:
        """Makes the error that a field cannot be used."""
        key, path = f"{self.architecture}.{name}", self.path
        return UserError(
            f"{path} has {key} = {self.files.metadata.get(key)!r:.60}, which {why}; pass the "
            "model's unquantised checkpoint or, if the field is a mistake, a copy without it: "
            f"{copy_without(path, key)}"
        )

    def rest(self) -> list[str]:
        """Returns the fields that nobody asked for and nobody knows.

        Raises:
          UserError: the specification has one, and its value is not one that changes nothing.
        """
        prefix, unknown = f"{self.architecture}.", list[str]()
        for name in self.files.metadata:
            name = name.removeprefix(prefix) if name.startswith(prefix) else None
            if name is None or name in self.asked or name in _UNUSED:
                continue
            if name in specified() or name.startswith("rope."):
                self.fixed(name, 0, *[1][: name in _FACTORS])
            else:
                unknown.append(name)
        return unknown


def _same(value: Any, other: Any) -> bool:
    """Returns True if two values are equal, up to rounding to float32."""
    if isinstance(value, float) and isinstance(other, float | int):
        return math.isclose(value, other, rel_tol=1e-6)
    return value == other


@functools.cache
def specified() -> frozenset[str]:
    """Returns the fields of architectures that the installed package knows."""
    import gguf

    names, groups = set[str](), list[Any]([gguf.Keys])
    while groups:
        for value in vars(groups.pop()).values():
            if isinstance(value, str) and value.startswith("{arch}."):
                names.add(value.removeprefix("{arch}."))
            elif isinstance(value, type):
                groups.append(value)
    return frozenset(names)


def hf_config(files: GgufFiles, factors: Mapping[str, list[float]]) -> dict[str, Any]:
    """Returns the `config.json` of a model, given the divisors of RoPE's frequencies by the name of
    their tensor.

    Raises:
      UserError: its architecture is not supported, or a field is missing.
    """
    of = Fields(files)
    if (kind := files.metadata.get("general.type", "model")) != "model":
        raise UserError(
            f"{of.path} holds no model but what it calls {kind!r}; pass the model's file"
        )
    if of.architecture not in _ARCHITECTURES:
        raise UserError(
            f"{of.path} holds a model of architecture {of.architecture!r}; supported in "
            f"GGUF files are {', '.join(_ARCHITECTURES)}"
        )
    if not of("attention.causal", True):
        raise UserError(f"{of.path} holds a model whose attention is not causal")
    width, heads, head = of.need("embedding_length"), of.need("attention.head_count"), _head(of)
    length, down = of.need("context_length"), of.shape("blk.0.ffn_down.weight")
    # Ollama's converter leaves out what all models of a generation have.
    epsilon = 1e-6 if of.architecture == "gemma3" else None
    base = 1e6 if of.architecture == "gemma3" else 1e4
    embedding = of.shape("token_embd.weight")
    if embedding is None:
        raise UserError(f"{of.path} lacks token_embd.weight; is it one part of a model?")
    config = {
        "vocab_size": embedding[0],
        "hidden_size": width,
        "intermediate_size": of("feed_forward_length", down and down[-1]),
        "num_hidden_layers": of.need("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": of("attention.head_count_kv", heads),
        "head_dim": head,
        "rms_norm_eps": of.need("attention.layer_norm_rms_epsilon", epsilon),
        "max_position_embeddings": length,
        "tie_word_embeddings": of.shape("output.weight") is None,
        "rope_theta": of("rope.freq_base", of("rope.global.freq_base", base)),
    }
    config |= _rope_scaling(of, length, factors) | _ARCHITECTURES[of.architecture](of)
    rotated = of("rope.dimension_count", head)
    if rotated != head:
        config["partial_rotary_factor"] = rotated / head
    # What all layers share here, in fields that may say that some have another.
    of.fixed("attention.key_length_swa", head)
    of.fixed("attention.value_length_swa", head)
    scale = config.get("query_pre_attn_scalar", head) ** -0.5
    of.fixed("attention.scale", 0, config.get("attention_multiplier", scale))
    of.fixed("embedding_length_out", width)
    of.fixed("rope.dimension_count_swa", rotated)
    of.fixed("rope.freq_base_swa", config.get("rope_local_base_freq", config["rope_theta"]))
    if not config.get("sliding_window"):
        of("attention.sliding_window_pattern")
        if (of("attention.sliding_window") or length) < length:
            raise of.refusal("attention.sliding_window")
    if names := of.rest():
        config[NOTES] = [f"{of.path} has fields that are not used: {', '.join(names)}"]
    return _stated(**config)


def _head(of: Fields) -> int:
    """Returns the size of a head: what is said, or what the tensors have."""
    heads, queries = of.need("attention.head_count"), of.shape("blk.0.attn_q.weight")
    size = queries[0] if queries else of.need("embedding_length")
    head = of("attention.key_length", size // heads)
    if of("attention.value_length", head) != head:
        raise UserError(f"{of.path}: keys and values of different lengths are not supported")
    return head


def _rope_scaling(of: Fields, length: int, factors: Mapping[str, list[float]]) -> dict[str, Any]:
    """Returns the scaling of RoPE's frequencies: by divisors that are stored, or by a formula."""
    names = ("original_context_length", "attn_factor", "factor")
    original, attention, factor = (of(f"rope.scaling.{name}") for name in names)
    kind = str(of("rope.scaling.type", "none" if factor is None else "linear")).lower()
    if kind == "linear" and factor in (None, 0, 1):
        kind = "none"
    of.fixed("rope.scaling.yarn_ext_factor", *((1, -1) if kind == "yarn" else (0, 1, -1)))
    of.fixed("rope.scaling.yarn_log_multiplier", 0)
    yarn = {name: of(f"rope.scaling.yarn_{name}") for name in ("beta_fast", "beta_slow")}
    yarn["attention_factor"] = of("rope.scaling.yarn_attn_factor", attention)
    llama3, long, short = (factors.get(name) for name in ROPE_FACTORS)
    if kind != "yarn" and long is None:
        of.fixed("rope.scaling.attn_factor", 1)
    if factors and kind not in ("none", "longrope"):
        raise UserError(
            f"{of.path} holds divisors of frequencies ({', '.join(factors)}) beside RoPE scaling "
            f"{kind!r}, which is not supported"
        )
    if llama3:
        long, short, attention, original, factor = llama3, llama3, 1.0, length, 1.0
    elif long and short:
        of.fixed("rope.scaling.factor", 0, 1)
        factor = None
    elif long or short or kind == "longrope":
        raise UserError(f"{of.path} lacks {ROPE_FACTORS[1]} or {ROPE_FACTORS[2]}")
    if long:
        scaling = {"short_factor": short, "long_factor": long, "attention_factor": attention}
        top = {"original_max_position_embeddings": original or length}
        return {"rope_scaling": _stated(rope_type="longrope", factor=factor, **scaling), **top}
    if kind == "yarn":
        yarn |= {"factor": factor, "original_max_position_embeddings": original}
        return {"rope_scaling": _stated(rope_type=kind, **yarn)}
    if kind not in ("none", "linear"):
        raise UserError(f"{of.path}: RoPE scaling {kind!r} is not supported")
    return {} if kind == "none" else {"rope_scaling": _stated(rope_type=kind, factor=factor)}


def _stated(**fields: Any) -> dict[str, Any]:
    """Returns the fields that are not None."""
    return {name: value for name, value in fields.items() if value is not None}


def _llama(of: Fields) -> dict[str, Any]:
    """Llama, and what is computed like it: Mistral, and Mixtral's experts."""
    experts, window = of("expert_count"), of("attention.sliding_window")
    if experts:
        of.fixed("expert_weights_norm", True)
        return {
            "model_type": "mixtral",
            "num_local_experts": experts,
            "num_experts_per_tok": of.need("expert_used_count"),
            "sliding_window": window or None,
        }
    if (window or math.inf) < of.need("context_length"):
        return {"model_type": "mistral", "sliding_window": window}
    return {"model_type": "llama", **_biases(of)}


def _biases(of: Fields) -> dict[str, Any]:
    """Biases of linear layers: those for which there are tensors."""
    return {
        "attention_bias": of.shape("blk.0.attn_q.bias") is not None,
        "mlp_bias": of.shape("blk.0.ffn_up.bias") is not None,
    }


def _granite(of: Fields) -> dict[str, Any]:
    return {
        "model_type": "granite",
        "attention_multiplier": of("attention.scale") or _head(of) ** -0.5,
        "embedding_multiplier": of("embedding_scale") or 1.0,
        "residual_multiplier": of("residual_scale") or 1.0,
        "logits_scaling": of("logit_scale") or 1.0,
        **_biases(of),
    }


def _gemma2(of: Fields) -> dict[str, Any]:
    return {
        "model_type": "gemma2",
        "sliding_window": of("attention.sliding_window", 4096),
        "attn_logit_softcapping": of("attn_logit_softcapping", 50.0),
        "final_logit_softcapping": of("final_logit_softcapping", 30.0),
        "query_pre_attn_scalar": _query_scalar(of, largest=46),
        **_pattern(of, 2),
    }


def _gemma3(of: Fields) -> dict[str, Any]:
    cap = of("final_logit_softcapping")
    if cap == 30 and of("block_count") == 26:  # Ollama's, for Gemma 3 1B, which has none
        cap = None
    return {
        "model_type": "gemma3_text",
        "sliding_window": of.need("attention.sliding_window"),
        "rope_local_base_freq": of("rope.freq_base_swa", of("rope.local.freq_base", 10000.0)),
        "final_logit_softcapping": cap,
        "query_pre_attn_scalar": _query_scalar(of, largest=62),
        **_pattern(of, 6),
    }


def _query_scalar(of: Fields, largest: int) -> float:
    """Returns the square of the divisor of Gemma's scores, which files do not hold: in the largest
    model of a generation, which its layers tell apart, it is not the head's size."""
    width, heads = of.need("embedding_length"), of.need("attention.head_count")
    return width // heads if of("block_count") == largest else _head(of)


def _olmo(of: Fields) -> dict[str, Any]:
    """OLMo 2, or OLMo 3 where layers have a sliding window."""
    window = of("attention.sliding_window")
    if not window:
        return {"model_type": "olmo2"}
    return {
        "model_type": "olmo3",
        "sliding_window": window,
        "rope_local_base_freq": of("rope.freq_base_swa", of("rope.freq_base")),
        **_pattern(of, 4),
    }


def _pattern(of: Fields, usual: int) -> dict[str, Any]:
    """Kinds of layers: a sliding window in all but every n-th, or in those marked."""
    pattern = of("attention.sliding_window_pattern", usual)
    if not pattern or not isinstance(pattern, int | list):
        raise of.refusal("attention.sliding_window_pattern")
    layers = range(int(of.need("block_count")))
    windowed = [bool((i + 1) % pattern) for i in layers] if isinstance(pattern, int) else pattern
    kinds = {True: "sliding_attention", False: "full_attention"}
    return {"layer_types": [kinds[bool(windowed[i % len(windowed)])] for i in layers]}


def _qwen_moe(of: Fields, model_type: str, *, renormalized: bool) -> dict[str, Any]:
    """Returns fields of Qwen's mixtures of experts; their widths are the tensors'."""
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


# Key of a model's config: notes for its reader.
NOTES = "gguf_notes"
# `general.architecture` -> the fields that its models have besides the common ones.
_ARCHITECTURES: dict[str, Callable[[Fields], dict[str, Any]]] = {
    "gemma": lambda _: {"model_type": "gemma"},
    "gemma2": _gemma2,
    "gemma3": _gemma3,
    "granite": _granite,
    "llama": _llama,
    "olmo2": _olmo,
    "phi3": lambda of: {
        "model_type": "phi3",
        "sliding_window": of("attention.sliding_window") or None,
    },
    "qwen2": lambda _: {"model_type": "qwen2"},
    "qwen2moe": lambda of: _qwen_moe(of, "qwen2_moe", renormalized=False),
    "qwen2vl": lambda _: {"model_type": "qwen2"},  # for text alone, M-RoPE is RoPE
    "qwen3": lambda _: {"model_type": "qwen3"},
    "qwen3moe": lambda of: _qwen_moe(of, "qwen3_moe", renormalized=True),
    "seed_oss": lambda of: {
        "model_type": "seed_oss",
        "attention_out_bias": of.shape("blk.0.attn_output.bias") is not None,
        **_biases(of),
    },
    "smollm3": lambda of: {"model_type": "smollm3", **_biases(of)},
}
