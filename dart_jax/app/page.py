"""The page: its layout, and what its buttons do."""

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
from gradio.themes import Default

from dart_jax.app import markup, step_view
from dart_jax.app.tree_picture import STYLE as TREE_STYLE
from dart_jax.data.messages import alternating
from dart_jax.decoding.drafting import drafter_title
from dart_jax.decoding.search.config import SearchConfig
from dart_jax.errors import UserError
from dart_jax.generation import GenerationConfig, Step
from dart_jax.generation.defaults import tree_of
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

# The visitor's system fonts: nothing is loaded from other hosts.
_FONT = ("system-ui", "-apple-system", "Segoe UI", "Roboto", "sans-serif")
_MONO = ("ui-monospace", "Menlo", "Consolas", "monospace")

_REFRESH = 0.08  # seconds between updates of the page
_CHARACTERS = 100_000  # of a prompt, at most
_QUEUE = 48  # answers that wait, at most

# Name of an option -> label, hint, least, most, step, initial value.
_SLIDERS = {
    "temperature": ("Temperature", "0 is greedy decoding", 0, 2, 0.05, 0),
    "top_p": ("Top-p", "1 for all", 0.05, 1, 0.05, 1),
    "top_k": ("Top-k", "0 for all", 0, 200, 1, 0),
    "tree_nodes": ("Tree nodes", "0 for as many as pay", 0, 64, 4, 0),
    "max_new_tokens": ("Maximum new tokens", "", 8, 1024, 8, 128),
}


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


class Page:
    """The page of a model, which Gradio's queue lets one visitor after the other use."""

    def __init__(self, model: DartModel):
        """Takes the model, which a visitor can also let decode plainly."""
        plain = {"plain decoding": model.with_drafter(None)}
        drafted = {} if model.drafter is None else {drafter_title(model.drafter): model}
        self._models = drafted | plain
        self._chat = bool(model.tokenizer.chat_template)

    def blocks(self, name: str) -> gr.Blocks:
        """Builds the Gradio app; `name` is the model's."""
        chat = self._chat
        task = "answers in a chat" if chat else "continues your text; it does not chat"
        with gr.Blocks(title="dart_jax", analytics_enabled=False) as blocks:
            visit = gr.State(Visit())
            gr.HTML(
                f"<h1>dart_jax</h1><p>Speculative decoding with {markup.escape(name)}, which "
                f"{task}.</p>{markup.LEGEND}"
            )
            with gr.Row():
                with gr.Column(scale=3, min_width=320):
                    # The outer column scrolls and stays at its end while the inner one grows.
                    with gr.Tab("Answer"), gr.Column(elem_id="answers"), gr.Column():
                        answers = gr.HTML(elem_classes=["chat"] if chat else [])
                    with gr.Tab("Draft tree"):
                        label = "Step of the last answer"
                        number = gr.Slider(1, 2, 1, step=1, label=label, elem_id="step")
                        tree = gr.HTML(step_view.NOTHING, elem_id="tree")
                    prompt = gr.Textbox(
                        label="Your message" if chat else "Text to continue",
                        info="Shift+Enter starts.",
                        lines=3,
                        max_lines=3,  # fixed: resizing takes minutes for long texts
                        max_length=_CHARACTERS,
                        elem_id="prompt",
                    )
                    gr.Examples([[text] for text in (QUESTIONS if chat else CODE)], prompt)
                    with gr.Row():
                        send = gr.Button("Write", variant="primary", elem_id="send", min_width=90)
                        stop = gr.Button("Stop", elem_id="stop", min_width=90)
                        clear = gr.Button("Clear", elem_id="clear", min_width=90)
                with gr.Column(scale=1, min_width=320):
                    titles = list(self._models)
                    method = gr.Radio(titles, value=titles[0], label="Method", elem_id="method")
                    controls: list[Any] = [method]
                    for option, (label, hint, least, most, step, value) in _SLIDERS.items():
                        texts = {"label": label, "info": hint, "elem_id": option}
                        precision = 0 if step >= 1 else None
                        controls.append(
                            gr.Slider(least, most, value, step=step, precision=precision, **texts)
                        )
                    controls.append(gr.Number(0, label="Seed", precision=0, elem_id="seed"))

            private: dict[str, Any] = {"api_visibility": "private"}
            quiet = {"show_progress": "hidden", "concurrency_limit": None, **private}
            inputs = [visit, prompt, *controls]
            writing = gr.on(
                [send.click, prompt.submit],
                self.write,
                inputs,
                [visit, answers],
                show_progress="minimal",
                **private,
            )
            stopping = stop.click(lambda: None, cancels=[writing], **quiet)
            clearing = clear.click(
                lambda: (Visit(), ""), None, [visit, answers], cancels=[writing], **quiet
            )
            for event in (writing.then, stopping.then, clearing.then):
                event(_newest, visit, [number, tree], **quiet)
            number.change(_picture, [visit, number], tree, trigger_mode="always_last", **quiet)
        return blocks

    def write(
        self, visit: Visit, prompt: str, method: str, *values: float
    ) -> Iterator[tuple[Visit, str]]:
        """Yields the conversation while an answer is written, and its HTML.

        Args:
          visit: the conversation before, which stays as it is.
          prompt: the message, or the text to continue.
          method: the title of one.
          values: those of the sliders, and the seed.

        Raises:
          gr.Error: the prompt or an option is refused; shown to the visitor, and not in the log.
        """
        model, options = self._models[method], dict(zip(_SLIDERS, values, strict=False))
        with _errors():
            options |= {"tree_nodes": options["tree_nodes"] or None, "seed": values[-1] or 0}
            config = GenerationConfig.of(None, options)
            if not prompt.strip():
                raise UserError("the prompt is empty; write some text or choose an example")
            turns = [*visit.turns, prompt]
            generation = model.stream(alternating(turns) if self._chat else prompt, config)
            search, seen, shown = tree_of(model.drafter, config, 1)[2], list[Step](), 0.0
            with contextlib.closing(generation.steps(with_drafts=True)) as steps:
                for step in itertools.chain(steps, [None]):
                    seen += [step] if step is not None and len(step.tokens) else []
                    if step is None or time.monotonic() > shown + _REFRESH:
                        completion, shown = generation.completion, time.monotonic()
                        html = [*visit.html, markup.entry(prompt, completion, chat=self._chat)]
                        now = Visit([*turns, completion.text], html, seen[1:], model, search)
                        yield now, "".join(html)


def _newest(visit: Visit) -> tuple[Any, str]:
    """Returns the slider for the steps of the last answer, and the picture of the first one."""
    return gr.Slider(maximum=max(len(visit.steps), 2), value=1), _picture(visit, 1)


def _picture(visit: Visit, number: int) -> str:
    if visit.model is None:
        return step_view.NOTHING
    return step_view.picture(visit.steps, number, visit.model, visit.search)


@contextlib.contextmanager
def _errors() -> Iterator[None]:
    """Shows a UserError to the visitor, and not in the log."""
    try:
        yield
    except UserError as error:
        sentence = markup.escape(f"{str(error)[:1].upper()}{str(error)[1:]}.")
        raise gr.Error(sentence, print_exception=False) from None


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
            theme=Default(primary_hue="green", font=_FONT, font_mono=_MONO),
            css_paths=[STYLE, TREE_STYLE],
        )
        print(f"dart_jax is at {address}", flush=True)
        threading.Event().wait()
    except OSError as error:
        raise UserError(f"cannot listen at port {port}: {error}; choose another --port") from None
    finally:
        blocks.close(verbose=False)
