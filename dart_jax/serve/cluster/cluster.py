"""All replicas as one engine, for the HTTP server; and Ray, which runs them."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import logging
import math
import os
import secrets
import socket
import threading
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any, NamedTuple

from dart_jax.engine.config import EngineConfig
from dart_jax.engine.request import Output, Request
from dart_jax.engine.statistics import Statistics, add
from dart_jax.engine.thread import EngineClosed, OnOutput, QueueFull
from dart_jax.errors import UserError
from dart_jax.grammar.matching import Grammars, grammars_of
from dart_jax.models.config import TargetConfig
from dart_jax.programs.model_choice import ModelChoice
from dart_jax.serve.body.errors import unavailable
from dart_jax.serve.cluster.options import ClusterOptions
from dart_jax.serve.cluster.replica import Replica
from dart_jax.text.tokenizer import Tokenizer
from dart_jax.weights import hub
from dart_jax.weights.checkpoint import load_eos, read_target_config

_logger = logging.getLogger(__name__)

# Seconds between two reports of the replicas, and until one that does not report counts as lost.
_REPORTS, _PATIENCE = 0.5, 5.0
_LOGGING = {"log_level": "WARNING", "enable_access_log": False}


class RemoteModel(NamedTuple):
    """The small files of a target, without its weights; see `ServedModel`."""

    target: TargetConfig
    tokenizer: Tokenizer
    eos: tuple[int, ...]

    @property
    def grammars(self) -> Grammars:
        """See `ServedModel`."""
        return grammars_of(self.tokenizer, self.target.vocab_size, self.eos)


class Cluster:
    """Serves requests with replicas, which Ray Serve starts, watches, chooses and stops; see
    `EngineThread`, whose interface it has.

    Attributes:
      model: what is known here of the model.
      config: the options of all replicas together.
      max_length: maximum length of a prompt and its new tokens together.
    """

    def __init__(
        self, choice: ModelChoice, serving: EngineConfig, options: ClusterOptions, drain: float
    ):
        """Starts the replicas; see `replicas`, also for errors."""
        path = hub.resolve(choice.target_path, revision=choice.revision, patterns=hub.TOKENIZER)
        target = read_target_config(path)
        eos = load_eos(path, target.vocab_size)
        self.model = RemoteModel(target, Tokenizer.load(path), eos)
        self.config = dataclasses.replace(
            serving, slots=serving.slots * options.most, queue=serving.queue * options.most
        )
        self._accepting, self._running = True, set[Future[None]]()
        self._reports: list[Statistics] = []
        with contextlib.ExitStack() as stack:
            self._handle = stack.enter_context(replicas(choice, serving, options, drain))
            self.max_length: int = self._handle.max_length.remote().result()
            self._replicas = stack.pop_all()
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        asyncio.run_coroutine_threadsafe(self._watch(), self._loop)

    def submit(self, request: Request, on_output: OnOutput) -> Ticket:
        """See `EngineThread.submit`; `on_output` is called on this object's thread."""
        request.check(self.max_length, self.model.target.vocab_size)
        if not self._accepting:
            raise EngineClosed("the server is shutting down; try again later")
        if len(self._running) >= self.config.slots + self.config.queue:
            raise QueueFull(self.config)
        ticket = Ticket()
        work = self._pass_on(ticket, request, on_output)
        ticket.future = asyncio.run_coroutine_threadsafe(work, self._loop)
        self._running.add(ticket.future)
        ticket.future.add_done_callback(self._running.discard)
        return ticket

    def statistics(self) -> Statistics:
        """Returns the sums over the running replicas, at most a second old; failed while there are
        none. Callable from any thread."""
        total = functools.reduce(add, self._reports, Statistics(replicas=0))
        accepted = len(self._running)
        running = min(total.running, accepted)
        counts = {"running": running, "waiting": accepted - running}
        return dataclasses.replace(total, **counts, failed=not total.replicas)

    def close(self) -> None:
        """Ends the replicas and with them what they still do."""
        self._accepting = False
        self._replicas.close()

    async def _pass_on(self, ticket: Ticket, request: Request, on_output: OnOutput) -> None:
        """Passes on the outputs of the replica that Ray chooses."""
        response = self._handle.options(stream=True).generate.remote(request)
        try:
            async for ago, outputs in response:
                ticket.begun = ticket.begun or time.monotonic() - ago
                for output in outputs:
                    on_output(output)
                if outputs[-1].last:
                    return
            raise ConnectionError("the answer of a replica has no end")
        except (Exception, asyncio.CancelledError) as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise  # by the client, not by a replica that is stopped
            _logger.warning("a request failed with its replica: %s", repr(error).split("\n")[0])
            lost = unavailable("the replica with this request was lost; try again")
            on_output(Output.without_tokens(error=lost))
        finally:
            response.cancel()

    async def _watch(self) -> None:
        """Collects the replicas' counts again and again."""
        while True:
            try:
                response = self._handle.broadcast("statistics")
                reports = await response.results_async(timeout_s=_PATIENCE, return_exceptions=True)
                self._reports = [each for each in reports if isinstance(each, Statistics)]
            except Exception:  # not one is running
                self._reports = []
            await asyncio.sleep(_REPORTS)


@contextlib.contextmanager
def replicas(
    choice: ModelChoice, serving: EngineConfig, options: ClusterOptions, drain: float
) -> Iterator[Any]:
    """Starts replicas, which have `drain` seconds for their requests when they are to stop; ends
    them with the block. Yields Ray Serve's handle, by which the methods of `Replica` are called.

    Raises:
      UserError: Ray is not installed, there is no cluster, or the replicas do not start.
    """
    ray, serve, gpus = _connect(options)
    name = f"dart_jax-{secrets.token_hex(4)}"  # servers in the same cluster need different names
    try:
        scaling = {
            "min_replicas": options.replicas,
            "max_replicas": options.most,
            "target_ongoing_requests": serving.slots,
        }
        deployment = serve.deployment(
            Replica,
            ray_actor_options={"num_cpus": options.replica_cpus, "num_gpus": gpus},
            autoscaling_config=scaling,
            max_ongoing_requests=serving.slots + serving.queue,
            graceful_shutdown_timeout_s=drain,
            graceful_shutdown_wait_loop_s=0.5,
            health_check_period_s=5,
        )
        # Replicas have other working directories.
        files = {name: getattr(choice, name) for name in ("target", "drafter", "ngram")}
        paths = {k: str(Path(v).absolute()) for k, v in files.items() if v and Path(v).exists()}
        application = deployment.bind(dataclasses.replace(choice, **paths), serving)
        # Clients come to the server's own port.
        serve.start(proxy_location="Disabled", logging_config=_LOGGING)
        try:
            handle = serve.run(application, name=name, route_prefix=None, logging_config=_LOGGING)
        except RuntimeError as error:
            deployments = serve.status().applications[name].deployments.values()
            reason = next((each.message for each in deployments), str(error))
            line = reason.strip().rsplit("\n", 1)[-1]
            line = line.removeprefix(f"{UserError.__module__}.UserError: ")
            raise UserError(f"the replicas do not start: {line}") from None
        yield handle
    finally:
        with contextlib.suppress(Exception):
            serve.delete(name)
        ray.shutdown()


def _connect(options: ClusterOptions) -> tuple[Any, Any, float]:
    """Connects to the cluster that the options name; without one, starts Ray on this machine, for
    this process only and without usage statistics. Returns the packages `ray` and `ray.serve`, and
    the GPUs that a replica gets."""
    address = options.ray_address
    settings: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address is None:
        # Ray listens on all interfaces, and obeys those who know the token.
        os.environ["RAY_AUTH_MODE"], os.environ["RAY_AUTH_TOKEN"] = "token", secrets.token_hex(32)
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
        # Replicas share the cores; Ray only counts what is reserved.
        cpus = max(math.ceil(options.most * options.replica_cpus), 1)
        settings |= {"include_dashboard": False, "num_cpus": cpus}
    try:
        with warnings.catch_warnings():
            # Ray Serve uses what pydantic has deprecated.
            warnings.simplefilter("ignore")
            import ray
            from ray import serve
    except ImportError:
        raise UserError("--replicas needs Ray Serve: pip install 'dart-jax[ray]'") from None
    # What it tells about requests and replicas is told here as well, or is no news.
    logging.getLogger("ray.serve").addFilter(lambda record: record.levelno >= logging.ERROR)
    try:
        if address is not None and address != "auto":
            host, _, port = address.rpartition(":")
            # Ray itself would try for minutes.
            socket.create_connection((host, int(port)), 10).close()
        ray.init(address=address or "local", **settings)
    except Exception as error:  # Ray raises that itself, for a start that takes too long
        reason = str(error).strip().split("\n", 1)[0]
        where = "start Ray" if address is None else f"reach a Ray cluster at {address}"
        raise UserError(f"cannot {where}: {reason}") from None
    gpus = ray.cluster_resources().get("GPU", 0)
    each = float(gpus > 0) if options.replica_gpus is None else options.replica_gpus
    if address is None and each * options.most > gpus:
        ray.shutdown()
        raise UserError(
            f"the replicas need {each * options.most:g} GPUs, and this machine has {gpus:g}; lower "
            "--replicas and --max-replicas"
        )
    return ray, serve, each


class Ticket:
    """A request that was accepted; see `engine.thread.Ticket`."""

    future: Future[None]
    begun: float | None = None

    def cancel(self) -> None:
        """See `engine.thread.Ticket`."""
        self.future.cancel()
