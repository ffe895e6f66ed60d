"""A web page that shows how drafting works: colours, speed, a race, draft trees.

    python -m dart_jax.app

Without --target it is the demo model, which continues Python code. Only this machine can open the
page, unless --listen says otherwise.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from dart_jax.app.methods import Methods
from dart_jax.app.service import Service
from dart_jax.errors import UserError, one_line_errors
from dart_jax.model import DEMO, DartModel

if TYPE_CHECKING:
    from dart_jax.app.page import Running


@dataclasses.dataclass(frozen=True)
class AppConfig:
    """Which model, and for whom."""

    target: str | None = None
    """Directory or hub repository of the target; by default the demo model, all of it."""
    drafter: str | None = None
    """Directory or hub repository of a DART drafter, or another that `dart_jax.generate` takes."""
    ngram: str | None = None
    """N-gram file, ours or a .trie of the reference, or owner/name/file of the hub."""
    eagle3: str | None = None
    """Directory or hub repository of an EAGLE-3 drafter, as a further method."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Of weights and activations; auto is float32 on CPU, else bfloat16."""
    revision: str | None = None
    """Branch, tag or commit of the target's repository."""
    listen: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Let other machines open the page. There are no passwords."""
    port: int = 7860
    """Of the page; 0 takes any that is free."""
    max_new_tokens: int = 512
    """Most tokens of an answer that a visitor can ask for."""
    max_length: int = 4096
    """Most tokens of a prompt and its answer; fewer where the target's positions end."""
    visitors: int = 16
    """Most visitors who take turns; each has a cache in the device's memory."""
    queue: int = 48
    """Most visitors who wait to be among them; others are told to come back."""

    def __post_init__(self) -> None:
        if self.target is None and (self.drafter or self.ngram):
            raise UserError("--drafter and --ngram need the --target that they belong to")
        if not 0 <= self.port < 2**16:
            raise UserError(f"--port must be in 0..65535, got {self.port}")


def load(config: AppConfig) -> Methods:
    """The methods whose parts there are."""
    dtype = None if config.dtype == "auto" else config.dtype
    eagle3 = config.eagle3
    if config.target is None:
        base = DartModel.demo(dtype)
        if eagle3 is None and (DEMO / "eagle3").is_dir():
            eagle3 = str(DEMO / "eagle3")
    else:
        base = DartModel.from_pretrained(
            config.target, config.drafter, config.ngram, dtype=dtype, revision=config.revision
        )
    return Methods(base, eagle3)


def start(config: AppConfig) -> Running:
    """Starts the page.

    Raises:
      UserError: Gradio is not installed, the port is taken, or as `DartModel.from_pretrained`.
    """
    if importlib.util.find_spec("gradio") is None:
        raise UserError("the web app needs Gradio: pip install 'dart-jax[app]'")
    # Read when Gradio is imported: nothing is reported to anyone.
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    from dart_jax.app.page import launch

    service = Service(
        load(config),
        most=config.max_new_tokens,
        longest=config.max_length,
        together=config.visitors,
        waiting=config.queue,
    )
    demo = config.target is None
    name = "the demo model" if demo else str(config.target)
    host = "0.0.0.0" if config.listen else "127.0.0.1"
    return launch(service, name, demo=demo, host=host, port=config.port)


def main(args: Sequence[str] | None = None) -> None:
    """Command line: bad input ends in one line and exit status 2."""
    with one_line_errors():
        config = tyro.cli(AppConfig, args=args, prog="python -m dart_jax.app", description=__doc__)
        running = start(config)
        print(f"dart_jax is at {running.address}", flush=True)
        running.wait()


if __name__ == "__main__":
    main()
