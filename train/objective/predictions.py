"""A drafter's predictions for a batch, with the teacher's.

Row n of a sequence joins the target's feature at n with the token at n + 1; the prediction at
drafted position t = 1..d after it is of the token at n + 1 + t, whose teacher is the target's
output at n + t. A drafter with pair scores adds them from t = 2 on, those of the text's token at
n + t: all positions are computed at once, so that token stands for the one drafted before.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from dart_jax.models.config import TargetConfig
from dart_jax.models.drafter_config import AnyDrafterConfig, BlockConfig, DartConfig, Eagle3Config
from dart_jax.models.kernels.matmul import activations, cast
from dart_jax.models.networks.draft_layer import take_rows
from dart_jax.models.networks.pure import Params, bind, dtype_of
from dart_jax.models.sharding.devices import Devices
from train.data.batch import Array, Batch, TeacherOutputs
from train.objective.block import PackedBlock
from train.objective.dart import PackedDart
from train.objective.eagle3 import PackedEagle3
from train.objective.packed import HeadInput, PackedDrafter, TeacherBatch
from train.teacher.teacher import LOGITS, forward, over_vocabulary, with_vocabulary

# The methods that can be trained, by the drafter's config.
METHODS: dict[type[AnyDrafterConfig], type[PackedDrafter]] = {
    DartConfig: PackedDart,
    Eagle3Config: PackedEagle3,
    BlockConfig: PackedBlock,
}

# Byte limit of a chunk's attention scores, per device.
_SCORES = 2**30
# Parts of a drafter that are read after its layers, one position at a time.
HEAD = frozenset({"norm", "lm_head", "pairs", "confidence"})


class Frozen(NamedTuple):
    """The parameters that are not trained: the target's; its id of each draft id, int32 [Vd],
    ascending; and those of the drafter, by their first name, None if all are trained."""

    target: Params
    draft_ids: jax.Array
    drafter: Params | None = None

    def whole(self, trained: Params) -> Params:
        """Returns all parameters of the drafter, in the dtype of the trained ones."""
        return cast(self.drafter or {}, _dtype(trained)) | trained


def _dtype(params: Params) -> np.dtype:
    """Returns the dtype of parameters' matrices."""
    return next(p.dtype for p in jax.tree.leaves(params) if p.ndim > 1)


class Predictions(NamedTuple):
    """The predictions of a chunk of anchors at one drafted position.

    Attributes:
      teacher: float32 [B, C, Vd], the target's log-probabilities, renormalised over the draft
        vocabulary.
      mass: float32 [B, C], the probability that the target gives to that vocabulary.
      best: int32 [B, C], the target's most likely token of all.
      draft: float32 [B, C, Vd], the drafter's log-probabilities.
      valid: bool [B, C], see `valid_predictions`.
      draft_ids: int32 [Vd], see `Frozen`.
      confidence: float32 [B, C], logits of the probability that the drafter expects a token drawn
        from its prediction to be accepted with; None if it expects none.
    """

    teacher: jax.Array
    mass: jax.Array
    best: jax.Array
    draft: jax.Array
    valid: jax.Array
    draft_ids: jax.Array
    confidence: jax.Array | None = None


# The target's side of `Predictions`: `teacher`, `mass` and `best`.
Teaching = tuple[jax.Array, jax.Array, jax.Array]


class DraftInputs(NamedTuple):
    """Everything that the chunks of a batch are drafted from: the drafter's trained parameters;
    its real rows; what is not trained, the target's head for the draft vocabulary only; the
    batch; and the rows to draft from, int32 [B, A], None for all."""

    params: Params
    real: Any
    frozen: Frozen
    data: TeacherBatch
    anchors: jax.Array | None


class Chunk(NamedTuple):
    """The drafts from C anchors of every row.

    Attributes:
      head: the trained parameters that are read after the drafter's layers.
      hidden: [B, C, d, D], the layers' output, which `drafter.logits` reads.
      inputs: what they are drafted from, without gradients.
      anchors: int32 [B, C].
      real: bool [B, C], whether it is an anchor, or only fills the last chunk.
      shared: the target's side of rows anchors[:, 0] + 1, + 2, .., + C + d - 1, if the anchors are
        successive and share them; else None.
      weights: float32 [B, C, d], of the predictions in the loss; None if they depend on the
        position alone.
    """

    head: Params
    hidden: jax.Array
    inputs: DraftInputs
    anchors: jax.Array
    real: jax.Array
    shared: Teaching | None
    weights: jax.Array | None = None


@dataclasses.dataclass(frozen=True)
class PackedForward:
    """The forward pass of a target and a drafter over packed rows; hashable.

    Attributes:
      num_positions: d; but for EAGLE-3 that of the drafter's config.
      max_chunk: maximum anchors per row processed at a time; None for as many as fit the limits.
      mesh: the devices that share the target and the rows of a batch; None for one.
    """

    target: TargetConfig
    drafter: AnyDrafterConfig
    num_positions: int
    max_chunk: int | None = None
    mesh: Mesh | None = None

    @functools.cached_property
    def method(self) -> PackedDrafter:
        """What drafts with this drafter."""
        return METHODS[type(self.drafter)](self.drafter, self.num_positions)

    @property
    def positions(self) -> jax.Array:
        """The drafted positions, int32 [d], from 1."""
        return jnp.arange(1, self.num_positions + 1, dtype=jnp.int32)

    def shortened(self, positions: int) -> PackedForward:
        """Returns the same with fewer positions; see `PackedDrafter.shortened`."""
        config = self.method.shortened(positions)
        return dataclasses.replace(self, drafter=config, num_positions=positions)

    def inputs(
        self, params: Params, frozen: Frozen, batch: Batch, anchors: jax.Array | None
    ) -> DraftInputs:
        """Runs the target, and the drafter over the real rows, for the anchors int32 [B, A], or
        None for all rows. Nothing is differentiated that the trained parameters `params` do not
        need."""
        data = self.run_target(frozen, batch, anchors)
        embed = bind(self.target, frozen.target).embed
        if not self._all_tokens:  # the head's columns are taken once, not at every position
            _, head = with_vocabulary(self.target, frozen.target, frozen.draft_ids)
            frozen = frozen._replace(target=head)
        # Each model computes in its own dtype: `hidden`, for the target's head, keeps the target's.
        dtype = activations(_dtype(params))
        data = data._replace(embeds=data.embeds.astype(dtype))
        real = self.method.real_rows(
            bind(self.drafter, frozen.whole(params)),
            jnp.asarray(data.outputs.features, dtype),
            data,
            lambda tokens: embed(tokens).astype(dtype),
        )
        return DraftInputs(params, real, frozen, data, anchors)

    def chunks(self, inputs: DraftInputs) -> tuple[int, int]:
        """Returns the number of chunks, and of anchors per row in each; static."""
        (b, t), anchors = inputs.data.tokens.shape, inputs.anchors
        width = t if anchors is None else anchors.shape[1]
        number = -(-width // (self.max_chunk or self._fitting_chunk(b, t, anchors is None)))
        return number, -(-width // number)

    def chunk(self, inputs: DraftInputs, i: jax.Array) -> Chunk:
        """Drafts from chunk `i` of the anchors."""
        params, frozen, data = inputs.params, inputs.frozen, inputs.data
        (b, t), (_, size) = data.tokens.shape, self.chunks(inputs)
        index = jnp.arange(size, dtype=jnp.int32) + i * size
        if inputs.anchors is None:
            anchors = jnp.broadcast_to(index[None], (b, size))
        else:
            anchors = jnp.take(inputs.anchors, index, axis=1, mode="fill", fill_value=t)
        real, anchors = anchors < t, jnp.minimum(anchors, t - 1)
        drafter, successive = bind(self.drafter, frozen.whole(params)), inputs.anchors is None
        hidden = self.method.draft(drafter, inputs.real, data, anchors, successive)
        shared = None
        if successive:
            reach = jnp.arange(1, size + self.num_positions, dtype=jnp.int32)[None]
            shared = self._teaching(frozen, data, anchors[:, :1] + reach)
        head = {name: leaf for name, leaf in params.items() if name in HEAD}
        inputs = jax.lax.stop_gradient(inputs._replace(real=None))
        return Chunk(head, hidden, inputs, anchors, real, shared)

    def predictions(self, chunk: Chunk, t: jax.Array) -> Predictions:
        """Returns a chunk's predictions at position `t`, int32 from 1."""
        inputs, anchors = chunk.inputs, chunk.anchors
        frozen, data = inputs.frozen, inputs.data
        if chunk.shared is None:
            teacher, mass, best = self._teaching(frozen, data, anchors + t)
        else:
            teacher, mass, best = (
                jax.lax.dynamic_slice_in_dim(x, t - 1, anchors.shape[1], axis=1)
                for x in chunk.shared
            )
        logits, confidence = self.method.logits(
            bind(self.drafter, frozen.whole(inputs.params | chunk.head)),
            HeadInput(
                jax.lax.dynamic_index_in_dim(chunk.hidden, t - 1, axis=2, keepdims=False),
                t,
                _gather(data.tokens, anchors + t),
                frozen.draft_ids,
                functools.partial(self._target_logits, frozen),
            ),
        )
        return Predictions(
            teacher,
            mass,
            best,
            jax.nn.log_softmax(logits),
            chunk.real & valid_predictions(data.document, data.run, anchors, t),
            frozen.draft_ids,
            confidence,
        )

    def _target_logits(self, frozen: Frozen, hidden: jax.Array) -> jax.Array:
        """The logits of the target's head, which is already cut: [..., D] -> float32 [..., Vd]."""
        config = self.target
        if not self._all_tokens:
            config = dataclasses.replace(config, tie_word_embeddings=False)
        return bind(config, frozen.target).logits(
            hidden.astype(activations(dtype_of(frozen.target)))
        )

    def _teaching(self, frozen: Frozen, data: TeacherBatch, rows: jax.Array) -> Teaching:
        """Returns what the target teaches at rows int32 [B, A]."""
        rows = jnp.minimum(rows, data.tokens.shape[1] - 1)
        hidden = take_rows(jnp.asarray(data.outputs.hidden), rows)
        logits = self._target_logits(frozen, hidden)
        within = jax.nn.logsumexp(logits, axis=-1)
        mass = jnp.exp(within - _gather(data.outputs.log_total, rows))
        if self._all_tokens:
            mass = jnp.ones_like(mass)
        return logits - within[..., None], mass, _gather(data.outputs.best, rows)

    def _fitting_chunk(self, batch: int, rows: int, successive: bool) -> int:
        """Returns the number of anchors per row whose logits and scores fit their limits."""
        batch = -(-batch // Devices(self.mesh).groups)
        score_rows = self.method.score_rows(successive)
        scores = 4 * batch * score_rows * self.drafter.num_attention_heads * rows
        logits = 4 * batch * self.drafter.draft_vocab_size
        return max(1, min(LOGITS // logits, _SCORES // scores))

    @property
    def _all_tokens(self) -> bool:
        """True if the drafter drafts all tokens of the target."""
        return self.drafter.draft_vocab_size == self.target.vocab_size

    def run_target(
        self, frozen: Frozen, batch: Batch, anchors: jax.Array | None = None
    ) -> TeacherBatch:
        """Runs the target over a batch, unless the batch already has its outputs; `log_total`
        and `best` may be meaningless in rows that teach nothing after the anchors int32 [B, A],
        if there are any."""
        tokens, document = jnp.asarray(batch.tokens), jnp.asarray(batch.document)
        if batch.outputs is None:
            features, hidden = forward(self.target, frozen.target, batch, self.mesh)
            over = self._over_vocabulary(frozen, hidden, anchors)
        else:
            features, hidden, *over = map(jnp.asarray, batch.outputs)
            dtype = activations(dtype_of(frozen.target))
            features, hidden = features.astype(dtype), hidden.astype(dtype)
        outputs = TeacherOutputs(features, hidden, *over)
        embeds = bind(self.target, frozen.target).embed(jnp.roll(tokens, -1, axis=1))
        run = supervised_runs(batch.supervised)
        return jax.lax.stop_gradient(TeacherBatch(tokens, document, run, outputs, embeds))

    def _over_vocabulary(
        self, frozen: Frozen, hidden: jax.Array, anchors: jax.Array | None
    ) -> tuple[jax.Array, jax.Array]:
        """Calls `over_vocabulary`, only for the rows that teach if these are fewer than all."""
        b, t, _ = hidden.shape
        if anchors is None or anchors.shape[1] * self.num_positions >= t:
            return over_vocabulary(self.target, frozen.target, hidden, self.mesh)
        rows = jnp.minimum((anchors[:, :, None] + self.positions[None, None]).reshape(b, -1), t - 1)
        log_total, best = (
            jnp.put_along_axis(jnp.zeros((b, t), x.dtype), rows, x, axis=1, inplace=False)
            for x in over_vocabulary(self.target, frozen.target, take_rows(hidden, rows), self.mesh)
        )
        return log_total, best


def supervised_runs(supervised: Array) -> jax.Array:
    """Counts the consecutive supervised tokens that end at each token, int32 [B, T]."""
    index = jnp.arange(supervised.shape[1], dtype=jnp.int32)[None]
    last = jax.lax.cummax(jnp.where(supervised, -1, index), axis=1)
    return index - last


def valid_predictions(
    document: Array, run: Array, anchors: jax.Array, t: jax.Array | int
) -> jax.Array:
    """Marks the valid predictions at position `t`, from 1, after anchors int32 [B, A]: the
    predicted token and all tokens between it and the anchor's token must be supervised (`run`,
    from `supervised_runs`) and in the anchor's document. Returns bool [B, A]."""
    predicted = anchors + 1 + t
    own = _gather(document, anchors)
    within = (predicted < document.shape[1]) & (_gather(document, predicted) == own) & (own > 0)
    return within & (_gather(run, predicted) >= t)


def _gather(rows: Array, index: jax.Array) -> jax.Array:
    """Gathers entries of [B, T] at int32 indices [B, A], clamped to the last one."""
    return jnp.take_along_axis(jnp.asarray(rows), jnp.minimum(index, rows.shape[1] - 1), axis=1)
