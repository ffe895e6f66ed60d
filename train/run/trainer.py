"""The training loop: any loss, any mesh, resumable.

An interrupted and resumed run is bit-identical to an uninterrupted one on the same kind of devices,
with the same mesh and version of XLA; on GPUs XLA is deterministic only with
`XLA_FLAGS=--xla_gpu_deterministic_ops=true`.
"""

from __future__ import annotations

import contextlib
import math
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
from dart_jax.models.networks.pure import Params
from dart_jax.models.sharding.placement import put, replicate
from dart_jax.programs.processes import is_main
from train.run.checkpoints import Checkpoints
from train.run.config import TrainerConfig
from train.run.mesh import any_process, batch_sharding, make_mesh, replicated
from train.run.optimizer import learning_rate, make_optimizer
from train.run.report import Duration, Report
from train.run.step import BatchSource, Loss, TrainState, loading, make_update, state_shardings
from train.run.work_directory import exclusive

_MOST_STEPS = 2**31 - 1  # step numbers are int32


class Trainer:
    """Trains to `config.updates`, or for `config.minutes`; resumes from the newest checkpoint.

    Every process must do the same; process 0 writes metrics and shows progress.
    """

    def __init__(
        self,
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
    ):
        """Prepares a run; nothing is written.

        Args:
          name: shown next to the progress.
          params: initial parameters; they are not donated.
          loss: of one microbatch; jitted here.
          batches: the data; `batches.batch` must be `config.batch_size`.
          config: the recipe; raises UserError if the devices cannot share its batches.
          directory: receives `checkpoints/` and `metrics.jsonl`.
          frozen: a tree of arrays that the loss needs, such as the target's parameters.
          evaluate: from the parameters, whole on every device, to figures that join the metrics.
          settings: more that must not change when a run resumes, by name; JSON values.
          tokens_per_step: for the reported tokens per second; 0 if unknown.
        """
        if batches.batch != config.batch_size:
            raise ValueError(f"batches of {batches.batch} rows, not of {config.batch_size}")
        self._name, self._params, self._batches = name, params, batches
        self._config, self._directory, self._frozen = config, directory, frozen
        self._evaluate, self._tokens = evaluate, tokens_per_step
        self._fixed = {**config.fixed, "data": batches.fingerprint, **(settings or {})}
        self._mesh = make_mesh(config.mesh)
        self._rows = batch_sharding(self._mesh, config.batch_size, config.accumulate)
        self._optimizer = make_optimizer(config)
        self._shardings = state_shardings(self._mesh, self._optimizer, params)
        dtype, shardings = jnp.dtype(config.dtype), self._shardings
        self._update = make_update(
            loss, self._optimizer, self._mesh, shardings, dtype=dtype, seed=config.seed
        )
        self._gather = jax.jit(lambda tree: tree, out_shardings=replicated(self._mesh))

    def fit(self) -> Params:
        """Trains; returns the parameters, on one device of every process. Raises UserError if the
        run cannot start, resume or be saved, and SystemExit after SIGTERM or SIGINT; its newest
        checkpoint stays."""
        with contextlib.ExitStack() as stack:
            self._start(stack)
            if self._duration.at(self._done) < self._duration.whole:
                for batch in self._begin(stack):
                    seconds, figures = self._train_step(batch)
                    if self._evaluate_and_save(seconds, figures):
                        break
            return jax.tree.map(
                lambda leaf: leaf.addressable_data(0), self._gather(self._state.params)
            )

    def _start(self, stack: contextlib.ExitStack) -> None:
        """Opens the run's directory and loads its newest checkpoint, or the initial state."""
        with writing("the run", self._directory):
            self._directory.mkdir(parents=True, exist_ok=True)
            if is_main():
                busy = f"another run is training in {self._directory}; wait or use another"
                stack.enter_context(exclusive(self._directory, busy))
        saved = Checkpoints(self._directory / "checkpoints", self._config.keep, self._fixed)
        self._checkpoints = stack.enter_context(contextlib.closing(saved))

        def initial_state(params: Params) -> TrainState:
            copy = jax.tree.map(lambda p: jnp.array(p, jnp.float32, copy=True), params)
            return TrainState(copy, self._optimizer.init(copy))

        placed = jax.tree.map(put, self._params, self._shardings.params)
        abstract = jax.tree.map(
            lambda p, s: jax.ShapeDtypeStruct(p.shape, p.dtype, sharding=s),
            jax.eval_shape(initial_state, placed),
            self._shardings,
        )
        initial = jax.jit(initial_state, out_shardings=self._shardings)
        resumed = self._checkpoints.resume(abstract)
        self._done, seconds, self._state = resumed or (0, 0.0, initial(placed))
        self._duration = Duration(self._config, seconds)

    def _begin(self, stack: contextlib.ExitStack) -> Iterator[Any]:
        """Opens the report; returns the batches of the steps that are left."""
        config = self._config
        self._rate = jax.jit(lambda at: learning_rate(config, at, self._duration.whole))
        self._frozen = replicate(self._mesh, self._frozen)
        report = Report(self._name, self._directory, self._duration, self._done, self._tokens)
        self._report = stack.enter_context(report)
        if self._done:
            report.say(f"resuming from the checkpoint of step {self._done}")
        self._signals = stack.enter_context(_signals())
        steps = range(self._done, config.updates or _MOST_STEPS)
        return stack.enter_context(loading(self._batches, steps, self._rows, config.accumulate))

    def _train_step(self, batch: Any) -> tuple[float, dict[str, float]]:
        """Updates the state; returns the step's seconds and figures. Raises UserError if the
        loss or the gradient is not finite."""
        began = time.perf_counter()
        rate = self._rate(np.int32(self._duration.at(self._done)))
        step = np.int32(self._done)
        self._state, measured = self._update(self._state, self._frozen, batch, step, rate)
        figures = {name: float(value) for name, value in measured.items()} | {"lr": float(rate)}
        seconds = time.perf_counter() - began
        self._duration.begin()
        self._done += 1
        if not math.isfinite(figures["loss"] + figures["grad_norm"]):
            raise UserError(
                f"in step {self._done} of {self._name} the loss is {figures['loss']} and the "
                f"gradient norm is {figures['grad_norm']}; the run stops and "
                f"{self._directory / 'checkpoints'} keeps the earlier checkpoints; try a lower "
                "--lr or a longer --warmup in another directory"
            )
        return seconds, figures

    def _evaluate_and_save(self, seconds: float, figures: Mapping[str, float]) -> bool:
        """Evaluates, reports and saves the step that was done, as far as it is time for that;
        returns True if it was the last one. Raises SystemExit if a signal arrived; the state was
        saved."""
        config, number = self._config, self._done
        last = self._duration.at(number) >= self._duration.whole
        evaluated: dict[str, float] = {}
        if self._evaluate is not None and (last or number % config.eval_every == 0):
            evaluated = self._evaluate(self._gather(self._state.params))
        self._report.step(number, seconds, figures, evaluated)
        stopped = any_process(bool(self._signals))
        if last or stopped or evaluated or number % config.save_every == 0:
            # The metrics on disk must cover every step of the checkpoint.
            self._report.sync()
            self._checkpoints.save(number, self._duration.seconds, self._state)
        if stopped and not last:
            self._checkpoints.close()
            self._report.say(f"stopped; step {number} is saved, run the same command to resume")
            raise SystemExit(128 + (self._signals or [signal.SIGTERM])[0])
        return last


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
