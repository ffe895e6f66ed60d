"""What programs leave for a reader: where figures come from, JSON and drawings."""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

import jax

from dart_jax.errors import UserError
from dart_jax.files import atomic_path, write_atomically
from train.disk import writing

# Told apart by everyone, in grey too.
COLOURS = ("#4477aa", "#ee6677", "#228833", "#aa3377", "#66ccee", "#ccbb44", "#bbbbbb")
_DRAWN = (".png", ".pdf", ".svg")


def environment() -> dict[str, str]:
    """What a reader needs to know about where the figures come from."""
    packages = ("dart-jax", "jax", "jaxlib", "flax", "numpy")
    return {
        "device": f"{jax.devices()[0].device_kind} ({jax.default_backend()})",
        **_accelerator(),
        "cpu": _cpu(),
        "machine": platform.platform(),
        "python": platform.python_version(),
        **{name: metadata.version(name) for name in packages},
    }


def _cpu() -> str:
    """The processor's name and the cores that this process may use."""
    told, cores = _line(Path("/proc/cpuinfo"), "model name"), os.cpu_count()
    name = told.partition(":")[2].strip() or platform.processor() or platform.machine()
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    return f"{name} ({cores} cores)"


def _accelerator() -> dict[str, str]:
    """What JAX tells of the libraries behind a device, such as CUDA's version, and the driver of
    NVIDIA's; nothing on a CPU."""
    if jax.default_backend() == "cpu":
        return {}
    told = {"platform": " ".join(jax.devices()[0].client.platform_version.split())}
    driver = _line(Path("/proc/driver/nvidia/version"), "NVRM version:")
    if driver:
        told["driver"] = " ".join(driver.partition(":")[2].split())
    return told


def _line(path: Path, begin: str) -> str:
    """A file's first line that begins so; empty where there is none."""
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError:
        return ""
    return next((line for line in lines if line.startswith(begin)), "")


def revision() -> str | None:
    """The git commit of the checkout that the program runs from, `-dirty` where files differ from
    it; None outside of one."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--abbrev=40"]
    try:
        done = subprocess.run([*command, "--dirty"], capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None


def check_outputs(*texts: Path | None, drawing: Path | None = None, option: str = "--plot") -> None:
    """Raises UserError before anything is measured if the reports could not be written.

    Args:
      texts: files of the reports that are asked for.
      drawing: file of a drawing, if one is asked for.
      option: that names the drawing, for errors.
    """
    for path in filter(None, (*texts, drawing)):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"cannot write {path}: {error.strerror}") from None
        if path.is_dir() or not os.access(path.parent, os.W_OK):
            raise UserError(f"cannot write {path}")
    if drawing and drawing.suffix not in _DRAWN:
        raise UserError(f"{option} writes .png, .pdf or .svg, not {drawing.name!r}")
    if drawing and importlib.util.find_spec("matplotlib") is None:
        raise UserError(f"{option} needs matplotlib: pip install 'dart-jax[plot]'")


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Writes a report atomically."""
    with writing("a report", path.parent):
        write_atomically(path, (json.dumps(content, indent=2, default=str) + "\n").encode())


def write_text(path: Path, text: str) -> None:
    """Writes a report for people atomically."""
    with writing("a report", path.parent):
        write_atomically(path, text.encode())


def new_figure(width: float, height: float) -> Any:
    """An empty figure of so many inches; needs matplotlib, but no screen."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def save_figure(figure: Any, path: Path) -> None:
    """Writes a drawing in the format that its name ends with."""
    with writing("a drawing", path.parent), atomic_path(path) as part:
        figure.savefig(part, dpi=150, format=path.suffix[1:])
