"""Serve a model to OpenAI's clients, many requests at once.

    dart-jax serve
    dart-jax serve --replicas 2

Without --model or --target it serves SmolLM2 where that is or can be fetched, otherwise the demo
model, which continues Python code. Only this machine can ask, unless --host says otherwise.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import logging
import logging.handlers
import os
import queue
import signal
import socket
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console

from dart_jax.decoding.options import Sampling
from dart_jax.errors import UserError
from dart_jax.programs.command_line import parse, program
from dart_jax.programs.model_choice import ModelChoice
from dart_jax.serve.config import ServeConfig

if TYPE_CHECKING:
    from dart_jax.engine.thread import AnyEngine
    from dart_jax.serve.process import Server

# Lines of the log that wait to be written; further ones are lost.
_MOST_LINES = 10_000


def start(config: ServeConfig, console: Console) -> tuple[Server, socket.socket]:
    """Loads the model and compiles its programs.

    Args:
      config: the options.
      console: is told how far this is, and the address in the end.

    Raises:
      UserError: a package is missing, the port is taken, or as `DartModel.from_pretrained` and
        `EngineThread`.
    """
    for package in ("prometheus_client", "pydantic", "starlette", "uvicorn"):
        if importlib.util.find_spec(package) is None:
            raise UserError(f"the server needs {package}: pip install 'dart-jax[serve]'")
    from dart_jax.serve.process import Server, address_of, open_socket
    from dart_jax.serve.service import Service

    opened = open_socket(config.host, config.port)
    with console.status("loading the model") as status:

        def progress(message: str) -> None:
            status.update(message)
            if not console.is_terminal:
                console.print(message)

        engine = _cluster(config, progress) if config.cluster.replicas else _one(config, progress)
    room = engine.statistics()
    console.print(
        f"room for the keys and values of {room.kv_tokens:,} tokens: {room.kv_bytes / 1e6:,.0f} MB "
        "(--kv-memory), on a CPU taken as they are written"
    )
    service = Service(engine, config)
    if service.defaults:
        values = ", ".join(f"{name} {value}" for name, value in service.defaults.items())
        console.print(f"by default (--generation-config none for OpenAI's): {values}")

    def ready() -> None:
        print(f"dart_jax serves {config.names[0]} at {address_of(opened)}", flush=True)

    return Server(service, config.drain, ready), opened


def _one(config: ServeConfig, progress: Callable[[str], None]) -> AnyEngine:
    """Returns an engine in this process."""
    from dart_jax.engine.thread import EngineThread

    model = config.load()
    _ = model.tokenizer.chat_template  # imports transformers, for which no request should wait
    defaults: dict[str, Any] = {"temperature": 1.0} | config.defaults(model.tokenizer.directory)
    defaults.pop("max_new_tokens", None)
    return EngineThread(model, config.serving, progress, Sampling(**defaults))


def _cluster(config: ServeConfig, progress: Callable[[str], None]) -> AnyEngine:
    """Engines in other processes."""
    from dart_jax.serve.cluster.cluster import Cluster

    names = [field.name for field in dataclasses.fields(ModelChoice)]
    choice = ModelChoice(**{name: getattr(config, name) for name in names}).decided()
    progress(f"starting {config.cluster.replicas} replicas")
    return Cluster(choice, config.serving, config.cluster, config.drain)


@contextlib.contextmanager
def log_to_stderr(requests: bool) -> Iterator[None]:
    """Writes warnings, and lines about requests if they are wanted, on a thread: a log that nobody
    reads holds up no answer."""
    writer = logging.StreamHandler()
    writer.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    lines: queue.SimpleQueue[logging.LogRecord] = queue.SimpleQueue()
    handler = logging.handlers.QueueHandler(lines)
    handler.addFilter(lambda _: lines.qsize() < _MOST_LINES)
    listener = logging.handlers.QueueListener(lines, writer)
    logging.basicConfig(handlers=[handler], format="%(message)s", level=logging.WARNING)
    logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
    for name in ("uvicorn.access", "dart_jax.serve.log", "dart_jax.engine") if requests else ():
        logging.getLogger(name).setLevel(logging.INFO)
    listener.start()
    try:
        yield
    finally:
        listener.stop()


def main(args: Sequence[str] | None = None) -> None:
    """Command line: bad input ends in one line and exit status 2."""
    with program():
        config = parse(ServeConfig, args, __doc__)
        # Ends at once while the model is loaded, even as the first process of a container.
        signal.signal(signal.SIGTERM, lambda *_: os._exit(128 + signal.SIGTERM))
        with log_to_stderr(not config.no_log_requests):
            server, opened = start(config, Console(stderr=True, highlight=False, soft_wrap=True))
            try:
                server.run([opened])
            finally:
                server.service.close()


if __name__ == "__main__":
    main()
