"""Floating-point operations of training steps, for the devices' utilisation.

Counts only matrix products, as two operations per multiply-add, and no recomputation.
"""

from __future__ import annotations

from dart_jax.models.config import TargetConfig
from dart_jax.models.drafter_config import DrafterConfig
from train.objective.predictions import PackedForward


def target_flops(target: TargetConfig, rows: int, context: int) -> float:
    """FLOPs of one target forward pass over rows of `context` tokens, without the head."""
    d, h = target.hidden_size, target.head_dim
    attention = d * h * (2 * target.num_attention_heads + 2 * target.num_key_value_heads)
    total = 0.0
    for layer in range(target.num_hidden_layers):
        mlp = 3 * d * target.intermediate_size
        if target.moe is not None and target.is_sparse(layer):
            moe = target.moe
            mlp = 3 * d * moe.intermediate_size * moe.num_experts_per_tok + d * moe.num_experts
        total += attention + mlp + h * target.num_attention_heads * context  # half of it is masked
    return 2 * rows * context * total


def step_flops(
    forward: PackedForward,
    rows: int,
    context: int,
    anchors: int,
    *,
    online: bool,
    only_pairs: bool = False,
) -> float:
    """FLOPs of an update over rows of `context` tokens with `anchors` anchors each.

    Args:
      forward: target, drafter and number of positions.
      rows: rows of the batch.
      context: tokens per row.
      anchors: anchors per row.
      online: whether the target runs in the step.
      only_pairs: whether the drafter is frozen except for its pair scores.
    """
    config, steps = forward.drafter, forward.num_positions
    anchors = min(anchors, context)
    d, h = config.hidden_size, config.head_dim
    heads = h * config.num_attention_heads
    keys = 2 * h * config.num_key_value_heads
    mlp = 3 * d * config.intermediate_size
    dart = isinstance(config, DrafterConfig)
    later = config.num_hidden_layers - 1 if dart else 0
    blocks = anchors * steps
    scores = heads * context  # of one query over its prefix, half of which is masked
    # Keys of the real rows; queries of the anchors; after attention, output and MLP of each block.
    total = context * (config.features_width * d + 2 * d * keys)
    total += anchors * 2 * d * heads + blocks * (heads * d + mlp)
    if dart:  # successive anchors share the scores of their mask rows
        total += scores * min(2 * context if anchors == context else blocks, blocks)
        total += later * context * (d * (2 * heads + keys) + mlp + scores)
        total += later * blocks * (d * (2 * heads + keys) + mlp + scores)
    else:
        total += (blocks - anchors) * (2 * d * (heads + keys)) + blocks * scores
    total += blocks * d * config.draft_vocab_size
    flops = (2.0 if only_pairs else 6.0) * rows * total  # forward, and twice that backward
    if isinstance(config, DrafterConfig):
        flops += 6.0 * rows * blocks * config.pair_rank * (d + config.draft_vocab_size)
    teacher_rows = context if anchors == context else blocks
    flops += 2.0 * rows * teacher_rows * d * config.draft_vocab_size
    if not online:
        return flops
    if config.draft_vocab_size < forward.target.vocab_size:  # each row's sum over all logits
        flops += 2.0 * rows * min(context, blocks) * d * forward.target.vocab_size
    return flops + target_flops(forward.target, rows, context)
