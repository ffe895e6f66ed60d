"""Draws what runs recorded: losses, acceptance, learning rate and gradient norm over the steps.

python -m train.plot runs/dart runs/other --out curves.png
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import tyro

from dart_jax.errors import UserError, one_line_errors
from dart_jax.programs.figures import COLOURS, new_figure, save_figure
from dart_jax.programs.outputs import check_outputs


@dataclasses.dataclass(frozen=True)
class PlotConfig:
    """What is drawn, and where to."""

    runs: tyro.conf.Positional[Annotated[tuple[Path, ...], tyro.conf.arg(metavar="RUN [RUN ...]")]]
    """Directories of runs."""
    out: Path = Path("curves.png")
    """The drawing: .png, .pdf or .svg."""


class Curve(NamedTuple):
    """A figure over the steps that have it."""

    steps: list[int]
    values: list[float]


class Recorded(NamedTuple):
    """A run.

    Attributes:
      name: shown.
      curves: by the figures' names.
    """

    name: str
    curves: dict[str, Curve]


def read_run(directory: Path) -> dict[str, Curve]:
    """The curves of a run's `metrics.jsonl`, by the figures' names.

    Raises:
      UserError: there are none, or of fewer than two steps, or the file is damaged.
    """
    path = directory / "metrics.jsonl"
    try:
        lines = path.read_bytes().splitlines(keepends=True)
    except OSError as error:
        raise UserError(
            f"cannot read {path}: {error.strerror}; name the directory that a run was told to "
            "write to with --out"
        ) from None
    curves: dict[str, Curve] = {}
    for number, line in enumerate(lines, 1):
        if not line.endswith(b"\n"):
            continue  # its writer was killed, or writes it just now
        try:
            record = json.loads(line)
            step = record.pop("step")
            figures = {name: float(value) for name, value in record.items()}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(f"{path}:{number}: no record of a step ({error})") from None
        for name, value in figures.items():
            steps, values = curves.setdefault(name, Curve([], []))
            steps.append(step)
            values.append(value)
    if "loss" not in curves or len(curves["loss"].steps) < 2:
        raise UserError(f"{path} holds fewer than two steps; wait until the run has taken more")
    return curves


def names(runs: Sequence[Path]) -> list[str]:
    """Of their directories; the whole paths where these do not tell them apart."""
    short = [run.resolve().name for run in runs]
    return short if len(set(short)) == len(short) else [str(run) for run in runs]


def draw(runs: Sequence[Recorded]) -> Any:
    """A figure with a panel for everything that some run recorded."""
    positions = [f"alpha_{t}" for t in range(1, 1 + max(map(_positions, runs)))]
    panels = {
        "loss, nats": {"loss": "-", "held_out_loss": "o-"},
        "agreement with the target": dict.fromkeys(positions, ".-"),
        "tau": {"tau": "o-", "tau_without_ngram": "o:"},
        "learning rate": {"lr": "-"},
        "gradient norm": {"grad_norm": "-"},
    }
    there = set[str]().union(*(run.curves for run in runs))
    panels = {title: styles for title, styles in panels.items() if there & styles.keys()}
    figure = new_figure(4.6 * min(3, len(panels)), 3.4 * (1 + (len(panels) > 3)))
    grid = figure.subplots(1 + (len(panels) > 3), min(3, len(panels)), squeeze=False)
    for axes, (title, styles) in zip(grid.flat, panels.items(), strict=False):
        for number, run in enumerate(runs):
            colour = COLOURS[number % len(COLOURS)]
            _draw_curves(axes, run, styles, colour, several=len(runs) > 1)
        axes.set(title=title, xlabel="step")
        axes.legend(fontsize="x-small")
    for axes in grid.flat[len(panels) :]:
        axes.remove()
    return figure


def _draw_curves(
    axes: Any, run: Recorded, styles: dict[str, str], colour: str, *, several: bool
) -> None:
    """One panel's curves of a run; many of them go from light to dark."""
    found = [name for name in styles if name in run.curves]
    agreement = "alpha_1" in styles
    for place, name in enumerate(found):
        steps, values = run.curves[name]
        shade = 0.25 + 0.75 * place / max(1, len(found) - 1) if agreement else 1.0
        label = f"{run.name}: {name}" if several else name
        wide = name in ("loss", "grad_norm")
        axes.plot(
            steps,
            values,
            styles[name],
            color=colour,
            alpha=0.6 if wide else shade,
            linewidth=0.7 if wide else 1.3,
            markersize=3,
            label=label if place in (0, len(found) - 1) else None,
        )
    if agreement:
        axes.set_ylim(0, 1)


def _positions(run: Recorded) -> int:
    """How many positions a run's drafter has, as far as it was evaluated."""
    return sum(name.startswith("alpha_") for name in run.curves)


def main(args: Sequence[str] | None = None) -> None:
    """Command line: bad input ends in one line and exit status 2."""
    with one_line_errors():
        config = tyro.cli(PlotConfig, args=args, description=__doc__)
        if not config.runs:
            raise UserError("no run; pass the directories of one or more")
        check_outputs(drawing=config.out, option="--out")
        named = zip(names(config.runs), config.runs, strict=True)
        runs = [Recorded(name, read_run(run)) for name, run in named]
        save_figure(draw(runs), config.out)
        print(config.out)


if __name__ == "__main__":
    main(sys.argv[1:])
