"""Evaluates a drafter on held-out text: agreement with the target, and acceptance length."""

from __future__ import annotations

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding

from dart_jax.engine.config import EngineConfig
from dart_jax.engine.request import Request
from dart_jax.engine.shapes import default_tree, length_bucket
from dart_jax.model import DartModel
from dart_jax.models.networks.pure import Params
from dart_jax.models.sharding.devices import Devices
from dart_jax.models.sharding.program import ROWS
from train.data.batch import Batch
from train.data.packed_dataset import PackedDataset
from train.objective.loss import divergence
from train.objective.predictions import Frozen, PackedForward, Predictions
from train.run.mesh import jit_replicated

_LEAST = 8  # minimum tokens of a prompt
_ROWS = 4  # rows compared at a time, by each group of devices


class Agreement:
    """Compares a drafter's predictions with the target's, on fixed rows: `alpha_t`, how often
    its most likely token at position t is the target's; and `held_out_loss`, the mean divergence
    over positions, in nats."""

    def __init__(self, forward: PackedForward, frozen: Frozen, dataset: PackedDataset, rows: int):
        self._frozen = frozen
        # Small batches need less memory than a training step.
        mesh, size = forward.mesh, _ROWS * Devices(forward.mesh).groups
        numbers = np.arange(min(rows, dataset.rows))
        self._batches = [dataset.batch(numbers[i : i + size]) for i in range(0, len(numbers), size)]
        if mesh is not None:  # each group of devices has equally many rows, some without documents
            self._batches = [jax.tree.map(lambda x: _filled(x, size), b) for b in self._batches]

        def sums(params: Params, frozen: Frozen, batch: Batch) -> jax.Array:
            if mesh is not None:
                by_rows = NamedSharding(mesh, ROWS)
                batch = jax.lax.with_sharding_constraint(batch, by_rows)
            inputs = forward.inputs(params, frozen, batch, None)

            def of_chunk(i: jax.Array) -> jax.Array:
                chunk, positions = forward.chunk(inputs, i), forward.positions
                return jax.lax.map(lambda t: _compare(forward.predictions(chunk, t)), positions)

            chunks = jnp.arange(forward.chunks(inputs)[0], dtype=jnp.int32)
            return jnp.sum(jax.lax.map(of_chunk, chunks), axis=0)

        self._sums = jit_replicated(sums, mesh)

    def __call__(self, params: Params) -> dict[str, float]:
        """Returns the figures; none without rows."""
        if not self._batches:
            return {}
        parts = [self._sums(params, self._frozen, batch) for batch in self._batches]
        counts = np.sum([np.asarray(part, np.float64) for part in parts], 0)
        with np.errstate(invalid="ignore"):
            first, loss = counts[:, 1:].T / counts[:, 0]
        figures = {"held_out_loss": float(np.nanmean(loss))}
        figures |= {f"alpha_{t}": float(x) for t, x in enumerate(first, 1)}
        # Late positions may have no valid prediction.
        return {name: value for name, value in figures.items() if math.isfinite(value)}


def _filled(leaf: np.ndarray, rows: int) -> np.ndarray:
    """Rows, filled up to so many by zeros."""
    return np.pad(leaf, [(0, max(rows - len(leaf), 0)), *[(0, 0)] * (leaf.ndim - 1)])


def _compare(predictions: Predictions) -> jax.Array:
    """Returns float32 [3]: the number of valid predictions and of matches, and the sum of the
    divergences."""
    same = jnp.take(predictions.draft_ids, predictions.draft.argmax(-1)) == predictions.best
    each = [jnp.ones_like(predictions.mass), same.astype(jnp.float32), divergence(predictions)]
    each = jnp.stack(each, axis=-1)
    return jnp.sum(jnp.where(predictions.valid[..., None], each, 0.0), axis=(0, 1))


def acceptance_length(
    model: DartModel, prompts: list[np.ndarray], new_tokens: int, ngram_weight: float
) -> dict[str, float]:
    """Returns the acceptance length of greedy decoding of `new_tokens` after each of the prompts,
    int32 [n]: `tau` with the n-gram model if there is one, at this weight in the tree search, and
    `tau_without_ngram` without it; nothing without prompts."""
    if not prompts:
        return {}
    figures = {"tau": _tau(model, prompts, new_tokens, ngram_weight)}
    if model.ngram is not None:
        figures["tau_without_ngram"] = _tau(model, prompts, new_tokens, 0.0)
    return figures


def _tau(model: DartModel, prompts: list[np.ndarray], new_tokens: int, weight: float) -> float:
    nodes, search = default_tree()
    longest = min(length_bucket(max(map(len, prompts)) + new_tokens), model.target.max_length)
    engine = model.engine(
        EngineConfig(slots=len(prompts), max_length=longest, tree_nodes=nodes, offline=True),
        search=dataclasses.replace(search, ngram_weight=weight),
        use_ngram=weight > 0,
    )
    outputs = engine.run(
        Request(prompt, new_tokens, choice=row, stop_ids=model.eos)
        for row, prompt in enumerate(prompts)
    )
    emitted = sum(len(each.tokens) - 1 for each in outputs)  # the first follows the prompt
    return emitted / max(1, sum(each.steps for each in outputs))


def held_out_prompts(dataset: PackedDataset, count: int, longest: int) -> list[np.ndarray]:
    """Returns prompts from the first documents of a set, each up to its answer, or half of a text,
    int32 [n]. Those of more than `longest` or fewer than 8 tokens are skipped."""
    prompts: list[np.ndarray] = []
    for row in range(dataset.rows):
        if len(prompts) >= count:
            break
        batch = dataset.batch(np.array([row]))
        document = np.asarray(batch.document[0])
        for number in range(1, int(document.max()) + 1):
            inside = document == number
            tokens = np.asarray(batch.tokens[0])[inside]
            first = int(np.argmax(np.asarray(batch.supervised[0])[inside]))
            prompt = tokens[: first if first > 1 else len(tokens) // 2]
            if _LEAST <= len(prompt) <= longest:
                prompts.append(prompt)
    return prompts[:count]
