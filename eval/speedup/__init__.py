"""`python -m eval.speedup`: tokens per second of plain decoding and of the drafting methods.

May import `dart_jax`, `eval.benchmarks`, `eval.methods` and `eval.latency`. Start with
`program.py`.
"""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    """Imports `SpeedupConfig` and `run` on first use."""
    if name in ("SpeedupConfig", "run"):
        from eval.speedup import program

        return getattr(program, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
