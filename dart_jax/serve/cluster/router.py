"""Ray Serve's choice of a replica for each request; see `Affinity`.

A router lives in the server's process, one for the whole deployment. When a replica dies or is
full, the next one in its order is tried.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica

from dart_jax.serve.cluster.affinity import Affinity
from dart_jax.serving.request import Request


class PrefixRouter(RequestRouter):
    """Sends prompts with the same beginning to the same replica, if it is not too busy."""

    def initialize_state(self, **kwargs: Any) -> None:
        """Called by Ray Serve with the deployment's options: `page` and `slack` of `Affinity`."""
        self._affinity = Affinity(kwargs["page"], kwargs["slack"])
        self._sent: Counter[ReplicaID] = Counter()

    async def choose_replicas(
        self,
        candidate_replicas: list[RunningReplica],
        pending_request: PendingRequest | None = None,
    ) -> list[list[RunningReplica]]:
        """See `RequestRouter`: the replicas in the order in which they are tried."""
        request = None
        if pending_request is not None:
            # Wait a little before all of them are tried again.
            pending_request.routing_context.should_backoff = True
            request = next(iter(pending_request.args), None)
        if not isinstance(request, Request):
            return [candidate_replicas]
        replicas = {replica.replica_id.unique_id: replica for replica in candidate_replicas}
        loads = {name: self._sent[replica.replica_id] for name, replica in replicas.items()}
        return [[replicas[name]] for name in self._affinity.order(request.tokens, loads)]

    def on_send_request(self, replica_id: ReplicaID) -> None:
        """See `RequestRouter`. Its own counts of requests are forgotten after a while."""
        super().on_send_request(replica_id)
        self._sent[replica_id] += 1

    def on_request_completed(self, replica_id: ReplicaID, internal_request_id: str) -> None:
        """See `RequestRouter`."""
        super().on_request_completed(replica_id, internal_request_id)
        self._sent[replica_id] -= 1
        if not self._sent[replica_id]:
            del self._sent[replica_id]
