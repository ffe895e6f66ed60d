"""The web app with slowed-down steps: python tests/paced_app.py SECONDS [OPTION...]

Every step of an answer takes SECONDS longer, and compiling 20 times that, so that tests can observe
both on any machine.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from dart_jax.app.__main__ import main
from dart_jax.app.turns import Job
from dart_jax.app.warm import Warm
from dart_jax.generation.text_generation import TextGeneration

_take_step = Job.take_step
_prepare = Warm.prepare


def _slowly(job: Job) -> bool:
    time.sleep(float(sys.argv[1]))
    return _take_step(job)


def _prepare_slowly(warm: Warm, make: Callable[[], TextGeneration]) -> None:
    time.sleep(20 * float(sys.argv[1]))
    _prepare(warm, make)


if __name__ == "__main__":
    Job.take_step = _slowly
    Warm.prepare = _prepare_slowly
    main(sys.argv[2:])
