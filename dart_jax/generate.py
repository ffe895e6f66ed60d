"""Continue a prompt in the terminal; drafted tokens are coloured.

    dart-jax generate 'def mean(values):'

Without --model or --target, uses SmolLM2 where that is or can be fetched, otherwise the demo model,
which continues Python code. --chat without a message talks turn by turn. The generated text goes to
standard output, statistics to standard error.

Several processes, on one or several hosts, decode together: run the same command for each, with
--mesh, --coordinator, --processes and its own --process-id. Process 0 prints.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import tyro
from rich.console import Console

from dart_jax.errors import UserError
from dart_jax.generation import GenerationConfig
from dart_jax.programs.command_line import parse, program
from dart_jax.programs.model_choice import ModelChoice
from dart_jax.programs.processes import DistributedConfig, initialize, is_main

if TYPE_CHECKING:
    from dart_jax.generation import Completion, Piece, TextGeneration
    from dart_jax.model import DartModel

HELP = "/reset begins anew, /exit or Ctrl-D ends; Ctrl-C stops an answer, or ends between answers"
COMMAND = re.compile(r"/\w+")
DRAFTED, NORMAL = "\x1b[32m", "\x1b[0m"  # green

# Control characters, which could move the cursor or set a title; all except tab and line feed.
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


@dataclasses.dataclass(frozen=True)
class GenerateConfig(ModelChoice):
    """The prompt, the model and the generation options."""

    prompt: Annotated[str, tyro.conf.Positional] = "-"
    """Text to continue; - reads standard input."""
    chat: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Format the prompt as a user message with the target's chat template; without a prompt, talk
    turn by turn. SmolLM2 then has temperature 0.2, top-p 0.9 and repetition penalty 1.1, unless
    --temperature is given."""
    system: str | None = None
    """System message before the prompt; implies --chat."""
    chat_template_kwargs: str = "{}"
    """Arguments of the target's chat template, as JSON: '{"enable_thinking": false}'."""
    use_generation_config: bool = False
    """Sample as the target's generation_config.json says, unless an option says otherwise; one with
    its default value says nothing."""
    generation: tyro.conf.OmitArgPrefixes[GenerationConfig] = GenerationConfig()
    """Length, sampling and draft tree."""
    together: tyro.conf.OmitArgPrefixes[DistributedConfig] = dataclasses.field(
        default_factory=DistributedConfig
    )
    """The processes that decode together, on the devices of --mesh."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.template_kwargs, dict):
            raise UserError("--chat-template-kwargs must be a JSON object")
        if not self.together.several:
            return
        if self.mesh is None:
            raise UserError("processes decode together on the devices of a mesh; pass --mesh")
        if self.model == "auto" and self.target is None:
            raise UserError("processes decode together with one model; pass --model or --target")
        if self.prompt == "-":
            raise UserError(
                "where processes decode together, pass the prompt as an argument of all"
            )

    @property
    def chats(self) -> bool:
        """True if prompts are messages."""
        return self.chat or self.system is not None

    @property
    def template_kwargs(self) -> dict[str, Any]:
        """Arguments of the chat template."""
        try:
            return json.loads(self.chat_template_kwargs)
        except ValueError as error:
            raise UserError(f"--chat-template-kwargs is not valid JSON: {error}") from None


def read_prompt(config: GenerateConfig) -> str:
    """Returns the prompt; reads standard input for "-"."""
    if config.prompt != "-":
        return config.prompt
    try:
        text = "" if sys.stdin.isatty() else sys.stdin.buffer.read().decode()
    except UnicodeDecodeError as error:
        raise UserError(
            f"standard input is not UTF-8 text (byte {error.start + 1}); convert it first"
        ) from None
    if not text:
        stops = config.generation.stop
        place = "; it stands before --stop, which takes all that follows" if stops else ""
        raise UserError(f"no prompt; give one as an argument or through standard input{place}")
    return text


def options(config: GenerateConfig, model: DartModel) -> GenerationConfig:
    """Returns the generation options: those given, on top of the target's own if requested, or of
    those with which chats with a named model begin."""
    if config.use_generation_config:
        own = model.generation_config
    elif config.chats and config.named and config.generation.temperature is None:
        own = GenerationConfig.of(None, config.named.options)
    else:
        return config.generation
    default = GenerationConfig()
    given = {f.name: getattr(config.generation, f.name) for f in dataclasses.fields(default)}
    changes = {name: value for name, value in given.items() if value != getattr(default, name)}
    # A temperature above 0 asks for sampling, and 0 for none, regardless of the file.
    own = dataclasses.replace(own, do_sample=None) if "temperature" in changes else own
    return GenerationConfig.of(own, changes)


def run(
    config: GenerateConfig, out: Console, err: Console, read: Callable[[str], str] | None = None
) -> None:
    """Streams the continuation to `out`, then prints statistics to `err`; or, where `read` reads
    the lines of a user, talks turn by turn. Raises UserError if something cannot be used."""
    talks = config.prompt == "-" and read is not None and config.chats
    text = "" if talks else read_prompt(config)
    model = config.load()
    generation, template = options(config, model), config.template_kwargs

    def answer(stream: TextGeneration) -> None:
        for piece in stream:
            show(piece, out)
        out.print()
        err.print(summary(stream.completion), style="dim", highlight=False, soft_wrap=True)

    if talks and read is not None:
        talk(model, generation, config.system, template, read, answer, err)
        return
    prompt: str | list[dict[str, str]] = text
    if config.chats:
        system = [] if config.system is None else [{"role": "system", "content": config.system}]
        prompt = [*system, {"role": "user", "content": text}]
    answer(model.stream(prompt, generation, chat_template_kwargs=template))


def talk(
    model: DartModel,
    config: GenerationConfig,
    system: str | None,
    template_kwargs: Mapping[str, Any],
    read: Callable[[str], str],
    answer: Callable[[TextGeneration], None],
    err: Console,
) -> None:
    """Talks turn by turn until the user ends it; raises UserError if there is no chat template.

    Args:
      model: the model.
      config: generation options.
      system: system message, if any.
      template_kwargs: arguments of the chat template.
      read: shows a prompt and returns the next line, like `input`; raises EOFError at the end.
      answer: shows an answer while it is generated.
      err: receives notices.
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
        elif COMMAND.fullmatch(line):
            err.print(HELP, style="dim")
        if not line or COMMAND.fullmatch(line):
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
    compiling = completion.seconds["compile"]
    if compiling >= 0.1:
        words.append(f"after compiling for {compiling:.1f} s")
    if completion.drafted.any():
        words.append(f"{completion.drafted.mean():.0%} drafted")
    if completion.steps:
        words.append(f"tau {completion.tau:.2f} over {completion.steps} verifications")
    ends = {"stop": "stopped", "length": "cut at the maximum length", None: "interrupted"}
    return ", ".join([*words, ends[completion.finish]])


def line_reader() -> Callable[[str], str] | None:
    """Returns `input` with line editing, or None unless there is a terminal to talk through."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return None
    with contextlib.suppress(ImportError):  # not on every platform
        import readline  # noqa: F401
    return input


def main(args: Sequence[str] | None = None) -> None:
    """Runs the command line; bad input is reported in one line, with exit status 2."""
    with program():
        config = parse(GenerateConfig, args, __doc__)
        initialize(config.together)
        if config.together.several and not is_main():
            with open(os.devnull, "w") as nothing:
                run(config, Console(file=nothing), Console(file=nothing))
            return
        run(config, Console(highlight=False), Console(stderr=True), line_reader())


if __name__ == "__main__":
    main()
