"""The target of a run: its weights, on the devices of the run's mesh, and its forward pass."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from dart_jax.loading import load_target_here
from dart_jax.models.config import TargetConfig
from dart_jax.models.cpu import largest, only_rows
from dart_jax.models.kernels.options import LayerOptions
from dart_jax.models.kernels.tiles import Tiles
from dart_jax.models.networks.pure import Params, bind, dtype_of
from dart_jax.models.platform.execution import Execution
from dart_jax.models.platform.weights import untie
from dart_jax.models.sharding.devices import Devices
from dart_jax.models.sharding.mesh import MODEL
from dart_jax.models.sharding.placement import ModelPlacement
from dart_jax.models.sharding.program import ROWS
from dart_jax.models.sharding.rules import model_specs, with_kv_heads
from dart_jax.weights import hub
from dart_jax.weights.checkpoint import load_target
from train.data.batch import Batch, causal, positions
from train.run.mesh import jit_replicated
from train.run.work_directory import contents

LOGITS = 2**28  # byte limit of the logits that a device holds at a time

_Outputs = tuple[jax.Array, jax.Array]  # features and hidden states


@dataclasses.dataclass(frozen=True, eq=False)
class Teacher:
    """A target on the devices of a run; where several share it, it is split as for decoding.

    Attributes:
      stored: the shapes of its checkpoint.
      config: the shapes of `params`: where devices share them, with an untied head, and heads of
        keys and values for each device.
      digest: identifies the checkpoint's files, whatever the devices.
      directory: the checkpoint.
      options: what its layers are computed with.
    """

    stored: TargetConfig
    config: TargetConfig
    params: Params
    digest: str
    directory: Path
    mesh: Mesh | None = None
    options: LayerOptions = LayerOptions()

    @classmethod
    def load(cls, directory: Path, dtype: np.dtype, mesh: Mesh) -> Teacher:
        """Loads a checkpoint onto the devices of a run; a process reads no more of it than they
        get. Raises UserError as `load_target`, or if the devices cannot share the target."""
        digest = contents(directory, hub.TARGET)
        if mesh.size == 1:
            config, params = load_target(directory, dtype)
            return cls(config, config, params, digest, directory)
        stored, params = load_target(
            directory, dtype, place=lambda config: ModelPlacement(config, mesh)
        )
        config = with_kv_heads(stored, mesh)
        if mesh.shape[MODEL] > 1:
            config, params = untie(config, params, mesh=mesh)
        return cls(stored, config, params, digest, directory, mesh)

    def as_served(self) -> Teacher:
        """Returns the target as decoding computes it: on one CPU by the C++ core, with weights as
        they are stored; elsewhere this one. It has no gradients."""
        if self.mesh is not None or jax.default_backend() != "cpu":
            return self
        dtype = dtype_of(self.params)
        execution = Execution.here(dtype=dtype)
        config, params = load_target_here(self.directory, dtype, execution.weights)
        options = execution.beside(config, params).target
        return dataclasses.replace(self, config=config, params=params, options=options)

    def head(self, ids: np.ndarray) -> jax.Array:
        """The head's kernel for the tokens `ids`, int32 [Vd], on every device: float32 [D, Vd]."""

        def columns(params: Params) -> jax.Array:
            _, params = with_vocabulary(self.config, params, jnp.asarray(ids))
            return params["lm_head"]["kernel"].astype(jnp.float32)

        return jit_replicated(columns, self.mesh)(self.params)


def with_vocabulary(
    config: TargetConfig, params: Params, ids: jax.Array
) -> tuple[TargetConfig, Params]:
    """Returns a target whose logits are only those of the tokens `ids`, int32 [Vd], in this order,
    by an untied head with a kernel [D, Vd]."""
    tied = config.tie_word_embeddings  # not by `untie`, which would transpose the whole table
    head = params["embed_tokens"] if tied else params["lm_head"]["kernel"]
    if isinstance(head, Tiles):  # of a model that decodes on a CPU
        kernel = head.rows(ids).T.astype(dtype_of(params))
    else:
        kernel = jnp.take(head, ids, axis=0).T if tied else jnp.take(head, ids, axis=1)
    config = dataclasses.replace(config, tie_word_embeddings=False)
    return config, {**params, "lm_head": {"kernel": kernel}}


def over_vocabulary(
    config: TargetConfig,
    params: Params,
    hidden: jax.Array,
    mesh: Mesh | None = None,
    options: LayerOptions = LayerOptions(),
) -> tuple[jax.Array, jax.Array]:
    """Computes `log_total` and `best` of `TeacherOutputs`, from all logits of the last hidden
    states [B, T, D]."""
    target = bind(config, params, options)

    def at(hidden: jax.Array) -> tuple[jax.Array, jax.Array]:
        logits = target.logits(hidden)
        best = jnp.argmax(logits, axis=-1)
        if options.attention == "native":  # XLA takes as long for it as for the logits
            best = largest(logits, 1)[1][..., 0]
        return jax.nn.logsumexp(logits, axis=-1), best.astype(jnp.int32)

    b, t, d = hidden.shape
    size = 4 * -(-b // Devices(mesh).groups) * config.vocab_size
    chunks = -(-t // max(1, LOGITS // size))
    padded = jnp.pad(hidden, ((0, 0), (0, -t % chunks), (0, 0)))
    outputs = jax.lax.map(at, padded.reshape(b, chunks, -1, d).swapaxes(0, 1))
    log_total, best = (x.swapaxes(0, 1).reshape(b, -1)[:, :t] for x in outputs)
    return log_total, best


def forward(
    config: TargetConfig,
    params: Params,
    batch: Batch,
    mesh: Mesh | None = None,
    options: LayerOptions = LayerOptions(),
) -> tuple[jax.Array, jax.Array]:
    """The target's features [B, T, 3D] and last hidden states [B, T, D], after its final norm,
    of packed rows, as many as a multiple of the mesh's groups."""
    if options.attention == "native":
        return _text_by_text(config, params, batch, options)

    def run(params: Params, tokens: jax.Array, document: jax.Array) -> tuple[jax.Array, jax.Array]:
        shared = dataclasses.replace(options, shards=Devices(mesh).shards)
        target = bind(config, params, shared)
        out = target(tokens, positions(document), causal(document))
        return out.features, out.hidden

    rows = jnp.asarray(batch.tokens), jnp.asarray(batch.document)
    if mesh is None:
        return run(params, *rows)
    return jax.shard_map(
        run,
        mesh=mesh,
        in_specs=(model_specs(config, params), ROWS, ROWS),
        out_specs=(ROWS, ROWS),
        check_vma=False,
    )(params, *rows)


def _text_by_text(
    config: TargetConfig, params: Params, batch: Batch, options: LayerOptions
) -> tuple[jax.Array, jax.Array]:
    """`forward` on one CPU, where a call takes time only for the rows of a text, and each row for
    the keys that it sees; padding gives zeros."""
    target = bind(config, params, options)
    tokens, document = jnp.asarray(batch.tokens), jnp.asarray(batch.document)
    rows, length = tokens.shape
    place = jnp.arange(length, dtype=jnp.int32)[None]
    mask = jnp.tril(jnp.ones((1, length, length), bool))

    def of_row(row: jax.Array | int, outputs: _Outputs) -> _Outputs:
        def of_text(number: jax.Array, outputs: _Outputs) -> _Outputs:
            own = document[row] == number
            start = jnp.argmax(own)
            with only_rows(jnp.sum(own.astype(jnp.int32))):
                out = target(jnp.roll(tokens[row], -start)[None], place, mask)
            return jax.tree.map(
                lambda all_, new: all_.at[row].set(
                    jnp.where(own[:, None], jnp.roll(new[0], start, axis=0), all_[row])
                ),
                outputs,
                (out.features, out.hidden),
            )

        return jax.lax.fori_loop(1, jnp.max(document[row]) + 1, of_text, outputs)

    shapes = jax.eval_shape(lambda: target(tokens, jnp.broadcast_to(place, tokens.shape), mask))
    empty = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), (shapes.features, shapes.hidden))
    return jax.lax.fori_loop(0, rows, of_row, empty)
