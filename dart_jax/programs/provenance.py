"""Reports of measurements: device, versions, command, tables, and the commit of the checkout."""

from __future__ import annotations

import dataclasses
import datetime
import functools
import platform
import shlex
import subprocess
import sys
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from typing import Any

import jax
from rich.table import Table

from dart_jax.machine import available_cores
from dart_jax.programs.command_line import command
from dart_jax.programs.outputs import write_json
from dart_jax.programs.tables import contents

# Of the checkout, or of the installed packages.
_ROOT = Path(__file__).parents[2]

# Options that say where results go.
_OUTPUTS = ("--json", "--plot")


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


def environment_in_words() -> str:
    """Returns the same in a line, which says once what a CPU is called."""
    facts = environment()
    if jax.default_backend() == "cpu":
        del facts["device"]
    return ", ".join(f"{name} {value}" for name, value in facts.items())


def write_report(config: Any, title: str, tables: Iterable[Table], **content: Any) -> None:
    """Writes a program's report to the file of its option --json, if it was given; it has the same
    beginning for all programs. They write it after each setting, with those before it: what was
    measured outlasts an interruption.

    Args:
      config: the program's options, a dataclass.
      title: what was measured.
      tables: the tables that the program prints.
      content: the measurements that they were made from, by name.
    """
    if config.json is None:
        return
    report = {
        "title": title,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": typed_command(),
        "environment": environment(),
        "revision": revision(),
        "tables": [contents(table) for table in tables],
        "config": {name: _portable(value) for name, value in dataclasses.asdict(config).items()},
    }
    write_json(config.json, report | content)


def typed_command() -> str:
    """Returns the command line of this process, without the files that results are written to."""
    words = iter(sys.argv[1:])
    kept = []
    for word in words:
        if word in _OUTPUTS:
            next(words, None)
        elif word.partition("=")[0] not in _OUTPUTS:
            kept.append(word)
    return f"{command()} {shlex.join(kept)}".strip()


def _portable(value: Any) -> Any:
    """Shortens a path below the checkout; what is none stays as it is."""
    if isinstance(value, str | Path):
        return str(value).removeprefix(f"{_ROOT}/")
    return value


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


@functools.cache  # reports are written after each setting
def revision() -> str | None:
    """Returns the git commit of the checkout that the program runs from, with `-dirty` if files are
    modified, or None outside a checkout."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--abbrev=40"]
    try:
        process = subprocess.run([*command, "--dirty"], capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return process.stdout.strip() or None if process.returncode == 0 else None
