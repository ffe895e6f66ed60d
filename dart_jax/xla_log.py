"""What XLA prints to stderr."""

from __future__ import annotations

import os
from importlib.metadata import PackageNotFoundError, version


def quiet_xla() -> None:
    """Keeps jaxlib 0.10 from reporting every program of the compilation cache as an error on CPUs:
    it takes hints of how to tune code for processor features, which it then misses.

    Has no effect after jaxlib was imported, or if the user set the level.
    """
    try:
        affected = version("jaxlib").startswith("0.10.")
    except PackageNotFoundError:
        return
    if affected:
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # fatal errors only
