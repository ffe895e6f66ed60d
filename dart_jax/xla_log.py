"""Messages of XLA on stderr."""

from __future__ import annotations

import os
import sys
from importlib.metadata import PackageNotFoundError, version

_LEVEL = "TF_CPP_MIN_LOG_LEVEL"
_OF_JAX = "1"
_FATAL = 3  # errors that end the process, and nothing else


def quiet_xla() -> None:
    """Keeps jaxlib 0.10 from reporting every program of the compilation cache as an error on CPUs:
    it takes hints of how to tune code for processor features, which it then misses.

    Has no effect if the user set the level.
    """
    try:
        affected = version("jaxlib").startswith("0.10.")
    except PackageNotFoundError:
        return
    imported = sys.modules.get("jaxlib.utils")
    # JAX sets a level of its own as it is imported.
    if not affected or os.environ.get(_LEVEL) not in (None, _OF_JAX if imported else None):
        return
    os.environ[_LEVEL] = str(_FATAL)  # read by jaxlib as it is imported, and by child processes
    if imported:
        imported.absl_set_min_log_level(_FATAL)
