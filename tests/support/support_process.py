"""Runs the programs beside this file that need more devices than a test's process has."""

from __future__ import annotations

import json
import os
import socket
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


def free_address() -> str:
    """host:port where nothing listens on this machine, for a coordinator that runs on it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{free.getsockname()[1]}"
