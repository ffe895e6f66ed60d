"""A drafter's predictions for a batch, with the teacher's.

Row n of a sequence joins the target's feature at n with the token at n + 1; the prediction at
drafted position t = 1..d after it is of the token at n + 1 + t, whose teacher is the target's
output at n + t. A drafter with pair scores adds them from t = 2 on, those of the text's token at
n + t: all positions are computed at once, so that token stands for the one drafted before.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from dart_jax.models.config import TargetConfig
from dart_jax.models.draft_layer import take_rows
from dart_jax.models.drafter import Drafter
from dart_jax.models.drafter_config import DrafterConfig, Eagle3Config
from dart_jax.models.platform.execution import Execution
from dart_jax.models.pure import Params, bind
from train.data.batch import Array, Batch
from train.objective import dart_blocks, eagle3_unrolled
from train.objective.chunked_sum import chunked_sum
from train.teacher.teacher import LOGITS, forward, over_vocabulary, with_vocabulary

# Byte limit of a chunk's attention scores, per device.
_SCORES = 2**30
# Parts of a drafter that are read after its layers, one position at a time.
_HEAD = frozenset({"norm", "lm_head", "pairs"})


class Frozen(NamedTuple):
    """What is not trained.

    Attributes:
      target: the target's parameters.
      draft_ids: int32 [Vd], the target's id of each draft id, ascending.
      drafter: the drafter's parameters that are not trained, by their first name; None if all are.
    """

    target: Params
    draft_ids: jax.Array
    drafter: Params | None = None

    def whole(self, trained: Params) -> Params:
        """Returns all parameters of the drafter, in the dtype of the trained ones."""
        dtype = jax.tree.leaves(trained)[0].dtype
        return jax.tree.map(lambda p: p.astype(dtype), self.drafter or {}) | trained


class Predictions(NamedTuple):
    """The predictions of a chunk of anchors at one drafted position.

    Attributes:
      t: int32 scalar, the position, from 1.
      teacher: float32 [B, C, Vd], the target's log-probabilities, renormalised over the draft
        vocabulary.
      mass: float32 [B, C], the probability that the target gives to that vocabulary.
      best: int32 [B, C], the target's most likely token of all.
      draft: float32 [B, C, Vd], the drafter's log-probabilities.
      token: int32 [B, C], the text's tokens.
      valid: bool [B, C], see `valid_predictions`.
      draft_ids: int32 [Vd], see `Frozen`.
      survey: float32 [d, B, C], what a survey found at all positions (see `PackedForward.total`).
    """

    t: jax.Array
    teacher: jax.Array
    mass: jax.Array
    best: jax.Array
    draft: jax.Array
    token: jax.Array
    valid: jax.Array
    draft_ids: jax.Array
    survey: jax.Array | None = None


# Predictions -> float32 of a fixed shape; summed over chunks and positions.
Measure = Callable[[Predictions], jax.Array]
# Predictions -> float32 [B, C].
Survey = Callable[[Predictions], jax.Array]


class TeacherBatch(NamedTuple):
    """A batch with the target's outputs.

    Attributes:
      tokens: int32 [B, T].
      document: int32 [B, T], see `Batch`.
      run: int32 [B, T], see `supervised_runs`.
      features: [B, T, 3D], the target's, as are the next three.
      hidden: [B, T, D], last hidden states, after the final norm.
      log_total: float32 [B, T], see `TeacherOutputs`.
      best: int32 [B, T], likewise.
      embeds: [B, T, D], the target's embedding of the token after each row.
    """

    tokens: jax.Array
    document: jax.Array
    run: jax.Array
    features: jax.Array
    hidden: jax.Array
    log_total: jax.Array
    best: jax.Array
    embeds: jax.Array


@dataclasses.dataclass(frozen=True)
class PackedForward:
    """The forward pass of a target and a drafter over packed rows; hashable.

    Attributes:
      target: the target's config.
      drafter: the drafter's config, DART or EAGLE-3.
      num_positions: d; for DART that of its config.
      chunk: maximum anchors per row processed at a time; None chooses it to fit 256 MB for the
        drafter's logits of one position and 1 GB for the attention scores.
      mesh: the devices that share the target and the rows of a batch; None for one.
    """

    target: TargetConfig
    drafter: DrafterConfig | Eagle3Config
    num_positions: int
    chunk: int | None = None
    mesh: Mesh | None = None

    def total(
        self,
        measure: Measure,
        params: Params,
        frozen: Frozen,
        batch: Batch,
        anchors: jax.Array | None,
        survey: Survey | None = None,
    ) -> jax.Array:
        """Returns the sum of a measure over the predictions at all positions after all anchors.

        Args:
          measure: applied to the predictions of a chunk at one position; it may close over
            constants only.
          params: the drafter's trained parameters; only these receive gradients, and nothing is
            differentiated that they do not need.
          frozen: what is not trained.
          batch: packed rows.
          anchors: int32 [B, A], the rows to draft from; None for all rows.
          survey: applied first, without gradients, to the predictions at all positions of a chunk,
            for a measure that has to know all positions. Costs a second forward pass of the head.
        """
        method = dart_blocks if isinstance(self.drafter, DrafterConfig) else eagle3_unrolled
        b, rows = batch.tokens.shape
        width = rows if anchors is None else anchors.shape[1]
        chunks = -(-width // self._max_chunk(b, rows, anchors is None))
        chunk = -(-width // chunks)
        if anchors is not None:  # pad the last chunk with invalid anchors
            anchors = jnp.pad(anchors, ((0, 0), (0, chunks * chunk - width)), constant_values=rows)
        data = self.run_target(frozen, batch, anchors)
        config = self.target
        if not self._all_tokens:  # the head's columns are taken once, not at every position
            config, head = with_vocabulary(config, frozen.target, frozen.draft_ids)
            frozen = frozen._replace(target=head)
        # Each model computes in its own dtype: `hidden`, for the target's head, keeps the target's.
        dtype = jax.tree.leaves(params)[0].dtype
        data = data._replace(features=data.features.astype(dtype), embeds=data.embeds.astype(dtype))
        real = method.real_rows(
            bind(self.drafter, frozen.whole(params)), data.features, data.embeds, data.document
        )
        layers_trained = not params.keys() <= _HEAD

        def chunk_total(args: tuple[Params, Any], fixed: Any, i: jax.Array) -> jax.Array:
            """Sums the measure over a chunk of anchors."""
            (params, real), (given, frozen, data, anchors) = args, fixed
            real = real if layers_trained else given
            if anchors is None:
                here = jnp.arange(chunk, dtype=jnp.int32)[None] + i * chunk
                here = jnp.broadcast_to(here, (b, chunk))
            else:
                here = jax.lax.dynamic_slice_in_dim(anchors, i * chunk, chunk, axis=1)
            inside, here = here < rows, jnp.minimum(here, rows - 1)
            drafter = bind(self.drafter, frozen.whole(params))
            x = method.draft(
                drafter,
                real,
                data.embeds,
                data.document,
                here,
                steps=self.num_positions,
                successive=anchors is None,
            )
            shared = None
            if anchors is None:  # several anchors share a teacher row
                reach = jnp.arange(1, chunk + self.num_positions, dtype=jnp.int32)[None]
                shared = taught(frozen, data, here[:, :1] + reach)
            head = {name: leaf for name, leaf in params.items() if name in _HEAD}
            fixed = (jax.lax.stop_gradient(params), frozen, data, here, inside, shared)
            found = None
            if survey is not None:
                look, (constant, at) = survey, jax.lax.stop_gradient((head, x))
                steps = jnp.arange(self.num_positions, dtype=jnp.int32)
                found = jax.lax.map(lambda i: look(predictions(constant, at, fixed, i)), steps)
            x, given = _either(x, layers_trained)
            return chunked_sum(
                position_measure, self.num_positions, (head, x), (given, found, fixed)
            )

        def taught(
            frozen: Frozen, data: TeacherBatch, rows: jax.Array
        ) -> tuple[jax.Array, jax.Array, jax.Array]:
            """The fields `teacher`, `mass` and `best` of `Predictions` at rows int32 [B, A]."""
            rows = jnp.minimum(rows, data.tokens.shape[1] - 1)
            logits = bind(config, frozen.target).logits(take_rows(data.hidden, rows))
            within = jax.nn.logsumexp(logits, axis=-1)
            mass = jnp.exp(within - _gather(data.log_total, rows))
            if self._all_tokens:
                mass = jnp.ones_like(mass)
            return logits - within[..., None], mass, _gather(data.best, rows)

        def position_measure(args: tuple[Params, Any], fixed: Any, i: jax.Array) -> jax.Array:
            """The measure of the chunk at position t = i + 1."""
            (head, x), (given, found, fixed) = args, fixed
            made = predictions(head, x if layers_trained else given, fixed, i)
            return measure(made._replace(survey=found))

        def predictions(head: Params, x: jax.Array, fixed: Any, i: jax.Array) -> Predictions:
            """The predictions of the chunk at position t = i + 1."""
            rest, frozen, data, here, inside, shared = fixed
            drafter = bind(self.drafter, frozen.whole(rest | head))
            if shared is None:
                teacher, mass, best = taught(frozen, data, here + i + 1)
            else:
                at = partial(jax.lax.dynamic_slice_in_dim, start_index=i, slice_size=chunk, axis=1)
                teacher, mass, best = map(at, shared)
            hidden = jax.lax.dynamic_index_in_dim(x, i, axis=2, keepdims=False)
            logits = drafter.logits(hidden)
            if isinstance(self.drafter, DrafterConfig) and self.drafter.pair_rank:
                before, known = to_draft_ids(_gather(data.tokens, here + i + 1), frozen.draft_ids)
                logits += _pair_scores(drafter, hidden, before, known & (i > 0))
            return Predictions(
                i + 1,
                teacher,
                mass,
                best,
                jax.nn.log_softmax(logits),
                _gather(data.tokens, here + i + 2),
                inside & valid_predictions(data.document, data.run, here, i + 1),
                frozen.draft_ids,
            )

        real, given = _either(real, layers_trained)
        return chunked_sum(chunk_total, chunks, (params, real), (given, frozen, data, anchors))

    def _max_chunk(self, batch: int, rows: int, successive: bool) -> int:
        """Returns the maximum number of anchors per row to process at a time."""
        if self.chunk is not None:
            return self.chunk
        batch = -(-batch // Execution(mesh=self.mesh).groups)
        queries = self.num_positions  # rows of attention scores per anchor
        if isinstance(self.drafter, Eagle3Config):
            queries = 1
        elif successive and self.drafter.num_hidden_layers == 1:
            queries = 2
        scores = 4 * batch * queries * self.drafter.num_attention_heads * rows
        logits = 4 * batch * self.drafter.draft_vocab_size
        return max(1, min(LOGITS // logits, _SCORES // scores))

    @property
    def _all_tokens(self) -> bool:
        """Whether the drafter drafts all tokens of the target."""
        return self.drafter.draft_vocab_size == self.target.vocab_size

    def run_target(
        self, frozen: Frozen, batch: Batch, anchors: jax.Array | None = None
    ) -> TeacherBatch:
        """Runs the target over a batch, unless the batch already has its outputs.

        Args:
          frozen: what is not trained.
          batch: packed rows.
          anchors: int32 [B, A]; `log_total` and `best` may be meaningless in rows that teach
            nothing after these. None for all rows.
        """
        tokens, document = jnp.asarray(batch.tokens), jnp.asarray(batch.document)
        if batch.outputs is None:
            features, hidden = forward(self.target, frozen.target, batch, self.mesh)
            log_total, best = self._over_vocabulary(frozen, hidden, anchors)
        else:
            features, hidden, log_total, best = map(jnp.asarray, batch.outputs)
            dtype = frozen.target["embed_tokens"].dtype
            features, hidden = features.astype(dtype), hidden.astype(dtype)
        embeds = bind(self.target, frozen.target).embed(jnp.roll(tokens, -1, axis=1))
        run = supervised_runs(batch.supervised)
        data = TeacherBatch(tokens, document, run, features, hidden, log_total, best, embeds)
        return jax.lax.stop_gradient(data)

    def _over_vocabulary(
        self, frozen: Frozen, hidden: jax.Array, anchors: jax.Array | None
    ) -> tuple[jax.Array, jax.Array]:
        """`over_vocabulary`, only for the rows that teach if these are fewer than all."""
        b, t, _ = hidden.shape
        if anchors is None or anchors.shape[1] * self.num_positions >= t:
            return over_vocabulary(self.target, frozen.target, hidden, self.mesh)
        reach = jnp.arange(1, self.num_positions + 1, dtype=jnp.int32)
        rows = jnp.minimum((anchors[:, :, None] + reach[None, None]).reshape(b, -1), t - 1)
        made = over_vocabulary(self.target, frozen.target, take_rows(hidden, rows), self.mesh)
        log_total, best = (
            jnp.put_along_axis(jnp.zeros((b, t), x.dtype), rows, x, axis=1, inplace=False)
            for x in made
        )
        return log_total, best


def supervised_runs(supervised: Array) -> jax.Array:
    """int32 [B, T]: the number of consecutive supervised tokens that end at each token."""
    index = jnp.arange(supervised.shape[1], dtype=jnp.int32)[None]
    last = jax.lax.cummax(jnp.where(supervised, -1, index), axis=1)
    return index - last


def valid_predictions(
    document: Array, run: Array, anchors: jax.Array, t: jax.Array | int
) -> jax.Array:
    """Returns which predictions are valid: the predicted token and all tokens between it and the
    anchor's token must be supervised and in the anchor's document.

    Args:
      document: int32 [B, T].
      run: from `supervised_runs`.
      anchors: int32 [B, A].
      t: drafted position, from 1.

    Returns:
      bool [B, A].
    """
    predicted = anchors + 1 + t
    own = _gather(document, anchors)
    within = (predicted < document.shape[1]) & (_gather(document, predicted) == own) & (own > 0)
    return within & (_gather(run, predicted) >= t)


def to_draft_ids(tokens: jax.Array, draft_ids: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns the draft ids of the target's ids `tokens`, int32 [...], and whether they have one,
    bool [...]; where they have none, the draft id is arbitrary."""
    index = jnp.searchsorted(draft_ids, tokens).astype(jnp.int32)
    index = jnp.minimum(index, draft_ids.shape[0] - 1)
    return index, jnp.take(draft_ids, index) == tokens


def _pair_scores(
    drafter: Drafter, hidden: jax.Array, before: jax.Array, where: jax.Array
) -> jax.Array:
    """Returns the scores of all tokens after draft ids `before`, float32 [B, C, Vd]; 0 elsewhere.

    Args:
      drafter: has pair scores.
      hidden: [B, C, D], what `drafter.logits` reads.
      before: int32 [B, C].
      where: bool [B, C].
    """
    factors = drafter.pairs.factors(drafter.normed(hidden), before)
    return drafter.pairs.all_next(jnp.where(where[..., None], factors, 0))


def _either(tree: Any, differentiated: bool) -> tuple[Any, Any]:
    """Returns the tree as what receives gradients, or as what does not, and None as the other."""
    return (tree, None) if differentiated else (None, tree)


def _gather(rows: Array, index: jax.Array) -> jax.Array:
    """Gathers entries of [B, T] at int32 indices [B, A], clamped to the last one."""
    return jnp.take_along_axis(jnp.asarray(rows), jnp.minimum(index, rows.shape[1] - 1), axis=1)
