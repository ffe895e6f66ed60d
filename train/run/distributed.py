"""Training with several processes, one per host or device group."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from orbax.checkpoint import multihost

from dart_jax.errors import UserError


@dataclasses.dataclass(frozen=True)
class DistributedConfig:
    """The processes of a run."""

    distributed: bool = False
    """Find the other processes through the cluster's environment: Slurm, Open MPI, Kubernetes, TPU
    pods."""
    coordinator: str | None = None
    """host:port of process 0, if the environment does not provide it."""
    processes: int | None = None
    """Number of processes."""
    process_id: int | None = None
    """Index of this process, from 0."""


def initialize(config: DistributedConfig, timeout: int = 300) -> None:
    """Connects to the other processes; call it before any other use of JAX.

    Args:
      config: the processes; if none of its options is set, nothing is done.
      timeout: seconds to wait for the others; JAX ends the process if they do not connect.

    Raises:
      UserError: options are missing or wrong, or the environment describes no cluster.
    """
    given = coordinator, processes, number = config.coordinator, config.processes, config.process_id
    if coordinator is not None and processes is not None and number is not None:
        _check(coordinator, processes, number)
    elif given != (None, None, None):
        raise UserError("--coordinator, --processes and --process-id go together; pass all three")
    elif not config.distributed:
        return
    try:
        jax.distributed.initialize(*given, initialization_timeout=timeout)
    except (RuntimeError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise UserError(
            f"the processes could not connect: {reason}; pass --coordinator, --processes and "
            "--process-id where the environment does not provide them"
        ) from None


def _check(coordinator: str, processes: int, process_id: int) -> None:
    host, _, port = coordinator.rpartition(":")
    if not host or not port.isdigit():
        raise UserError(f"--coordinator {coordinator} is not of the form host:port")
    if not 0 <= process_id < processes:
        raise UserError(f"--process-id {process_id} must be from 0 to {processes - 1}")


def is_main() -> bool:
    """Whether this process reports to the user and writes what is not sharded (process 0)."""
    return jax.process_index() == 0


def wait(name: str, timeout: int = 24 * 3600) -> None:
    """Barrier over all processes; does not use the devices, whose timeouts are short."""
    multihost.sync_global_processes(name, timeout=timeout)


def any_process(flag: bool) -> bool:
    """Whether the flag is set in any process; all must call it."""
    if jax.process_count() == 1:
        return flag
    return bool(np.any(multihost_utils.process_allgather(np.array(flag))))


def from_main(value: Any) -> Any:
    """Broadcasts process 0's tree of numbers to every process."""
    if jax.process_count() == 1:
        return value
    return multihost_utils.broadcast_one_to_all(value)
