"""The paper's results (arXiv 2601.19278), for comparison.

Qwen3, temperature 0, batch 1, one H20-3e, against plain decoding in eager PyTorch.
"""

from __future__ import annotations

from eval.benchmarks.registry import PAPER

# Speed-ups of DART in the order of PAPER, their mean, and tau; then EAGLE-3's mean and tau.
_ROWS = {
    "qwen3-1.7b": ((2.60, 2.90, 2.79, 2.28, 2.52, 2.64, 2.57), 2.61, 3.60, 2.01, 3.80),
    "qwen3-4b": ((2.55, 3.45, 3.25, 2.57, 2.50, 3.06, 2.73), 2.87, 3.87, 2.12, 3.54),
    "qwen3-8b": ((2.51, 3.40, 2.80, 2.64, 2.34, 3.09, 2.22), 2.71, 3.61, 2.20, 3.72),
    "qwen3-14b": ((2.73, 3.44, 2.79, 2.69, 2.50, 2.98, 2.20), 2.77, 3.67, 2.02, 3.48),
    "qwen3-32b": ((2.03, 2.88, 2.37, 2.42, 2.46, 2.56, 2.24), 2.42, 3.76, 2.11, 3.85),
}


def speedups(target: str) -> dict[str, dict[str, float]]:
    """Returns the paper's results for a target, by its name: method -> benchmark -> speed-up.

    Next to the benchmarks there are `mean` and `tau`. Empty for a target that is not in the paper.
    """
    name = target.rstrip("/").rsplit("/", 1)[-1].lower()
    if name not in _ROWS:
        return {}
    each, mean, tau, eagle_mean, eagle_tau = _ROWS[name]
    return {
        "dart": {**dict(zip(PAPER, each, strict=True)), "mean": mean, "tau": tau},
        "eagle3": {"mean": eagle_mean, "tau": eagle_tau},
    }
