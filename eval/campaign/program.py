"""Measure a new device: everything that matters, in order of value, within a time.

    python -m eval.campaign --minutes 9
    python -m eval.campaign --minutes 9 --resume campaign-2026-01-31
    python -m eval.campaign --list

Each part is a run of another program in a process of its own. Its reports are written as soon as it
is done, and summary.md with them, so an interrupted campaign keeps what it has; --resume goes on
with it. A part starts only if the time that is left can suffice; the others are listed as not run.
"""

from __future__ import annotations

import dataclasses
import datetime
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from dart_jax.errors import UserError
from dart_jax.programs.command_line import did_you_mean, parse, program
from dart_jax.programs.outputs import write_json
from dart_jax.programs.provenance import revision
from dart_jax.progress import stage
from eval.campaign.device import check_device
from eval.campaign.parts import Part, parts, tiny_parts
from eval.campaign.report import read_outcomes, write_report
from eval.campaign.runner import Outcome, run_part


@dataclasses.dataclass(frozen=True)
class CampaignConfig:
    """What to measure, and for how long."""

    minutes: float = 9.0
    """Time for everything."""
    out: Path | None = None
    """Directory of the results; by default campaign-DATE here."""
    resume: Path | None = None
    """Directory of an earlier campaign of the same revision: go on with it, and run again what
    failed."""
    parts: tuple[str, ...] = ()
    """Run only these parts (--list names them)."""
    demo: bool = False
    """At the end, train the demo model with the time that is left (at least 10 minutes)."""
    tiny: bool = False
    """Sizes for any machine, to try the campaign."""
    list: bool = False
    """Print the parts, their commands and the time they need at least, and run nothing."""
    device: bool = False
    """Only check the device."""
    json: Path | None = None
    """With --device: write the result to this file."""

    def __post_init__(self) -> None:
        if not self.minutes > 0:
            raise UserError(f"--minutes must be more than 0, got {self.minutes}")
        if self.resume is not None and self.out is not None:
            raise UserError("--resume names the directory; leave --out out")
        if self.resume is not None and not (self.resume / "summary.json").is_file():
            raise UserError(f"--resume {self.resume}: there is no campaign (no summary.json)")
        if self.json is not None and not self.device:
            raise UserError("--json needs --device; a campaign's results go to --out")
        names = [part.name for part in self.all_parts]
        for name in self.parts:
            if name not in names:
                raise UserError(f"no part {name!r}{did_you_mean(name, names)} (--list names all)")

    @property
    def all_parts(self) -> tuple[Part, ...]:
        """All parts, chosen or not."""
        return tiny_parts() if self.tiny else parts(self.demo)

    @property
    def chosen(self) -> tuple[Part, ...]:
        """The parts to run, in order."""
        return tuple(p for p in self.all_parts if not self.parts or p.name in self.parts)

    @property
    def directory(self) -> Path:
        """Where the results go."""
        today = datetime.date.today().isoformat()
        return self.resume or self.out or Path(f"campaign-{today}")


def run(config: CampaignConfig, console: Console) -> dict[str, Outcome]:
    """Runs the parts that the time suffices for.

    Returns:
      The outcomes, those of a resumed campaign included.

    Raises:
      UserError: the results cannot be written, or --out holds another campaign.
    """
    directory, end = config.directory, time.monotonic() + 60 * config.minutes
    if config.resume is None and (directory / "summary.json").exists():
        raise UserError(f"{directory} holds a campaign; pass --resume {directory} or another --out")
    facts = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "revision": revision(),
        "tiny": config.tiny,
    }
    outcomes = read_outcomes(directory, facts) if config.resume else {}
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot make {directory}: {error.strerror}") from None
    write_report(directory, facts, config.chosen, outcomes)
    for part in config.chosen:
        left = end - time.monotonic()
        if part.name in outcomes:
            console.print(f"{part.name}: done before")
            continue
        if left < part.least:
            console.print(f"{part.name}: not run, needs {part.least} s of the {left:.0f} s left")
            continue
        with stage(f"{part.name}: {part.why} ({left:.0f} s left)", console):
            outcome = outcomes[part.name] = run_part(part, directory / part.name, left)
        write_report(directory, facts, config.chosen, outcomes)
        said = f": {outcome.message}" if outcome.message else ""
        console.print(f"{part.name}: {outcome.state} after {outcome.seconds:.0f} s{said}")
        if part.name == "device" and outcome.state == "failed":
            break
    console.print(f"results: {directory / 'summary.md'}")
    return outcomes


def main(args: Sequence[str] | None = None) -> None:
    """Command line. Exit status 1: a part failed; 2: bad input, reported in one line."""
    with program():
        config = parse(CampaignConfig, args, __doc__)
        console = Console(soft_wrap=True)
        if config.device:
            found = check_device()
            if config.json:
                write_json(config.json, found)
            console.print_json(data=found)
        elif config.list:
            for part in config.chosen:
                console.print(f"{part.name} ({part.why}; {part.least} s)\n    {part.command}")
        elif any(each.state == "failed" for each in run(config, console).values()):
            raise SystemExit(1)
