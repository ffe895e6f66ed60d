"""Checks of `config.json` fields, shared by targets and drafters."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from dart_jax.errors import UserError, warn

# Fields of a target's `config.json` that are read, besides those of TargetConfig.
_READ = (
    "attention_out_bias decoder_sparse_step hidden_activation layer_types max_window_layers "
    "mlp_only_layers moe_intermediate_size no_rope_layer_interval norm_topk_prob num_experts "
    "num_experts_per_tok num_local_experts original_max_position_embeddings "
    "partial_rotary_factor qkv_bias rope_local_base_freq rope_parameters rope_scaling rope_theta "
    "shared_expert_intermediate_size sliding_window_pattern use_sliding_window"
)
# Fields that change nothing here, by reason.
_UNUSED = {
    "they describe the file": (
        "architectures auto_map custom_pipelines dtype finetuning_task id2label is_llama_config "
        "label2id language license model_type name_or_path num_labels prefix problem_type "
        "task_specific_params tokenizer_class torch_dtype transformers.js_config "
        "transformers_version unsloth_fixed unsloth_version"
    ),
    "they matter in training": (
        "attention_dropout attn_pdrop classifier_dropout dropout embd_pdrop "
        "gradient_checkpointing hidden_dropout initializer_range output_router_logits "
        "resid_pdrop residual_dropout router_aux_loss_coef router_jitter_noise"
    ),
    "they choose between ways to compute the same": (
        "attn_implementation cache_implementation chunk_size_feed_forward experts_implementation "
        "pretraining_tp pruned_heads torchscript use_bfloat16 use_cache use_flash_attn"
    ),
    "they choose what is returned": "output_attentions output_hidden_states return_dict",
    "tokenizer and generation config say it, as in transformers 5": (
        "bad_words_ids begin_suppress_tokens bos_token_id decoder_start_token_id "
        "diversity_penalty do_sample early_stopping encoder_no_repeat_ngram_size eos_token_id "
        "exponential_decay_length_penalty forced_bos_token_id forced_eos_token_id length_penalty "
        "max_length min_length no_repeat_ngram_size num_beam_groups num_beams "
        "num_return_sequences output_scores pad_token_id remove_invalid_values "
        "repetition_penalty return_dict_in_generate sep_token_id suppress_tokens temperature "
        "top_k top_p typical_p unk_token_id"
    ),
    "they are of the other parts of a vision-language model": (
        "boi_token_index eoi_token_index image_token_id image_token_index mm_tokens_per_image "
        "multimodal_projector_bias projector_hidden_act spatial_merge_size text_config "
        "video_token_id vision_config vision_end_token_id vision_feature_layer "
        "vision_start_token_id vision_token_id"
    ),
    "`dart_jax.weights.quantized` reads them": (
        "compression_config quantization quantization_config"
    ),
}
_UNUSED_NAMES = frozenset(name for names in _UNUSED.values() for name in names.split())
_OFF: tuple[Any, ...] = (None, False, [], {})
# Fields that change the computation in ways that are not supported -> values that do not.
_UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "add_cross_attention": (False, None),
    "is_causal": (True, None),
    "is_encoder_decoder": (False, None),
    "per_layer_config": ({}, None),
    "transformers_weights": (None,),
    "use_bidirectional_attention": (False, None),
    "use_mrope": (False, None),
}


def check_fields(config: Any) -> None:
    """Raises UserError if a field of a config dataclass has a wrong type or range."""
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        least = 0 if field.name in ("draft_length", "pair_rank") else 1
        if field.type == "bool":
            valid, expected = isinstance(value, bool), "true or false"
        elif field.type in ("int", "int | None"):
            valid = isinstance(value, int) and not isinstance(value, bool) and value >= least
            valid = valid or (value is None and field.type == "int | None")
            expected = f"an integer of at least {least}"
        elif field.type in ("float", "float | None"):
            valid = isinstance(value, int | float) and not isinstance(value, bool)
            valid = valid and 0 < value < float("inf")
            valid = valid or (value is None and field.type == "float | None")
            expected = "a positive number"
        else:
            continue
        if not valid:
            raise UserError(f"config.json has {field.name}={value!r}; it must be {expected}")


def check_attention(heads: int, kv_heads: int, head_dim: int) -> None:
    """Raises UserError if the heads cannot form grouped-query attention with RoPE."""
    if heads % kv_heads:
        raise UserError(f"{heads} query heads cannot share {kv_heads} key/value heads evenly")
    if head_dim % 2:
        raise UserError(f"rotary embeddings need an even head_dim, got {head_dim}")


def refuse(json: Mapping[str, Any], name: str, supported: tuple[Any, ...]) -> None:
    """Raises UserError if a field is present with a value that is not supported."""
    if name in json and json[name] not in supported:
        raise UserError(f"config.json has {name}={json[name]!r}, which is not supported")


def check_unread(json: Mapping[str, Any], cls: type) -> None:
    """Checks the fields of a target's `config.json` that nothing reads.

    Args:
      json: the config.
      cls: the dataclass that has the fields that are read under their own names.

    Raises:
      UserError: one changes the computation.

    Warns:
      InputWarning: some are unknown and not switched off. No config of transformers has them, which
        ignores them without a word.
    """
    for name, supported in _UNSUPPORTED.items():
        refuse(json, name, supported)
    own = {field.name for field in dataclasses.fields(cls)}
    unknown = json.keys() - own - {*_READ.split()} - _UNUSED_NAMES - _UNSUPPORTED.keys()
    names = sorted(n for n in unknown if not n.startswith("_") and json[n] not in _OFF)
    if names:
        warn(f"config.json has fields that nothing reads, nor in transformers: {', '.join(names)}")


def with_head_defaults(json: Mapping[str, Any], *, guess: bool) -> dict[str, Any]:
    """Fills in what Llama-like configs may leave out: key/value heads and the head's size."""
    fields = dict(json)
    heads, size = json.get("num_attention_heads"), json.get("hidden_size")
    if guess and isinstance(heads, int) and isinstance(size, int) and heads > 0:
        if fields.get("num_key_value_heads") is None:
            fields["num_key_value_heads"] = heads
        if fields.get("head_dim") is None and size % heads == 0:
            fields["head_dim"] = size // heads
    return fields


def known_fields(cls: type, json: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of dataclass `cls`; raises UserError if a required one is missing."""
    fields = dataclasses.fields(cls)
    require(json, [f.name for f in fields if f.default is dataclasses.MISSING])
    return {f.name: json[f.name] for f in fields if f.name in json}


def require(json: Mapping[str, Any], names: Any) -> None:
    """Raises UserError if one of the fields `names` is missing."""
    missing = [name for name in names if json.get(name, dataclasses.MISSING) is dataclasses.MISSING]
    if missing:
        raise UserError(f"config.json lacks {', '.join(missing)}")
