"""Options of the server."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any, Literal

import tyro

from dart_jax.decoding.options import Sampling
from dart_jax.engine.config import EngineConfig
from dart_jax.errors import UserError
from dart_jax.grammar.limits import GrammarLimits
from dart_jax.memory import parse_memory
from dart_jax.programs.command_line import check_least
from dart_jax.programs.model_choice import ModelChoice
from dart_jax.serve.cluster.options import ClusterOptions
from dart_jax.weights.generation_file import FILE, read_options


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
    """Origins whose web pages may ask, such as http://localhost:3000, or * for all; by default this
    machine's, and all where a key is needed."""
    served_model_name: tuple[str, ...] = ()
    """Names by which clients may call the model; the first one is in the answers. By default what
    --model or --target says."""
    generation_config: Literal["auto", "none"] = "auto"
    """Whence requests get temperature, top_k, top_p, min_p, repetition_penalty and, in chats,
    max_tokens that they leave out: auto takes them from the target's generation_config.json, if it
    has them, as vLLM does, and for smollm2 those of `generate --chat`."""
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
    no_log_requests: bool = False
    """Do not log a line for every request, one for every answer of the model, and one every ten
    seconds while texts are generated."""
    metrics_names: Literal["dart", "vllm"] = "dart"
    """Beginning of the names of metrics; vllm is for tools that look for vLLM's."""
    serving: tyro.conf.OmitArgPrefixes[EngineConfig] = EngineConfig()
    """Options of the engine, which decodes requests together."""
    cluster: tyro.conf.OmitArgPrefixes[ClusterOptions] = ClusterOptions()
    """Several engines."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_least(self, port=0, drain=0, stream_interval=0, grammar_seconds=1e-3)
        if self.port >= 2**16:
            raise UserError(f"--port must be in 0..65535, got {self.port}")
        if self.key is not None and not (self.key.isascii() and self.key.strip()):
            raise UserError("--api-key must be visible ASCII characters")
        _ = parse_memory(self.max_body), self.grammars

    @property
    def grammars(self) -> GrammarLimits:
        """Limits of the structures that requests ask for."""
        return GrammarLimits(parse_memory(self.grammar_bytes), self.grammar_seconds)

    @property
    def key(self) -> str | None:
        """The key that clients must send, if any."""
        return (os.environ.get("DART_API_KEY") or None) if self.api_key is None else self.api_key

    @property
    def origins(self) -> tuple[str, ...]:
        """Origins whose web pages may ask; "*" for all, none for this machine's."""
        return self.allowed_origins or (("*",) if self.key else ())

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the model; at least one."""
        return self.served_model_name or (self.title,)

    def defaults(self, directory: Path | None) -> dict[str, Any]:
        """Returns what requests may leave out, as a target's directory has it: options of
        `Sampling`, and max_new_tokens. Raises UserError if its file is damaged, or a value is out
        of range."""
        if self.generation_config == "none":
            return {}
        options = {**(self.named.options if self.named else {}), **(read_options(directory) or {})}
        names = [field.name for field in dataclasses.fields(Sampling)]
        found = {name: options[name] for name in names if options.get(name) is not None}
        most = options.get("max_new_tokens")
        try:
            Sampling(**found)
            if most is not None and (type(most) is not int or most < 1):
                raise UserError(f"max_new_tokens must be an integer of at least 1, got {most!r}")
        except (UserError, TypeError) as error:
            message = f"{FILE}: {error}; mend it, or use --generation-config none"
            raise UserError(message) from None
        return found if most is None else {**found, "max_new_tokens": most}
