"""Runs the programs beside this file that need more devices than a test's process has."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any


def on_eight_devices(name: str, *words: str) -> Any:
    """Runs a program on eight virtual devices; returns the JSON that it prints."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8"
    process = subprocess.run(
        [sys.executable, str(Path(__file__).parent / name), *words],
        env={**os.environ, "XLA_FLAGS": flags},
        check=True,
        stdout=subprocess.PIPE,
    )
    return json.loads(process.stdout)
