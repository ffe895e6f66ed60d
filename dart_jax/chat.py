"""A conversation in the terminal, turn by turn: `python -m dart_jax.generate --chat`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rich.console import Console

from dart_jax.errors import UserError
from dart_jax.generation import GenerationConfig, TextGeneration
from dart_jax.model import DartModel

HELP = "/reset begins anew, /exit or Ctrl-D ends; Ctrl-C stops an answer, or ends between answers"


def talk(
    model: DartModel,
    config: GenerationConfig,
    system: str | None,
    template_kwargs: Mapping[str, Any],
    read: Callable[[str], str],
    answer: Callable[[TextGeneration], None],
    err: Console,
) -> None:
    """Talks until the user ends it.

    Args:
      model: its target has a chat template.
      config: generation options.
      system: system message, if any.
      template_kwargs: arguments of the chat template.
      read: shows a prompt and returns the next line, like `input`; raises EOFError at the end.
      answer: shows an answer while it is generated.
      err: receives notices.

    Raises:
      UserError: the target has no chat template.
    """
    begin = [] if system is None else [{"role": "system", "content": system}]
    messages: list[dict[str, str]] = list(begin)
    err.print(HELP, style="dim")
    while True:
        try:
            line = read("> ").strip()
        except EOFError:
            err.print()
            return
        if line == "/exit":
            return
        if line == "/reset":
            messages = list(begin)
            continue
        if not line:
            continue
        turn = [*messages, {"role": "user", "content": line}]
        try:
            generation = model.stream(turn, config, chat_template_kwargs=template_kwargs)
        except UserError as error:
            if len(messages) == len(begin):
                raise  # the model cannot chat at all
            err.print(f"error: {error}; /reset begins anew", markup=False, highlight=False)
            continue
        try:
            answer(generation)
        except KeyboardInterrupt:
            generation.close()
            err.print("\nstopped", style="dim")
        messages = [*turn, {"role": "assistant", "content": generation.completion.text}]
