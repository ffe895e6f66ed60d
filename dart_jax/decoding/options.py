"""Options of decoding that are static; without JAX, for command lines.

`sampling.py` and `logits.py` do what they say.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from dart_jax.errors import UserError

if TYPE_CHECKING:
    import jax

    from dart_jax.decoding.sampling import SamplingValues

# Nodes of the largest draft tree: the memory of a verification grows with their square, and far
# smaller trees already contain every likely continuation.
MAX_NODES = 512

# (tokens int32 [S], logits float32 [V], length int32 scalar) -> float32 [V], a pure JAX function:
# the logits of the token that follows the first `length` tokens. Later tokens are -1, which would
# index the last token: `jnp.where(tokens < 0, V, tokens)` with `mode="drop"` leaves them out.
if TYPE_CHECKING:
    LogitsProcessor = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]
else:
    LogitsProcessor = Callable[..., Any]


@dataclasses.dataclass(frozen=True)
class LogitsConfig:
    """Processors of the target's logits, and reports about them; compiled in.

    Attributes:
      processors: applied in turn, after the repetition penalty and before the temperature.
      logprobs: number of most likely tokens reported with the log-probability of each emitted
        token, if any.
      scores: whether the scores of the whole vocabulary are reported.
    """

    processors: tuple[LogitsProcessor, ...] = ()
    logprobs: int | None = None
    scores: bool = False

    @property
    def whole(self) -> bool:
        """True if something needs the logits of the whole vocabulary at once."""
        return self.scores or bool(self.processors)

    @property
    def reported(self) -> bool:
        """True if anything is reported about the logits."""
        return self.logprobs is not None or self.scores


@dataclasses.dataclass(frozen=True)
class Sampling:
    """Options by which a token is drawn from the target's logits.

    Applied in this order, with the definitions of `transformers`: repetition penalty, temperature,
    top-k, top-p, min-p. (The DART reference applies top-p before top-k and has no min-p.) Tokens
    tied with the last one kept are also kept.

    Attributes:
      temperature: divides the logits; 0 decodes greedily.
      top_k: keep the k most likely tokens; 0 keeps all.
      top_p: keep the smallest set of most likely tokens whose probability reaches p.
      min_p: keep tokens at least this fraction as likely as the most likely one.
      repetition_penalty: above 1, tokens already in the prompt or the text become less likely:
        their positive logits are divided by it, their negative ones multiplied.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0

    def __post_init__(self) -> None:
        # Beyond these limits numbers of the programs, in float32, are infinite.
        if not 0 <= self.temperature <= 1e30:
            raise UserError(f"temperature must be between 0 and 1e30, got {self.temperature}")
        if not 0 <= self.top_k < 2**31:
            raise UserError(f"top_k must be 0 (off) or in 1..{2**31 - 1}, got {self.top_k}")
        if not 0 < self.top_p <= 1:
            raise UserError(f"top_p must be above 0 and at most 1, got {self.top_p}")
        if not 0 <= self.min_p <= 1:
            raise UserError(f"min_p must be between 0 and 1, got {self.min_p}")
        if not 1e-6 <= self.repetition_penalty <= 1e6:
            raise UserError(
                f"repetition_penalty must be between 1e-6 and 1e6, got {self.repetition_penalty}"
            )

    def values(self) -> SamplingValues:
        """Returns the arguments of a compiled program."""
        import jax.numpy as jnp

        from dart_jax.decoding.sampling import SamplingValues

        def unless(off: float, value: float) -> jax.Array | None:
            return None if value == off else jnp.float32(value)

        penalty = unless(1, self.repetition_penalty)
        if self.temperature == 0:
            return SamplingValues(repetition_penalty=penalty)
        # Smaller ones would be flushed to 0; these already draw the most likely token.
        temperature = max(self.temperature, float(jnp.finfo(jnp.float32).tiny))
        return SamplingValues(
            temperature=jnp.float32(temperature),
            top_k=None if self.top_k == 0 else jnp.int32(self.top_k),
            top_p=unless(1, self.top_p),
            min_p=unless(0, self.min_p),
            repetition_penalty=penalty,
        )
