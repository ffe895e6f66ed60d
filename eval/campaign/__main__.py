"""Measure a device: all that a report on it should have, the most valuable first.

    dart-jax campaign --minutes 30 --out build/my-gpu
    dart-jax campaign --cpu --minutes 90 --data-dir benchmarks --out build/my-cpu

Each part is one of the other programs, with its own process, log and report in --out; what is there
already is not measured again. REPORT.md has all tables, and is written after each part. When the
minutes are over, the part that runs is stopped. The models are SmolLM2, which is fetched (93 MB,
and 27 MB of chats to train on), and random weights in the shapes of Qwen3 with an imposed
acceptance. Needs the extras serve and train. With --cpu, the parts are what README.md and
docs/results.md show of SmolLM2 on a CPU; these need the extras serve and peers.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rich.console import Console

from dart_jax.programs.command_line import RESUMABLE, parse, program
from eval.campaign.program import MEASURED, CampaignConfig, run


def main(args: Sequence[str] | None = None) -> None:
    """Command line. Exit status 1: a part failed, or the time ended before all were measured; 2:
    bad input, reported in one line."""
    with program(RESUMABLE):
        config = parse(CampaignConfig, args, __doc__)
        states = run(config, Console())
        print(config.report)
        if any(state != MEASURED for state in states.values()):
            sys.exit(1)


if __name__ == "__main__":
    main()
