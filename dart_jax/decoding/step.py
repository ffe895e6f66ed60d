"""The decode step: verify the tree -> accept -> compact the caches -> draft -> top-k.

Pure functions over plain pytrees; `DecodeConfig` is static. Plain decoding is the same step with a
root-only tree and no drafter. Drafting is left to the methods in `dart_jax.decoding.drafting`: some
return candidates, from which a search builds the tree; others store the next tree in the state.
What the text itself drafts joins either (`with_text_drafts`).
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp

from dart_jax.decoding.drafting import Candidates, DraftInput
from dart_jax.decoding.drafting.text import Texts, draft_from_text
from dart_jax.decoding.host_buffer import CONTEXT, HostBuffer
from dart_jax.decoding.logits import (
    TokenScores,
    append_tokens,
    count_tokens,
    leave_out,
    mark_seen,
    penalize,
    process,
    sequences_at_nodes,
    token_scores,
)
from dart_jax.decoding.sampling import Noise, draw, noise_at, packed_draws
from dart_jax.decoding.state import DecodeConfig, DecodeParams, DecodeState
from dart_jax.decoding.tree import (
    TREE_ROWS,
    DraftTree,
    ancestor_mask,
    root_only,
    unpack,
    unused_as_root,
    with_scores,
    with_unused,
)
from dart_jax.decoding.vocabulary import WHOLE, Vocabulary
from dart_jax.models.attention.compaction import append
from dart_jax.models.cache import KVCache, order_after
from dart_jax.models.cpu import only_rows
from dart_jax.models.networks.pure import bind
from dart_jax.models.sharding.collectives import joined


class Acceptance(NamedTuple):
    """The longest path that agrees with the target; an `AcceptedPath` has its rows.

    Attributes:
      path: int32 [B, P], node indices from the root down; entries past the path's end are 0.
      tokens: int32 [B, P], the target's draws at those nodes: the accepted tokens, then the bonus
        token; entries past `count` are undefined.
      count: int32 [B], emitted tokens, bonus token included: 1..P.
    """

    path: jax.Array
    tokens: jax.Array
    count: jax.Array


def accept(tree: DraftTree, mask: jax.Array, drawn: jax.Array, max_depth: int) -> Acceptance:
    """Finds the accepted path.

    A node is accepted if its parent is accepted and its token is the one the target drew at the
    parent (docs/method.md, section 5). A draw depends only on the logits and on its absolute
    position, so exactly the tokens of plain decoding are emitted.

    Args:
      tree: the verified tree.
      mask: its `ancestor_mask`.
      drawn: int32 [B, N + 1], the target's draw at every node.
      max_depth: maximum depth of a node; P = max_depth + 1.
    """
    b, nodes = tree.tokens.shape
    chex.assert_shape([*tree, drawn], (b, nodes))
    chex.assert_shape(mask, (b, nodes, nodes))
    agrees = tree.tokens == jnp.take_along_axis(drawn, tree.parents, axis=1)
    root = jnp.arange(nodes, dtype=jnp.int32)[None] == 0
    agrees = root | (tree.real & agrees)
    accepted = jnp.all(~mask | agrees[:, None], axis=2)
    levels = jnp.arange(max_depth + 1, dtype=jnp.int32)[None, :, None]
    on_level = accepted[:, None] & (tree.depth[:, None] == levels)
    path = jnp.argmax(on_level, axis=2).astype(jnp.int32)
    count = jnp.sum(jnp.any(on_level, axis=2), axis=1, dtype=jnp.int32)
    return Acceptance(path, jnp.take_along_axis(drawn, path, axis=1), count)


class Verified(NamedTuple):
    """The target's output for a tree. Of a single sequence on a CPU, slots after the last node
    hold anything.

    Attributes:
      logits: float32 [B, N + 1, V]; where devices share the target, of a device's part of the
        vocabulary.
      features: [B, N + 1, 3D]; [B, N + 1, 0] if the target has no feature layers.
      rows: keys and values of the tree's rows, per layer.
    """

    logits: jax.Array
    features: jax.Array
    rows: KVCache


class AcceptedPath(NamedTuple):
    """The P rows of the accepted path, gathered by the indices of an `Acceptance`.

    Attributes:
      tokens: int32 [B, P], the rows' own tokens: the root, then drafted tokens.
      next_tokens: int32 [B, P], the target's draw after each row.
      features: [B, P, 3D], the target's.
      positions: int32 [B, P].
      count: int32 [B], how many of `next_tokens` are emitted.
      ranks: int32 [B, P], which nodes drafted the emitted ones, by their places in the tree; 0 for
        a token of the target's own, and for those that are not emitted.
      start: int32 [B], length of the target's cache before this path.
    """

    tokens: jax.Array
    next_tokens: jax.Array
    features: jax.Array
    positions: jax.Array
    count: jax.Array
    ranks: jax.Array
    start: jax.Array


def exact_products(function: Callable[..., Any]) -> Callable[..., Any]:
    """Traces `function` with exact float32 matrix products.

    By default recent GPUs round their inputs to 19 bits (TF32).
    """

    @functools.wraps(function)
    def wrapped(*args: Any, **options: Any) -> Any:
        with jax.default_matmul_precision("highest"):
            return function(*args, **options)

    return wrapped


class Step(NamedTuple):
    """The result of a step.

    Attributes:
      state: the new state; its `trees` are the next ones, if they are built on the device.
      path: what was accepted.
      packed: the host buffer, int32 [B, width].
    """

    state: DecodeState
    path: AcceptedPath
    packed: jax.Array


@exact_products
def decode_step(
    config: DecodeConfig, params: DecodeParams, state: DecodeState, trees: jax.Array | None
) -> Step:
    """Verifies one packed tree per row, int32 [B, 4, N + 1], None for plain decoding; then
    drafts."""
    verified = verify(config, params, state, trees)
    state, path = accept_and_compact(config, state, trees, verified)
    state, candidates = draft(config, state, draft_input(config, params, state, path))
    return Step(state, path, pack(config.host_buffer, state, candidates))


def verify(
    config: DecodeConfig, params: DecodeParams, state: DecodeState, trees: jax.Array | None
) -> Verified:
    """Runs the target over the trees, int32 [B, 4, n + 1], or with None over only the roots."""
    target = bind(config.target, params["target"], config.execution.target)
    tree = _tree(config, state, trees)
    with jax.named_scope("verify"), only_rows(_used(config, tree)):
        tokens, mask = unused_as_root(tree, ancestor_mask(tree, config.max_depth))
        positions = state.length[:, None] + tree.depth
        cache, layers = state.target_cache, config.feature_layers
        out = target(tokens, positions, mask, cache, state.length, layers)
        return Verified(target.logits(out.hidden), out.features, out.rows)


def accept_and_compact(
    config: DecodeConfig, state: DecodeState, trees: jax.Array | None, verified: Verified
) -> tuple[DecodeState, AcceptedPath]:
    """Draws the target's tokens, accepts a path, and appends its rows to the target's cache."""
    tree, depth, start = _tree(config, state, trees), config.max_depth, state.length
    mask = ancestor_mask(tree, depth)
    positions = start[:, None] + jnp.arange(depth + 1, dtype=jnp.int32)[None]
    vocabulary, own_logits = as_needed(config, verified.logits)
    noise = state.noise
    if noise is None:
        noise = _noise_after(config, state)
    sequences = None
    if config.logits.processors:
        assert state.tokens is not None
        sequences = sequences_at_nodes(state.tokens, start, tree, mask)
    nodes, begin = _Nodes(own_logits, tree.depth, mask, sequences, state.masks), state

    def processed(nodes: _Nodes) -> jax.Array:
        logits = penalize_at_nodes(begin, tree, nodes.mask, nodes.logits, vocabulary)
        if nodes.sequences is not None:
            logits = process(config.logits.processors, logits, *nodes.sequences)
        if nodes.allowed is not None:
            logits = leave_out(nodes.allowed, logits, vocabulary)
        return logits

    def draw_at(nodes: _Nodes) -> jax.Array:
        return draw(begin.sampling, processed(nodes), noise, nodes.depth, vocabulary)

    used, changes = _used(config, tree), (state.seen, state.counts, state.bias, *nodes[3:])
    with jax.named_scope("accept"):
        if used is None or any(change is not None for change in changes):
            drawn = _of_first(draw_at, nodes, used)
        else:
            with only_rows(used):
                drawn = draw_at(nodes)
        if config.acceptance is None:
            accepted = accept(tree, mask, drawn, depth)
        else:
            left, end = state.remaining, start + state.remaining
            accepted = config.acceptance(tree, drawn, depth, left, end)
    state, count = emit(state, accepted.tokens, accepted.count, start + 1)
    path = accepted.path
    if state.scores is not None:

        def score(rows: tuple[jax.Array, jax.Array]) -> TokenScores | None:
            at, tokens = rows
            of_path = jax.tree.map(
                lambda x: jax.vmap(functools.partial(jnp.take, axis=0))(x, at), nodes
            )
            logits = of_path.logits, processed(of_path)
            return token_scores(config.logits, begin.sampling, *logits, tokens, vocabulary)

        most = None if used is None else count[0]
        scores = _of_first(score, (path, accepted.tokens), most)
        state = dataclasses.replace(state, scores=scores)
    with jax.named_scope("compact"):
        length = order_after(accepted.tokens + 1, start)  # they are -1 where logits are NaN
        kept = count[0] if config.reads_only_used and len(start) == 1 else None
        with only_rows(kept):
            kernel = config.execution.attention
            cache = append(state.target_cache, verified.rows, path, length, kernel)
        state = dataclasses.replace(state, target_cache=cache, length=start + count)
    drafted = jnp.minimum(count, accepted.count - 1)[:, None]
    place = jnp.arange(depth + 1, dtype=jnp.int32)[None]
    return state, AcceptedPath(
        tokens=jnp.take_along_axis(tree.tokens, path, axis=1),
        next_tokens=accepted.tokens,
        features=jnp.take_along_axis(verified.features, path[:, :, None], axis=1),
        positions=positions,
        count=count,
        ranks=jnp.where(place < drafted, jnp.roll(path, -1, axis=1), 0),
        start=start,
    )


class _Nodes(NamedTuple):
    """What the draws after nodes depend on: [B, n, ...] of n nodes.

    Attributes:
      logits: the target's own.
      depth: of the nodes.
      mask: of their `ancestor_mask`.
      sequences: those that end with the nodes, and their lengths, for processors.
      allowed: tokens that may follow, see `leave_out`.
    """

    logits: jax.Array
    depth: jax.Array
    mask: jax.Array
    sequences: tuple[jax.Array, jax.Array] | None
    allowed: jax.Array | None


def _of_first(function: Callable[[Any], Any], rows: Any, used: jax.Array | None) -> Any:
    """Applies a function to arrays [B, n, ...]; with `used`, int32 scalar, only to the first rows,
    one by one, where each takes time: zeros follow."""
    if used is None:
        return function(rows)

    def at(i: jax.Array | int) -> Any:
        return jax.tree.map(lambda x: jax.lax.dynamic_slice_in_dim(x, i, 1, axis=1), rows)

    def add(i: jax.Array, made: Any) -> Any:
        return jax.tree.map(
            lambda x, new: jax.lax.dynamic_update_slice_in_dim(x, new, i, axis=1),
            made,
            function(at(i)),
        )

    count = jax.tree.leaves(rows)[0].shape[1]
    empty = jax.tree.map(
        lambda x: jnp.zeros((x.shape[0], count, *x.shape[2:]), x.dtype),
        jax.eval_shape(lambda: function(at(0))),
    )
    return jax.lax.fori_loop(0, used, add, empty)


def as_needed(config: DecodeConfig, logits: jax.Array) -> tuple[Vocabulary, jax.Array]:
    """Joins the target's logits [B, T, ...], of which devices may each have a part, if the whole
    vocabulary is needed, as by processors; returns how it is divided, and the logits."""
    shards = config.execution.devices.shards
    if shards > 1 and config.logits.whole:
        return WHOLE, joined(logits)
    return Vocabulary(shards), logits


def draft_input(
    config: DecodeConfig, params: DecodeParams, state: DecodeState, path: AcceptedPath
) -> DraftInput:
    """Builds the drafting method's input after a verification."""
    return DraftInput(
        bind(config.target, params["target"], config.execution.target),
        params,
        path.tokens,
        path.next_tokens,
        path.features,
        path.positions,
        last=jnp.maximum(path.count - 1, 0),
        start=path.start,
        sampling=state.sampling,
        seen=state.seen,
        noise=noise_of_draft(config, state),
        options=config.execution.drafter,
    )


def noise_of_draft(config: DecodeConfig, state: DecodeState) -> Noise | None:
    """Returns the noise of draws that will verify the next trees, if they are drafted with it."""
    return _noise_after(config, state) if config.couples else None


def _noise_after(config: DecodeConfig, state: DecodeState) -> Noise | None:
    """Returns the noise of the draws after the root and after nodes of each depth."""
    levels, vocab = config.max_depth + 1, config.target.vocab_size
    core = config.execution.draws_in_core
    with jax.named_scope("noise"):
        return noise_at(state.sampling, state.keys, state.length + 1, levels, vocab, core)


def pack(buffer: HostBuffer, state: DecodeState, candidates: Candidates | None) -> jax.Array:
    """Packs the host buffer, int32 [B, width]."""
    draws = None
    if buffer.draws:  # after the root
        draws = packed_draws(state.sampling, state.keys, state.length + 1)
    return buffer.pack(state.context, state.active, *(candidates or ()), draws=draws)


def _tree(config: DecodeConfig, state: DecodeState, trees: jax.Array | None) -> DraftTree:
    """Unpacks the trees to verify; without any, returns the roots. Unused slots make up the rows
    that the platform wants."""
    batch = state.length.shape[0]
    if trees is None:
        tree = root_only(state.context[:, -1])
    else:
        chex.assert_shape(trees, (batch, None, None))
        chex.assert_type(trees, jnp.int32)
        tree = unpack(trees)
    least = -(-config.execution.min_rows // batch)
    if config.execution.attention == "dense":  # where XLA calls cuBLAS, and would pad all inputs
        least *= -(-tree.tokens.shape[1] // least)
    return with_unused(tree, least)


def _used(config: DecodeConfig, tree: DraftTree) -> jax.Array | None:
    """Returns the slots up to the last node, int32 scalar, if only they are computed: no accepted
    path has others, so nobody reads what they hold. None for all."""
    if not config.reads_only_used or len(tree.tokens) > 1:
        return None
    places = jnp.arange(tree.tokens.shape[1], dtype=jnp.int32)
    return 1 + jnp.max(jnp.where(tree.real[0], places, 0))


def emit(
    state: DecodeState, tokens: jax.Array, count: jax.Array, at: jax.Array
) -> tuple[DecodeState, jax.Array]:
    """Appends the accepted tokens [B, P] to each sequence, and finishes rows that reach a stop id,
    their token budget or logits that are NaN (token -1).

    Args:
      state: is updated.
      tokens: int32 [B, P].
      count: int32 [B], how many of them are accepted.
      at: int32 [B], position of the first one.

    Returns:
      The new state, and the number of tokens that each row emits.
    """
    count = jnp.minimum(count, state.remaining)
    place = jnp.arange(tokens.shape[1], dtype=jnp.int32)[None]
    stops = jnp.any(tokens[:, :, None] == jnp.atleast_2d(state.stop)[:, None], axis=2)
    stop = (stops | (tokens < 0)) & (place < count[:, None])
    ended = jnp.any(stop, axis=1)
    count = jnp.where(ended, jnp.argmax(stop, axis=1).astype(jnp.int32) + 1, count)
    extended = jnp.concatenate([state.context, tokens], axis=1)
    latest = count[:, None] + jnp.arange(CONTEXT, dtype=jnp.int32)[None]
    emitted = jnp.where(place < count[:, None], tokens, -1)
    seen = None if state.seen is None else mark_seen(state.seen, emitted)
    counts = None if state.counts is None else count_tokens(state.counts, emitted)
    sequences = state.tokens
    if sequences is not None:
        sequences = append_tokens(sequences, tokens, count, at)
    state = dataclasses.replace(
        state,
        context=jnp.take_along_axis(extended, latest, axis=1),
        remaining=jnp.where(ended, 0, state.remaining - count),
        seen=seen,
        counts=counts,
        tokens=sequences,
    )
    return state, count


def draft(
    config: DecodeConfig, state: DecodeState, inputs: DraftInput
) -> tuple[DecodeState, Candidates | None]:
    """Drafts after the newest rows: the state with the new `draft_state`, and `trees` if they are
    built on the device; and the candidates for a search."""
    if config.drafting is None:
        return dataclasses.replace(state, noise=inputs.noise), None
    with jax.named_scope("draft"):
        draft_state, proposal = config.drafting(state.draft_state, inputs)
    trees = proposal.trees
    if trees is not None and trees.shape[1] < TREE_ROWS:
        trees = with_scores(trees, jnp.zeros_like(trees[:, 0], jnp.float32))
    state = dataclasses.replace(
        state,
        draft_state=draft_state,
        trees=trees,
        confidence=proposal.confidence,
        noise=inputs.noise,
    )
    return state, proposal.candidates


def with_text_drafts(
    config: DecodeConfig, state: DecodeState, trees: jax.Array | None, trust: jax.Array
) -> jax.Array:
    """Returns the next trees [B, 4, N + 1] with what the texts draft; `trees` are the drafter's,
    if there is one, and for `trust` see `Texts`."""
    assert state.tokens is not None
    assert state.shared is not None
    length, execution = state.length + 1, config.execution
    texts = Texts(state.tokens, length, state.shared, trust, state.sampling, state.noise)
    native, vocab_size = execution.attention == "native", config.target.vocab_size
    with jax.named_scope("draft"):
        return draft_from_text(
            texts, trees, config.nodes, config.text_depth, vocab_size, native=native
        )


def penalize_at_nodes(
    state: DecodeState, tree: DraftTree, mask: jax.Array, logits: jax.Array, vocabulary: Vocabulary
) -> jax.Array:
    """Applies bias and penalties to the logits of n nodes of a tree, float32 [B, n, V] or a part of
    the vocabulary, each with the tokens of the sequence up to it; `mask` is these nodes' part of
    the `ancestor_mask`, [B, n, N + 1]."""
    b, nodes, _ = mask.shape

    def of_nodes(counted: jax.Array) -> jax.Array:
        return jnp.broadcast_to(counted[:, None], (b, nodes, counted.shape[1]))

    seen, counts = state.seen, state.counts
    if seen is not None:
        seen = mark_seen(of_nodes(seen), jnp.where(mask, tree.tokens[:, None], -1))
    if counts is not None:
        # The root is counted already.
        drafted = mask & tree.real[:, None]
        counts = count_tokens(of_nodes(counts), jnp.where(drafted, tree.tokens[:, None], -1))
    bias = None if state.bias is None else state.bias[:, None]
    local = jax.tree.map(vocabulary.local_shard, (seen, counts, bias))
    return penalize(state.sampling, logits, *local)
