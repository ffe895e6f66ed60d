"""The settings that a visitor can change."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from dart_jax.app.methods import Methods
from dart_jax.errors import UserError
from dart_jax.generation import GenerationConfig, default_tree

# Minimum and step of the number of new tokens.
LEAST = 8

# Tree sizes; few, since a program is compiled for each.
SIZES = range(4, 65, 4)


@dataclasses.dataclass(frozen=True)
class Settings:
    """The page's controls, in their order.

    Attributes:
      method: its key in `Methods`.
      temperature: 0 always picks the most likely token.
      top_p: as in `GenerationConfig`.
      top_k: as in `GenerationConfig`.
      nodes: nodes of the draft tree.
      max_new_tokens: maximum tokens of an answer.
      seed: seed for sampling.
    """

    method: str
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    nodes: int = 8
    max_new_tokens: int = 128
    seed: int = 0

    @classmethod
    def default(cls, methods: Methods, most: int) -> Settings:
        """Returns the initial settings of the page, with at most `most` new tokens."""
        method = methods.default
        nodes, _ = default_tree(methods[method].model.drafter)
        size = min(SIZES, key=lambda size: abs(size - nodes))
        return cls(method, nodes=size, max_new_tokens=min(cls.max_new_tokens, most))

    @classmethod
    def of(cls, values: Any, methods: Methods, most: int) -> Settings:
        """Validates untrusted settings from a browser.

        Args:
          values: the fields' values, in order; None is the default.
          methods: the methods to choose from.
          most: maximum new tokens of an answer.

        Raises:
          UserError: a value has the wrong type or is out of range.
        """
        default = cls.default(methods, most)
        names = [field.name for field in dataclasses.fields(cls)]
        given = {
            name: value for name, value in zip(names, values, strict=True) if value is not None
        }
        made = dataclasses.replace(default, **given)
        if made.method not in methods:
            raise UserError(f"no method {str(made.method)[:40]!r}; choose another")
        return dataclasses.replace(
            made,
            temperature=_number("temperature", made.temperature, 0, 10),
            top_p=_number("top-p", made.top_p, 0.01, 1),
            top_k=int(_number("top-k", made.top_k, 0, 10**6)),
            nodes=int(_number("tree nodes", made.nodes, SIZES.start, SIZES[-1])),
            max_new_tokens=int(_number("new tokens", made.max_new_tokens, 1, most)),
            seed=int(_number("seed", made.seed, 0, 2**32 - 1)),
        )

    def generation(self, methods: Methods) -> GenerationConfig:
        """Returns the config for `DartModel.stream`."""
        method = methods[self.method]
        # The default search is tuned for the default tree size; it also suits sizes near it.
        _, search = default_tree(method.model.drafter)
        return GenerationConfig(
            max_new_tokens=self.max_new_tokens,
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            seed=self.seed,
            nodes=self.nodes if method.drafts else 0,
            search=search,
        )


def _number(name: str, value: Any, least: float, most: float) -> float:
    """Returns a number, checked against a range."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise UserError(f"{name} must be a number, got {str(value)[:40]!r}")
    if not least <= value <= most:
        raise UserError(f"{name} must be between {least:g} and {most:g}, got {value:g}")
    return value
