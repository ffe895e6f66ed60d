"""Runs the HTTP server in a separate process, and asks it as clients do."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import openai
from prometheus_client.parser import text_string_to_metric_families

# Few programs, compiled when they are needed.
QUICK = ("--slots", "4", "--max-length", "512", "--tree-nodes", "2", "--warmup", "none")


class Served(NamedTuple):
    """A running server.

    Attributes:
      address: its URL.
      process: it itself.
      log: the file with what it writes to stderr.
    """

    address: str
    process: subprocess.Popen[str]
    log: Path

    def client(self, **options: Any) -> openai.OpenAI:
        """OpenAI's client, which shows every error at once."""
        options = {"api_key": "none", "max_retries": 0, "timeout": 240} | options
        return openai.OpenAI(base_url=f"{self.address}/v1", **options)

    def get(self, path: str) -> Any:
        """A page as JSON."""
        return json.loads(self.read(path))

    def read(self, path: str) -> str:
        """A page as text; raises `urllib.error.HTTPError`."""
        with urllib.request.urlopen(self.address + path, timeout=240) as page:
            return page.read().decode()

    def metrics(self) -> dict[str, float]:
        """All samples, by name and further labels, without the prefix."""
        metrics_by_name = {}
        for family in text_string_to_metric_families(self.read("/metrics")):
            for sample in family.samples:
                labels = {k: v for k, v in sample.labels.items() if k != "model_name"}
                key = ",".join([sample.name.partition(":")[2], *labels.values()])
                metrics_by_name[key] = sample.value
        return metrics_by_name

    def idle(self) -> bool:
        """Tells whether no request runs or waits."""
        metrics = self.metrics()
        return not (metrics["num_requests_running"] or metrics["num_requests_waiting"])

    def connect(self, sent: bytes) -> socket.socket:
        """A connection over which something has been sent."""
        host, _, port = self.address.removeprefix("http://").partition(":")
        link = socket.create_connection((host, int(port)), timeout=240)
        link.sendall(sent)
        return link

    def ask(self, sent: bytes) -> tuple[int, dict[str, str], bytes]:
        """Sends something and reads up to the end of the connection, which it closes: status,
        headers and body of the answer."""
        with self.connect(sent) as connection:
            return answer_of(connection)


def answer_of(connection: socket.socket) -> tuple[int, dict[str, str], bytes]:
    """Reads a whole answer: status, headers and body."""
    received = b""
    while part := connection.recv(1 << 16):
        received += part
    head, _, body = received.partition(b"\r\n\r\n")
    status, *lines = head.decode().split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in lines)
    return int(status.split()[1]), headers, body


def post(path: str, body: bytes | dict[str, Any], *headers: str) -> bytes:
    """A request, after which the server closes the connection."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"POST {path} HTTP/1.1", "Host: test", "Connection: close", *headers]
    if not any("length" in line.lower() for line in headers):
        lines.append(f"Content-Length: {len(content)}")
    return "\r\n".join([*lines, "", ""]).encode() + content


def wait_until(true: Callable[[], bool], seconds: float = 60) -> None:
    """Waits until something is so."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.01)


@contextlib.contextmanager
def server(*options: str, **environment: str) -> Iterator[Served]:
    """Starts a server with these options on a free port and additional environment variables; of
    the demo, unless they name another."""
    model = () if {"--target", "--model"} & {*options} else ("--model", "demo")
    command = [sys.executable, "-m", "dart_jax.serve", "--port", "0", *model, *options]
    with (
        tempfile.NamedTemporaryFile() as log,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=log, text=True, env=os.environ | environment
        ) as process,
    ):
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line.startswith("dart_jax serves "), line + Path(log.name).read_text()
            yield Served(line.split()[-1], process, Path(log.name))
        finally:
            process.kill()
