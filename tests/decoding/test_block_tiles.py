"""Block drafters on CPUs: the C++ core computes their layers, as JAX does, and drafts have the same
bits alone, in a batch, and however their context was read, but for those with convolutions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from needs import native
from tiny_configs import copied

from dart_jax.decoding.drafting.base import DraftInput, PromptRows
from dart_jax.decoding.drafting.block import Block
from dart_jax.decoding.sampling import SamplingValues
from dart_jax.models.networks.pure import bind
from dart_jax.models.platform.execution import Execution

pytestmark = native
CONTEXT, NEW = 19, 3  # rows that are read first, and rows with the draft


class Drafts:
    """Drafts after random texts."""

    def __init__(self, target, config, params, execution):
        self.method = Block(config, nodes=config.num_positions, max_candidates=4)
        self.params, self.options = params, execution.drafter
        self.target = bind(target, params["target"], execution.target)
        rng = np.random.default_rng(0)
        self.tokens = jnp.asarray(rng.integers(0, 200, (3, CONTEXT + NEW + 1)), jnp.int32)
        shape = (3, CONTEXT + NEW, config.features_width)
        self.features = jnp.asarray(rng.normal(size=shape), jnp.float32)
        self.draft = jax.jit(self._draft, static_argnums=(0, 1))

    def _rows(self, texts, first, last):
        at = jnp.arange(first, last, dtype=jnp.int32)
        tokens, count = self.tokens[texts], len(self.tokens[texts])
        return {
            "target": self.target,
            "params": self.params,
            "tokens": tokens[:, first:last],
            "next_tokens": tokens[:, first + 1 : last + 1],
            "features": self.features[texts, first:last],
            "positions": jnp.broadcast_to(at, (count, last - first)),
            "start": jnp.full(count, first, jnp.int32),
            "options": self.options,
        }

    def _draft(self, texts, chunks):
        """Candidates after texts whose context is read in chunks; the last new row is padding."""
        texts = slice(*texts)
        count = len(self.tokens[texts])
        cache = self.method.empty(count, 32, self.options.cache_dtype(jnp.float32), self.options)
        for first, last in chunks:
            rows = PromptRows(**self._rows(texts, first, last), filled=32 if first else 0)
            cache = self.method.read(cache, rows)
        inputs = DraftInput(
            **self._rows(texts, CONTEXT, CONTEXT + NEW),
            last=jnp.full(count, NEW - 2, jnp.int32),
            sampling=SamplingValues(),
            seen=None,
            noise=None,
        )
        return self.method(cache, inputs)[1].candidates


@pytest.mark.long(keep=2)
@pytest.mark.parametrize("weights", ["stored", "int8"])
@pytest.mark.parametrize("name", ["dflash", "jetspec", "dspark", "gated", "dflash2"])
def test_the_core_drafts_as_jax_does(models, blocks, name, weights):
    config, params = blocks(name)
    execution = Execution.here(weights_dtype=weights)
    tiles = {
        **params,
        "target": execution.weights.prepare(copied(params["target"])),
        "drafter": execution.weights.prepare(copied(params["drafter"])),
    }
    drafts = Drafts(models.target, config, tiles, execution)
    calls = str(drafts.draft.trace((0, 3), ((0, CONTEXT),)).jaxpr)
    convolves = config.conv_group_size is not None
    assert calls.count("dart_layers") == (0 if convolves else 1)
    assert ("dart_attention" in calls) == convolves

    whole = drafts.draft((0, 3), ((0, CONTEXT),))
    plain = Drafts(models.target, config, params, Execution()).draft((0, 3), ((0, CONTEXT),))
    # What is drafted later depends on the tokens before it.
    same, rounding = ([0], 0.1) if weights == "int8" else ([*range(config.num_positions)], 1e-5)
    scale = float(jnp.abs(plain.logits).max())
    for position in same:
        ours, theirs = (x.logits[:, position] for x in (whole, plain))
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=rounding * scale)
    if weights == "stored":
        np.testing.assert_array_equal(whole.ids, plain.ids)
    for text in range(3):
        alone = drafts.draft((text, text + 1), ((0, 5), (5, CONTEXT)))
        for ours, theirs in zip(jax.tree.leaves(alone), jax.tree.leaves(whole), strict=True):
            # Convolutions are JAX's.
            np.testing.assert_allclose(ours[0], theirs[text], atol=1e-6 * convolves, rtol=0)
