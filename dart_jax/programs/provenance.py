"""Provenance of measurements: device, versions, and the commit of the checkout."""

from __future__ import annotations

import dataclasses
import datetime
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

import jax

from dart_jax.machine import available_cores
from dart_jax.programs.outputs import write_json


def environment() -> dict[str, str]:
    """Returns device, processor, platform and package versions, for reports."""
    packages = ("dart-jax", "jax", "jaxlib", "flax", "numpy")
    return {
        "device": f"{jax.devices()[0].device_kind} ({jax.default_backend()})",
        **_accelerator(),
        "cpu": _cpu(),
        "machine": platform.platform(),
        "python": platform.python_version(),
        **{name: metadata.version(name) for name in packages},
    }


def report(config: Any, **content: Any) -> dict[str, Any]:
    """Returns a program's JSON report: how it was made, and what was measured.

    Args:
      config: the program's options, a dataclass.
      content: the measurements, by name.
    """
    return {
        "environment": environment(),
        "revision": revision(),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "config": dataclasses.asdict(config),
        **content,
    }


def write_report(config: Any, **content: Any) -> None:
    """Writes `report` to the file of the program's option --json, if it was given."""
    if config.json is not None:
        write_json(config.json, report(config, **content))


def _cpu() -> str:
    """Returns the processor's name and the number of cores that this process may use."""
    line = _line(Path("/proc/cpuinfo"), "model name")
    name = line.partition(":")[2].strip() or platform.processor() or platform.machine()
    return f"{name} ({available_cores()} cores)"


def _accelerator() -> dict[str, str]:
    """Returns the platform version that JAX reports, such as CUDA's, and the NVIDIA driver's
    version; empty on a CPU."""
    if jax.default_backend() == "cpu":
        return {}
    facts = {"platform": " ".join(jax.devices()[0].client.platform_version.split())}
    driver = _line(Path("/proc/driver/nvidia/version"), "NVRM version:")
    if driver:
        facts["driver"] = " ".join(driver.partition(":")[2].split())
    return facts


def _line(path: Path, begin: str) -> str:
    """Returns a file's first line with this beginning; empty if there is none."""
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError:
        return ""
    return next((line for line in lines if line.startswith(begin)), "")


def revision() -> str | None:
    """Returns the git commit of the checkout that the program runs from, with `-dirty` if files are
    modified; None outside a checkout."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--abbrev=40"]
    try:
        process = subprocess.run([*command, "--dirty"], capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return process.stdout.strip() or None if process.returncode == 0 else None
