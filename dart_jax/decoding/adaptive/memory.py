"""What is known about tree sizes, kept between generations: in memory, and costs also in files."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import threading
from collections.abc import Callable, Hashable
from pathlib import Path

import jax
import jax.numpy as jnp

from dart_jax.decoding.adaptive.policy import Learned, Policy, TreeCosts
from dart_jax.errors import UserError
from dart_jax.files import write_atomically
from dart_jax.machine import available_cores

_logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class TreeMemory:
    """The policies of all kinds of generations, and the costs of their steps.

    Attributes:
      directory: where costs are kept between processes, a file for each kind of generation; None to
        measure them in every process. What cannot be written there is measured again.
    """

    directory: Path | None = None
    _learned: dict[Hashable, Learned] = dataclasses.field(default_factory=dict, repr=False)
    _lock: threading.Lock = dataclasses.field(default_factory=threading.Lock, repr=False)

    def policy(
        self, program: Hashable, kind: Hashable, nodes: int, measure: Callable[[], TreeCosts]
    ) -> Learned:
        """Returns what is known about a kind of generations.

        Args:
          program: what costs depend on; its `repr` is the same in every process.
          kind: what acceptance depends on besides.
          nodes: nodes of the largest tree.
          measure: measures the costs, unless they are known.
        """
        with self._lock:
            known = self._learned.get((program, kind))
            if known is None:
                costs = self._read(program)
                if costs is None:
                    _logger.info("measuring what draft trees of each size cost on this machine")
                    costs = measure()
                    self._write(program, costs)
                known = self._learned[program, kind] = Learned(Policy.start(costs, nodes))
            return known

    def _file(self, program: Hashable) -> Path | None:
        if self.directory is None:
            return None
        device = jax.devices()[0].device_kind, available_cores(), jax.__version__
        name = hashlib.sha256(repr((program, device)).encode()).hexdigest()[:32]
        return self.directory / f"{name}.json"

    def _read(self, program: Hashable) -> TreeCosts | None:
        file = self._file(program)
        try:
            found = None if file is None else json.loads(file.read_text())
            if found is None:
                return None
            steps, plain = jnp.asarray(found["steps"], jnp.float32), jnp.float32(found["plain"])
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return TreeCosts(steps, plain)

    def _write(self, program: Hashable, costs: TreeCosts) -> None:
        file = self._file(program)
        if file is None:
            return
        steps, plain = costs.steps.tolist(), float(costs.plain)
        try:
            write_atomically(file, (json.dumps({"steps": steps, "plain": plain}) + "\n").encode())
        except UserError as error:
            _logger.warning("the costs of draft trees are not kept: %s", error)
