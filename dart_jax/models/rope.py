"""Rotary position embeddings (RoPE) and the scaling of their frequencies for longer contexts.

Kinds of scaling and formulas are those of Hugging Face configs: `linear`, `dynamic` (NTK),
`llama3` (Llama 3.1) and `yarn` (arXiv 2309.00071).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dart_jax.errors import UserError

# Parameters of each kind besides `rope_theta`; those with a default may be left out.
_FIELDS: dict[str, dict[str, Any]] = {
    "default": {},
    "linear": {"factor": None},
    "dynamic": {"factor": None},
    "llama3": {
        "factor": None,
        "low_freq_factor": None,
        "high_freq_factor": None,
        "original_max_position_embeddings": None,
    },
    "yarn": {
        "factor": None,
        "original_max_position_embeddings": None,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "attention_factor": None,
        "mscale": None,
        "mscale_all_dim": None,
        "truncate": True,
    },
}
_OPTIONAL = ("attention_factor", "mscale", "mscale_all_dim")


@dataclasses.dataclass(frozen=True)
class Rope:
    """The rotation frequencies of a head's dimension pairs.

    Attributes:
      theta: base of the geometric frequencies.
      kind: kind of scaling; `default` is none. `dynamic` changes the frequencies only beyond the
        model's `max_position_embeddings`, where nothing is decoded here.
      scaling: the kind's parameters by name, in the order of `_FIELDS`.
    """

    theta: float
    kind: str = "default"
    scaling: tuple[tuple[str, Any], ...] = ()

    def __post_init__(self) -> None:
        _check_positive("rope_theta", self.theta)
        for name, value in self.scaling:
            if name != "truncate":
                _check_positive(f"rope {name}", value)
            elif not isinstance(value, bool):
                raise UserError(f"config.json has rope {name}={value!r}; it must be true or false")
        scaling = dict(self.scaling)
        if self.kind == "yarn" and self.theta <= 1:
            raise UserError(f"config.json has rope_theta={self.theta!r}; yarn needs more than 1")
        if self.kind == "llama3" and scaling["low_freq_factor"] >= scaling["high_freq_factor"]:
            raise UserError("config.json has a rope low_freq_factor not below its high_freq_factor")

    @classmethod
    def from_json(cls, json: Mapping[str, Any], default_theta: float | None = None) -> Rope:
        """Reads a Hugging Face config in the layout of transformers 4 or 5.

        Args:
          json: the config.
          default_theta: `rope_theta` of a config that has none; None if it is required.

        Raises:
          UserError: the kind is unknown, or a parameter is missing, unknown or out of range.
        """
        given = json.get("rope_scaling") or json.get("rope_parameters") or {}
        if not isinstance(given, dict):
            raise UserError(f"config.json has rope parameters {given!r}; they must be an object")
        given = {name: value for name, value in given.items() if value is not None}
        kind = given.pop("rope_type", given.pop("type", "default"))
        if not isinstance(kind, str) or kind not in _FIELDS:
            raise UserError(
                f"RoPE scaling {kind!r} is not supported; supported are {', '.join(_FIELDS)}"
            )
        theta = given.pop("rope_theta", json.get("rope_theta", default_theta))
        if theta is None:
            raise UserError("config.json lacks rope_theta")
        part = given.pop("partial_rotary_factor", json.get("partial_rotary_factor"))
        if part not in (None, 1.0):
            raise UserError("RoPE over a part of the head (partial_rotary_factor) is not supported")
        fields = _FIELDS[kind]
        if "original_max_position_embeddings" in fields:
            # As in transformers: first the config's top level, then the scaling parameters, then
            # the model's own length.
            name = "original_max_position_embeddings"
            given[name] = json.get(name, given.get(name, json.get("max_position_embeddings")))
        unknown = sorted(given.keys() - fields.keys())
        if unknown:
            raise UserError(f"RoPE scaling {kind!r} has unknown parameters {', '.join(unknown)}")
        values = {name: given.get(name, default) for name, default in fields.items()}
        values = {
            name: value
            for name, value in values.items()
            if value is not None or name not in _OPTIONAL
        }
        missing = [name for name, value in values.items() if value is None]
        if missing:
            raise UserError(f"RoPE scaling {kind!r} lacks {', '.join(missing)}")
        return cls(theta, kind, tuple(values.items()))

    def to_json(self) -> dict[str, Any]:
        """Returns the config fields that transformers 4 and 5 and the reference read."""
        scaling = None if self.kind == "default" else {"rope_type": self.kind, **dict(self.scaling)}
        return {"rope_theta": self.theta, "rope_scaling": scaling}

    def frequencies(self, head_dim: int) -> np.ndarray:
        """Radians per position, float32 [h / 2]."""
        exponent = np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)
        plain = np.float32(1) / np.float32(self.theta) ** exponent
        scaling = dict(self.scaling)
        if self.kind == "linear":
            return plain / np.float32(scaling["factor"])
        if self.kind == "llama3":
            return _llama3(plain, **scaling)
        if self.kind == "yarn":
            keep = _yarn_kept(head_dim, self.theta, scaling)
            return plain / np.float32(scaling["factor"]) * (1 - keep) + plain * keep
        return plain

    @property
    def amplitude(self) -> float:
        """Factor on sines and cosines; 1 except for `yarn`."""
        if self.kind != "yarn":
            return 1.0
        scaling = dict(self.scaling)
        if "attention_factor" in scaling:
            return scaling["attention_factor"]

        def magnitude(mscale: float = 1.0) -> float:
            factor = scaling["factor"]
            return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0

        if "mscale" in scaling and "mscale_all_dim" in scaling:
            return magnitude(scaling["mscale"]) / magnitude(scaling["mscale_all_dim"])
        return magnitude()

    @property
    def max_positions(self) -> int:
        """Number of positions that `yarn` extends the model to; 0 for the other kinds."""
        if self.kind != "yarn":
            return 0
        scaling = dict(self.scaling)
        return int(scaling["factor"] * scaling["original_max_position_embeddings"])


def rotate(x: jax.Array, positions: jax.Array, rope: Rope) -> jax.Array:
    """Rotates each head's halves, as pairs, by angles proportional to the position, in float32.

    Args:
      x: [B, heads, T, h].
      positions: int32 [B, T].
      rope: frequencies.
    """
    frequency = jnp.asarray(rope.frequencies(x.shape[-1]))
    angle = positions[:, None, :, None].astype(jnp.float32) * frequency[None, None, None]
    cos, sin = jnp.cos(angle) * rope.amplitude, jnp.sin(angle) * rope.amplitude
    x1, x2 = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    return jnp.concatenate([x1 * cos - x2 * sin, x2 * cos + x1 * sin], axis=-1).astype(x.dtype)


def _check_positive(name: str, value: Any) -> None:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not 0 < value < math.inf:
        raise UserError(f"config.json has {name}={value!r}; it must be a positive number")


def _llama3(
    plain: np.ndarray,
    factor: float,
    low_freq_factor: float,
    high_freq_factor: float,
    original_max_position_embeddings: int,
) -> np.ndarray:
    """Divides low frequencies by `factor`, keeps high ones, and interpolates between them."""
    turns = original_max_position_embeddings * plain / (2 * math.pi)
    smooth = np.clip((turns - low_freq_factor) / (high_freq_factor - low_freq_factor), 0, 1)
    return ((1 - smooth) * plain / factor + smooth * plain).astype(np.float32)


def _yarn_kept(head_dim: int, theta: float, scaling: Mapping[str, Any]) -> np.ndarray:
    """Share of each unscaled frequency to keep, from 1 for high frequencies to 0 for low ones."""

    def pair_of(turns: float) -> float:
        """Returns the (fractional) pair that makes `turns` rotations over the original length."""
        length = scaling["original_max_position_embeddings"]
        return head_dim * math.log(length / (turns * 2 * math.pi)) / (2 * math.log(theta))

    first, last = pair_of(scaling["beta_fast"]), pair_of(scaling["beta_slow"])
    if scaling["truncate"]:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, head_dim - 1)
    if first == last:
        last += 0.001  # as in transformers, to avoid a division by 0
    pairs = np.arange(head_dim // 2, dtype=np.float32)
    return (1 - np.clip((pairs - first) / (last - first), 0, 1)).astype(np.float32)
