"""Continue a prompt in the terminal; drafted tokens are coloured.

    python -m dart_jax.generate 'def mean(values):'

Without --target, uses the demo model, which continues Python code. The generated text goes to
standard output, statistics to standard error.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import tyro
from rich.console import Console

from dart_jax.errors import UserError, one_line_errors
from dart_jax.generation import Completion, GenerationConfig, Piece
from dart_jax.programs.model_choice import ModelChoice

DRAFTED, NORMAL = "\x1b[32m", "\x1b[0m"  # green

# Control characters, which could move the cursor or set a title; all except tab and line feed.
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


@dataclasses.dataclass(frozen=True)
class GenerateConfig(ModelChoice):
    """The prompt, the model and the generation options."""

    prompt: Annotated[str, tyro.conf.Positional] = "-"
    """Text to continue; - reads standard input."""
    chat: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Format the prompt as a user message with the target's chat template."""
    system: str | None = None
    """System message before the prompt; implies --chat."""
    chat_template_kwargs: str = "{}"
    """Arguments of the target's chat template, as JSON: '{"enable_thinking": false}'."""
    generation: tyro.conf.OmitArgPrefixes[GenerationConfig] = GenerationConfig()
    """Generation options."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.template_kwargs, dict):
            raise UserError("--chat-template-kwargs must be a JSON object")

    @property
    def template_kwargs(self) -> dict[str, Any]:
        """Arguments of the chat template."""
        try:
            return json.loads(self.chat_template_kwargs)
        except ValueError as error:
            raise UserError(f"--chat-template-kwargs is not valid JSON: {error}") from None


def prompt_of(config: GenerateConfig) -> str | list[dict[str, Any]]:
    """Returns the prompt as text, or as chat messages; reads standard input for "-"."""
    text = config.prompt
    if text == "-":
        if sys.stdin.isatty():
            raise UserError("no prompt; give one as an argument or through standard input")
        text = sys.stdin.read()
    if not config.chat and config.system is None:
        return text
    system = [] if config.system is None else [{"role": "system", "content": config.system}]
    return [*system, {"role": "user", "content": text}]


def run(config: GenerateConfig, out: Console, err: Console) -> None:
    """Streams the continuation, then prints statistics."""
    prompt = prompt_of(config)
    model = config.load()
    stream = model.stream(prompt, config.generation, chat_template_kwargs=config.template_kwargs)
    # Ctrl-C ends generation; the statistics are still printed.
    with contextlib.suppress(KeyboardInterrupt):
        for piece in stream:
            show(piece, out)
    out.print()
    err.print(summary(stream.completion), style="dim", highlight=False, soft_wrap=True)


def show(piece: Piece, out: Console) -> None:
    """Writes a piece: as is to a file, coloured and without control characters to a terminal."""
    text = str(piece)
    if out.is_terminal:
        text = CONTROL.sub("\ufffd", text)
        if piece.drafted and out.color_system and not out.no_color:
            text = f"{DRAFTED}{text}{NORMAL}"
    out.file.write(text)
    out.file.flush()


def summary(completion: Completion) -> str:
    """Statistics in one line."""
    count = len(completion.tokens)
    words = [f"{count} tokens", f"{completion.tokens_per_second:,.0f} tokens/s"]
    if completion.drafted.any():
        words.append(f"{completion.drafted.mean():.0%} drafted")
    if completion.steps:
        words.append(f"tau {completion.tau:.2f} over {completion.steps} verifications")
    ends = {"stop": "stopped", "length": "cut at the maximum length", None: "interrupted"}
    return ", ".join([*words, ends[completion.finish]])


def main(args: Sequence[str] | None = None) -> None:
    """Runs the command line; bad input is reported in one line, with exit status 2."""
    with one_line_errors():
        prog = "python -m dart_jax.generate"
        config = tyro.cli(GenerateConfig, args=args, prog=prog, description=__doc__)
        run(config, Console(highlight=False), Console(stderr=True))


if __name__ == "__main__":
    main()
