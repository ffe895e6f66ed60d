"""Programs that several processes run together, one per host or group of devices."""

from __future__ import annotations

import dataclasses
import socket
import time

from dart_jax.errors import UserError


@dataclasses.dataclass(frozen=True)
class DistributedConfig:
    """Processes of a run."""

    distributed: bool = False
    """Find the other processes through the cluster's environment: Slurm, Open MPI, Kubernetes, TPU
    pods."""
    coordinator: str | None = None
    """host:port of process 0, if the environment does not provide it."""
    processes: int | None = None
    """Number of processes."""
    process_id: int | None = None
    """Index of this process, from 0."""

    @property
    def several(self) -> bool:
        """True if there are others."""
        return self.distributed or self.coordinator is not None


def initialize(config: DistributedConfig, timeout: int = 300) -> None:
    """Connects to the other processes; call it before any other use of JAX.

    Args:
      config: the processes; if none of its options is set, nothing is done.
      timeout: seconds to wait for the others; JAX ends the process if one never comes.

    Raises:
      UserError: options are missing or wrong, nothing listens at the coordinator's address, or the
        environment describes no cluster.
    """
    options = coordinator, processes, number = (
        config.coordinator,
        config.processes,
        config.process_id,
    )
    if coordinator is not None and processes is not None and number is not None:
        _check(coordinator, processes, number)
        if number:
            _reach(coordinator, timeout)
    elif options != (None, None, None):
        raise UserError("--coordinator, --processes and --process-id go together; pass all three")
    elif not config.distributed:
        return
    import jax

    try:
        jax.distributed.initialize(*options, initialization_timeout=timeout)
    except (RuntimeError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise UserError(
            f"the processes could not connect: {reason}; pass --coordinator, --processes and "
            "--process-id where the environment does not provide them"
        ) from None


def is_main() -> bool:
    """True if this process reports to the user and writes what is not sharded (process 0)."""
    import jax

    return jax.process_index() == 0


def _check(coordinator: str, processes: int, process_id: int) -> None:
    host, _, port = coordinator.rpartition(":")
    if not host or not port.isdigit():
        raise UserError(f"--coordinator {coordinator} is not of the form host:port")
    if not 0 <= process_id < processes:
        raise UserError(f"--process-id {process_id} must be from 0 to {processes - 1}")


def _reach(coordinator: str, timeout: float) -> None:
    """Waits until process 0 listens: JAX would end this process with a stack trace."""
    host, _, port = coordinator.rpartition(":")
    end = time.monotonic() + timeout
    while True:
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=5).close()
            return
        except (OSError, OverflowError) as error:
            if time.monotonic() > end:
                raise UserError(
                    f"process 0 does not answer at --coordinator {coordinator} within {timeout:g} "
                    f"seconds: {error}"
                ) from None
        time.sleep(0.2)
