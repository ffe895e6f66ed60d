"""Plot the metrics of runs: losses, acceptance, learning rate and gradient norm over the steps.

python -m train.plot runs/dart runs/other --out curves.png
"""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

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


# Of each metric, the steps that recorded it and its values.
Curves = dict[str, tuple[list[int], list[float]]]


def read_run(directory: Path) -> Curves:
    """Reads the curves of a run's `metrics.jsonl`, by metric.

    Raises:
      UserError: the file is missing, has fewer than two steps, or is damaged.
    """
    path, curves = directory / "metrics.jsonl", Curves()
    try:
        # The last line may be incomplete: its writer was killed, or is still writing it.
        for line in path.read_bytes().split(b"\n")[:-1]:
            record = json.loads(line)
            step = record.pop("step")
            for name, value in record.items():
                steps, values = curves.setdefault(name, ([], []))
                steps.append(step)
                values.append(float(value))
    except OSError as error:
        raise UserError(
            f"cannot read {path}: {error.strerror}; name a run's directory, as given to it by --out"
        ) from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{path} holds something else than records of steps ({error})") from None
    if "loss" not in curves or len(curves["loss"][0]) < 2:
        raise UserError(f"{path} holds fewer than two steps; wait until the run has done more")
    return curves


def draw(runs: Mapping[str, Curves]) -> Any:
    """Returns a figure of runs by name, with one panel per group of recorded metrics."""
    metrics = set[str]().union(*runs.values())
    panels = {
        "loss, nats": ["loss", "held_out_loss"],
        "agreement with the target": sorted(name for name in metrics if name.startswith("alpha_")),
        "tau": ["tau", "tau_without_ngram"],
        "learning rate": ["lr"],
        "gradient norm": ["grad_norm"],
    }
    panels = {title: names for title, names in panels.items() if metrics & {*names}}
    figure, grid = new_panels(len(panels), columns=3)
    for axes, (title, names) in zip(grid, panels.items(), strict=True):
        for colour, (run, curves) in zip(itertools.cycle(COLOURS), runs.items()):
            labels = {name: f"{run}: {name}" if len(runs) > 1 else name for name in names}
            for place, name in enumerate(names):
                if name in curves:
                    axes.plot(
                        *curves[name],
                        "-" if len(curves[name][0]) == len(curves["loss"][0]) else ".-",
                        color=colour,
                        alpha=1 - 0.75 * place / len(names),
                        linewidth=1,
                        label=labels[name] if place in (0, len(names) - 1) else None,
                    )
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
        save_figure(draw({str(run): read_run(run) for run in config.runs}), config.out)
        print(config.out)


if __name__ == "__main__":
    main()
