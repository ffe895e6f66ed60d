"""Memory of the devices that compute."""

from __future__ import annotations

from typing import NamedTuple

import jax


class DeviceMemory(NamedTuple):
    """Bytes that JAX may take of each device, and those that it has."""

    limit: int
    used: int

    @property
    def free(self) -> int:
        """Bytes that nothing has."""
        return self.limit - self.used

    @property
    def left(self) -> int:
        """Bytes for what is to stay: a tenth of all is for activations and XLA's own buffers."""
        return self.free - self.limit // 10


def device_memory() -> DeviceMemory | None:
    """Returns the memory of this process's devices; None where JAX does not tell it, as on CPUs,
    and where several processes would have to agree on it."""
    if jax.process_count() > 1:
        return None
    stats = jax.local_devices()[0].memory_stats() or {}
    limit, used = stats.get("bytes_limit"), stats.get("bytes_in_use", 0)
    return DeviceMemory(limit, used) if limit else None
