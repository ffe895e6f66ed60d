"""Fields and values of other servers that change nothing here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

# Fields that never change an answer, among them numbers of what is off by `NEUTRAL`.
HARMLESS = frozenset(
    {
        "cache_prompt", "cache_salt", "data_parallel_rank", "draft_model", "dry_allowed_length",
        "dry_base", "dry_penalty_last_n", "dry_sequence_breakers", "dynatemp_exponent", "extra_key",
        "guided_decoding_backend", "keep_alive", "max_tool_calls", "metadata", "mirostat_eta",
        "mirostat_tau", "n_cache_reuse", "prediction", "priority", "prompt_cache_key",
        "prompt_cache_retention", "provider", "request_id", "return_progress", "rid",
        "safety_identifier", "service_tier", "session_id", "smoothing_curve", "speculative.n_max",
        "speculative.n_min", "speculative.p_min", "sse_ping_interval", "store",
        "timings_per_token", "trace", "ttl", "user", "xtc_threshold",
    }
)  # fmt: skip

# Fields that say how far others reach -> those others, which are off if 0.
_REACHES = {"repeat_last_n": ("presence_penalty", "frequency_penalty")}

# Values with which other fields change nothing.
NEUTRAL: Mapping[str, Sequence[Any]] = {
    **dict.fromkeys([
        "dry_multiplier", "dynatemp_range", "epsilon_cutoff", "eta_cutoff", "min_keep",
        "min_length", "mirostat", "mirostat_mode", "n_discard", "n_indent", "n_keep", "n_probs",
        "no_repeat_ngram_size", "penalty_alpha", "smoothing_factor", "top_a", "top_n_tokens",
        "xtc_probability",
    ], (0,)),
    **dict.fromkeys([
        "best_of", "encoder_repetition_penalty", "guidance_scale", "length_penalty", "num_beams",
        "repeat_penalty", "tfs", "tfs_z", "typ_p", "typical_p",
    ], (1,)),
    **dict.fromkeys([
        "adaptive_target", "id_slot", "reasoning_budget", "repeat_last_n", "thinking_budget",
        "thinking_budget_tokens",
    ], (-1,)),
    **dict.fromkeys([
        "add_special_tokens", "backend_sampling", "background", "ban_eos_token",
        "dynamic_temperature", "early_stopping", "echo", "flat_logprobs", "grammar_lazy",
        "no_stop_trim", "post_sampling_probs", "raw", "reasoning_in_content",
        "return_cached_tokens_details", "return_full_text", "return_hidden_states",
        "return_routed_experts", "return_token_ids", "return_tokens", "temperature_last",
        "use_beam_search", "verbose", "watermark",
    ], (False,)),
    **dict.fromkeys([
        "add_bos_token", "detokenize", "do_sample", "parse_tool_calls", "penalize_nl",
        "spaces_between_special_tokens", "stream_reasoning",
    ], (True,)),
    **dict.fromkeys([
        "allowed_token_ids", "bad_words", "documents", "functions", "grammar_triggers",
        "logits_processors", "lora", "models", "plugins", "preserved_tokens", "response_fields",
        "samplers", "transforms",
    ], ([],)),
    **dict.fromkeys([
        "custom_params", "kv_transfer_params", "media_io_kwargs", "mm_processor_kwargs", "options",
        "session_params", "vllm_xargs",
    ], ({},)),
    **dict.fromkeys(["format", "negative_prompt", "suffix"], ("",)),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "stop_regex": ("", []),
    "t_max_predict_ms": (0, -1),
    "top_n_sigma": (-1, 0),
    "truncation_side": ("left",),
    "usage": ({}, {"include": False}),
    "verbosity": ("medium",),
}  # fmt: skip


def may_matter(name: str, fields: Mapping[str, Any]) -> bool:
    """Returns True if a field of a body that this server does not have may change the answer."""
    value = fields[name]
    if value is None or name in HARMLESS:
        return False
    if name in _REACHES and not any(map(fields.get, _REACHES[name])):
        return False
    return not any(_same(value, neutral) for neutral in NEUTRAL.get(name, ()))


def _same(one: Any, other: Any) -> bool:
    return one == other and isinstance(one, bool) == isinstance(other, bool)  # 1 is 1.0, not true
