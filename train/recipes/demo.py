"""Rebuild the demo model from the standard library: tokenizer, target, drafter and n-gram model.

    python -m train.recipes.demo --work build/demo --export dart_jax/demo

The drafter is trained by `train.drafter` in three stages: without pair scores with the recipe
`demo.toml`; pair scores for it with `demo_pairs.toml`; and both further together with
`demo_joint.toml`.

Every stage except the n-gram model keeps its result in the work directory and is not repeated;
training stages resume from their newest checkpoint.
"""

from __future__ import annotations

from collections.abc import Sequence

from dart_jax.programs.command_line import RESUMABLE, parse, program
from train.recipes.config import DemoConfig


def main(args: Sequence[str] | None = None) -> None:
    """Command line. Exit status 2: bad input, reported in one line."""
    with program(RESUMABLE):
        config = parse(DemoConfig, args, __doc__)
        from train.recipes.demo_stages import run

        run(config)


if __name__ == "__main__":
    main()
