"""Training of the demo's target: text of packages, tokenizer, windows of tokens, next-token loss.

Imports `dart_jax` only; `train/recipes/demo.py` is the program.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.util
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from dart_jax.errors import UserError
from dart_jax.models.config import TargetConfig
from dart_jax.models.networks.pure import Params, bind

END_OF_TEXT = "<|endoftext|>"

# Packages whose sources are text too, all under permissive licences (Apache-2.0, BSD or MIT), as
# they are imported.
PACKAGES = (
    "chex", "filelock", "flax", "huggingface_hub", "jax", "jinja2", "numpy", "optax", "orbax",
    "platformdirs", "rich", "safetensors", "transformers", "tyro",
)  # fmt: skip

_SKIPPED_DIRECTORIES = frozenset({"test", "tests", "_tests", "testing", "__pycache__"})
_SKIPPED_NAMES = ("test_", "testing_", "conftest")
_SKIPPED = frozenset({("transformers", "models")})  # copies with small changes


def package_files() -> list[Path]:
    """Returns the source files of `PACKAGES`, package by package, each sorted by path; raises
    UserError if one is not installed."""
    return [path for name in PACKAGES for path in sorted(_files(name))]


def _files(name: str) -> Iterator[Path]:
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        raise UserError(f"the demo's text needs the package {name}; install it with pip")
    for location in spec.submodule_search_locations:
        root = Path(location)
        for path in root.rglob("*.py"):
            parts = path.relative_to(root.parent).parts
            if not (
                _SKIPPED_DIRECTORIES.intersection(parts[:-1])
                or parts[:2] in _SKIPPED
                or path.name.startswith(_SKIPPED_NAMES)
                or path.name.endswith("_test.py")
            ):
                yield path


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> tokenizers.Tokenizer:
    """Trains a byte-level BPE tokenizer; id 0 is the end-of-text token."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


@dataclasses.dataclass(frozen=True)
class TokenWindows:
    """Random windows, of `length` tokens, of a long token stream, int [M], which depend only on
    (seed, step); `batch` of them are a step's."""

    tokens: np.ndarray
    batch: int
    length: int
    seed: int = 0

    @property
    def fingerprint(self) -> str:
        """Identifies the tokens and their order."""
        digest = hashlib.sha256(np.ascontiguousarray(self.tokens).data)
        return f"{digest.hexdigest()[:16]} {self.length} {self.seed}"

    def __call__(self, step: int, rows: slice = slice(None)) -> np.ndarray:
        """Returns the windows of one step, int32 [batch, length], or some of its rows. Each
        epoch cuts the stream at a random phase into windows and visits each window once."""
        per_epoch = (len(self.tokens) - self.length) // self.length // self.batch
        if per_epoch < 1:
            raise UserError(
                f"{len(self.tokens)} tokens are too few for batches of {self.batch} windows of "
                f"{self.length}"
            )
        epoch, index = divmod(step, per_epoch)
        rng = np.random.default_rng((self.seed, epoch))
        phase = rng.integers(self.length)
        chosen = rng.permutation(per_epoch * self.batch)[index * self.batch :][: self.batch]
        starts = phase + chosen[rows] * self.length
        return self.tokens[starts[:, None] + np.arange(self.length)].astype(np.int32)


def lm_losses(
    config: TargetConfig, params: Params, tokens: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Returns the sum of next-token cross-entropies, in nats, of int32 tokens [B, T + 1], and their
    count: float32 scalars."""
    target, (b, t) = bind(config, params), tokens[:, 1:].shape
    positions = jnp.broadcast_to(jnp.arange(t, dtype=jnp.int32)[None], (b, t))
    hidden = target(tokens[:, :-1], positions, jnp.tril(jnp.ones((1, t, t), bool))).hidden
    losses = optax.softmax_cross_entropy_with_integer_labels(target.logits(hidden), tokens[:, 1:])
    return losses.sum(), jnp.float32(losses.size)


def held_out_loss(
    config: TargetConfig, tokens: np.ndarray, length: int, batch: int = 8
) -> Callable[[Params], dict[str, float]]:
    """Returns a function from parameters to the mean loss over fixed, consecutive windows."""
    size = batch * (length + 1)
    parts = tokens[: len(tokens) // size * size].reshape(-1, batch, length + 1).astype(np.int32)
    losses = jax.jit(lambda params, part: lm_losses(config, params, part))

    def evaluate(params: Params) -> dict[str, float]:
        means = [total / count for total, count in (losses(params, part) for part in parts)]
        return {"held_out_loss": float(np.mean(means))}

    return evaluate
