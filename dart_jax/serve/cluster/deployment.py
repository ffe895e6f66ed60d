"""The replicas as an application of Ray Serve."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import threading
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

from dart_jax.errors import UserError
from dart_jax.programs.model_choice import ModelChoice
from dart_jax.serve.cluster.cluster import Cluster, RemoteModel
from dart_jax.serve.cluster.connection import connect
from dart_jax.serve.cluster.messages import Message
from dart_jax.serve.cluster.options import ClusterOptions
from dart_jax.serve.cluster.totals import Report
from dart_jax.serving.config import ServingConfig
from dart_jax.serving.request import Request
from dart_jax.text.tokenizer import Tokenizer
from dart_jax.weights import hub
from dart_jax.weights.checkpoint import load_eos, read_target_config

_LOGGING = {"log_level": "WARNING", "enable_access_log": False}


class Deployment:
    """Replicas of an engine, which Ray Serve starts, watches, scales and stops."""

    def __init__(
        self, choice: ModelChoice, serving: ServingConfig, options: ClusterOptions, drain: float
    ):
        """Connects to Ray, or starts it.

        Args:
          choice: the model.
          serving: options of each engine.
          options: how many, and where.
          drain: seconds that a replica that is to stop has for its requests; others take over what
            is left.

        Raises:
          UserError: Ray is not installed, or there is no cluster.
        """
        self._choice, self._serving = _with_absolute_paths(choice), serving
        self._options, self._drain = options, drain
        self._ray, self._serve = connect(options)
        # What it tells about requests and replicas is told here as well, or is no news.
        logging.getLogger("ray.serve").addFilter(lambda record: record.levelno >= logging.ERROR)
        # Clients come to the server's own port.
        self._serve.start(proxy_location="Disabled", logging_config=_LOGGING)
        self._handle: Any = None
        self._starting = threading.Lock()

    def run(self) -> None:
        """Starts the replicas; where they run already, restarts them a few at a time, each when
        its requests have ended.

        Raises:
          UserError: they cannot be started.
        """
        application = self._application().bind(self._choice, self._serving)
        with self._starting:
            try:
                self._handle = self._serve.run(
                    application,
                    name=self._options.ray_app,
                    route_prefix=None,
                    logging_config=_LOGGING,
                )
            except RuntimeError as error:
                reason = self._reason() or str(error)
                raise UserError(f"the replicas do not start: {reason}") from None

    def cluster(self) -> Cluster:
        """The running replicas as one engine."""
        model = load_remote_model(self._choice)
        max_length = self._handle.max_length.remote().result()
        return Cluster(self, model, self._serving, max_length, self._options.most)

    async def generate(self, request: Request) -> AsyncGenerator[Message, None]:
        """See `Replicas`."""
        response = self._handle.options(stream=True).generate.remote(request)
        try:
            async for message in response:
                yield message
        finally:
            response.cancel()

    async def reports(self, seconds: float) -> list[Report]:
        """See `Replicas`."""
        try:
            response = self._handle.broadcast("report")
            found = await response.results_async(timeout_s=seconds, return_exceptions=True)
        except self._serve.exceptions.DeploymentUnavailableError:
            return []  # not one is running
        return [report for report in found if isinstance(report, Report)]

    def close(self) -> None:
        """Stops the replicas, and Ray if it was started here."""
        with contextlib.suppress(Exception):
            self._serve.delete(self._options.ray_app)
        self._ray.shutdown()

    def _reason(self) -> str:
        """The last line of what a replica said when it could not start."""
        application = self._serve.status().applications.get(self._options.ray_app)
        deployments = {} if application is None else application.deployments
        messages = [each.message.strip() for each in deployments.values()]
        line = messages[0].rsplit("\n", 1)[-1] if messages else ""
        return line.removeprefix(f"{UserError.__module__}.UserError: ")

    def _application(self) -> Any:
        from dart_jax.serve.cluster.replica import Replica

        options, serving = self._options, self._serving
        gpus = options.replica_gpus
        if gpus is None:
            gpus = 1 if self._ray.cluster_resources().get("GPU") else 0
        scaling: dict[str, Any] = {"num_replicas": options.replicas}
        if options.max_replicas is not None:
            automatic = {
                "min_replicas": options.replicas,
                "max_replicas": options.max_replicas,
                "target_ongoing_requests": options.target_requests or serving.slots,
            }
            scaling = {"autoscaling_config": automatic}
        router = {
            "request_router_class": "dart_jax.serve.cluster.router.PrefixRouter",
            "request_router_kwargs": {"page": serving.page, "slack": max(serving.slots // 2, 1)},
        }
        return self._serve.deployment(
            Replica,
            name="replicas",
            ray_actor_options={"num_cpus": options.replica_cpus, "num_gpus": gpus},
            max_ongoing_requests=serving.slots + serving.queue,
            graceful_shutdown_timeout_s=self._drain,
            graceful_shutdown_wait_loop_s=0.5,
            health_check_period_s=5,
            request_router_config=router,
            **scaling,
        )


def _with_absolute_paths(choice: ModelChoice) -> ModelChoice:
    """Replicas have other working directories."""
    paths = {}
    for name in ("target", "drafter", "ngram"):
        given = getattr(choice, name)
        if given is not None and Path(given).exists():
            paths[name] = str(Path(given).absolute())
    return dataclasses.replace(choice, **paths)


def load_remote_model(choice: ModelChoice) -> RemoteModel:
    """Reads the small files of a target, without its weights.

    Raises:
      UserError: as `DartModel.from_pretrained`.
    """
    directory = hub.resolve(choice.target_path, revision=choice.revision, patterns=hub.TOKENIZER)
    tokenizer = Tokenizer.load(directory)
    config = read_target_config(directory)
    return RemoteModel(config, tokenizer, load_eos(directory, config.vocab_size))
