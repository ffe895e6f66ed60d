"""The settings that a visitor can change."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from dart_jax.app.methods import Method
from dart_jax.decoding.sampling import Sampling
from dart_jax.engine.request import Request
from dart_jax.errors import UserError

# Minimum and step of the number of new tokens.
LEAST = 8


class Field(NamedTuple):
    """A number that a visitor can set.

    Attributes:
      label: its name on the page, also in messages.
      least: the smallest value.
      most: the largest value.
      step: distance of neighbouring values on the page.
      hint: a short explanation.
    """

    label: str
    least: float
    most: float
    step: float
    hint: str = ""

    def check(self, value: Any) -> Any:
        """Returns an untrusted value; raises UserError if it is not such a number."""
        whole = self.step >= 1
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if number and self.least <= value <= self.most and (value % 1 == 0 or not whole):
            return int(value) if whole else value
        kind = "a whole number" if whole else "a number"
        raise UserError(
            f"{self.label} must be {kind} from {self.least:,} to {self.most:,}, got "
            f"{str(value)[:40]!r}"
        )


def fields(most: int) -> dict[str, Field]:
    """Returns the fields of `Settings` that are numbers, with at most `most` new tokens."""
    return {
        "temperature": Field("Temperature", 0, 2, 0.05, "0 is greedy decoding"),
        "top_p": Field("Top-p", 0.05, 1, 0.05, "1 for all"),
        "top_k": Field("Top-k", 0, 200, 1, "0 for all"),
        "tree_nodes": Field("Tree nodes", 0, 64, 4, "0 for as many as pay"),
        "max_new_tokens": Field("Maximum new tokens", LEAST, most, LEAST),
        "seed": Field("Seed", 0, 2**32 - 1, 1, f"for sampling; 0 to {2**32 - 1:,}"),
    }


@dataclasses.dataclass(frozen=True)
class Settings:
    """The page's controls, in their order.

    Attributes:
      method: its key in `methods`.
      temperature: 0 always picks the most likely token.
      top_p: as in `GenerationConfig`.
      top_k: as in `GenerationConfig`.
      tree_nodes: nodes of the draft trees; 0 for trees whose size changes.
      max_new_tokens: maximum tokens of an answer.
      seed: seed for sampling.
    """

    method: str
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    tree_nodes: int = 0
    max_new_tokens: int = 128
    seed: int = 0

    @classmethod
    def of(cls, values: Any, methods: Mapping[str, Method], most: int) -> Settings:
        """Validates untrusted settings from a browser.

        Args:
          values: the fields' values, in order.
          methods: the methods to choose from.
          most: maximum new tokens of an answer.

        Raises:
          UserError: a value has the wrong type or is out of range.
        """
        method, *numbers = values
        if method not in list(methods):
            titles = ", ".join(method.title for method in methods.values())
            raise UserError(f"Method must be one of {titles}, got {str(method)[:40]!r}")
        checks = zip(fields(most).values(), numbers, strict=True)
        return cls(method, *(field.check(number) for field, number in checks))

    def request(self, tokens: np.ndarray, stop_ids: tuple[int, ...]) -> Request:
        """Returns the engine's request to continue a prompt, int [n], until one of these ids."""
        return Request(
            tokens.astype(np.int32),
            self.max_new_tokens,
            Sampling(self.temperature, self.top_k, self.top_p),
            seed=self.seed,
            stop_ids=stop_ids,
            method=self.method,
            tree_nodes=self.tree_nodes or None,
            drafts=True,
        )
