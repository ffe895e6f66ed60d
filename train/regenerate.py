"""The target writes the drafter's training text itself.

What a drafter must predict is what its target says, so continuations drawn from the target raise
acceptance over the original text's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np
from rich.progress import track

from dart_jax.config import TargetConfig
from dart_jax.loop import Options, Prompts, generate_fused
from dart_jax.pure import Params
from dart_jax.sampling import Sampling
from dart_jax.step import DecodeConfig
from dart_jax.target import untie
from train.data import Array


class Sequences(NamedTuple):
    """Token sequences of different lengths.

    Attributes:
      tokens: integers [M, T], padded on the right.
      length: int32 [M].
    """

    tokens: Array
    length: Array


def regenerate(
    config: TargetConfig,
    params: Params,
    prompts: Sequence[np.ndarray],
    *,
    samplings: Sequence[Sampling],
    max_length: int,
    eos: int,
    batch: int = 64,
    seed: int = 0,
) -> Sequences:
    """Continues prompts up to `max_length` tokens, once for each way of sampling.

    They are decoded in full batches, shortest first; the longest, up to `batch - 1`, are left out.
    """
    batch = min(batch, len(prompts))
    if jax.default_backend() == "cpu":
        config, params = untie(config, params)
    # Prompts of like length share a padded shape and finish together.
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
    chunks = [order[i : i + batch] for i in range(0, len(order) // batch * batch, batch)]
    rows = []
    for sampling in samplings:
        decode = DecodeConfig(config)
        name = f"regenerate T={sampling.temperature:g}"
        for n, chunk in enumerate(track(chunks, description=name)):
            padded = Prompts.pad(
                [prompts[i] for i in chunk], max_length, max_length, config.vocab_size
            )
            options = Options(sampling, stop=(eos,), seed=seed + n)
            made = generate_fused(decode, {"target": params}, None, padded, options)
            rows += map(np.append, (prompts[i] for i in chunk), made.tokens)
    tokens = np.zeros((len(rows), max_length), np.min_scalar_type(config.vocab_size - 1))
    for row, sequence in zip(tokens, rows, strict=True):
        row[: len(sequence)] = sequence
    return Sequences(tokens, np.array([len(row) for row in rows], np.int32))
