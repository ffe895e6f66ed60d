"""Relative costs of steps by the size of their trees, and files that keep them."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import statistics
import threading
from collections import deque
from collections.abc import Hashable, Mapping
from pathlib import Path

import jax

from dart_jax.errors import UserError
from dart_jax.files import write_atomically
from dart_jax.machine import available_cores

_logger = logging.getLogger(__name__)

# Latest samples of a size's cost that count.
_LATEST = 9

# Costs are written again if one has changed by this factor.
_CHANGED = 1.2


class StepCosts:
    """Seconds of a step by tree size, 0 for plain decoding, on a machine as busy as at the first
    burst.

    Only their ratios matter, so a burst of another size than the one before is compared with that:
    a machine that is busy, or texts that grow, slow both down.
    """

    def __init__(self, known: Mapping[int, float] | None = None):
        """Begins with the costs that are known from before."""
        self._samples: dict[int, deque[float]] = {}
        self._last: int | None = None  # size of the last burst
        self._slowdown = 1.0  # at that burst
        for size, cost in (known or {}).items():
            self._add(size, cost)

    def learn(self, size: int, seconds: float) -> None:
        """Adds the seconds per step of a burst."""
        if size not in self._samples or self._last not in (None, size):
            self._add(size, seconds / self._slowdown)
        self._last, self._slowdown = size, seconds / self.known[size]

    @property
    def known(self) -> dict[int, float]:
        """The costs of the sizes that were timed, ascending."""
        return {size: statistics.median(all_) for size, all_ in sorted(self._samples.items())}

    def _add(self, size: int, cost: float) -> None:
        self._samples.setdefault(size, deque(maxlen=_LATEST)).append(cost)


@dataclasses.dataclass(frozen=True)
class CostFiles:
    """Files of costs, one for each program.

    Attributes:
      directory: where they are. What cannot be written there is learned again in every process.
    """

    directory: Path
    _written: dict[Path, dict[int, float]] = dataclasses.field(default_factory=dict, repr=False)
    _lock: threading.Lock = dataclasses.field(default_factory=threading.Lock, repr=False)

    def read(self, program: Hashable) -> dict[int, float]:
        """Returns the costs of a program by size; none if there are none."""
        path = self._path(program)
        try:
            costs = {int(k): float(v) for k, v in json.loads(path.read_text()).items()}
        except (OSError, ValueError, AttributeError, TypeError):
            return {}
        costs = costs if all(0 < cost < float("inf") for cost in costs.values()) else {}
        with self._lock:
            self._written[path] = costs
        return costs

    def keep(self, program: Hashable, costs: Mapping[int, float]) -> None:
        """Writes the costs of a program if they are new."""
        path = self._path(program)
        with self._lock:
            before = self._written.get(path, {})
            if not any(_differs(before.get(size), cost) for size, cost in costs.items()):
                return
            self._written[path] = {**before, **costs}
            try:
                write_atomically(path, (json.dumps(self._written[path]) + "\n").encode())
            except (OSError, UserError) as error:
                _logger.warning("the costs of draft trees are not kept: %s", error)

    def _path(self, program: Hashable) -> Path:
        device = jax.devices()[0].device_kind, available_cores(), jax.__version__
        name = hashlib.sha256(repr((program, device)).encode()).hexdigest()[:32]
        return self.directory / f"{name}.json"


def _differs(before: float | None, cost: float) -> bool:
    return before is None or not before / _CHANGED < cost < before * _CHANGED
