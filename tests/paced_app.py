"""The web app with slowed-down steps: python tests/paced_app.py SECONDS [OPTION...]

Every step of a method takes SECONDS longer, and compiling 20 times that, so that tests can observe
both on any machine.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Hashable, Iterator

from dart_jax.app.__main__ import main
from dart_jax.engine.batch import Batch
from dart_jax.engine.runner import Runner

_turn = Runner.turn
_compiles = Batch._compiles


def _slowly(lane: Runner, clock: Callable[[], float]) -> None:
    time.sleep(float(sys.argv[1]))
    _turn(lane, clock)


@contextlib.contextmanager
def _compiles_slowly(batch: Batch, *program: Hashable) -> Iterator[None]:
    with _compiles(batch, *program):
        if batch.compiling:
            time.sleep(20 * float(sys.argv[1]))
        yield


if __name__ == "__main__":
    Runner.turn = _slowly
    Batch._compiles = _compiles_slowly
    main(sys.argv[2:])
