"""Loops over the decode step.

The host loop, `stream`, calls step and search in turn and yields tokens as they are emitted. The
fused loop, `generate_fused`, runs the whole generation in one jitted `lax.while_loop` with the
search as a callback. Both produce the same tokens. Where the sizes of trees change from burst to
burst, a `Switch` says what runs: the host loop takes one, and `generate_in_bursts` runs each burst
as one program.

May import the rest of `dart_jax.decoding`, except for `decoder.py`. Start with `host.py`.
"""

from dart_jax.decoding.loop.fused import generate_fused, generate_in_bursts, run
from dart_jax.decoding.loop.host import (
    generate_streaming,
    run_to_end,
    stream,
    stream_in_bursts,
)
from dart_jax.decoding.loop.results import Drafts, Generation, StepOutput, collect
from dart_jax.decoding.loop.start import padded_stop, start

__all__ = [
    "Drafts",
    "Generation",
    "StepOutput",
    "collect",
    "generate_fused",
    "generate_in_bursts",
    "generate_streaming",
    "padded_stop",
    "run",
    "run_to_end",
    "start",
    "stream",
    "stream_in_bursts",
]
