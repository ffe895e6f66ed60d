"""What is known about tree sizes, kept between generations: in memory, and costs also in files."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import threading
from collections.abc import Hashable, Sequence
from pathlib import Path

import jax

from dart_jax.decoding.adaptive.costs import StepCosts
from dart_jax.decoding.adaptive.policy import Policy
from dart_jax.errors import UserError
from dart_jax.files import write_atomically
from dart_jax.machine import available_cores

_logger = logging.getLogger(__name__)

# Costs are written again if one has changed by this factor.
_CHANGED = 1.2


@dataclasses.dataclass(frozen=True)
class TreeMemory:
    """The policies of all kinds of generations, and the costs of their steps.

    Attributes:
      directory: where costs are kept between processes, a file for each kind of generation; None to
        learn them in every process. What cannot be written there is learned again.
    """

    directory: Path | None = None
    _policies: dict[Hashable, Policy] = dataclasses.field(default_factory=dict, repr=False)
    _written: dict[Hashable, dict[int, float]] = dataclasses.field(default_factory=dict, repr=False)
    _lock: threading.Lock = dataclasses.field(default_factory=threading.Lock, repr=False)

    def policy(self, program: Hashable, kind: Hashable, sizes: Sequence[int], first: int) -> Policy:
        """Returns the policy of a kind of generations.

        Args:
          program: what costs depend on; its `repr` is the same in every process.
          kind: what acceptance depends on besides.
          sizes: numbers of nodes to choose from, ascending from 0.
          first: the one to begin with.
        """
        with self._lock:
            key = program, kind
            if key not in self._policies:
                known = self._written.setdefault(program, self._read(program))
                self._policies[key] = Policy(sizes, first, StepCosts(known))
            return self._policies[key]

    def keep(self, program: Hashable, policy: Policy) -> None:
        """Writes the costs that a policy has learned, if they are new."""
        known = policy.costs.known
        with self._lock:
            before = self._written.get(program, {})
            if not any(_differs(before.get(size), cost) for size, cost in known.items()):
                return
            self._written[program] = {**before, **known}
            self._write(program, self._written[program])

    def _file(self, program: Hashable) -> Path | None:
        if self.directory is None:
            return None
        device = jax.devices()[0].device_kind, available_cores(), jax.__version__
        name = hashlib.sha256(repr((program, device)).encode()).hexdigest()[:32]
        return self.directory / f"{name}.json"

    def _read(self, program: Hashable) -> dict[int, float]:
        file = self._file(program)
        try:
            found = {} if file is None else json.loads(file.read_text())
            costs = {int(size): float(seconds) for size, seconds in found.items()}
        except (OSError, ValueError, AttributeError, TypeError):
            return {}
        return costs if all(0 < cost < float("inf") for cost in costs.values()) else {}

    def _write(self, program: Hashable, costs: dict[int, float]) -> None:
        file = self._file(program)
        if file is None:
            return
        try:
            write_atomically(file, (json.dumps(costs) + "\n").encode())
        except UserError as error:
            _logger.warning("the costs of draft trees are not kept: %s", error)


def _differs(before: float | None, cost: float) -> bool:
    return before is None or not before / _CHANGED < cost < before * _CHANGED
