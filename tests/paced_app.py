"""The web app with slowed-down steps: python tests/paced_app.py SECONDS [OPTION...]

Every step of an answer takes SECONDS longer, so that tests can observe a running answer on any
machine.
"""

from __future__ import annotations

import sys
import time

from dart_jax.app.__main__ import main
from dart_jax.app.turns import Job

_take_step = Job.take_step


def _slowly(job: Job) -> bool:
    time.sleep(float(sys.argv[1]))
    return _take_step(job)


if __name__ == "__main__":
    Job.take_step = _slowly
    main(sys.argv[2:])
