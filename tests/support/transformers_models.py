"""Tiny random models of transformers: one or more of every supported architecture."""

from typing import Any

import transformers
from needs import judge

torch = judge("torch")

SHAPE = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 7,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 64,
    "tie_word_embeddings": False,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
}
EXPERTS = {"num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 20}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 100.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 1e4,
    "factor": 4.0,
    "original_max_position_embeddings": 16,
}
LINEAR = {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}
# Half of each head of 8 is rotated: two frequencies.
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 1e4,
    "partial_rotary_factor": 0.5,
    "short_factor": [1.1, 1.7],
    "long_factor": [2.0, 5.0],
    "original_max_position_embeddings": 48,
}
TWO_ROPES = {
    "full_attention": LINEAR | {"rope_theta": 1e5},
    "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
}
TYPES = ["full_attention", "sliding_attention", "sliding_attention"] * 3
GRANITE = {
    "attention_bias": True,
    "attention_multiplier": 0.3,
    "embedding_multiplier": 3.0,
    "logits_scaling": 2.5,
    "residual_multiplier": 0.6,
}
BIASES = {"attention_bias": True, "mlp_bias": True}


def _of(kind, **changes):
    """The class of transformers, and what is not as in SHAPE."""
    return kind, changes


_TIED = {"tie_word_embeddings": True}
_SOFTCAPS = {"attn_logit_softcapping": 1.5, "final_logit_softcapping": 2.0}
_SOME_LAYERS = {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 3}
_ODD = {"num_key_value_heads": 3, "head_dim": 10, "hidden_size": 28, "intermediate_size": 36}
_OLMO3 = {"full_attention": YARN, "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}
_GEMMA3 = {"rope_parameters": TWO_ROPES, "query_pre_attn_scalar": 24, **_TIED}
_LONG = {"rope_parameters": LONGROPE, "original_max_position_embeddings": 48}
_SHARED = {"shared_expert_intermediate_size": 28, "mlp_only_layers": [2]}
_DENSE = {"mlp_only_layers": [0, 3], "attention_bias": True, "norm_topk_prob": True}
# Windows are shorter than the sequences of the tests.
MODELS = {
    "Gemma 3": _of("Gemma3", sliding_window=6, final_logit_softcapping=20.0, **_GEMMA3),
    "Phi-3, longrope": _of("Phi3", head_dim=8, **_LONG),
    "Gemma 2": _of("Gemma2", sliding_window=5, query_pre_attn_scalar=9, **_SOFTCAPS, **_TIED),
    "Qwen3, odd sizes": _of(
        "Qwen3", num_attention_heads=3, num_hidden_layers=8, rms_norm_eps=1e-5, **_ODD, **_TIED
    ),
    "Qwen3, biases and windows": _of("Qwen3", attention_bias=True, **_SOME_LAYERS),
    "Qwen2, tied, windows": _of(
        "Qwen2", use_sliding_window=True, sliding_window=9, layer_types=TYPES[:7], **_TIED
    ),
    "Llama, llama3": _of("Llama", rope_parameters=LLAMA3, head_dim=8, **BIASES),
    "Llama, linear": _of("Llama", rope_parameters=LINEAR, **_TIED),
    "Llama, yarn": _of("Llama", rope_parameters=YARN, num_key_value_heads=1),
    "Mistral": _of("Mistral", sliding_window=8),
    "Ministral": _of("Ministral", sliding_window=3, layer_types=TYPES[:7]),
    "Phi-3": _of("Phi3", head_dim=8, sliding_window=10),
    "Gemma": _of("Gemma", hidden_act="gelu", num_key_value_heads=1),
    "Granite": _of("Granite", mlp_bias=True, **GRANITE),
    "SmolLM3": _of("SmolLM3"),
    "Seed-OSS": _of("SeedOss", attention_out_bias=True),
    "OLMo 2": _of("Olmo2"),
    "OLMo 3": _of("Olmo3", sliding_window=7, rope_parameters=_OLMO3),
    "Qwen3-MoE, some dense": _of("Qwen3Moe", **EXPERTS, **_DENSE),
    "Qwen2-MoE": _of("Qwen2Moe", **EXPERTS, **_SHARED),
    "Mixtral": _of("Mixtral", num_local_experts=4, num_experts_per_tok=2, sliding_window=11),
}


def make(name: str) -> Any:
    """A random model of this name, with norms that are not 1."""
    kind, changes = MODELS[name]
    config = getattr(transformers, f"{kind}TextConfig" if kind == "Gemma3" else f"{kind}Config")
    return randomized(getattr(transformers, f"{kind}ForCausalLM"), config(**SHAPE | changes))


def randomized(kind: type, config: Any) -> Any:
    """A model with random weights, large enough for logits of order 1."""
    torch.manual_seed(0)
    model = kind(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            # Gemma's norms multiply by 1 + weight.
            ones = "norm" in name and "Gemma" not in kind.__name__
            parameter.normal_(float(ones), 0.2)
    return model.eval()
