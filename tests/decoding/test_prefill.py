"""Long prompts are read in chunks; the caches and the tokens are those of a prompt read at once."""

import dataclasses
import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dart_jax.decoding.prefill import ChunkShape, divide, empty_caches, prefill, read_chunk
from decoding import Options, Prompts, generate, generate_stepwise, start
from tiny_configs import ALL, DART, EAGLE3, TARGET, VOCABULARY, random_params

from dart_jax.decoding.drafting import NgramConfig, PromptLookupConfig
from dart_jax.decoding.logits import LogitsConfig
from dart_jax.decoding.sampling import Sampling
from dart_jax.decoding.search.host import HostSearch
from dart_jax.decoding.state import DecodeConfig
from dart_jax.errors import UserError
from dart_jax.models.platform.execution import Execution
from dart_jax.ngram import NgramModel

WINDOWS = dataclasses.replace(TARGET, sliding_window=5, sliding_layers=(0, 1, 3, 4, 6))
DRAFTERS = {
    "dart of two layers": dataclasses.replace(DART, num_hidden_layers=2),
    "eagle3": EAGLE3,
    "sps": dataclasses.replace(TARGET, num_hidden_layers=2),
    "pld": PromptLookupConfig(),
    "dart": DART,
    "ngram": NgramConfig(),
    "plain": None,
}
NODES, MAX_LENGTH = 6, 64
# The last prompt ends in the first chunk, one at the end of a chunk, and one on the first place of
# one. The last rows of the longest prompt are a whole chunk or a quarter of one.
LENGTHS = {"whole": (40, 32, 17, 3), "quarter": (36, 32, 33, 1)}


def prompts_of(lengths, chunk=CHUNK, max_length=MAX_LENGTH, new=12):
    """Random prompts that repeat themselves, for the methods that look for repeats."""
    rows = [np.random.default_rng(n).integers(0, VOCABULARY, n) % 7 for n in lengths]
    return Prompts.pad(rows, new, max_length, VOCABULARY, chunk=chunk)


def setting(name, target=TARGET, **options):
    """The config of a method, random parameters, and its search."""
    drafter = DRAFTERS[name]
    config = DecodeConfig(target, drafter, 0 if drafter is None else NODES, **options)
    params = {"target": random_params(target, 0), "draft_ids": jnp.asarray(ALL)}
    if name not in ("plain", "pld", "ngram"):
        params["drafter"] = random_params(drafter, 1)
    pruner = None
    if config.searches:
        ngram = NgramModel.count([np.arange(9) % 7])
        pruner = HostSearch(config.host_buffer, NODES, ngram=ngram)
    return config, params, pruner


def check_rows(chunked, whole, length):
    """Compares the first `length` rows of each sequence in caches or texts."""
    for ours, theirs in zip(jax.tree.leaves(chunked), jax.tree.leaves(whole), strict=True):
        assert ours.shape == theirs.shape
        for row, count in enumerate(length):
            at = (row, slice(count)) if ours.ndim == 2 else (row, slice(None), slice(count))
            np.testing.assert_allclose(ours[at], theirs[at], rtol=1e-4, atol=1e-4)


@pytest.mark.long(keep=1)
@pytest.mark.parametrize("name", DRAFTERS)
@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
@pytest.mark.parametrize("target", [WINDOWS, TARGET], ids=["windows", "full"])
def test_chunks_leave_the_state_of_a_whole_prompt(name, target, lengths):
    config, params, pruner = setting(name, target)
    made = []
    for chunk in (16, CHUNK):
        prompts = prompts_of(lengths, chunk)
        state, packed = start(config, params, prompts, Options())
        tokens = generate_stepwise(config, params, pruner, prompts).tokens
        made.append((state, packed, [row.tolist() for row in tokens]))
    (ours, packed, tokens), (theirs, expected, same) = made
    assert tokens == same
    check_rows(ours.target_cache, theirs.target_cache, lengths)
    check_rows(ours.draft_state, theirs.draft_state, lengths)
    first = config.host_buffer.first
    np.testing.assert_array_equal(packed[:, :first], expected[:, :first])
    for name in ("length", "context", "remaining", "trees"):
        np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name))


def follow(tokens, logits, length):
    """A logits processor that reads the whole text: seen tokens become more likely."""
    at = jnp.where(tokens < 0, VOCABULARY, tokens)
    return logits.at[at].add(1 / length.astype(jnp.float32), mode="drop")


@pytest.mark.long
@pytest.mark.parametrize("loop", [generate, generate_stepwise])
def test_chunks_with_all_that_reads_the_prompt(loop):
    """Penalty, processors and scores see the whole prompt, in either loop."""
    logits = LogitsConfig((follow,), logprobs=3)
    config, params, pruner = setting("dart", logits=logits)
    options = Options(Sampling(0.9, top_k=30, repetition_penalty=1.3), seed=5)
    ours, theirs = (
        loop(config, params, pruner, prompts_of(LENGTHS["whole"], chunk), options)
        for chunk in (16, CHUNK)
    )
    assert [row.tolist() for row in ours.tokens] == [row.tolist() for row in theirs.tokens]
    close = partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-4)
    jax.tree.map(close, ours.scores, theirs.scores)


@pytest.mark.long
def test_a_long_prompt():
    target = dataclasses.replace(TARGET, num_hidden_layers=2)
    config, params, _ = setting("plain", target)
    ours, theirs = (
        generate_stepwise(config, params, None, prompts_of([5000, 700], chunk, 5040)).tokens
        for chunk in (256, 5000)
    )
    assert [row.tolist() for row in ours] == [row.tolist() for row in theirs]


@pytest.mark.long
def test_programs_do_not_depend_on_the_length():
    config, params, _ = setting("dart")
    before = read_chunk._cache_size(), prefill._cache_size()
    for length in (3, 100, 600, 1500, 3000):
        start(config, params, prompts_of([length], max_length=3100), Options())
    after = read_chunk._cache_size(), prefill._cache_size()
    # Chunks are read after nothing, one chunk, and up to all. Prompts of up to 16 and of up to 128
    # tokens are read at once. After one chunk there are up to 128 tokens left, after more 512.
    assert np.subtract(after, before).tolist() == [3, 4]
    for length in (640, 2000, 2800):
        start(config, params, prompts_of([length], max_length=3100), Options())
    assert (read_chunk._cache_size(), prefill._cache_size()) == after


@pytest.mark.long(keep=1)
@pytest.mark.parametrize("name", ["sps", "dart of two layers", "eagle3", "dart", "plain"])
def test_a_chunk_copies_no_cache(name):
    """Donated caches are written in place."""
    config, params, _ = setting(name)
    prompts = prompts_of([40, 3], 16)
    tokens, capacity = jnp.asarray(prompts.tokens), config.capacity(MAX_LENGTH)
    caches = empty_caches(config.reading, params, batch=2, capacity=capacity)
    at, shape = jnp.int32(16), ChunkShape(16, 16)
    chunk = read_chunk.lower(config.reading, params, caches, tokens, at, shape=shape)
    length, stop = jnp.asarray(prompts.length), jnp.full(8, -1, jnp.int32)
    given = (tokens, length, length, stop, jnp.uint32(0), Sampling().values(), caches)
    last = prefill.lower(config.prefill, params, *given, capacity=capacity, shape=shape)
    for compiled in (chunk.compile().as_text(), last.compile().as_text()):
        for leaf in jax.tree.leaves(caches):
            shape = f"f32[{','.join(map(str, leaf.shape))}]"
            assert shape in compiled
            assert not re.findall(rf"= {re.escape(shape)}\S* copy\(.*", compiled)


@pytest.mark.parametrize(
    ("longest", "most", "shapes"),
    [
        (16, 99, []),
        (17, 99, [(16, 0), (4, 16)]),
        (20, 99, [(16, 0), (4, 16)]),
        (21, 99, [(16, 0), (16, 16)]),
        (33, 63, [(16, 0), (16, 16), (4, 64)]),
        (33, 127, [(16, 0), (16, 16), (4, 64)]),
        (98, 150, [(16, 0), (16, 16), (16, 64), (16, 64), (16, 64), (16, 192), (4, 192)]),
    ],
)
def test_how_a_batch_is_divided(longest, most, shapes):
    prompts = prompts_of([longest, 1], 16, most)
    assert prompts.tokens.shape == (2, most if shapes else 16)
    chunks = divide(DecodeConfig(TARGET), prompts)
    assert [chunk.start for chunk in chunks] == [16 * n for n in range(len(shapes))]
    assert [tuple(chunk.shape) for chunk in chunks] == shapes
    kernel = DecodeConfig(TARGET, execution=Execution("interpret"))
    assert {chunk.shape.filled for chunk in divide(kernel, prompts)} <= {kernel.capacity(most)}


def test_a_chunk_has_tokens():
    with pytest.raises(UserError, match="chunks of at least 1 token, got 0"):
        prompts_of([3], 0)
