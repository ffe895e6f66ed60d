"""The options of a cluster."""

from __future__ import annotations

import dataclasses

from dart_jax.errors import UserError


@dataclasses.dataclass(frozen=True)
class ClusterOptions:
    """How many engines serve, and where."""

    replicas: int | None = None
    """Serve with this many copies of the model, which Ray places on its machines; by default one,
    in the server's own process, without Ray."""
    max_replicas: int | None = None
    """Start more replicas while many requests wait, up to this many, and stop them again when they
    are not needed; by default there are always --replicas."""
    target_requests: float | None = None
    """Requests that a replica should have, running or waiting, before there are more replicas; by
    default --slots."""
    replica_cpus: float = 1.0
    """CPUs that Ray reserves for a replica."""
    replica_gpus: float | None = None
    """GPUs that Ray gives to a replica; by default 1 if the cluster has any."""
    ray_address: str | None = None
    """A running Ray cluster: HOST:PORT, or auto for the one of this machine. By default Ray is
    started on this machine, for this server alone."""

    def __post_init__(self) -> None:
        if self.replicas is None:
            names = ("max_replicas", "target_requests", "replica_gpus", "ray_address")
            given = [name for name in names if getattr(self, name) is not None]
            if given:
                raise UserError(f"--{given[0].replace('_', '-')} needs --replicas")
        elif self.replicas < 1:
            raise UserError(f"--replicas must be at least 1, got {self.replicas}")
        elif self.max_replicas is not None and self.max_replicas < self.replicas:
            raise UserError(
                f"--max-replicas must be at least --replicas, {self.replicas}, "
                f"got {self.max_replicas}"
            )
        if self.target_requests is not None and not self.target_requests > 0:
            raise UserError(f"--target-requests must be more than 0, got {self.target_requests}")
        for name in ("replica_cpus", "replica_gpus"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < float("inf"):
                option = name.replace("_", "-")
                raise UserError(f"--{option} must be 0 or a positive number, got {value}")

    @property
    def most(self) -> int:
        """Replicas at the same time, at most."""
        return self.max_replicas or self.replicas or 1
