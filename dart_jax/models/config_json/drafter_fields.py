"""Fields of drafters' `config.json` that are options, and those that change nothing here.

The others that `dart_jax.models.drafter_config` honours are the fields of its dataclasses. What
nobody knows is named in a warning: the formats' own programs do not read it either.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from dart_jax.errors import UserError, warn
from dart_jax.models.config_json.fields import FULL, SLIDING, are_layers, refuse

_OFF = (False, None)
# By option the values with which the computation is the one implemented here.
_OPTIONS: dict[str, tuple[Any, ...]] = {
    "hidden_act": ("silu",),
    "attention_bias": _OFF,
    "mlp_bias": _OFF,
    "bias": _OFF,
    "qkv_bias": _OFF,
    "quantization_config": (None,),
    "logit_scale": (1, None),
    "is_causal": (True, None),
    "parallel_drafting": _OFF,
    "mask_token_id": (None,),
    "target_layer_ids": (None,),
}
NORMS = ("norm_before_residual", "norm_output", "norm_before_fc", "fc_norm")
LAYERS = "eagle_aux_hidden_state_layer_ids"
DART_OPTIONS: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(NORMS, _OFF),
    "eagle_config": ({}, None),
    LAYERS: ([], None),
}
# NVIDIA's ModelOpt writes them into `eagle_config`.
EAGLE3_OPTIONS: dict[str, tuple[Any, ...]] = {
    "use_aux_hidden_state": (True, None),
    "use_input_layernorm_in_first_layer": (True, None),
    "use_last_layernorm": (True, None),
    "use_mtp_layernorm": _OFF,
    "use_aux_norm": _OFF,
    "next_layer_regular": (True, None),
    "eagle_decoder_type": ("llama", None),
    "parallel_draft_step": (0, 1, None),
}
# Fields that the file of weights or the target determines: heads, embeddings, dtypes and tokens;
# settings of training and of other programs; and what other fields are read from.
_READ = f"""
    _name_or_path architectures auto_map bos_token_id dtype eos_token_id has_lm_head
    has_own_embed_tokens has_own_lm_head model_type pad_token_id target_model_type target_vocab_size
    tie_word_embeddings torch_dtype
    _attn_implementation attention_dropout embed_requires_grad has_no_defaults_at_init
    initializer_range max_window_layers parallel_draft_heads_num_layers pretraining_tp
    speculators_config speculators_model_type speculators_version transformers_version use_cache
    eagle_config {LAYERS} layer_types num_hidden_layers original_max_position_embeddings
    partial_rotary_factor rope_parameters rope_scaling rope_theta sliding_window use_sliding_window
"""
_OTHERS = {*_READ.split()}
# What transformers wrote into every config in older versions.
_GENERIC = """
    add_cross_attention bad_words_ids begin_suppress_tokens chunk_size_feed_forward
    cross_attention_hidden_size decoder_start_token_id diversity_penalty do_sample early_stopping
    encoder_no_repeat_ngram_size exponential_decay_length_penalty finetuning_task
    forced_bos_token_id forced_eos_token_id id2label is_decoder is_encoder_decoder label2id
    length_penalty max_length min_length no_repeat_ngram_size num_beam_groups num_beams
    num_return_sequences output_attentions output_hidden_states output_scores prefix problem_type
    pruned_heads remove_invalid_values repetition_penalty return_dict return_dict_in_generate
    sep_token_id suppress_tokens task_specific_params temperature tf_legacy_loss
    tie_encoder_decoder tokenizer_class top_k top_p torchscript typical_p use_bfloat16
"""
# Fields of which no program computes anything, or that are read with others.
IGNORED = _OTHERS | {*_GENERIC.split()}


def check_options(
    json: Mapping[str, Any], options: Mapping[str, tuple[Any, ...]], honoured: Iterable[str]
) -> None:
    """Checks the fields of a drafter's config that are not honoured, and warns of unknown ones.

    Args:
      json: the config.
      options: of the drafter's kind, besides those that all drafters have.
      honoured: names of the fields that are.

    Raises:
      UserError: an option has a value with which the computation is another one.
    """
    options = {**_OPTIONS, **options}
    for name, values in options.items():
        if name not in honoured:
            _refuse(json, name, values)
    _warn_of(name for name in json if name not in {*options, *honoured, *_OTHERS})


def sliding_window(json: Mapping[str, Any]) -> int | None:
    """Returns the window of all layers of a DART or EAGLE-3 drafter, or None if they see all rows.

    Raises:
      UserError: only some layers have one, or it is not clear which.
    """
    layers, window = json.get("layer_types"), json.get("sliding_window")
    unused = window is None or json.get("use_sliding_window") is False
    said = json.get("use_sliding_window") is True  # a window alone may be unused
    kinds = layers if layers is not None else [FULL] if unused else [SLIDING] if said else None
    if isinstance(kinds, list) and all(kind == FULL for kind in kinds):
        return None
    sliding = isinstance(kinds, list) and all(kind == SLIDING for kind in kinds)
    if sliding and not unused and "speculators_model_type" not in json:
        return window
    raise UserError(
        f"config.json has layer_types={layers!r} and sliding_window={window!r}, by which it is not "
        "known that all layers have the same window; pass a drafter that says so, or has none"
    )


def eagle_config(json: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the fields that an EAGLE-3 drafter's config has in `eagle_config`.

    Raises:
      UserError: one of them has a value with which the computation is another one.
    """
    eagle = json.get("eagle_config") or {}
    if not isinstance(eagle, dict):
        raise UserError(f"config.json has eagle_config={eagle!r}; it must be an object")
    for name, values in EAGLE3_OPTIONS.items():
        _refuse(eagle, name, values)
    for name in NORMS:
        if eagle.get(name) and not json.get(name):
            raise UserError(
                f"config.json has {name}={eagle[name]!r} in eagle_config, where no program looks "
                "for it; move it to the top level, or leave it out"
            )
    known = {*EAGLE3_OPTIONS, *NORMS, *_OTHERS}
    _warn_of(f"eagle_config.{name}" for name in eagle if name not in known)
    return eagle


def feature_layers(json: Mapping[str, Any]) -> tuple[int, ...] | None:
    """Returns the target's layers whose input an EAGLE-3 drafter reads, ascending, or None for the
    default.

    At the top level, where speculators writes them and vLLM reads them, ids count the layers before
    a hidden state; in `eagle_config`, where ModelOpt writes them and SGLang reads them, they name
    the layer whose output it is.

    Raises:
      UserError: they are no layers, or differ between the two.
    """
    eagle = eagle_config(json)
    lists = []
    for where, ids, shift in (("", json.get(LAYERS), 0), ("eagle_config.", eagle.get(LAYERS), 1)):
        if ids is None or ids == []:
            continue
        if not are_layers(ids):
            raise UserError(
                f"config.json has {where}{LAYERS}={ids!r}; it must be a list of different layers"
            )
        # Programs capture the layers in their own order, not the list's.
        lists.append(tuple(sorted(i + shift for i in ids)))
    if len({*lists}) > 1:
        raise UserError(
            f"config.json names the inputs of the target's layers {lists[0]} in {LAYERS}, and "
            f"those of layers {lists[1]} in eagle_config; leave out the wrong list"
        )
    return lists[0] if lists else None


def _refuse(json: Mapping[str, Any], name: str, values: tuple[Any, ...]) -> None:
    cure = f"pass one that was trained with {name}={values[0]!r}"
    refuse(json, name, values, f" in drafters; {cure}")


def _warn_of(names: Iterable[str]) -> None:
    if listed := ", ".join(sorted(names)):
        warn(f"the drafter's config.json has fields that are not used: {listed}")
