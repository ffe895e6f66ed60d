"""Communication between the processes of a training run."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from orbax.checkpoint import multihost


def wait(name: str, timeout: int = 24 * 3600) -> None:
    """Barrier over all processes; does not use the devices, whose timeouts are short."""
    multihost.sync_global_processes(name, timeout=timeout)


def any_process(flag: bool) -> bool:
    """Returns True if the flag is set in any process; all must call it."""
    if jax.process_count() == 1:
        return flag
    return bool(np.any(multihost_utils.process_allgather(np.array(flag))))


def from_main(value: Any) -> Any:
    """Broadcasts process 0's tree of numbers to every process."""
    if jax.process_count() == 1:
        return value
    return multihost_utils.broadcast_one_to_all(value)
