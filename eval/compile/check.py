"""Checks of what a compiled program must not do."""

from __future__ import annotations

from collections.abc import Iterator

from dart_jax.decoding.sampling import MOST_SORTED
from dart_jax.models.drafter_config import DraftLayerConfig
from eval.compile.cases import Case
from eval.compile.config import Program
from eval.compile.findings import Collective, Result

# Shorter rows are sorted whole: `exact_top_k` gains nothing there.
_SHORT = 8192
# Narrower heads are left to XLA on TPUs.
_NARROW = 64


def violations(result: Result, kernels_a_layer: float = float("inf")) -> Iterator[str]:
    """Yields a line for everything that a program should not do; `kernels_a_layer` is the most that
    a layer of the target may have."""
    case, program, findings = result.case, result.program, result.findings
    name = f"{case.shape} {case.method} {program}, batch {case.batch}"
    # Without a kernel for pages, plain JAX gathers them.
    for copy in findings.copies if case.execution.attention != "dense" else ():
        yield f"{name}: {copy} copies a cache"
    if findings.not_in_place and program != "prefill":
        yield f"{name}: {', '.join(findings.not_in_place)} are not updated in place"
    if findings.host:
        yield f"{name}: transfers to or from the host: {', '.join(findings.host)}"
    vocabulary = case.config.target.vocab_size
    if findings.longest_sort >= max(vocabulary, _SHORT):
        yield (
            f"{name}: a sort of {findings.longest_sort:,} entries, the whole vocabulary of "
            f"{vocabulary:,}"
        )
    if layers := _without_kernel(result):
        yield f"{name}: no Pallas kernel computes the attention of layers {layers}"
    if program == "step" and findings.outside:
        yield f"{name}: outside of CUDA graphs run {', '.join(dict.fromkeys(findings.outside))}"
    if program == "step" and (findings.graphs or 0) > 1:
        yield f"{name}: {findings.graphs} CUDA graphs, not 1"
    for line in _exchanges(result):
        yield f"{name}: {line}"
    if findings.of_a_layer > kernels_a_layer:
        yield f"{name}: {findings.of_a_layer:g} kernels in a layer, more than {kernels_a_layer:g}"


def _without_kernel(result: Result) -> list[int]:
    """Returns the layers without a Pallas kernel, where the device has one for their attention."""
    case = result.case
    kernel = case.execution.attention in ("triton", "mosaic") and case.dtype == "bfloat16"
    if not kernel or result.program in ("prefill", "search"):
        return []
    if case.execution.attention == "mosaic" and case.config.target.head_dim < _NARROW:
        return []
    layers = range(case.config.target.num_hidden_layers)
    return [layer for layer in layers if layer not in result.findings.attention]


def _exchanges(result: Result) -> Iterator[str]:
    """Yields what devices should not exchange: in each layer more than what its two parts add to
    the residual stream, and besides more than the largest logit of each row and its token. Drawing
    tokens takes more exchanges, each of a number of each row and device or, for top-k, of its
    largest logits: little beside a real vocabulary, which they do not depend on."""
    case, program, collectives = result.case, result.program, result.findings.collectives
    shards = case.execution.devices.shards
    expected = 2 if shards > 1 else 0
    # The last layer's output is not needed where prompts are read.
    for layer in range(case.config.target.num_hidden_layers - (program == "prefill")):
        inside = [x for x in collectives if x.layer == layer]
        sums = [x.kind for x in inside].count("all-reduce")
        others = ", ".join(sorted({x.kind for x in inside} - {"all-reduce"}))
        if sums != expected or others:
            also = f" and {others}" if others else ""
            yield f"{sums} all-reduces{also} in layer {layer}, not {expected} all-reduces"
            return
    rows = case.rows * (case.nodes + 1) + case.execution.min_rows
    sampled = case.level != "greedy"
    numbers = MOST_SORTED if sampled else 2
    outside = [x for x in collectives if x.layer is None and not x.draft]
    # XLA adds up independent sums at once: in a prefill, those of the drafter among others.
    joint = 2 * _added(case, program) if program == "prefill" else 0
    for x in outside:
        if x.bytes > 4 * numbers * shards * rows + (joint if x.kind == "all-reduce" else 0):
            yield f"an {x.kind} of {x.bytes:,} bytes: weights or logits are exchanged"
    once = program not in ("loop", "serve") and not sampled
    if once and len(outside) > expected // 2:
        yield f"{len(outside)} exchanges outside of the layers, not {expected // 2}"
    yield from _drafts(result, [x for x in collectives if x.draft], once, numbers)


def _added(case: Case, program: Program) -> int:
    """Returns the bytes that a part of a split drafter's layer adds up, at most; 0 without one."""
    drafter, config = case.config.drafter, case.config
    if not isinstance(drafter, DraftLayerConfig) or not config.execution.devices.split_drafter:
        return 0
    # Rows of the prompt, of a path, of a block, or of one level of a tree.
    read = case.prompt if program == "prefill" else 0
    block = getattr(drafter, "block_size", 0)
    rows = max(read, config.max_depth + 1, config.eagle.top_k, block)
    return 4 * case.rows * rows * drafter.hidden_size


def _drafts(
    result: Result, collectives: list[Collective], once: bool, numbers: int
) -> Iterator[str]:
    """Yields what devices that share a drafter should not exchange: more than what its projection,
    attention and MLP add up, and the likeliest tokens of each device, with their logits."""
    case, drafter = result.case, result.case.config.drafter
    if not isinstance(drafter, DraftLayerConfig) or not case.config.execution.devices.split_drafter:
        if collectives:
            yield f"{len(collectives)} exchanges of a drafter that every device has whole"
        return
    added = _added(case, result.program)
    rows, most = added // (4 * drafter.hidden_size), max(numbers, 2 * case.config.candidates)
    likeliest = 4 * most * case.execution.devices.shards * rows
    for x in collectives:
        if x.bytes > (added if x.kind == "all-reduce" else likeliest):
            yield f"an {x.kind} of {x.bytes:,} bytes: the drafter's weights or logits are exchanged"
    if not once or result.program == "prefill":
        return
    expected = 1 + 2 * drafter.num_hidden_layers
    if drafter.traits.sequential:  # a pass for each level, which adds up probabilities, too
        expected = 1 + 4 * (1 + case.config.eagle.later_passes(case.nodes))
    if (sums := [x.kind for x in collectives].count("all-reduce")) > expected:
        yield f"{sums} all-reduces of the drafter, not {expected}"
