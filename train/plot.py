"""Plot the metrics of runs: losses, acceptance, learning rate and gradient norm over the steps.

python -m train.plot runs/dart runs/other --out curves.png
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import tyro

from dart_jax.errors import UserError
from dart_jax.programs.command_line import parse, program
from dart_jax.programs.figures import COLOURS, SMALL, new_panels, note, save_figure
from dart_jax.programs.outputs import check_outputs


@dataclasses.dataclass(frozen=True)
class PlotConfig:
    """The runs to plot, and the output file."""

    runs: tyro.conf.Positional[Annotated[tuple[Path, ...], tyro.conf.arg(metavar="RUN [RUN ...]")]]
    """Directories of runs."""
    out: Path = Path("curves.png")
    """Output file: .png, .pdf or .svg."""


class Curve(NamedTuple):
    """A metric's values, at the steps that recorded it."""

    steps: list[int]
    values: list[float]


class Recorded(NamedTuple):
    """A run's name, for the legend, and its curves by metric."""

    name: str
    curves: dict[str, Curve]


def read_run(directory: Path) -> dict[str, Curve]:
    """Reads the curves of a run's `metrics.jsonl`, by metric.

    Raises:
      UserError: the file is missing, has fewer than two steps, or is damaged.
    """
    path = directory / "metrics.jsonl"
    try:
        lines = path.read_bytes().splitlines(keepends=True)
    except OSError as error:
        raise UserError(
            f"cannot read {path}: {error.strerror}; name a run's directory, as given to it by --out"
        ) from None
    curves: dict[str, Curve] = {}
    for number, line in enumerate(lines, 1):
        if not line.endswith(b"\n"):
            continue  # its writer was killed, or is still writing it
        try:
            record = json.loads(line)
            step = record.pop("step")
            figures = {name: float(value) for name, value in record.items()}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(f"{path}:{number}: not a record of a step ({error})") from None
        for name, value in figures.items():
            steps, values = curves.setdefault(name, Curve([], []))
            steps.append(step)
            values.append(value)
    if "loss" not in curves or len(curves["loss"].steps) < 2:
        raise UserError(f"{path} holds fewer than two steps; wait until the run has done more")
    return curves


def names(runs: Sequence[Path]) -> list[str]:
    """Returns the runs' names: directory names, or whole paths if those are ambiguous."""
    short = [run.resolve().name for run in runs]
    return short if len(set(short)) == len(short) else [str(run) for run in runs]


def draw(runs: Sequence[Recorded]) -> Any:
    """Returns a figure with one panel per group of recorded metrics."""
    metrics = set[str]().union(*(run.curves for run in runs))
    alphas = [f"alpha_{t}" for t in range(1, 1 + sum(m.startswith("alpha_") for m in metrics))]
    panels = {
        "loss, nats": {"loss": "-", "held_out_loss": "o-"},
        "agreement with the target": dict.fromkeys(alphas, ".-"),
        "tau": {"tau": "o-", "tau_without_ngram": "o:"},
        "learning rate": {"lr": "-"},
        "gradient norm": {"grad_norm": "-"},
    }
    panels = {title: styles for title, styles in panels.items() if metrics & styles.keys()}
    figure, grid = new_panels(len(panels), columns=3)
    for axes, (title, styles) in zip(grid, panels.items(), strict=True):
        for number, run in enumerate(runs):
            recorded = [name for name in styles if name in run.curves]
            for place, name in enumerate(recorded):
                label = f"{run.name}: {name}" if len(runs) > 1 else name
                noisy = name in ("loss", "grad_norm")
                # The curves of alpha_t go from light to dark.
                shade = (
                    0.25 + 0.75 * place / max(1, len(recorded) - 1) if "alpha_1" in styles else 1
                )
                axes.plot(
                    *run.curves[name],
                    styles[name],
                    color=COLOURS[number % len(COLOURS)],
                    alpha=0.6 if noisy else shade if "alpha_1" in styles else 1.0,
                    linewidth=0.7 if noisy else 1.3,
                    markersize=3,
                    label=label if place in (0, len(recorded) - 1) else None,
                )
        if "alpha_1" in styles:
            axes.set_ylim(bottom=0)
        axes.set(title=title, xlabel="step")
        axes.legend(fontsize=SMALL)
    note(figure, "Every curve is one run: no error bars.")
    return figure


def main(args: Sequence[str] | None = None) -> None:
    """Runs the command line; bad input ends with a one-line error and exit status 2."""
    with program():
        config = parse(PlotConfig, args, __doc__)
        if not config.runs:
            raise UserError("no runs; pass one or more run directories")
        check_outputs(drawing=config.out, option="--out")
        named = zip(names(config.runs), config.runs, strict=True)
        runs = [Recorded(name, read_run(run)) for name, run in named]
        save_figure(draw(runs), config.out)
        print(config.out)


if __name__ == "__main__":
    main()
