"""Checks of what a compiled program must not do."""

from __future__ import annotations

from collections.abc import Iterator

from dart_jax.decoding.sampling import MOST_SORTED
from dart_jax.engine.shapes import CHUNK
from eval.compile.cases import Case
from eval.compile.config import Program
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
    # Passes of a sequential drafter are a loop, which is between two graphs.
    drafter = case.config.drafter
    graphs = 3 if drafter is not None and drafter.traits.sequential else 1
    if program == "step" and (findings.graphs or 0) > graphs:
        yield f"{name}: {findings.graphs} CUDA graphs, not {graphs}"
    most = _most_exchanged(case, program)
    for kind, size in findings.exchanges:
        if size > most:
            yield f"{name}: an {kind} of {size:,} bytes: weights or logits are exchanged"
    if findings.of_a_layer > kernels_a_layer:
        yield f"{name}: {findings.of_a_layer:g} kernels in a layer, more than {kernels_a_layer:g}"


def _without_kernel(result: Result) -> list[int]:
    """Returns the layers without a Pallas kernel, where the device has one for their attention."""
    case = result.case
    kernel = case.execution.attention in ("triton", "mosaic") and case.dtype != "float32"
    if not kernel or result.program in ("prefill", "search"):
        return []
    if case.execution.attention == "mosaic" and case.config.target.head_dim < _NARROW:
        return []
    layers = range(case.config.target.num_hidden_layers)
    return [layer for layer in layers if layer not in result.findings.attention]


def _most_exchanged(case: Case, program: Program) -> int:
    """Returns the bytes that devices may exchange at once: twice a float32 vector of every row, of
    the residual stream or of each device's largest logits, which may be joined."""
    length = min(case.prompt, CHUNK) if program == "prefill" else case.nodes + 1
    largest = case.config.candidates if case.level == "greedy" else MOST_SORTED
    logits = case.execution.devices.shards * largest
    rows = case.rows * length + case.execution.min_rows
    return 2 * 4 * rows * max(case.config.target.hidden_size, logits)
