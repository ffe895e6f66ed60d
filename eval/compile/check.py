"""Checks of what a compiled program must not do."""

from __future__ import annotations

from collections.abc import Iterator

from dart_jax.decoding.sampling import MOST_SORTED
from eval.compile.findings import Result

# Shorter rows are sorted whole: `exact_top_k` gains nothing there.
_SHORT = 8192
# Narrower heads are left to XLA on TPUs.
_NARROW = 64


def violations(result: Result, kernels_a_layer: float = float("inf")) -> Iterator[str]:
    """Yields a line for everything that a program should not do; a layer of the target may have
    `kernels_a_layer`."""
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
    largest logits. Those of a drafter are not checked."""
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
    most = 4 * (MOST_SORTED if sampled else 2) * shards * rows
    outside = [x for x in collectives if x.layer is None and not x.draft]
    for x in outside:
        # In a prefill, XLA adds up the drafter's sums with others.
        if x.bytes > most and (program, x.kind) != ("prefill", "all-reduce"):
            yield f"an {x.kind} of {x.bytes:,} bytes: weights or logits are exchanged"
    if program in ("step", "prefill") and not sampled and len(outside) > expected // 2:
        yield f"{len(outside)} exchanges outside of the layers, not {expected // 2}"
