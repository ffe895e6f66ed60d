"""Train drafters and count n-grams for SmolLM2-135M-Instruct, in a given time.

    python -m train.recipes.smollm2 --minutes 60 --export build/drafters

The target, fetched once, answers questions of ShareGPT and those of --data, greedily and sampled,
turn by turn. From its answers n-grams are counted and drafters trained: DART's, with the recipe
`smollm2.toml`; in the same time DSpark's, with `smollm2_dspark.toml`, and EAGLE-3's, with
`smollm2_eagle3.toml`; and pair scores for DART's with `smollm2_pairs.toml`. A laptop's night, an
hour of Colab and ten minutes of a large GPU are the same command with other --minutes.

--export receives `drafter` (DART, with the pair scores), `dspark`, `eagle3`, `ngram.dng`. Each is
written as soon as it is made. The same command goes on where it stopped.
"""

from __future__ import annotations

from collections.abc import Sequence

from dart_jax.programs.command_line import RESUMABLE, parse, program
from train.recipes.config import SmolLM2Config


def main(args: Sequence[str] | None = None) -> None:
    """Command line. Exit status 2: bad input, reported in one line."""
    with program(RESUMABLE):
        config = parse(SmolLM2Config, args, __doc__)
        from train.recipes.smollm2_stages import run

        run(config)


if __name__ == "__main__":
    main()
