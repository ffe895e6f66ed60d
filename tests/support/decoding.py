"""Decoding by the configs of tests, through the engine."""

from __future__ import annotations

import dataclasses

import numpy as np

from dart_jax.decoding.sampling import Sampling
from dart_jax.decoding.search.choice import TreeSearch
from dart_jax.decoding.state import DecodeConfig, DecodeParams
from dart_jax.engine.decoder import BatchDecoding, Decoder, Generation
from dart_jax.engine.request import Request
from dart_jax.engine.runner import Runner


@dataclasses.dataclass(frozen=True, eq=False)
class Prompts:
    """A batch: int32 [B, T], padded on the right, and int32 [B]."""

    tokens: np.ndarray
    length: np.ndarray
    max_new_tokens: np.ndarray
    max_length: int
    chunk: int = 512

    @classmethod
    def pad(cls, prompts, max_new_tokens, max_length, chunk=512):
        length = np.array([len(prompt) for prompt in prompts], np.int32)
        tokens = np.zeros((len(prompts), length.max()), np.int32)
        for row, prompt in zip(tokens, prompts, strict=True):
            row[: len(prompt)] = prompt
        budget = np.minimum(max_new_tokens, max_length - length).astype(np.int32)
        return cls(tokens, length, budget, max_length, chunk)


@dataclasses.dataclass(frozen=True)
class Options:
    sampling: Sampling = Sampling()
    stop: tuple[int, ...] = ()
    seed: int = 0


def begin(
    config: DecodeConfig,
    params: DecodeParams,
    search: TreeSearch | None,
    prompts: Prompts,
    options: Options = Options(),
    *,
    drafts: bool = False,
    **fields,
) -> BatchDecoding:
    """A batch whose rows have budgets of their own; `fields`: of the decoder."""
    arguments = prompts.max_length, options.sampling, options.stop
    decoder = Decoder(config, params, search, *arguments, chunk=prompts.chunk, **fields)
    shapes = decoder._shapes(len(prompts.length))
    requests = [
        Request(
            tokens[:length],
            int(budget),
            options.sampling,
            seed=options.seed,
            choice=row,
            stop_ids=options.stop,
            logprobs=config.logits.logprobs,
            drafts=drafts,
        )
        for row, (tokens, length, budget) in enumerate(
            zip(prompts.tokens, prompts.length, prompts.max_new_tokens, strict=True)
        )
    ]
    runner = Runner(decoder.models, shapes, decoder._policy(shapes))
    return BatchDecoding(runner, requests, prompts.max_length)


def generate(config, params, search, prompts, options=Options(), **fields) -> Generation:
    """In bursts of many steps."""
    batch = begin(config, params, search, prompts, options, **fields)
    for _ in batch:
        pass
    return batch.generation()


def generate_stepwise(config, params, search, prompts, options=Options()) -> Generation:
    """In bursts of one step."""
    return generate(config, params, search, prompts, options, steps=1)


def stream(config, params, search, prompts, options=Options(), *, drafts=False):
    """Yields each step's new tokens by row."""
    batch = begin(config, params, search, prompts, options, drafts=drafts, steps=1)
    while batch.busy:
        yield {new.row: new for new in batch.burst()}
