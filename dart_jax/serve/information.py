"""The routes that tell about the server."""

from __future__ import annotations

import time
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.requests import Request
from starlette.responses import Response

import dart_jax
from dart_jax.serve.errors import answering, json_response, unavailable
from dart_jax.serve.service import Service


class Information:
    """What tools and load balancers ask."""

    def __init__(self, service: Service):
        """`service` is what is told about."""
        self._service = service
        self._started = int(time.time())

    @answering
    async def models(self, _: Request) -> Response:
        """The names of the model."""
        listed = [self._model(name) for name in self._service.names]
        return json_response({"object": "list", "data": listed})

    @answering
    async def model(self, request: Request) -> Response:
        """One of them."""
        name = request.path_params["name"]
        self._service.check_model(name)
        return json_response(self._model(name))

    def _model(self, name: str) -> dict[str, Any]:
        return {
            "id": name,
            "object": "model",
            "created": self._started,
            "owned_by": "dart_jax",
            "root": self._service.root,
            "parent": None,
            "max_model_len": self._service.engine.max_length,
        }

    @answering
    async def health(self, _: Request) -> Response:
        """Whether requests are answered."""
        self._service.check_accepting()
        statistics = self._service.engine.statistics()
        if not statistics.replicas:
            raise unavailable("no replica is running; try again later")
        if statistics.failed:
            raise unavailable("the engine failed; the server must be started anew")
        return Response()

    @answering
    async def version(self, _: Request) -> Response:
        """The version of this package."""
        return json_response({"version": dart_jax.__version__})

    @answering
    async def metrics(self, _: Request) -> Response:
        """Everything for Prometheus."""
        return Response(self._service.metrics.text(), media_type=CONTENT_TYPE_LATEST)

    @answering
    async def server_info(self, _: Request) -> Response:
        """What is served and how well drafting works, where SGLang's tools look for it."""
        statistics = self._service.engine.statistics()
        # Of each verified tree all accepted nodes and the target's own token are emitted.
        emitted = statistics.drafts + statistics.accepted_tokens
        length = emitted / statistics.drafts if statistics.drafts else None
        config = self._service.engine.config
        return json_response(
            {
                "version": dart_jax.__version__,
                "model_path": self._service.root,
                "served_model_name": self._service.names[0],
                "max_model_len": self._service.engine.max_length,
                "max_running_requests": config.slots,
                "max_queued_requests": config.queue,
                "tree_nodes": statistics.tree_nodes,
                "avg_spec_accept_length": length,
                "internal_states": [{"avg_spec_accept_length": length}],
            }
        )
