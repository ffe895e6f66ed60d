"""Serve a model to OpenAI's clients, many requests at once.

    python -m dart_jax.serve
    python -m dart_jax.serve --replicas 2

Without --model or --target it serves SmolLM2 where that is or can be fetched, otherwise the demo
model, which continues Python code. Only this machine can ask, unless --host says otherwise.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import logging
import os
import signal
import socket
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

import tyro
from rich.console import Console

from dart_jax.decoding.sampling import Sampling
from dart_jax.engine.config import EngineConfig
from dart_jax.engine.thread import AnyEngine, ServedModel
from dart_jax.errors import UserError
from dart_jax.grammar.limits import GrammarLimits
from dart_jax.memory import parse_memory
from dart_jax.programs.command_line import parse, program
from dart_jax.programs.model_choice import ModelChoice
from dart_jax.serve.cluster.options import ClusterOptions

if TYPE_CHECKING:
    from dart_jax.serve.process import Server


@dataclasses.dataclass(frozen=True)
class ServeConfig(ModelChoice):
    """Options of the server."""

    host: str = "127.0.0.1"
    """Address to listen at; 0.0.0.0 lets other machines ask."""
    port: int = 8000
    """Port to listen at; 0 picks a free one, which is printed."""
    api_key: str | None = None
    """Key that clients must send; by default the environment's DART_API_KEY, if it is set."""
    allowed_origins: tuple[str, ...] = ()
    """Origins whose web pages may ask, such as http://localhost:3000, or * for all; by default
    those of this machine, and all where a key is needed."""
    served_model_name: tuple[str, ...] = ()
    """Names by which clients may call the model; the first one is in the answers. By default what
    --model or --target says."""
    generation_config: Literal["auto", "none"] = "auto"
    """Whence requests get temperature, top_k, top_p, min_p and repetition_penalty that they leave
    out: auto takes them from the target's generation_config.json, if it has them, as vLLM does."""
    max_body: str = "8MB"
    """Maximum size of a request's body."""
    stream_interval: float = 0.02
    """Seconds between events of a stream, at least, which then hold all tokens since the last one;
    its first and its last event do not wait."""
    grammar_bytes: str = "64kB"
    """Maximum size of the structure that a request asks for: of its schema, grammar or choices."""
    grammar_seconds: float = 5.0
    """Seconds of a core in which it must be compiled."""
    drain: float = 30.0
    """Seconds that running answers have to finish after SIGTERM or Ctrl-C."""
    log_requests: bool = True
    """Log a line for every request, and one every ten seconds while texts are generated."""
    metrics_names: Literal["dart", "vllm"] = "dart"
    """Beginning of the names of metrics; vllm is for tools that look for vLLM's."""
    serving: tyro.conf.OmitArgPrefixes[EngineConfig] = EngineConfig()
    """Options of the engine, which decodes requests together."""
    cluster: tyro.conf.OmitArgPrefixes[ClusterOptions] = ClusterOptions()
    """Several engines."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.port < 2**16:
            raise UserError(f"--port must be in 0..65535, got {self.port}")
        if not 0 < self.grammar_seconds < float("inf"):
            raise UserError(
                f"--grammar-seconds must be a positive number, got {self.grammar_seconds}"
            )
        for name in ("drain", "stream_interval"):
            value = getattr(self, name)
            if not 0 <= value < float("inf"):
                option = name.replace("_", "-")
                raise UserError(f"--{option} must be 0 or a positive number, got {value}")
        if self.key is not None and not (self.key.isascii() and self.key.strip()):
            raise UserError("--api-key must be visible ASCII characters")
        parse_memory(self.max_body)
        parse_memory(self.grammar_bytes)

    @property
    def grammars(self) -> GrammarLimits:
        """Limits of the structures that requests ask for."""
        return GrammarLimits(parse_memory(self.grammar_bytes), self.grammar_seconds)

    @property
    def key(self) -> str | None:
        """The key that clients must send, if any."""
        return (os.environ.get("DART_API_KEY") or None) if self.api_key is None else self.api_key

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the model; at least one."""
        return self.served_model_name or (self.title,)


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
    from dart_jax.serve.service import Limits, Service

    opened = open_socket(config.host, config.port)
    with console.status("loading the model") as status:

        def progress(message: str) -> None:
            status.update(message)
            if not console.is_terminal:
                console.print(message)

        engine = (
            _cluster(config, progress) if config.cluster.replicas else _engine(config, progress)
        )
    room = engine.statistics()
    console.print(
        f"room for the keys and values of {room.kv_tokens:,} tokens: {room.kv_bytes / 1e6:,.0f} MB "
        "(--kv-memory), on a CPU taken as they are written"
    )
    origins = config.allowed_origins or (("*",) if config.key else ())
    limits = Limits(
        parse_memory(config.max_body),
        config.stream_interval,
        config.key,
        origins,
        config.grammars,
    )
    defaults = _defaults(config, engine.model)
    if defaults:
        values = ", ".join(f"{name} {value}" for name, value in defaults.items())
        console.print(f"by default, as its generation_config.json says: {values}")
    service = Service(engine, config.names, config.title, limits, config.metrics_names, defaults)

    def ready() -> None:
        print(f"dart_jax serves {config.names[0]} at {address_of(opened)}", flush=True)

    return Server(service, config.drain, ready), opened


def _engine(config: ServeConfig, progress: Callable[[str], None]) -> AnyEngine:
    """An engine in this process."""
    from dart_jax.engine.thread import EngineThread

    model = config.load()
    _ = model.tokenizer.chat_template  # imports transformers, for which no request should wait
    defaults: dict[str, Any] = {"temperature": 1.0} | _defaults(config, model)
    return EngineThread(model, config.serving, progress, Sampling(**defaults))


def _defaults(config: ServeConfig, model: ServedModel) -> dict[str, Any]:
    """Options of `Sampling` that clients leave out."""
    from dart_jax.serve.service import sampling_defaults

    if config.generation_config == "none":
        return {}
    return sampling_defaults(model.tokenizer.directory)


def _cluster(config: ServeConfig, progress: Callable[[str], None]) -> AnyEngine:
    """Engines in other processes."""
    from dart_jax.serve.cluster.cluster import Cluster

    names = [field.name for field in dataclasses.fields(ModelChoice)]
    choice = ModelChoice(**{name: getattr(config, name) for name in names}).decided()
    progress(f"starting {config.cluster.replicas} replicas")
    return Cluster(choice, config.serving, config.cluster, config.drain)


def log_to_stderr(requests: bool) -> None:
    """Writes warnings, and lines about requests if they are wanted."""
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.WARNING)
    logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
    for name in ("uvicorn.access", "dart_jax.serve.log", "dart_jax.engine") if requests else ():
        logging.getLogger(name).setLevel(logging.INFO)


def main(args: Sequence[str] | None = None) -> None:
    """Command line: bad input ends in one line and exit status 2."""
    with program():
        config = parse(ServeConfig, args, __doc__)
        # Ends at once while the model is loaded, even as the first process of a container.
        signal.signal(signal.SIGTERM, lambda *_: os._exit(128 + signal.SIGTERM))
        log_to_stderr(config.log_requests)
        server, opened = start(config, Console(stderr=True, highlight=False, soft_wrap=True))
        try:
            server.run([opened])
        finally:
            server.service.close()


if __name__ == "__main__":
    main()
