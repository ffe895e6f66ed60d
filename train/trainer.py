"""One training loop for every model: progress, metrics, and orbax checkpoints to resume from."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, cast

import jax
import numpy as np
import optax
from orbax.checkpoint import v1 as ocp
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from dart_jax.pure import Params


class TrainState(NamedTuple):
    """What a checkpoint holds."""

    params: Params
    opt_state: Any


def fit(
    name: str,
    *,
    params: Params,
    loss: Callable[[Params, Any, jax.Array], jax.Array],
    batches: Callable[[int], Any],
    optimizer: optax.GradientTransformation,
    steps: int,
    directory: Path,
    evaluate: Callable[[Params], dict[str, float]] | None = None,
    save_every: int = 200,
    seed: int = 0,
) -> Params:
    """Trains to `steps`, resuming from the newest checkpoint in `directory`.

    Args:
      name: shown beside the progress bar.
      params: initial parameters, used when there is nothing to resume.
      loss: (params, batch, key) -> scalar; jitted here.
      batches: step -> batch, a pytree of token arrays; a pure function of the step, so that
        resuming is exact.
      optimizer: optax transformation.
      steps: total number of updates, earlier runs included.
      directory: gets `checkpoints/` and `metrics.jsonl`.
      evaluate: called at every checkpoint; its figures join the metrics.
      save_every: steps between checkpoints.
      seed: of the keys handed to `loss`.

    Returns:
      The trained parameters.
    """

    @jax.jit
    def update(state: TrainState, batch: Any, step: int) -> tuple[TrainState, Any]:
        key = jax.random.fold_in(jax.random.key(seed), step)
        value, grads = jax.value_and_grad(loss)(state.params, batch, key)
        updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
        norm = optax.tree.norm(grads)
        params = cast(Params, optax.apply_updates(state.params, updates))
        return TrainState(params, opt_state), (value, norm)

    state = TrainState(params, optimizer.init(params))
    directory.mkdir(parents=True, exist_ok=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
    policy: Any = ocp.training.preservation_policies.LatestN(2)
    with (
        ocp.training.Checkpointer(
            os.path.abspath(directory / "checkpoints"), preservation_policy=policy
        ) as checkpointer,
        Progress(*columns) as progress,
        (directory / "metrics.jsonl").open("a") as metrics,
    ):
        done = 0
        if checkpointer.latest is not None:
            done = checkpointer.latest.step
            state = checkpointer.load(done, state)
        task = progress.add_task(name, total=steps, completed=done, note="")
        losses: list[float] = []
        tokens = 0
        start = time.perf_counter()
        for step in range(done, steps):
            batch = batches(step)
            state, (value, norm) = update(state, batch, step)
            losses.append(float(value))
            tokens += sum(leaf.size for leaf in jax.tree.leaves(batch))
            rate = tokens / (time.perf_counter() - start)
            note = f"loss {np.mean(losses[-50:]):.3f}  {rate:,.0f} tokens/s"
            progress.update(task, completed=step + 1, note=note)
            record = {"step": step + 1, "loss": losses[-1], "grad_norm": float(norm)}
            if (step + 1) % save_every == 0 or step + 1 == steps:
                # Forced, since orbax skips a save while the one before it still runs.
                checkpointer.save_async(step + 1, state, force=True)
                if evaluate is not None:
                    record |= evaluate(state.params)
                    progress.console.print(f"{name} {record} {rate:,.0f} tokens/s")
            metrics.write(json.dumps(record) + "\n")
            metrics.flush()
    return state.params


def adamw(
    peak: float, steps: int, *, warmup: int, clip: float, weight_decay: float = 0.0
) -> optax.GradientTransformation:
    """AdamW with linear warm-up, cosine decay to a twentieth, and clipping by global norm."""
    schedule = optax.warmup_cosine_decay_schedule(0.0, peak, warmup, steps, peak / 20)
    decay = lambda params: jax.tree.map(lambda p: p.ndim > 1, params)  # noqa: E731
    return optax.chain(
        optax.clip_by_global_norm(clip),
        optax.adamw(schedule, b1=0.9, b2=0.95, weight_decay=weight_decay, mask=decay),
    )
