"""Rotary position embeddings (RoPE) and the scaling of their frequencies for longer contexts.

Kinds of scaling and formulas are as in Hugging Face configs: `linear`, `dynamic` (NTK), `llama3`
(Llama 3.1), `yarn` (arXiv 2309.00071) and `longrope` (arXiv 2402.13753).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dart_jax.errors import UserError, warn
from dart_jax.models.config_json.fields import check_positive

_LENGTH = "original_max_position_embeddings"
_OPTIONAL = ("attention_factor", "mscale", "mscale_all_dim")
# Parameters of each kind besides `rope_theta`; those with a default may be left out.
_FIELDS: dict[str, dict[str, Any]] = {
    "default": {},
    "linear": {"factor": None},
    "dynamic": {"factor": None},
    "llama3": dict.fromkeys(("factor", "low_freq_factor", "high_freq_factor", _LENGTH)),
    "yarn": {
        **dict.fromkeys(("factor", _LENGTH)),
        **{"beta_fast": 32.0, "beta_slow": 1.0},
        **dict.fromkeys(_OPTIONAL),
        "truncate": True,
    },
    "longrope": dict.fromkeys(
        ("short_factor", "long_factor", _LENGTH, "factor", "attention_factor")
    ),
}


@dataclasses.dataclass(frozen=True)
class Rope:
    """The rotation frequencies of a head's dimension pairs.

    Attributes:
      theta: base of the geometric frequencies.
      kind: kind of scaling; `default` is none. Nothing is decoded beyond the lengths at which
        `dynamic` and `longrope` change the frequencies: cached keys would have other ones.
      scaling: the kind's parameters by name, in the order of `_FIELDS`.
      share: the share of each head's dimensions that is rotated: the first ones.
    """

    theta: float
    kind: str = "default"
    scaling: tuple[tuple[str, Any], ...] = ()
    share: float = 1.0

    def __post_init__(self) -> None:
        check_positive("rope_theta", self.theta)
        check_positive("partial_rotary_factor", self.share)
        if self.share > 1:
            raise UserError(
                f"config.json has partial_rotary_factor={self.share!r}, which is over 1"
            )
        for name, value in self.scaling:
            kind = {"short_factor": tuple, "long_factor": tuple, "truncate": bool}.get(name, object)
            if not isinstance(value, kind):
                expected = "true or false" if kind is bool else "a list"
                raise UserError(f"config.json has rope {name}={value!r}; it must be {expected}")
            if kind is not bool:
                for one in value if kind is tuple else (value,):
                    check_positive(f"rope {name}", one)
        scaling = dict(self.scaling)
        if self.kind == "yarn" and self.theta <= 1:
            raise UserError(f"config.json has rope_theta={self.theta!r}; yarn needs more than 1")
        if self.kind == "llama3" and scaling["low_freq_factor"] >= scaling["high_freq_factor"]:
            raise UserError("config.json has a rope low_freq_factor not below its high_freq_factor")

    @classmethod
    def from_json(
        cls, json: Mapping[str, Any], default_theta: float | None = None, partial: bool = False
    ) -> Rope:
        """Reads a Hugging Face config in the layout of transformers 4 or 5.

        Args:
          json: the config.
          default_theta: `rope_theta` of a config that has none, or None if it is required.
          partial: whether the architecture can rotate a part of each head.

        Raises:
          UserError: the kind is extra, or a parameter is missing or out of range.

        Warns:
          InputWarning: the kind has no such parameter; transformers warns and ignores it, too.
        """
        parameters = json.get("rope_scaling") or json.get("rope_parameters") or {}
        if not isinstance(parameters, dict):
            raise UserError(f"config.json has rope parameters {parameters!r}, not an object")
        # In transformers, an `mscale` of 0 is none.
        parameters = {
            name: value
            for name, value in parameters.items()
            if value is not None and (value or not name.startswith("mscale"))
        }
        kind = parameters.pop("rope_type", parameters.pop("type", "default"))
        if kind in ("su", "yarn") and "short_factor" in parameters:
            kind = "longrope"  # as early files of Phi-3 call it
        if not isinstance(kind, str) or kind not in _FIELDS:
            raise UserError(
                f"RoPE scaling {kind!r} is not supported; supported are {', '.join(_FIELDS)}"
            )
        theta = parameters.pop("rope_theta", json.get("rope_theta", default_theta))
        if theta is None:
            raise UserError("config.json lacks rope_theta")
        part = parameters.pop("partial_rotary_factor", json.get("partial_rotary_factor"))
        part = 1.0 if part is None else part
        if part != 1 and not partial:
            raise UserError("RoPE over a part of the head (partial_rotary_factor) is not supported")
        fields, own = _FIELDS[kind], json.get("max_position_embeddings")
        if _LENGTH in fields:
            # As in transformers: first the config's top level, then the scaling parameters, then
            # the model's own length.
            parameters[_LENGTH] = json.get(_LENGTH, parameters.get(_LENGTH, own))
        if kind == "longrope" and "factor" not in parameters:
            for length in (own, parameters[_LENGTH]):
                check_positive("max_position_embeddings", length)
            parameters["factor"] = own / parameters[_LENGTH]
        if extra := ", ".join(sorted(parameters.keys() - fields.keys())):
            warn(f"RoPE scaling {kind!r} has no parameters {extra}, nor in transformers; not used")
        values = {name: parameters.get(name, default) for name, default in fields.items()}
        values = {n: v for n, v in values.items() if v is not None or n not in _OPTIONAL}
        if missing := ", ".join(name for name, value in values.items() if value is None):
            raise UserError(f"RoPE scaling {kind!r} lacks {missing}")
        values = {n: tuple(v) if isinstance(v, list) else v for n, v in values.items()}
        return cls(theta, kind, tuple(values.items()), part)

    def to_json(self) -> dict[str, Any]:
        """Returns the config fields that transformers 4 and 5 and the reference read."""
        scaling = None if self.kind == "default" else {"rope_type": self.kind, **dict(self.scaling)}
        json: dict[str, Any] = {"rope_theta": self.theta, "rope_scaling": scaling}
        if self.share != 1:
            json["partial_rotary_factor"] = self.share
        if self.kind == "longrope":
            json[_LENGTH] = dict(self.scaling)[_LENGTH]
        return json

    def check(self, head_dim: int) -> None:
        """Raises UserError if heads of this size cannot be rotated."""
        size = self.rotated(head_dim)
        if size < 2 or size % 2:
            raise UserError(f"config.json rotates {size} of {head_dim} dimensions; it must be even")
        for name in ("short_factor", "long_factor"):
            factors = dict(self.scaling).get(name)
            if factors is not None and len(factors) != size // 2:
                raise UserError(
                    f"config.json has {len(factors)} rope {name} values for {size // 2} frequencies"
                )

    def rotated(self, head_dim: int) -> int:
        """Counts the dimensions of a head that are rotated."""
        return int(head_dim * self.share)

    def frequencies(self, head_dim: int) -> np.ndarray:
        """Radians per position of the rotated pairs, float32 [`rotated(h)` / 2]."""
        head_dim = self.rotated(head_dim)
        exponent = np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)
        plain = np.float32(1) / np.float32(self.theta) ** exponent
        scaling = dict(self.scaling)
        if self.kind == "longrope":
            factor = np.asarray(scaling["short_factor"], np.float32)
            return np.float32(1) / (factor * np.float32(self.theta) ** exponent)
        if self.kind == "linear":
            return plain / np.float32(scaling["factor"])
        if self.kind == "llama3":
            return _llama3(plain, **scaling)
        if self.kind == "yarn":
            keep = _yarn_kept(head_dim, self.theta, scaling)
            return plain / np.float32(scaling["factor"]) * (1 - keep) + plain * keep
        return plain

    def rotation(self, positions: jax.Array, head_dim: int) -> tuple[jax.Array, jax.Array]:
        """Cosines and sines of int32 positions [B, T]: float32 [B, T, `rotated(h)` / 2] each."""
        frequency = jnp.asarray(self.frequencies(head_dim))
        angle = positions[:, :, None].astype(jnp.float32) * frequency[None, None]
        return jnp.cos(angle) * self.amplitude, jnp.sin(angle) * self.amplitude

    @property
    def amplitude(self) -> float:
        """Factor on sines and cosines; 1 except for `yarn` and `longrope`."""
        if self.kind not in ("yarn", "longrope"):
            return 1.0
        scaling = dict(self.scaling)
        if "attention_factor" in scaling:
            return scaling["attention_factor"]
        if self.kind == "longrope":
            factor, length = scaling["factor"], scaling[_LENGTH]
            return math.sqrt(1 + math.log(factor) / math.log(length)) if factor > 1 else 1.0

        def magnitude(mscale: float = 1.0) -> float:
            factor = scaling["factor"]
            return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0

        if "mscale" in scaling and "mscale_all_dim" in scaling:
            return magnitude(scaling["mscale"]) / magnitude(scaling["mscale_all_dim"])
        return magnitude()

    def longest(self, max_position_embeddings: int) -> int:
        """Counts the positions that a model with this many can decode: `yarn` adds some, and
        `longrope` is limited to those that have the short factors' frequencies."""
        scaling = dict(self.scaling)
        if self.kind == "yarn":
            return max(max_position_embeddings, int(scaling["factor"] * scaling[_LENGTH]))
        if self.kind == "longrope":
            return min(max_position_embeddings, scaling[_LENGTH])
        return max_position_embeddings


def rotate(x: jax.Array, positions: jax.Array, rope: Rope) -> jax.Array:
    """Rotates each head's halves, as pairs, by angles proportional to the position, in float32.

    Args:
      x: [B, heads, T, h].
      positions: int32 [B, T].
      rope: frequencies, and how many of a head's dimensions to rotate.
    """
    size = rope.rotated(x.shape[-1])
    if size < x.shape[-1]:
        first, rest = jnp.split(x, [size], axis=-1)
        whole = dataclasses.replace(rope, share=1.0)
        return jnp.concatenate([rotate(first, positions, whole), rest], axis=-1)
    cos, sin = (part[:, None] for part in rope.rotation(positions, size))
    x1, x2 = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    return jnp.concatenate([x1 * cos - x2 * sin, x2 * cos + x1 * sin], axis=-1).astype(x.dtype)


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
        length = scaling[_LENGTH]
        return head_dim * math.log(length / (turns * 2 * math.pi)) / (2 * math.log(theta))

    first, last = pair_of(scaling["beta_fast"]), pair_of(scaling["beta_slow"])
    if scaling["truncate"]:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, head_dim - 1)
    if first == last:
        last += 0.001  # as in transformers, to avoid a division by 0
    pairs = np.arange(head_dim // 2, dtype=np.float32)
    return (1 - np.clip((pairs - first) / (last - first), 0, 1)).astype(np.float32)
