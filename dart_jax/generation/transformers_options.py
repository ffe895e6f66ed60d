"""Converts the generation config of `transformers`; refuses what would change the text but is not
supported."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dart_jax.errors import UserError

if TYPE_CHECKING:
    import transformers

# Fields of the same meaning and name here.
_SAME = (
    "max_new_tokens",
    "max_length",
    "do_sample",
    "temperature",
    "top_p",
    "min_p",
    "repetition_penalty",
    "eos_token_id",
    "output_scores",
)

# Not supported, except for these values and None, which do nothing.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "min_length": (0,),
    "min_new_tokens": (0,),
    "max_time": (),
    "num_beams": (1,),
    "num_beam_groups": (1,),
    "penalty_alpha": (0,),
    "dola_layers": (),
    "diversity_penalty": (0,),
    "constraints": (),
    "force_words_ids": ([],),
    "top_h": (),
    "typical_p": (1,),
    "epsilon_cutoff": (0,),
    "eta_cutoff": (0,),
    "encoder_repetition_penalty": (1,),
    "no_repeat_ngram_size": (0,),
    "encoder_no_repeat_ngram_size": (0,),
    "bad_words_ids": ([],),
    "renormalize_logits": (False,),
    "forced_bos_token_id": (),
    "forced_eos_token_id": (),
    "exponential_decay_length_penalty": (),
    "suppress_tokens": ([],),
    "begin_suppress_tokens": ([],),
    "sequence_bias": ({}, []),
    "token_healing": (False,),
    "guidance_scale": (1,),
    "watermarking_config": (),
    "output_attentions": (False,),
    "output_hidden_states": (False,),
    "output_logits": (False,),
}

# Of these, what makes no difference to greedy decoding.
_OF_SAMPLING = ("top_h", "typical_p", "epsilon_cutoff", "eta_cutoff", "renormalize_logits")

# How `transformers` computes or packs the result; or without effect, because there are no beams
# and prompts are not padded.
_IGNORED = (
    "_commit_hash",
    "_from_model_config",
    "assistant_confidence_threshold",
    "assistant_early_exit",
    "assistant_ensemble_weight",
    "assistant_lookbehind",
    "bos_token_id",
    "cache_config",
    "cache_implementation",
    "compile_config",
    "continuous_batching_config",
    "decoder_start_token_id",
    "disable_compile",
    "early_stopping",
    "is_assistant",
    "length_penalty",
    "low_memory",
    "max_cache_len",
    "max_matching_ngram_size",
    "num_assistant_tokens",
    "num_assistant_tokens_schedule",
    "num_return_sequences",  # see `return_sequences`
    "pad_token_id",
    "prefill_chunk_size",
    "prompt_lookup_num_tokens",
    "remove_invalid_values",
    "return_dict_in_generate",
    "speculation_type",
    "target_lookbehind",
    "transformers_version",
    "use_cache",
    "use_mtp",
)

NAMES = frozenset((*_SAME, "top_k", "stop_strings", *_NEUTRAL, *_IGNORED))


def convert(config: transformers.GenerationConfig | Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of `dart_jax.generation.GenerationConfig` with the same meaning as those
    of a config, or of a `generation_config.json`. Raises UserError, which names the field, if one
    that would change the text is not supported."""
    fields = _fields(config)
    given = {name: value for name, value in fields.items() if value is not None}
    for name, value in given.items():
        if name not in NAMES or (name in _NEUTRAL and value not in _NEUTRAL[name]):
            raise UserError(
                f"the generation config has {name}={value!r}, which is not supported; remove it"
            )
    options = {name: given[name] for name in _SAME if name in given}
    options["do_sample"] = given.get("do_sample", False)
    if options["do_sample"] or "top_k" in given:
        options["top_k"] = given.get("top_k", 50)  # the default of transformers
    if "max_length" in given and "max_new_tokens" not in given:
        options["max_new_tokens"] = given["max_length"]
    elif "max_length" in options:
        del options["max_length"]  # as in transformers, max_new_tokens takes precedence
    if "stop_strings" in given:
        options["stop"] = given["stop_strings"]
    return options


def unused_by_default(config: Mapping[str, Any]) -> str | None:
    """Names the fields of a `generation_config.json` that would make transformers write another
    text even without sampling, or returns None.

    Nothing here uses them unless asked to, which is what `convert` is for.
    """
    ours, told = {"repetition_penalty": (1,), "stop_strings": ([],)}, []
    for name, neutral in {**ours, **_NEUTRAL}.items():
        value = config.get(name)
        if value is None or value in neutral or name in _OF_SAMPLING or name.startswith("output_"):
            continue
        how = "is not supported, and not used"
        if name in ours:
            how = "is used only with --use-generation-config or model.generation_config"
        told.append(f"{name}={value!r} {how}")
    return "; ".join(told) or None


def return_sequences(config: transformers.GenerationConfig | Mapping[str, Any]) -> int:
    """Returns the `num_return_sequences` of a config: how often each prompt is continued."""
    return _fields(config).get("num_return_sequences") or 1


def _fields(config: transformers.GenerationConfig | Mapping[str, Any]) -> Mapping[str, Any]:
    if isinstance(config, Mapping):
        return config
    if not hasattr(config, "to_dict"):
        raise UserError(
            "config must be a dart_jax.GenerationConfig or a transformers.GenerationConfig, not a "
            f"{type(config).__name__}"
        )
    return config.to_dict()
