"""Loops over the decode step.

The host loop, `stream`, calls step and search in turn and yields tokens as they are emitted. The
fused loop, `generate_fused`, runs the whole generation in one jitted `lax.while_loop` with the
search as a callback. Both produce the same tokens.

May import the rest of `dart_jax.decoding`, except for `decoder.py`. Start with `host.py`.
"""

from dart_jax.decoding.loop.costs import measure_costs
from dart_jax.decoding.loop.fused import generate_fused, run
from dart_jax.decoding.loop.host import generate_streaming, stream
from dart_jax.decoding.loop.results import Drafts, Generation, StepOutput, collect
from dart_jax.decoding.loop.start import padded_stop, start

__all__ = [
    "Drafts",
    "Generation",
    "StepOutput",
    "collect",
    "generate_fused",
    "generate_streaming",
    "measure_costs",
    "padded_stop",
    "run",
    "start",
    "stream",
]
