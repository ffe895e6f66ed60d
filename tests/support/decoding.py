"""Decoding by the configs of tests: through the engine, and single steps of whole caches."""

from __future__ import annotations

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from dart_jax.decoding.logits import mark_seen
from dart_jax.decoding.options import Sampling
from dart_jax.decoding.reading import caches_without_rows, read_rows
from dart_jax.decoding.sampling import row_keys
from dart_jax.decoding.search.choice import TreeSearch
from dart_jax.decoding.state import DecodeConfig, DecodeParams, DecodeState
from dart_jax.decoding.step import decode_step, exact_products, noise_of_draft
from dart_jax.engine.config import EngineConfig
from dart_jax.engine.engine import Engine
from dart_jax.engine.model_runner import ModelRunner
from dart_jax.engine.request import Output, Request
from dart_jax.engine.shapes import shapes_of


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


@dataclasses.dataclass(frozen=True, eq=False)
class Generation:
    """All that a batch of prompts was given."""

    outputs: list[Output]
    seconds: dict[str, float] = dataclasses.field(default_factory=dict)

    def __getattr__(self, name):
        """A part of every output."""
        parts = [getattr(each, name) for each in self.outputs]
        return np.array(parts) if name in ("steps", "tau") else parts


class Decoding:
    """A batch that an engine decodes: one burst after another, or as an iterator all of them."""

    def __init__(self, engine: Engine, requests: list[Request]):
        self.engine = engine
        self.sequences = [engine.add(request) for request in requests]
        self.parts: list[list[Output]] = [[] for _ in requests]

    def burst(self, limit=None) -> dict[int, Output]:
        """New tokens by row."""
        new = {self.sequences.index(text): output for text, output in self.engine.step(limit)}
        for row, output in new.items():
            if output.error is not None:
                raise output.error
            self.parts[row].append(output)
        return new

    def __iter__(self):
        while self.engine.busy:
            yield self.burst()

    def generation(self) -> Generation:
        return Generation([Output.joined(each) for each in self.parts], self.engine.seconds)


def begin(
    config: DecodeConfig,
    params: DecodeParams,
    search: TreeSearch | None,
    prompts: Prompts,
    options: Options = Options(),
    *,
    drafts: bool = False,
    steps: int | None = None,
    sizes: tuple[int, ...] | None = None,
    policy=None,
) -> Decoding:
    """A batch whose rows have budgets of their own, in bursts of `steps`, with trees of the size in
    the config or of `sizes`, among which the policy chooses."""
    engine_options = EngineConfig(
        slots=len(prompts.length),
        max_length=prompts.max_length,
        chunk=prompts.chunk,
        burst=steps,
        tree_nodes=config.nodes,
        offline=True,
    )
    shapes = shapes_of(config, engine_options)
    if sizes is not None:
        shapes = dataclasses.replace(shapes, sizes=dict.fromkeys(shapes.rows, sizes), fixed=False)
    chosen = None if policy is None else policy(shapes.sizes)
    runner = ModelRunner(config, params, search, engine_options, shapes)
    engine = Engine(runner, engine_options, tree_sizes=chosen)
    own = [tokens[:length] for tokens, length in zip(prompts.tokens, prompts.length, strict=True)]
    fields = {"logprobs": config.logits.logprobs, "drafts": drafts, "stop_ids": options.stop}
    parts = prompts.max_new_tokens, options.sampling, options.seed
    return Decoding(engine, requests_of(own, *parts, **fields))


def requests_of(prompts, budgets, sampling, seed, **fields) -> list[Request]:
    """A request for each row."""
    rows = enumerate(zip(prompts, budgets, strict=True))
    return [
        Request(np.asarray(prompt, np.int32), int(new), sampling, seed=seed, choice=row, **fields)
        for row, (prompt, new) in rows
    ]


def generate(config, params, search, prompts, options=Options(), **fields) -> Generation:
    """In bursts of many steps."""
    batch = begin(config, params, search, prompts, options, **fields)
    for _ in batch:
        pass
    return batch.generation()


generate_stepwise = partial(generate, steps=1)


def stream(config, params, search, prompts, options=Options(), *, drafts=False):
    """Yields each step's new tokens by row."""
    return iter(begin(config, params, search, prompts, options, drafts=drafts, steps=1))


def begin_model(
    model,
    prompts,
    new,
    seed=0,
    *,
    nodes=0,
    max_length=128,
    sampling=Sampling(),
    stop=None,
    burst=None,
    drafts=False,
    grammar=None,
    **parts,
) -> Decoding:
    """Token prompts for a `DartModel`; `parts`: of `DartModel.engine`."""
    options = EngineConfig(
        slots=len(prompts), max_length=max_length, burst=burst, tree_nodes=nodes, offline=True
    )
    stop_ids = model.eos if stop is None else stop
    fields = {"stop_ids": stop_ids, "grammar": grammar, "drafts": drafts}
    requests = requests_of(prompts, [new] * len(prompts), sampling, seed, **fields)
    return Decoding(model.engine(options, **parts), requests)


def decode(model, prompts, new, seed=0, **options) -> Generation:
    """The continuations of token prompts; see `begin_model`."""
    batch = begin_model(model, prompts, new, seed, **options)
    for _ in batch:
        pass
    return batch.generation()


@partial(jax.jit, static_argnums=0, donate_argnums=2)
def step(config: DecodeConfig, params: DecodeParams, state: DecodeState, trees=None):
    """A step of a cache in one piece: the new state and the host buffer."""
    trees = state.trees if trees is None else trees
    result = decode_step(config, params, state, trees)
    return result.state, result.packed


@partial(jax.jit, static_argnums=(0, 4))
@exact_products
def _first(config, params, tokens, length, capacity, budget, stop, seed, sampling):
    before, after = tokens[:, :-1], tokens[:, 1:]
    zero = jnp.zeros_like(length)
    empty = caches_without_rows(config.reading, params, len(length), capacity)
    caches, _ = read_rows(config.reading, params, empty, before, after, zero, 0)
    place = jnp.arange(tokens.shape[1], dtype=jnp.int32)[None]
    index = length[:, None] + jnp.arange(-4, 0, dtype=jnp.int32)[None]
    context = jnp.take_along_axis(tokens, jnp.maximum(index, 0), axis=1)
    seen = None
    if sampling.repetition_penalty is not None:
        own = jnp.where(place < length[:, None], tokens, -1)
        seen = mark_seen(jnp.zeros((len(length), config.target.vocab_size), bool), own)
    state = DecodeState(
        target_cache=caches.target,
        draft_state=caches.draft,
        length=length - 1,
        context=jnp.where(index < 0, -1, context),
        remaining=budget,
        stop=stop,
        keys=row_keys(seed, jnp.arange(len(length), dtype=jnp.int32)),
        sampling=sampling,
        seen=seen,
    )
    state = dataclasses.replace(state, noise=noise_of_draft(config, state))
    nodes = config.nodes if config.drafting is not None else 0
    trees = jnp.zeros((len(length), 4, nodes + 1), jnp.int32).at[:, 0, 0].set(state.context[:, -1])
    result = decode_step(config, params, state, trees if nodes else None)
    return result.state, result.packed


def start(config, params, prompts, options=Options()):
    """Reads prompts and takes the first step: the state and the host buffer."""
    tokens = np.pad(prompts.tokens, ((0, 0), (0, 1)))
    return _first(
        config,
        params,
        tokens,
        prompts.length,
        config.capacity(prompts.max_length),
        prompts.max_new_tokens,
        jnp.asarray(options.stop or (-1,), jnp.int32),
        jnp.uint32(options.seed),
        options.sampling.values(),
    )
