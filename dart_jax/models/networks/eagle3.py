"""The EAGLE-3 drafter (docs/method.md, section 7): one decoder layer that reads its own output.

`dart_jax.decoding.drafting.eagle3` grows draft trees with it, `train.objective` trains it.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax import nnx

from dart_jax.models.attention.segments import Prefix, Segment
from dart_jax.models.drafter_config import Eagle3Config
from dart_jax.models.kernels.options import LayerOptions
from dart_jax.models.layers.dense import Init, Linear, RMSNorm
from dart_jax.models.networks.draft_layer import DraftLayer
from dart_jax.models.rope import rotate

# Keys and values [B, K, S, h] that T rows attend to, and a mask broadcastable to [B, T, S], true
# where a row sees a key.
Seen = tuple[jax.Array, jax.Array, jax.Array]


class Eagle3Drafter(DraftLayer):
    """One decoder layer; the head is over the draft vocabulary.

    A row joins the hidden state of a position with the embedding of the token after it. After a
    real token the hidden state is the target's projected feature; after a drafted token it is the
    layer's own output. `Eagle3Config` lists the norms that a drafter may have in addition.
    """

    def __init__(self, config: Eagle3Config, options: LayerOptions, init: Init):
        self.config = config
        d, width, eps = config.hidden_size, config.features_width, config.rms_norm_eps
        self.fc = Linear(width, d, init, split=options.split)
        super().__init__(config, options, init)
        if config.norm_before_fc:
            self.input_norm = RMSNorm(width, eps, init)
        if config.fc_norm:
            one = config.target_hidden_size
            norms = [RMSNorm(one, eps, init) for _ in range(width // one)]
            self.fc_norm = nnx.List(norms)
        if config.qk_norm:
            self.q_norm = RMSNorm(config.head_dim, eps, init)
            self.k_norm = RMSNorm(config.head_dim, eps, init)

    def project(self, features: jax.Array) -> jax.Array:
        if self.config.norm_before_fc:
            features = self.input_norm(features)
        if self.config.fc_norm:
            parts = jnp.split(features, len(self.fc_norm), axis=-1)
            parts = [norm(part) for norm, part in zip(self.fc_norm, parts, strict=True)]
            features = jnp.concatenate(parts, axis=-1)
        return super().project(features)

    def queries(self, inputs: jax.Array) -> jax.Array:
        q = super().queries(inputs)
        return self.q_norm(q) if self.config.qk_norm else q

    def keys(self, inputs: jax.Array) -> tuple[jax.Array, jax.Array]:
        k, v = super().keys(inputs)
        return (self.k_norm(k) if self.config.qk_norm else k), v

    def keys_at(self, inputs: jax.Array, positions: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Rotated keys and values [B, K, T, h] of rows [B, T, 2D] at int32 positions [B, T]."""
        k, v = self.keys(inputs)
        return self.options.rounded(rotate(k, positions, self.config.rope), v)

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
          prefix: cached rows that they attend to, if any.

        Returns:
          [B, T, D], which is fed back and what `logits` reads: before the final norm, or after it.
        """
        q = rotate(self.queries(inputs), positions, self.config.rope)
        if self.config.norm_before_residual:
            hidden = inputs[..., hidden.shape[-1] :]  # the normalised half
        x = self.finish(hidden, [Segment(q, *rows) for rows in seen], prefix)
        return self.norm(x) if self.config.norm_output else x

    def logits(self, hidden: jax.Array) -> jax.Array:
        """[..., D] after the layer -> float32 logits [..., Vd] (see `head`)."""
        return self.head(hidden if self.config.norm_output else self.norm(hidden))
