"""How good a drafter is, on held-out text: what it gets right, and what decoding gains by it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from dart_jax.decoding.decoder import Decoder
from dart_jax.errors import UserError
from dart_jax.generation import default_tree, length_bucket
from dart_jax.model import DartModel
from dart_jax.models.pure import Params
from train.data.batch import Batch
from train.data.packed_dataset import PackedDataset
from train.objective.loss import kl, restrict
from train.objective.predictions import Drafting, Frozen, Predictions

_LEAST = 8  # tokens of a prompt


@dataclasses.dataclass(frozen=True)
class AcceptanceConfig:
    """How a drafter is judged while it is trained, on held-out documents."""

    eval_rows: int = 16
    """Rows on which its predictions are compared with the target's."""
    eval_prompts: int = 8
    """Prompts decoded greedily for the acceptance length; 0 decodes nothing."""
    eval_new_tokens: int = 64
    """Tokens decoded behind each."""
    ngram: str | None = None
    """N-gram file for the tree search, as `dart_jax.generate` takes it; decoding is measured with
    and without it."""
    ngram_weight: float = 0.5
    """Of the n-gram model in that search; the paper's is 0.5."""

    def __post_init__(self) -> None:
        for name in ("eval_rows", "eval_prompts"):
            if getattr(self, name) < 0:
                raise UserError(f"--{name.replace('_', '-')} cannot be negative")
        if self.eval_new_tokens < 2:
            raise UserError("--eval-new-tokens must be at least 2")
        if self.ngram_weight < 0:
            raise UserError("--ngram-weight cannot be negative")


class Agreement:
    """A drafter's predictions beside the target's, on the same rows each time.

    At each position t: `alpha_t`, how often its likeliest token is the target's, and `hit10_t`,
    how often the target's is among its ten; and `held_out_loss`, the mean over t of the divergence
    in nats.
    """

    def __init__(self, drafting: Drafting, frozen: Frozen, dataset: PackedDataset, rows: int):
        self._frozen = frozen
        # A few at a time: the memory of a training step is not needed.
        numbers = np.arange(min(rows, dataset.rows))
        self._batches = [dataset.batch(numbers[i : i + 4]) for i in range(0, len(numbers), 4)]

        def sums(params: Params, frozen: Frozen, batch: Batch) -> jax.Array:
            def measure(made: Predictions) -> jax.Array:
                return _compare(made, drafting.num_positions)

            return drafting.total(measure, params, frozen, batch, None)

        self._sums = jax.jit(sums)

    def __call__(self, params: Params) -> dict[str, float]:
        """The figures; none without rows."""
        if not self._batches:
            return {}
        total = np.sum(
            [np.asarray(self._sums(params, self._frozen, b), np.float64) for b in self._batches], 0
        )
        with np.errstate(invalid="ignore"):
            first, hit, loss = total[:, 1:].T / total[:, 0]
        figures = {"held_out_loss": float(np.nanmean(loss))}
        figures |= {f"alpha_{t}": float(x) for t, x in enumerate(first, 1)}
        figures |= {f"hit10_{t}": float(x) for t, x in enumerate(hit, 1)}
        # Late positions may have no prediction that counts.
        return {name: value for name, value in figures.items() if math.isfinite(value)}


def _compare(made: Predictions, positions: int) -> jax.Array:
    """How many count, how many are right first and among ten, and their divergence, in the line of
    their position: float32 [d, 4]."""
    token = jnp.argmax(made.teacher, axis=-1).astype(jnp.int32)
    ten = min(10, made.draft_ids.shape[0])
    _, best = jax.lax.top_k(made.draft, ten)
    same = jnp.take(made.draft_ids, best) == token[..., None]
    teacher, mass = restrict(made)
    each = jnp.stack(
        [
            jnp.ones_like(mass),
            same[..., 0].astype(jnp.float32),
            same.any(-1).astype(jnp.float32),
            mass * kl(teacher, made.draft),
        ],
        axis=-1,
    )
    sums = jnp.sum(jnp.where(made.counts[..., None], each, 0.0), axis=(0, 1))
    line = jnp.arange(1, positions + 1, dtype=jnp.int32) == made.t
    return jnp.where(line[:, None], sums[None], 0.0)


class AcceptanceLength:
    """Tokens won per verification, bonus token included, decoding greedily.

    `tau` is with the n-gram model where there is one, `tau_without_ngram` without it.
    """

    def __init__(
        self,
        model: DartModel,
        prompts: Sequence[np.ndarray],
        new_tokens: int,
        ngram_weight: float,
        nodes: int | None = None,
    ):
        """Takes a model whose drafter's parameters are of no account; `nodes` are the trees', None
        for the device's."""
        self._model, self._prompts, self._new = model, list(prompts), new_tokens
        self._ngram_weight, self._nodes = ngram_weight, nodes

    def __call__(self, params: Params) -> dict[str, float]:
        """The figures; none without prompts."""
        if not self._prompts:
            return {}
        figures = {"tau": self.tau(params, self._ngram_weight)}
        if self._model.ngram is not None:
            figures["tau_without_ngram"] = self.tau(params, 0.0)
        return figures

    def tau(self, params: Params, ngram_weight: float) -> float:
        """The figure at some weight of the n-gram model; 0 leaves it out."""
        made = self.decoder(params, ngram_weight)(self._prompts, self._new)
        won = sum(len(tokens) - 1 for tokens in made.tokens)
        return won / max(1, int(made.steps.sum()))

    def decoder(self, params: Params, ngram_weight: float) -> Decoder:
        """What decodes the prompts, with a drafter's parameters."""
        model = dataclasses.replace(self._model, params={**self._model.params, "drafter": params})
        nodes, search = default_tree()
        longest = max(map(len, self._prompts)) + self._new
        return model.decoder(
            nodes=self._nodes or nodes,
            max_length=min(length_bucket(longest), model.target.max_length),
            search=dataclasses.replace(search, ngram_weight=ngram_weight),
            use_ngram=ngram_weight > 0,
        )


def held_out_prompts(dataset: PackedDataset, count: int, longest: int) -> list[np.ndarray]:
    """The first documents of a set, each up to what its answer begins with, int32 [n].

    A text, which has no answer, is cut in its middle. Those beyond `longest` tokens, and those with
    fewer than 8, are left out.
    """
    prompts: list[np.ndarray] = []
    for row in range(dataset.rows):
        batch = dataset.batch(np.array([row]))
        document = np.asarray(batch.document[0])
        for number in range(1, int(document.max()) + 1):
            inside = document == number
            tokens = np.asarray(batch.tokens[0])[inside]
            first = int(np.argmax(np.asarray(batch.supervised[0])[inside]))
            prompt = tokens[: first if first > 1 else len(tokens) // 2]
            if _LEAST <= len(prompt) <= longest:
                prompts.append(prompt)
            if len(prompts) >= count:
                return prompts[:count]
    return prompts[:count]
