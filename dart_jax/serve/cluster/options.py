"""Options of a cluster."""

from __future__ import annotations

import dataclasses

from dart_jax.errors import UserError
from dart_jax.programs.command_line import check_least


@dataclasses.dataclass(frozen=True)
class ClusterOptions:
    """Number of engines that serve, and their machines."""

    replicas: int | None = None
    """Serve with this many copies of the model, which Ray places on its machines; by default one,
    in the server's own process, without Ray."""
    max_replicas: int | None = None
    """Start more replicas while each has more than --slots requests, up to this many, and stop them
    again when they are not needed; by default there are always --replicas."""
    replica_cpus: float = 1.0
    """CPUs that Ray reserves for a replica."""
    replica_gpus: float | None = None
    """GPUs that Ray gives to a replica; by default 1 if the cluster has any."""
    ray_address: str | None = None
    """A running Ray cluster: HOST:PORT, or auto for the one of this machine. By default Ray is
    started on this machine, for this server alone."""

    def __post_init__(self) -> None:
        least = {"max_replicas": self.replicas or 1, "replica_cpus": 0, "replica_gpus": 0}
        check_least(self, replicas=1, **least)
        for name in ("max_replicas", "replica_gpus", "ray_address"):
            if self.replicas is None and getattr(self, name) is not None:
                raise UserError(f"--{name.replace('_', '-')} needs --replicas")

    @property
    def most(self) -> int:
        """Replicas at the same time, at most."""
        return self.max_replicas or self.replicas or 1
