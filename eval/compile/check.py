"""What a compiled program must not do."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from eval.compile.summary import Summary

# Shorter rows are sorted whole: `exact_top_k` gains nothing there.
_SHORT = 8192


@dataclasses.dataclass(frozen=True)
class Limits:
    """What is asked of every program beyond what must always hold.

    Attributes:
      kernels_a_layer: most kernels in a layer of the target; None for any number.
      ratio: most bytes moved over bytes needed; None for any.
    """

    kernels_a_layer: float | None = None
    ratio: float | None = None


def violations(summary: Summary, limits: Limits) -> Iterator[str]:
    """Yields a line for everything that a program should not do.

    Args:
      summary: of the program.
      limits: what else is asked of it.
    """
    case, program = summary.case, summary.program
    name = f"{case.shape} {case.method} {program}, batch {case.batch}"
    if summary.caches_copied:
        yield f"{name}: {summary.caches_copied} copies of caches"
    if summary.caches_not_in_place and program != "prefill":
        yield f"{name}: {summary.caches_not_in_place} caches are not updated in place"
    searching = program == "loop" and case.config.searches and case.search != "device"
    if (transfers := summary.host(in_loop=True)) and not searching:
        yield f"{name}: {transfers} transfers to or from the host in a loop"
    vocabulary = case.config.target.vocab_size
    longest = max((kernel.sorted for kernel in summary.kernels), default=0)
    if longest >= max(vocabulary, _SHORT):
        yield f"{name}: a sort of {longest:,} entries, the whole vocabulary of {vocabulary:,}"
    most = limits.kernels_a_layer
    if most is not None and summary.of_a_layer > most:
        yield f"{name}: {summary.of_a_layer:g} kernels in a layer, more than {most:g}"
    if limits.ratio is not None and summary.ratio is not None and summary.ratio > limits.ratio:
        yield f"{name}: bytes moved are {summary.ratio:.2f} of those needed, > {limits.ratio:g}"
