"""Block drafters compute and draft what their authors' modules do, step by step, with a cache."""

import functools
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file

from dart_jax.decoding.drafting.base import DraftInput, PromptRows
from dart_jax.decoding.drafting.block import Block
from dart_jax.decoding.sampling import SamplingValues
from dart_jax.models.config import TargetConfig
from dart_jax.models.kernels.options import LayerOptions
from dart_jax.models.networks.pure import bind, init_params
from dart_jax.weights.checkpoint import load_drafter

GOLDENS = Path(__file__).parents[1] / "weights/block_drafters"
NAMES = sorted(path.name for path in GOLDENS.iterdir() if path.is_dir())
STEPS = 5
T = 20  # rows of the context, at the end
ROWS = 6  # rows of a step's context, padding included
TARGET = TargetConfig(
    vocab_size=97,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=9,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
)


@pytest.fixture(params=NAMES)
def files(request):
    return GOLDENS / request.param


@functools.cache
def target_params():
    """Random parameters of a target, of which only embedding and head matter."""
    return init_params(TARGET, 0)


class Run:
    """A drafter, its target's embedding and head, and what its authors' code printed."""

    def __init__(self, files):
        self.outputs = load_file(files / "outputs.safetensors")
        embed = jnp.asarray(self.outputs["embed"])
        self.config, drafter, self.ids = load_drafter(files, embedding=embed)
        params = {"embed_tokens": embed, "lm_head": {"kernel": self.outputs["head"].T}}
        params = {**target_params(), **params}
        self.params = {"target": params, "drafter": drafter, "draft_ids": jnp.asarray(self.ids)}
        self.method = Block(self.config, self.config.num_positions, max_candidates=1)
        # Rows of padding follow those of the context, so that all steps are one program.
        index = np.minimum(np.arange(len(self.outputs["tokens"]) + ROWS), T - 1)
        self.tokens, self.features = (
            jnp.asarray(self.outputs[name][index]) for name in ("tokens", "features")
        )

    def steps(self):
        """Yields the authors' outputs of each step."""
        names = ("start", "rows", "logits", "hidden", "chain", "confidence")
        for step in range(STEPS):
            named = {name: self.outputs.get(f"{name}_{step}") for name in names}
            yield SimpleNamespace(**named)

    def rows(self, params, start, count):
        """Arguments for rows of the context."""

        def part(x, first):
            return jax.lax.dynamic_slice_in_dim(x, first, count)[None]

        return {
            "target": bind(TARGET, params["target"]),
            "params": params,
            "tokens": part(self.tokens, start),
            "next_tokens": part(self.tokens, start + 1),
            "features": part(self.features, start),
            "positions": start + jnp.arange(count, dtype=jnp.int32)[None],
            "start": jnp.asarray(start)[None],
        }

    @functools.partial(jax.jit, static_argnums=(0, 4))
    def read(self, params, cache, start, count):
        """Reads rows of the prompt."""
        return self.method.read(cache, PromptRows(**self.rows(params, start, count), filled=0))

    @functools.partial(jax.jit, static_argnums=0)
    def draft(self, params, cache, start, count, chain):
        """Drafts after new rows: the cache, the chain, what the head reads, logits and, of a chain,
        the confidence."""
        inputs = DraftInput(
            **self.rows(params, start, ROWS),
            last=(count - 1)[None],
            sampling=SamplingValues(),
            seen=None,
            noise=None,
        )
        cache, proposal = self.method(cache, inputs)
        drafter = bind(self.config, params["drafter"])
        root = jax.lax.dynamic_slice_in_dim(inputs.next_tokens, count - 1, 1, axis=1)
        normed = self.method.run(drafter, inputs, root, cache, inputs.start + count)
        logits = drafter.logits(normed, inputs.target.logits)
        confidence = None
        if self.config.confidence is not None:
            before = jnp.concatenate([root[0], chain[:-1]])
            confidence = drafter.confidence(normed[0], drafter.pairs.first_factors(before))
        return cache, proposal.candidates.ids[0, :, 0], normed[0], logits[0], confidence


@pytest.mark.long(keep=3)
def test_logits_and_chains_are_the_authors(files):
    run = Run(files)
    cache = run.method.empty(1, 64, jnp.float32, LayerOptions())
    chains = []
    for theirs in run.steps():
        start, rows = theirs.start, theirs.rows
        if start == 0:  # the prompt is read without drafting, and its last row once more
            cache = run.read(run.params, cache, start, int(rows))
            start, rows = rows - 1, np.int32(1)
        ours = run.draft(run.params, cache, start, rows, theirs.chain)
        cache, chain, hidden, logits, confidence = ours
        np.testing.assert_allclose(hidden, theirs.hidden, atol=1e-4)
        np.testing.assert_allclose(logits, theirs.logits, atol=1e-4)
        np.testing.assert_array_equal(chain, theirs.chain)
        if theirs.confidence is not None:
            np.testing.assert_allclose(confidence, theirs.confidence, atol=1e-4)
        chains.append(tuple(theirs.chain))
    assert (confidence is None) == (theirs.confidence is None)
    assert len({*chains}) > 1
