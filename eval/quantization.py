"""Show what weights in 8 bits change: size, perplexity, most likely tokens.

    python -m eval.quantization
    python -m eval.quantization --target Qwen/Qwen3-0.6B --drafter fvliang/qwen0.6b-dart

Both models read held-out modules of the Python library. `eval.speedup --weights int8` shows speed,
and that drafting changes no answer; with and without this option, it shows the change of tau.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console

from dart_jax.errors import UserError
from dart_jax.model import DartModel
from dart_jax.models.layers import Params
from dart_jax.models.platform.weights import WeightsDtype
from dart_jax.models.pure import bind
from dart_jax.programs.command_line import check_least, parse, program
from dart_jax.programs.model_choice import ModelChoice
from dart_jax.programs.outputs import check_outputs
from dart_jax.programs.provenance import write_report
from dart_jax.programs.tables import table
from eval.benchmarks.prompts import held_out_text

_WINDOW = 512  # tokens of text that are read together


@dataclasses.dataclass(frozen=True)
class QuantizationConfig(ModelChoice):
    """The model, and the amount of text."""

    weights: WeightsDtype = "int8"
    """Storage of the weights that are compared with those of the files."""
    held_out: int = 16384
    """Tokens of held-out text to read."""
    json: Path | None = None
    """Write the results to this file."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_least(self, held_out=2)


@partial(jax.jit, static_argnums=(0, 1))
def _log_probabilities(config: Any, options: Any, params: Params, tokens: jax.Array) -> jax.Array:
    """Computes those of each next token: int32 [T] -> float32 [T - 1, V]."""
    count = len(tokens) - 1
    at = jnp.arange(count, dtype=jnp.int32)[None]
    target = bind(config, params, options)
    out = target(tokens[None, :-1], at, jnp.tril(jnp.ones((1, count, count), bool)))
    return jax.nn.log_softmax(target.logits(out.hidden)[0].astype(jnp.float32))


def compare(one: DartModel, other: DartModel, texts: Iterable[np.ndarray]) -> dict[str, Any]:
    """Compares predictions of texts, int [T] each.

    Returns:
      The two models' `perplexity`; the share of positions with the `same_token` as the most likely
      one; and the mean Kullback-Leibler `divergence` of the other model's predictions, in nats.
    """
    losses, same, divergence = [], [], []
    # Weights are compared, not the dtypes of keys and values that suit them.
    same_cache = dataclasses.replace(other.execution.target, kv=one.execution.kv)
    for tokens in texts:
        p, q = (
            np.asarray(
                _log_probabilities(m.target, options, m.params["target"], jnp.asarray(tokens)),
                np.float64,
            )
            for m, options in ((one, one.execution.target), (other, same_cache))
        )
        losses.append([-np.take_along_axis(x, tokens[1:, None], -1)[:, 0] for x in (p, q)])
        same.append(p.argmax(-1) == q.argmax(-1))
        divergence.append((np.exp(p) * (p - q)).sum(-1))
    return {
        "perplexity": np.exp(np.concatenate(losses, axis=1).mean(axis=1)).tolist(),
        "same_token": float(np.concatenate(same).mean()),
        "divergence": float(np.concatenate(divergence).mean()),
    }


def run(config: QuantizationConfig, console: Console) -> None:
    """Compares, prints and writes the report; raises UserError if there is nothing to compare."""
    if config.weights == "stored":
        raise UserError("--weights stored compares a model with itself; pass int8")
    check_outputs(config.json)
    models = dataclasses.replace(config, weights="stored").load(), config.load()
    ids = models[0].tokenizer.encode(held_out_text())[: config.held_out]
    tokens = np.asarray(ids, np.int32)
    window = min(_WINDOW, models[0].target.max_length)
    windows = [tokens[i : i + window] for i in range(0, len(tokens) - 1, window)]
    predictions = compare(*models, windows)
    sizes = [sum(leaf.nbytes for leaf in jax.tree.leaves(model.params)) for model in models]
    rows = [
        ["size of target and drafter, MB", *(f"{size / 1e6:.1f}" for size in sizes)],
        ["perplexity of held-out text", *(f"{value:.3f}" for value in predictions["perplexity"])],
        ["same most likely token", "", f"{predictions['same_token']:.2%}"],
        ["KL divergence, nats", "", f"{predictions['divergence']:.5f}"],
    ]
    title = f"{config.weights} beside stored weights, {len(tokens):,} tokens"
    printed = table(title, ("", "stored", config.weights), rows)
    console.print(printed)
    title = f"What {config.weights} weights change in {config.title}"
    write_report(config, title, [printed], **predictions, size=sizes)


def main(args: Sequence[str] | None = None) -> None:
    """Command line. Exit status 2: bad input, reported in one line."""
    with program():
        run(parse(QuantizationConfig, args, __doc__), Console())


if __name__ == "__main__":
    main()
