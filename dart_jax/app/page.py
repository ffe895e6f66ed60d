"""The page: its layout and its buttons."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gradio as gr
from gradio.components import Component
from gradio.themes import Base, Default

from dart_jax.app import answer, markup, race, step_view
from dart_jax.app.tree_picture import STYLE as TREE_STYLE
from dart_jax.data.messages import alternating, cleaned
from dart_jax.decoding.drafting import drafter_title
from dart_jax.decoding.search.config import SearchConfig
from dart_jax.engine.defaults import default_search
from dart_jax.errors import UserError, warn
from dart_jax.generation import Completion, GenerationConfig, Step
from dart_jax.model import DartModel

STYLE = Path(__file__).with_name("style.css")

# The demo's target was trained on Python; these functions are from held-out modules.
CODE = (
    'def heappush(heap, item):\n    """Push item onto heap."""\n',
    'def mean(values):\n    """Return the arithmetic mean of a list of numbers."""\n',
    "class Stack:\n    def __init__(self):\n",
)
QUESTIONS = (
    "Name the first ten prime numbers.",
    "Explain speculative decoding to a child.",
    "Write a Python function that merges two sorted lists.",
)

NOTHING = markup.note("Write something, or choose an example.")

# The visitor's system fonts: nothing is loaded from other hosts.
_FONT = ("system-ui", "-apple-system", "Segoe UI", "Roboto", "sans-serif")
_MONO = ("ui-monospace", "Menlo", "Consolas", "monospace")

_REFRESH = 0.08  # seconds between updates of the page
_CHARACTERS = 100_000  # of a prompt, at most
_QUEUE = 48  # answers that wait, at most
_LONGEST = 4096  # new tokens, at most

# Name of an option of sampling -> label, hint, least, most, step.
_SAMPLING = {
    "temperature": ("Temperature", "0 is greedy decoding", 0, 2, 0.05),
    "top_p": ("Top-p", "1 for all", 0.05, 1, 0.05),
    "top_k": ("Top-k", "0 for all", 0, 200, 1),
    "min_p": ("Min-p", "0 for all", 0, 1, 0.05),
    "repetition_penalty": ("Repetition penalty", "1 for none", 0.5, 2, 0.05),
}
_NUMBERS = ("max_new_tokens", *_SAMPLING, "seed", "tree_nodes")


@dataclasses.dataclass
class Visit:
    """The conversation in one tab of a browser.

    Attributes:
      turns: prompts and answers, in turn.
      html: the same, drawn, an entry for each pair.
      steps: the steps of the last answer after the first one, which has nothing to verify.
      model: the one that wrote it.
      search: the parameters of its tree search.
    """

    turns: list[str] = dataclasses.field(default_factory=list)
    html: list[str] = dataclasses.field(default_factory=list)
    steps: list[Step] = dataclasses.field(default_factory=list)
    model: DartModel | None = None
    search: SearchConfig = SearchConfig()

    @property
    def drafts(self) -> bool:
        """True if something was drafted for the last answer."""
        return any(step.draft is not None for step in self.steps)


class Page:
    """The page of a model, which Gradio's queue lets one visitor after the other use.

    Attributes:
      own: how the target samples by its `generation_config.json`, with which the page begins.
    """

    def __init__(self, model: DartModel):
        """Takes the model, which a visitor can also let decode plainly."""
        self._models = {"plain decoding": model.with_drafter(None)}
        if model.drafter is not None:
            self._models = {drafter_title(model.drafter): model, **self._models}
        self._chat = bool(model.tokenizer.chat_template)
        self._options = _own_options(model)
        self.own = self._options.sampling
        self._longest = min(_LONGEST, model.target.max_length)

    def blocks(self, name: str) -> gr.Blocks:
        """Builds the Gradio app; `name` is the model's."""
        chat, (first, *others) = self._chat, self._models
        line = f"Drafted by {first}." if others else "Decoded plainly: there is no drafter."
        line += "" if chat else " It continues your text; it does not chat."
        with gr.Blocks(title=name, analytics_enabled=False) as blocks:
            visit = gr.State(Visit())
            gr.HTML(f"<h1>{markup.escape(name)}</h1>{markup.note(line)}")
            with gr.Row():
                with gr.Column(scale=3, min_width=320):
                    with gr.Tab("Chat" if chat else "Text"):
                        gr.Radio(
                            ["Markdown", "Tokens"],
                            value="Markdown",
                            visible=bool(chat and others),
                            show_label=False,
                            container=False,
                            interactive=True,  # style.css reads it
                            elem_id="view",
                        )
                        # The outer column scrolls and stays at its end while the inner one grows.
                        with gr.Column(elem_id="answers"), gr.Column():
                            answers = gr.HTML(
                                NOTHING,
                                elem_classes=["chat"] if chat else [],
                                js_on_load=answer.COPYING,
                            )
                    with gr.Tab("Draft tree", visible=bool(others)):
                        label = "Step of the last answer"
                        number = gr.Slider(
                            1, 2, 1, step=1, label=label, visible=False, elem_id="step"
                        )
                        tree = gr.HTML(step_view.NOTHING, elem_id="tree")
                    with gr.Tab("Race", visible=bool(others)):
                        start = gr.Button("Race", elem_id="start")
                        track = gr.HTML(race.NOTHING, elem_id="track")
                    prompt = gr.Textbox(
                        label="Your message" if chat else "Text to continue",
                        info="Enter sends, Shift+Enter begins a new line.",
                        lines=1,
                        max_lines=12,
                        max_length=_CHARACTERS,
                        autofocus=True,
                        elem_id="prompt",
                    )
                    with gr.Row():
                        send = gr.Button("Send", variant="primary", elem_id="send", min_width=90)
                        stop = gr.Button("Stop", elem_id="stop", min_width=90)
                        clear = gr.Button("Clear", elem_id="clear", min_width=90)
                    gr.Examples([[text] for text in (QUESTIONS if chat else CODE)], prompt)
                with gr.Column(scale=1, min_width=320):
                    settings = self._settings()

            private: dict[str, Any] = {"api_visibility": "private"}
            quiet = {"show_progress": "hidden", "concurrency_limit": None, **private}
            busy = {"concurrency_id": "model", **private}  # one at a time
            writing = gr.on(
                [send.click, prompt.submit],
                self.write,
                [visit, prompt, *settings],
                [visit, answers, prompt],
                show_progress="hidden",
                **busy,
            )
            racing = start.click(
                self.race, [visit, *settings[1:]], track, show_progress="hidden", **busy
            )
            running: list[Any] = [writing, racing]
            stopping = stop.click(lambda: None, cancels=running, **quiet)
            clearing = clear.click(
                lambda: (Visit(), NOTHING), None, [visit, answers], cancels=running, **quiet
            )
            for event in (writing.then, stopping.then, clearing.then):
                event(_newest, visit, [number, tree, track], **quiet)
            number.change(_picture, [visit, number], tree, trigger_mode="always_last", **quiet)
        return blocks

    def _settings(self) -> list[Component]:
        """Draws the inputs of `write` after the prompt, in their order."""
        first, *others = self._models
        settings: list[Component] = [
            gr.Radio(
                [first, *others],
                value=first,
                label="Method",
                visible=bool(others),
                elem_id="method",
            ),
            gr.Textbox(
                label="System prompt",
                placeholder="The chat template's own",
                lines=1,
                max_lines=12,
                max_length=_CHARACTERS,
                visible=self._chat,
                elem_id="system",
            ),
            gr.Slider(
                8,
                self._longest,
                min(512 if self._chat else 128, self._longest),
                step=1,
                precision=0,
                label="Maximum new tokens",
                elem_id="max_new_tokens",
            ),
        ]
        own = dataclasses.asdict(self.own)
        with gr.Accordion("Sampling", open=False, elem_id="sampling"):
            for option, (label, hint, least, most, step) in _SAMPLING.items():
                settings.append(
                    gr.Slider(
                        min(least, own[option]),
                        max(most, own[option]),
                        own[option],
                        step=step,
                        precision=0 if step >= 1 else None,
                        label=label,
                        info=hint,
                        elem_id=option,
                    )
                )
            settings.append(gr.Number(0, label="Seed", precision=0, elem_id="seed"))
        settings.append(
            gr.Slider(
                0,
                64,
                0,
                step=4,
                precision=0,
                label="Tree nodes",
                info="0 for as many as pay",
                visible=bool(others),
                elem_id="tree_nodes",
            )
        )
        return settings

    def write(
        self, visit: Visit, prompt: str, method: str, system: str, *numbers: float | None
    ) -> Iterator[tuple[Visit, str, Any]]:
        """Yields the conversation while an answer is written, its HTML, and the prompt's new value.

        Args:
          visit: the conversation before, which stays as it is.
          prompt: the message, or the text to continue.
          method: the title of one.
          system: the system prompt, if any.
          numbers: the values of `_NUMBERS`.

        Raises:
          gr.Error: the prompt or an option is refused; shown to the visitor, and not in the log.
        """
        model, config = self._models[method], self._config(numbers)
        with _errors():
            if not prompt.strip():
                raise UserError("the prompt is empty; write some text or choose an example")
            turns = [*visit.turns, prompt]
            generation = model.stream(self._prompt(turns, system), config)
            search = default_search(model.drafter)

            def now(seen: list[Step]) -> tuple[Visit, str]:
                completion = generation.completion
                after = Visit([*turns, completion.text], visit.html, seen[1:], model, search)
                drawn = answer.entry(prompt, completion, chat=self._chat, drafts=after.drafts)
                after.html = [*visit.html, drawn]
                return after, "".join(after.html)

            yield *now([]), ""
            seen, shown = list[Step](), time.monotonic()
            with contextlib.closing(generation.steps(with_drafts=True)) as steps:
                for step in itertools.chain(steps, [None]):
                    seen += [step] if step is not None and len(step.tokens) else []
                    if step is None or time.monotonic() > shown + _REFRESH:
                        shown = time.monotonic()
                        yield *now(seen), gr.skip()

    def race(self, visit: Visit, system: str, *numbers: float | None) -> Iterator[str]:
        """Has the last message answered with drafting and without, in turn, and yields the HTML.

        Arguments are those of `write`.

        Raises:
          gr.Error: there is no message yet, or an option is refused.
        """
        config = self._config(numbers)
        tokens = min(config.max_new_tokens, race.MAX_NEW_TOKENS)
        config = dataclasses.replace(config, max_new_tokens=tokens)
        with _errors():
            if not visit.turns:
                raise UserError("nothing to race with yet; send a message first")
            answers: dict[str, list[Completion]] = {method: [] for method in self._models}
            name, drafted, plain = next(iter(answers)), *answers.values()
            yield race.standings(name, drafted, plain)
            prompt = self._prompt(visit.turns[:-1], system)
            for lap in range(race.ROUNDS + 1):
                for method, done in answers.items():
                    generation = self._models[method].stream(prompt, config)
                    generation.run()
                    if lap:  # the first one warms up
                        done.append(generation.completion)
                    yield race.standings(name, drafted, plain)

    def _prompt(self, turns: list[str], system: str) -> str | list[dict[str, Any]]:
        """Returns what the model reads of a conversation whose last turn is the visitor's."""
        if not self._chat:
            return turns[-1]
        first = [{"role": "system", "content": cleaned(system)}] if system.strip() else []
        return [*first, *alternating(turns)]

    def _config(self, numbers: tuple[float | None, ...]) -> GenerationConfig:
        options: dict[str, Any] = dict(zip(_NUMBERS, numbers, strict=True))
        options["tree_nodes"] = options["tree_nodes"] or None
        with _errors():
            return GenerationConfig.of(self._options, options)


def _own_options(model: DartModel) -> GenerationConfig:
    """Returns the target's own options, but that the temperature decides whether to sample."""
    try:
        own = model.generation_config
        return dataclasses.replace(own, do_sample=None, temperature=own.sampling.temperature)
    except UserError as error:
        warn(f"{error}; the page begins with greedy decoding")
        return GenerationConfig()


def _newest(visit: Visit) -> tuple[Any, str, str]:
    """Returns the slider for the steps of the last answer, the picture of the first one, and the
    race before its start."""
    slider = gr.Slider(maximum=max(len(visit.steps), 2), value=1, visible=visit.drafts)
    return slider, _picture(visit, 1), race.NOTHING


def _picture(visit: Visit, number: int) -> str:
    if visit.model is None:
        return step_view.NOTHING
    if not visit.drafts:
        return markup.note("Nothing was drafted for the last answer, so it has no draft trees.")
    return step_view.picture(visit.steps, number, visit.model, visit.search)


@contextlib.contextmanager
def _errors() -> Iterator[None]:
    """Shows a UserError to the visitor, and not in the log."""
    try:
        yield
    except UserError as error:
        sentence = markup.escape(f"{str(error)[:1].upper()}{str(error)[1:]}.")
        raise gr.Error(sentence, print_exception=False) from None


def _theme() -> Base:
    """Returns Gradio's theme with more contrast."""
    return Default(primary_hue="green", font=_FONT, font_mono=_MONO).set(
        button_primary_background_fill="*primary_700",
        button_primary_background_fill_hover="*primary_800",
        button_primary_background_fill_dark="*primary_700",
        button_primary_background_fill_hover_dark="*primary_800",
        block_info_text_color="*neutral_500",
        block_info_text_color_dark="*neutral_400",
        input_placeholder_color="*neutral_500",
        input_placeholder_color_dark="*neutral_400",
        body_text_color_subdued="*neutral_500",
    )


def serve(model: DartModel, name: str, *, host: str, port: int) -> None:
    """Serves the page of a model, prints its address, and closes it with Ctrl-C.

    Raises:
      UserError: the port is taken.
    """
    blocks = Page(model).blocks(name)
    blocks.queue(max_size=_QUEUE, api_open=False)
    try:
        _, address, _ = blocks.launch(
            server_name=host,
            server_port=port or None,  # the first free one from 7860 on
            quiet=True,
            prevent_thread_lock=True,
            footer_links=[],
            run_history=False,
            ssr_mode=False,
            theme=_theme(),
            css_paths=[STYLE, TREE_STYLE],
        )
        print(f"dart_jax is at {address}", flush=True)
        threading.Event().wait()
    except OSError as error:
        raise UserError(f"cannot listen at port {port}: {error}; choose another --port") from None
    finally:
        blocks.close(verbose=False)
