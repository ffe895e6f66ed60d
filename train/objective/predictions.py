"""Everything that a drafter predicts about a batch, beside what the target says.

Row n of a sequence joins the target's feature at n with the token at n + 1; the prediction at
position t = 1..d behind it is of the token at n + 1 + t, for which the target's output at n + t is
the teacher.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from dart_jax.models.config import TargetConfig
from dart_jax.models.draft_layer import take_rows
from dart_jax.models.drafter_config import DrafterConfig, Eagle3Config
from dart_jax.models.pure import Params, bind
from dart_jax.models.target import Target
from train.data.batch import Array, Batch, causal, positions
from train.objective import dart_blocks, eagle3_unrolled
from train.objective.chunked_sum import chunked_sum

# Bytes that a chunk of anchors may take on a device: the logits of one position, and the scores.
_LOGITS = 2**28
_SCORES = 2**30


class Frozen(NamedTuple):
    """What is not trained.

    Attributes:
      target: the target's parameters.
      draft_ids: int32 [Vd], the target's id of every draft id, ascending.
    """

    target: Params
    draft_ids: jax.Array


class Predictions(NamedTuple):
    """A chunk's predictions at one position.

    Attributes:
      t: int32 scalar, from 1.
      teacher: float32 [B, C, V], the target's log-probabilities.
      draft: float32 [B, C, Vd], the drafter's.
      token: int32 [B, C], the text's.
      counts: bool [B, C], see `count`.
      draft_ids: int32 [Vd].
    """

    t: jax.Array
    teacher: jax.Array
    draft: jax.Array
    token: jax.Array
    counts: jax.Array
    draft_ids: jax.Array


# Predictions -> float32 of a shape that is always the same; added up over chunks and positions.
Measure = Callable[[Predictions], jax.Array]


class Known(NamedTuple):
    """A batch as the target and the drafter read it.

    Attributes:
      tokens: int32 [B, T].
      document: int32 [B, T].
      run: int32 [B, T], how many supervised tokens in a row end there.
      features: [B, T, 3D], the target's.
      hidden: [B, T, D], the target's, after its final norm.
      embeds: [B, T, D], of the tokens after each row.
    """

    tokens: jax.Array
    document: jax.Array
    run: jax.Array
    features: jax.Array
    hidden: jax.Array
    embeds: jax.Array


@dataclasses.dataclass(frozen=True)
class Drafting:
    """A target and a drafter over packed rows; hashable.

    Attributes:
      target: the teacher's shapes.
      drafter: the drafter's, DART or EAGLE-3.
      num_positions: d; for DART its config's own.
      chunk: anchors of a row that are held in memory at a time, at most; None takes as many as fit
        a budget of 256 MB for the logits of one position and 1 GB for the scores of attention.
      devices: how many share the rows of a batch.
    """

    target: TargetConfig
    drafter: DrafterConfig | Eagle3Config
    num_positions: int
    chunk: int | None = None
    devices: int = 1

    def total(
        self,
        measure: Measure,
        params: Params,
        frozen: Frozen,
        batch: Batch,
        anchors: jax.Array | None,
    ) -> jax.Array:
        """The sum of a measure over all predictions behind the anchors.

        Args:
          measure: of a chunk's predictions at one position; it may close over constants only.
          params: the drafter's; the only ones that a gradient reaches.
          frozen: see there.
          batch: rows.
          anchors: int32 [B, A], the rows that are drafted from; None takes all.
        """
        method = dart_blocks if isinstance(self.drafter, DrafterConfig) else eagle3_unrolled
        b, rows = batch.tokens.shape
        width = rows if anchors is None else anchors.shape[1]
        chunks = -(-width // self._most(b, rows, anchors is None))
        chunk = -(-width // chunks)
        if anchors is not None:  # the last chunk is filled up with what does not count
            anchors = jnp.pad(anchors, ((0, 0), (0, chunks * chunk - width)), constant_values=rows)
        known = self.read(frozen, batch)
        # Each model computes in its own dtype; the head of the target gets its own hidden states.
        dtype = params["fc"]["kernel"].dtype
        known = known._replace(
            features=known.features.astype(dtype), embeds=known.embeds.astype(dtype)
        )
        given = method.known_rows(
            bind(self.drafter, params), known.features, known.embeds, known.document
        )

        def behind(args: tuple[Params, Any], fixed: tuple[Frozen, Known, Any], i: jax.Array):
            """Of a chunk of anchors."""
            (params, given), (frozen, known, anchors) = args, fixed
            if anchors is None:
                here = jnp.arange(chunk, dtype=jnp.int32)[None] + i * chunk
                here = jnp.broadcast_to(here, (b, chunk))
            else:
                here = jax.lax.dynamic_slice_in_dim(anchors, i * chunk, chunk, axis=1)
            real, here = here < rows, jnp.minimum(here, rows - 1)
            drafter, target = bind(self.drafter, params), bind(self.target, frozen.target)
            x = method.draft(
                drafter,
                given,
                known.embeds,
                known.document,
                here,
                steps=self.num_positions,
                successive=anchors is None,
            )
            taught = None
            if anchors is None:  # one row teaches several anchors
                reach = jnp.arange(1, chunk + self.num_positions, dtype=jnp.int32)[None]
                taught = _teach(target, known, here[:, :1] + reach)
            head = {name: params[name] for name in ("norm", "lm_head")}
            rest = jax.lax.stop_gradient(params)
            return chunked_sum(
                at, self.num_positions, (head, x), (rest, frozen, known, here, real, taught)
            )

        def at(args: tuple[Params, jax.Array], fixed: Any, i: jax.Array) -> jax.Array:
            """Of these at position t = i + 1."""
            (head, x), (rest, frozen, known, here, real, taught) = args, fixed
            drafter = bind(self.drafter, rest | head)
            if taught is None:
                teacher = _teach(bind(self.target, frozen.target), known, here + i + 1)
            else:
                teacher = jax.lax.dynamic_slice_in_dim(taught, i, chunk, axis=1)
            hidden = jax.lax.dynamic_index_in_dim(x, i, axis=2, keepdims=False)
            draft = jax.nn.log_softmax(drafter.logits(hidden))
            made = Predictions(
                i + 1,
                teacher,
                draft,
                _at(known.tokens, here + i + 2),
                real & count(known.document, known.run, here, i + 1),
                frozen.draft_ids,
            )
            return measure(made)

        return chunked_sum(behind, chunks, (params, given), (frozen, known, anchors))

    def _most(self, batch: int, rows: int, successive: bool) -> int:
        """Anchors of a row that are taken at a time, at most."""
        if self.chunk is not None:
            return self.chunk
        batch = -(-batch // self.devices)
        lines = self.num_positions  # of scores behind an anchor
        if isinstance(self.drafter, Eagle3Config):
            lines = 1
        elif successive and self.drafter.num_hidden_layers == 1:
            lines = 2
        scores = 4 * batch * lines * self.drafter.num_attention_heads * rows
        logits = 4 * batch * self.target.vocab_size
        return max(1, min(_LOGITS // logits, _SCORES // scores))

    def read(self, frozen: Frozen, batch: Batch) -> Known:
        """What the models know of a batch; the target runs, unless the batch has its output."""
        target = bind(self.target, frozen.target)
        tokens, document = jnp.asarray(batch.tokens), jnp.asarray(batch.document)
        if batch.features is None or batch.hidden is None:
            out = target(tokens, positions(document), causal(document))
            features, hidden = out.features, out.hidden
        else:
            dtype = frozen.target["embed_tokens"].dtype
            features, hidden = (jnp.asarray(x, dtype) for x in (batch.features, batch.hidden))
        embeds = target.embed(jnp.roll(tokens, -1, axis=1))
        known = Known(tokens, document, runs(batch.supervised), features, hidden, embeds)
        return jax.lax.stop_gradient(known)


def runs(supervised: Array) -> jax.Array:
    """int32 [B, T]: how many supervised tokens in a row end at each."""
    index = jnp.arange(supervised.shape[1], dtype=jnp.int32)[None]
    last = jax.lax.cummax(jnp.where(supervised, -1, index), axis=1)
    return index - last


def count(document: Array, run: Array, anchors: jax.Array, t: jax.Array | int) -> jax.Array:
    """Which predictions count: those whose token, and all between it and the anchor's own, are
    supervised and in the anchor's document.

    Args:
      document: int32 [B, T].
      run: of `runs`.
      anchors: int32 [B, A].
      t: position, from 1.

    Returns:
      bool [B, A].
    """
    predicted = anchors + 1 + t
    own = _at(document, anchors)
    within = (predicted < document.shape[1]) & (_at(document, predicted) == own) & (own > 0)
    return within & (_at(run, predicted) >= t)


def _at(rows: Array, index: jax.Array) -> jax.Array:
    """Entries of [B, T] at int32 [B, A], the last one for those beyond."""
    return jnp.take_along_axis(jnp.asarray(rows), jnp.minimum(index, rows.shape[1] - 1), axis=1)


def _teach(target: Target, known: Known, rows: jax.Array) -> jax.Array:
    """The target's log-probabilities at rows [B, A], float32 [B, A, V]."""
    rows = jnp.minimum(rows, known.hidden.shape[1] - 1)
    return jax.nn.log_softmax(target.logits(take_rows(known.hidden, rows)))
