"""The training loop: any loss, any mesh, resumable.

An interrupted and resumed run is bit-identical to an uninterrupted one on the same kind of devices,
with the same mesh and version of XLA; on GPUs XLA is deterministic only with
`XLA_FLAGS=--xla_gpu_deterministic_ops=true`.
"""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dart_jax.errors import UserError
from dart_jax.files import writing
from dart_jax.models.pure import Params
from dart_jax.models.sharding.placement import everywhere
from dart_jax.programs.processes import is_main
from train.run.checkpoints import Checkpoints
from train.run.config import TrainerConfig
from train.run.distributed import any_process
from train.run.duration import Duration
from train.run.mesh import (
    batch_sharding,
    fsdp_shardings,
    make_mesh,
    place,
    replicated,
)
from train.run.optimizer import learning_rate, make_optimizer
from train.run.peak import peak_flops
from train.run.prefetch import BatchSource, loading
from train.run.report.steps import StepWork, reporting
from train.run.step import Loss, TrainState, make_update, state_shardings
from train.run.work_directory import exclusive

_MOST_STEPS = 2**31 - 1  # step numbers are int32


def fit(
    name: str,
    *,
    params: Params,
    loss: Loss,
    batches: BatchSource,
    config: TrainerConfig,
    directory: Path,
    frozen: Any = None,
    evaluate: Callable[[Params], dict[str, float]] | None = None,
    settings: Mapping[str, Any] | None = None,
    tokens_per_step: int = 0,
    flops_per_step: float = 0.0,
) -> Params:
    """Trains to `config.updates`, or for `config.minutes`; resumes from the newest checkpoint.

    Every process must make the same call; process 0 writes metrics and shows progress.

    Args:
      name: shown next to the progress.
      params: initial parameters; they are not donated.
      loss: (params, frozen, batch, key) -> sum of one microbatch's losses and their count, float32
        scalars; jitted here.
      batches: the data; `batches.batch` must be `config.batch_size`.
      config: the recipe.
      directory: receives `checkpoints/`, `metrics.jsonl` and `tensorboard/`.
      frozen: a tree of arrays that the loss needs, such as the target's parameters; those that
        are not on the mesh are copied to all its devices.
      evaluate: called with the parameters, whole on every device and valid during the call; its
        figures join the metrics, and `tau` or `held_out_loss` among them selects the best
        checkpoint.
      settings: further settings that must not change when a run resumes, by name; JSON values.
      tokens_per_step: for the reported tokens per second; 0 if unknown.
      flops_per_step: floating-point operations of an update over the whole batch, for the
        reported utilisation of the devices; 0 if unknown.

    Returns:
      The trained parameters, on one device of every process.

    Raises:
      UserError: the run cannot start, resume or be saved; its newest checkpoint stays.
      SystemExit: SIGTERM or SIGINT arrived; the state was saved.
    """
    if batches.batch != config.batch_size:
        raise ValueError(
            f"batches of {batches.batch} rows do not match --batch-size {config.batch_size}"
        )
    mesh = make_mesh(config.mesh)
    rows = batch_sharding(mesh, config.batch_size, config.accumulate)
    optimizer = make_optimizer(config)
    shardings = state_shardings(mesh, optimizer, params)
    dtype = jnp.dtype(config.dtype)
    update = make_update(loss, optimizer, mesh, shardings, dtype=dtype, seed=config.seed)
    gather = jax.jit(lambda tree: tree, out_shardings=replicated(mesh))

    def gathered(params: Params) -> Params:
        return jax.tree.map(lambda leaf: leaf.addressable_data(0), gather(params))

    def initial_state(params: Params) -> TrainState:
        copy = jax.tree.map(lambda p: jnp.array(p, jnp.float32, copy=True), params)
        return TrainState(copy, optimizer.init(copy))

    saved = directory / "checkpoints"
    fixed = {**config.fixed, "data": batches.fingerprint, **(settings or {})}
    with contextlib.ExitStack() as stack:
        with writing("the run", directory):
            directory.mkdir(parents=True, exist_ok=True)
            if is_main():
                stack.enter_context(exclusive(directory))
        checkpoints = Checkpoints(saved, config.keep, fixed)
        stack.enter_context(contextlib.closing(checkpoints))
        placed = place(params, fsdp_shardings(mesh, params))
        abstract = jax.tree.map(
            lambda p, s: jax.ShapeDtypeStruct(p.shape, p.dtype, sharding=s),
            jax.eval_shape(initial_state, placed),
            shardings,
        )
        resumed = checkpoints.resume(abstract)
        initial = jax.jit(initial_state, out_shardings=shardings)
        done, seconds, state = resumed or (0, 0.0, initial(placed))
        duration = Duration(config, seconds)
        if duration.over(done):
            return gathered(state.params)
        rate = jax.jit(lambda at: learning_rate(config, at, duration.whole))
        frozen = everywhere(mesh, frozen)
        work = StepWork(tokens_per_step)
        if flops_per_step:
            work = StepWork(
                tokens_per_step, flops_per_step / peak_flops(list(mesh.devices.flat), dtype)
            )
        report = stack.enter_context(reporting(name, directory, config, duration, done, work))
        for line in checkpoints.damaged:
            report.say(f"skipped a damaged checkpoint: {line}")
        if done:
            report.say(f"resuming from the checkpoint of step {done}")
        signals = stack.enter_context(_signals())
        steps = range(done, config.updates or _MOST_STEPS)
        arrays = stack.enter_context(loading(batches, steps, rows, config.accumulate))
        for step in map(np.int32, steps):
            began = time.perf_counter()
            lr = rate(np.int32(duration.at(int(step))))
            state, measured = update(state, frozen, next(arrays), step, lr)
            figures = {
                "loss": float(measured.loss),
                "grad_norm": float(measured.grad_norm),
                "lr": float(lr),
            }
            seconds = time.perf_counter() - began
            duration.begin()
            number = int(step) + 1
            if problem := measured.not_finite():
                raise UserError(
                    f"in step {number} of {name} {problem}; the run stops and {saved} keeps the "
                    "earlier checkpoints; try a lower --lr or a longer --warmup in another "
                    "directory"
                )
            last = duration.over(number)
            evaluated: dict[str, float] = {}
            evaluating = evaluate is not None and (last or number % config.eval_every == 0)
            if evaluate is not None and evaluating:
                evaluated = evaluate(gather(state.params))
            report.step(number, seconds, figures, evaluated)
            stopped = any_process(bool(signals))
            # An evaluated state is saved: it may be the best.
            if last or stopped or evaluating or number % config.save_every == 0:
                # The metrics on disk must cover every step of the checkpoint.
                report.sync()
                figures = {"loss": report.recent_loss, **evaluated}
                checkpoints.save(number, duration.seconds, state, figures)
            if stopped and not last:
                checkpoints.close()
                report.say(f"stopped; step {number} is saved, run the same command to resume")
                raise SystemExit(128 + (signals or [signal.SIGTERM])[0])
            if last:
                break
        return gathered(state.params)


@contextlib.contextmanager
def _signals() -> Iterator[list[int]]:
    """Collects SIGTERM and SIGINT; a second signal of a kind has its usual effect."""
    received: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield received  # Python allows signal handlers only in the main thread
        return

    def record(number: int, _: FrameType | None) -> None:
        received.append(number)
        signal.signal(number, before[number])

    before: dict[int, Any] = {}
    for number in (signal.SIGTERM, signal.SIGINT):
        before[number] = signal.signal(number, record)
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
