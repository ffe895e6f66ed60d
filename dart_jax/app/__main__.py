"""Serve a chat in the browser that shows how drafting works: coloured tokens, and draft trees.

    dart-jax app

Without --model or --target it uses SmolLM2 where that is or can be fetched, otherwise the demo
model, which continues Python code. Only this machine can open the page, unless --listen is given.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import os
import threading
from collections.abc import Sequence

from dart_jax.errors import UserError, warn
from dart_jax.programs.command_line import parse, program
from dart_jax.programs.model_choice import ModelChoice
from dart_jax.progress import stage


@dataclasses.dataclass(frozen=True)
class AppConfig(ModelChoice):
    """Options of the app."""

    name: str | None = None
    """Name of the model on the page; by default what --model or --target says."""
    listen: bool = False
    """Let other machines open the page. There are no passwords."""
    port: int = 7860
    """Port of the page; 0 picks a free one."""
    tree_nodes: int | None = None
    """Nodes of the draft tree, besides the root; 0 for plain decoding. By default as many as
    pay."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.port < 2**16:
            raise UserError(f"--port must be in 0..65535, got {self.port}")
        if self.name is not None and not self.name.strip():
            raise UserError("--name is empty; leave it out for the model's own name")


def run(config: AppConfig) -> None:
    """Serves the page until Ctrl-C. Raises UserError if Gradio is missing, the port is taken, or as
    `DartModel.from_pretrained`."""
    if importlib.util.find_spec("gradio") is None:
        raise UserError("the web app needs Gradio: pip install 'dart-jax[app]'")
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"  # no usage reports; read at import
    from dart_jax.app.page import served
    from dart_jax.engine.config import EngineConfig
    from dart_jax.engine.thread import EngineThread
    from dart_jax.generation import GenerationConfig

    model = config.load()
    try:  # the temperature decides whether to sample
        own = model.generation_config
        own = dataclasses.replace(own, do_sample=None, temperature=own.sampling.temperature)
    except UserError as error:
        warn(f"{error}; the page begins with greedy decoding")
        own = GenerationConfig()
    named, name, about = config.named, config.name or str(config.target), ""
    if named:
        own = GenerationConfig.of(own, named.options)
        name, about = config.name or named.title[:1].upper() + named.title[1:], named.about
    host = "0.0.0.0" if config.listen else "127.0.0.1"
    options = EngineConfig(slots=4, tree_nodes=config.tree_nodes)
    with stage("preparing the model") as tell:
        engine = EngineThread(model, options, tell, own.sampling)
    page = served(engine, own, name, about, host, config.port)
    with contextlib.closing(engine), page as address:
        print(f"dart_jax is at {address}", flush=True)
        threading.Event().wait()


def main(args: Sequence[str] | None = None) -> None:
    """Runs the command line; bad input ends in one line and exit status 2."""
    with program():
        run(parse(AppConfig, args, __doc__))


if __name__ == "__main__":
    main()
