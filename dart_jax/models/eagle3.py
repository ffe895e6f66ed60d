"""The EAGLE-3 drafter (docs/method.md, section 7): one decoder layer that reads its own output.

`dart_jax.decoding.drafting.eagle3_tree` grows draft trees with it, `train.objective` trains it.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from dart_jax.models.attention.segments import Prefix, Segment
from dart_jax.models.draft_layer import DraftLayer
from dart_jax.models.drafter_config import Eagle3Config
from dart_jax.models.layers import Linear
from dart_jax.models.platform.execution import Execution
from dart_jax.models.rope import rotate

# Keys and values [B, K, S, h] that T rows attend to, and a mask broadcastable to [B, T, S], true
# where a row sees a key.
Seen = tuple[jax.Array, jax.Array, jax.Array]


class Eagle3Drafter(DraftLayer):
    """One decoder layer; the head is over the draft vocabulary.

    A row joins the hidden state of a position with the embedding of the token after it. After a
    real token the hidden state is the target's projected feature; after a drafted token it is the
    layer's own output.
    """

    def __init__(
        self,
        config: Eagle3Config,
        execution: Execution = Execution(),
        *,
        dtype: DTypeLike = jnp.float32,
        rngs: nnx.Rngs,
    ):
        self.config = config
        d = config.hidden_size
        split = execution.drafter_shards > 1
        self.fc = Linear(3 * config.target_hidden_size, d, dtype=dtype, rngs=rngs, split=split)
        super().__init__(config, execution, dtype=dtype, rngs=rngs)

    def keys_at(self, inputs: jax.Array, positions: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Rotated keys and values [B, K, T, h] of rows [B, T, 2D] at int32 positions [B, T]."""
        k, v = self.keys(inputs)
        return rotate(k, positions, self.config.rope), v

    def __call__(
        self,
        hidden: jax.Array,
        inputs: jax.Array,
        positions: jax.Array,
        seen: Sequence[Seen],
        prefix: Prefix | None = None,
    ) -> jax.Array:
        """Runs the layer over T rows.

        Args:
          hidden: [B, T, D], the residual stream: `fc(features)`, or the parents' output.
          inputs: [B, T, 2D], `join` of the tokens' embeddings and `hidden`.
          positions: int32 [B, T].
          seen: the keys and values that the rows attend to, including their own.
          prefix: cached rows that they attend to; None for none.

        Returns:
          [B, T, D], before the final norm.
        """
        q = rotate(self.queries(inputs), positions, self.config.rope)
        return self.finish(hidden, [Segment(q, *rows) for rows in seen], prefix)

    def logits(self, hidden: jax.Array) -> jax.Array:
        """[..., D] after the layer -> float32 logits [..., Vd] (see `head`)."""
        return self.head(self.norm(hidden))
