"""What a compiled program must not do."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from dart_jax.decoding.sampling import MOST_SORTED
from dart_jax.models.drafter_config import DraftLayerConfig, Eagle3Config
from eval.compile.cases import Case, Program
from eval.compile.collectives import Total
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
    for line in _exchanges(summary):
        yield f"{name}: {line}"
    most = limits.kernels_a_layer
    if most is not None and summary.of_a_layer > most:
        yield f"{name}: {summary.of_a_layer:g} kernels in a layer, more than {most:g}"
    if limits.ratio is not None and summary.ratio is not None and summary.ratio > limits.ratio:
        yield f"{name}: bytes moved are {summary.ratio:.2f} of those needed, > {limits.ratio:g}"


def _exchanges(summary: Summary) -> Iterator[str]:
    """Yields what devices should not exchange: in each layer more than what its two parts add to
    the residual stream, and besides more than the largest logit of each row and its token. Drawing
    tokens takes more exchanges, each of a number of each row and device or, for top-k, of its
    largest logits: little beside a real vocabulary, which they do not depend on."""
    case, found = summary.case, summary.collectives
    shards = case.execution.shards
    expected = 2 if shards > 1 else 0
    for layer in range(case.config.target.num_hidden_layers):
        inside = [x for x in found if x.layer == layer]
        count = Total.of(x for x in inside if x.kind == "all-reduce").count
        others = ", ".join(sorted({x.kind for x in inside} - {"all-reduce"}))
        if count != expected or others:
            also = f" and {others}" if others else ""
            yield f"{count} all-reduces{also} in layer {layer}, not {expected} all-reduces"
            return
    rows = case.costs.batch * (case.nodes + 1) + case.execution.least_rows
    # The server's step with penalties can draw, and reports log-probabilities.
    drawn = case.sampling.temperature > 0 or (summary.program == "serve" and case.penalties)
    joins_largest = case.sampling.top_k > 0 or summary.program == "serve"  # whose rows may have one
    numbers = MOST_SORTED if drawn and joins_largest else 2
    outside = [x for x in found if x.layer is None and not x.draft]
    # XLA adds up independent sums at once: in a prefill, those of the drafter among others.
    joint = 2 * _added(case, summary.program) if summary.program == "prefill" else 0
    for x in outside:
        if x.bytes > 4 * numbers * shards * rows + (joint if x.kind == "all-reduce" else 0):
            yield f"an {x.kind} of {x.bytes:,} bytes: weights or logits are exchanged"
    once = summary.program != "loop" and not drawn
    if once and (count := Total.of(outside).count) > expected // 2:
        yield f"{count} exchanges outside of the layers, not {expected // 2}"
    yield from _drafts(summary, once, numbers)


def _added(case: Case, program: Program) -> int:
    """Bytes that a part of a split drafter's layer adds up, at most; 0 without one."""
    drafter, config = case.config.drafter, case.config
    if not isinstance(drafter, DraftLayerConfig) or not config.execution.split_drafter:
        return 0
    # Rows of the prompt, of a path, or of one level of a tree.
    read = case.prompt if program == "prefill" else 0
    rows = max(read, config.max_depth + 1, config.eagle.top_k)
    return 4 * case.costs.batch * rows * drafter.hidden_size


def _drafts(summary: Summary, once: bool, numbers: int) -> Iterator[str]:
    """Yields what devices that share a drafter should not exchange: more than what its projection,
    attention and MLP add up, and the likeliest tokens of each device, with their logits."""
    case, drafter = summary.case, summary.case.config.drafter
    found = [x for x in summary.collectives if x.draft]
    if not isinstance(drafter, DraftLayerConfig) or not case.config.execution.split_drafter:
        if found:
            yield f"{len(found)} exchanges of a drafter that every device has whole"
        return
    added = _added(case, summary.program)
    rows, most = added // (4 * drafter.hidden_size), max(numbers, 2 * case.config.candidates)
    likeliest = 4 * most * case.execution.shards * rows
    for x in found:
        if x.bytes > (added if x.kind == "all-reduce" else likeliest):
            yield f"an {x.kind} of {x.bytes:,} bytes: the drafter's weights or logits are exchanged"
    if not once or summary.program == "prefill":
        return
    expected = 3
    if isinstance(drafter, Eagle3Config):  # a pass for each level, which adds up probabilities, too
        expected = 1 + 4 * (1 + case.config.eagle.later_passes(case.nodes))
    if (count := Total.of(x for x in found if x.kind == "all-reduce").count) > expected:
        yield f"{count} all-reduces of the drafter, not {expected}"
