"""The page: its layout, and what its buttons do."""

from __future__ import annotations

import dataclasses
import math
import socket
import threading
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import gradio as gr
from gradio.themes import Default
from gradio.themes.utils.colors import red

from dart_jax.app import markup, step_view
from dart_jax.app.answer import Answer
from dart_jax.app.markup import LEGEND, NO_ANSWER, escape
from dart_jax.app.methods import PLAIN
from dart_jax.app.service import Entry, Service, Visitor
from dart_jax.app.settings import fields
from dart_jax.app.tree_picture import STYLE as TREE_STYLE
from dart_jax.errors import UserError

STYLE = Path(__file__).with_name("style.css")

# The demo's target was trained on Python; these functions are from held-out modules.
CODE = {
    "heappush": 'def heappush(heap, item):\n    """Push item onto heap."""\n',
    "mean": 'def mean(values):\n    """Return the arithmetic mean of a list of numbers."""\n',
    "class": "class Stack:\n    def __init__(self):\n",
    "script": "# A page that greets\nprint(\"<script>alert('hello')</script>\")\nprint(",
}
QUESTIONS = {
    "primes": "Name the first ten prime numbers.",
    "explain": "Explain speculative decoding to a child.",
    "python": "Write a Python function that merges two sorted lists.",
}

# The visitor's system fonts: nothing is loaded from other hosts.
_FONT = ("system-ui", "-apple-system", "Segoe UI", "Roboto", "sans-serif")
_MONO = ("ui-monospace", "Menlo", "Consolas", "monospace")

_RACE_RULE = "Both methods continue the same text; each clock counts only its own method's steps."

# Shift+Enter starts what the open tab shows.
_SUBMIT = """() => {
    const race = document.querySelector('#tab-race-button[aria-selected=true]');
    document.querySelector(race ? '#race' : '#send').click();
}"""

Update = dict[Any, Any]


class Page:
    """The page of a service, and the conversations of its visitors.

    A visitor is a browser tab, identified by Gradio's session. All values come unchecked from a
    browser.

    Attributes:
      blocks: the Gradio app.
    """

    def __init__(self, service: Service, name: str, demo: bool):
        """Builds the page; `name` is the model's, `demo` whether it is the demo model."""
        self._service = service
        self._visitors: dict[str, Visitor] = {}
        with gr.Blocks(title="dart_jax", analytics_enabled=False) as self.blocks:
            gr.HTML(_head(service, name, demo))
            with gr.Row(elem_id="layout"):
                with gr.Column(elem_id="main"):
                    with gr.Tabs(selected="answer") as self._tabs:
                        with gr.Tab("Answer", id="answer", elem_id="tab-answer"):
                            self._add_texts()
                        with gr.Tab("Race", id="race", elem_id="tab-race"):
                            self._add_race()
                        with gr.Tab("Draft tree", id="tree", elem_id="tab-tree"):
                            label = "Step of the last answer"
                            self._step = gr.Slider(
                                1, 2, value=1, step=1, label=label, elem_id="step"
                            )
                            self._tree = gr.HTML(step_view.NOTHING, elem_id="tree")
                    with gr.Column(elem_id="composer"):
                        self._message = gr.HTML(elem_id="message")
                        self._add_prompt()
                        with gr.Row(elem_id="buttons"):
                            self._add_buttons()
                with gr.Column(elem_id="settings", scale=0, min_width=336):
                    self._add_controls()
            self._connect()

    def _add_texts(self) -> None:
        """Adds the places of the former answers and of the newest one."""
        kind = ["chat"] if self._service.chat else []
        # The outer column scrolls and stays at its end while the inner one grows.
        with gr.Column(elem_id="answers"), gr.Column():
            self._history = gr.HTML(elem_id="history", elem_classes=kind)
            self._current = gr.HTML(NO_ANSWER, elem_id="current", elem_classes=kind)

    def _add_race(self) -> None:
        """Adds the choice of two methods, the progress of their race, and their texts."""
        gr.HTML(f'<p class="fine">{escape(_RACE_RULE)}</p>')
        with gr.Row(elem_id="racers"):
            self._racers = [
                gr.Dropdown(
                    self._choices,
                    value=value,
                    label=label,
                    filterable=False,
                    elem_id=f"racer-{label.lower()}",
                    min_width=130,
                )
                for label, value in (("Left", PLAIN), ("Right", self._service.default.method))
            ]
        self._board = gr.HTML(elem_id="board")
        with gr.Row(elem_id="lanes"):
            self._lanes = [
                gr.HTML(elem_id=f"lane-{side}", min_width=260) for side in ("left", "right")
            ]

    def _add_prompt(self) -> None:
        """Adds the prompt with its examples."""
        chat = self._service.chat
        self._prompt = gr.Textbox(
            value="" if chat else CODE["mean"],
            label="Your message" if chat else "Text to continue",
            info="Shift+Enter starts.",
            lines=3,
            max_lines=3,  # fixed: resizing takes minutes for long texts
            elem_id="prompt",
            elem_classes=[] if chat else ["code"],
            render=False,
        )
        with gr.Row(elem_id="examples"):
            gr.HTML('<span class="fine">Examples</span>', min_width=60)
            for key, text in (QUESTIONS if chat else CODE).items():
                button = gr.Button(key, size="sm", elem_id=f"example-{key}", min_width=60)
                quoted = "".join(f"\\u{ord(sign):04x}" for sign in text)
                # Runs in the browser only.
                button.click(None, None, self._prompt, js=f'() => "{quoted}"')
        self._prompt.render()

    def _add_buttons(self) -> None:
        """Adds the buttons; one of the first three is visible."""
        start = "Send" if self._service.chat else "Continue"
        self._send = gr.Button(start, variant="primary", elem_id="send", min_width=90)
        self._run = gr.Button("Race", variant="primary", elem_id="race", min_width=90)
        self._stop = gr.Button("Stop", variant="stop", elem_id="stop", visible=False, min_width=90)
        self._again = gr.Button("Regenerate", elem_id="again", min_width=90)
        self._clear = gr.Button("Clear", elem_id="clear", min_width=70)

    def _add_controls(self) -> None:
        """Adds the controls, in the order of the fields of `Settings`."""
        default = dataclasses.asdict(self._service.default)
        self._controls: list[Any] = [
            gr.Radio(self._choices, value=default["method"], label="Method", elem_id="method")
        ]
        for name, field in fields(self._service.most).items():
            options: dict[str, Any] = {"label": field.label, "info": field.hint}
            options |= {"value": default[name], "elem_id": name}
            if name == "seed":  # too many values for a slider
                self._controls.append(gr.Number(**options))
            else:
                slider = gr.Slider(field.least, field.most, step=field.step, **options)
                self._controls.append(slider)

    @property
    def _choices(self) -> list[tuple[str, str]]:
        return [(method.title, key) for key, method in self._service.methods.items()]

    def _connect(self) -> None:
        """Connects the buttons to their handlers."""
        # No concurrency limit: handlers share only the engine, which has its own. None is an API.
        # They check values themselves: Gradio's messages do not name the field, and it logs their
        # tracebacks.
        quiet: dict[str, Any] = {
            "show_progress": "hidden",
            "concurrency_limit": None,
            "api_visibility": "private",
            "preprocess": False,
        }
        outputs = [
            self._history, self._current, self._message, self._prompt, self._send, self._run,
            self._stop, self._again, self._clear, self._tabs, self._step, self._tree, self._board,
            *self._lanes, self._controls[-1],
        ]  # fmt: skip
        inputs = [self._prompt, *self._controls]
        self._send.click(self._write, inputs, outputs, **quiet)
        self._again.click(self._write_again, inputs, outputs, **quiet)
        self._run.click(self._race, [*inputs, *self._racers], outputs, **quiet)
        self._clear.click(self._forget, None, outputs, **quiet)
        self._stop.click(self._end, None, None, queue=False, **quiet)
        self._prompt.submit(None, None, None, js=_SUBMIT, api_visibility="private")
        changes = [self._step.change, self._step.release]
        gr.on(changes, self._show, self._step, self._tree, trigger_mode="always_last", **quiet)
        self.blocks.unload(self._leave)

    # What the buttons do.

    async def _write(
        self, request: gr.Request, prompt: Any, *values: Any
    ) -> AsyncGenerator[Update, None]:
        """Answers a prompt."""
        visitor = self._visitor(request)
        async for update in self._answer(visitor, list(visitor.entries), str(prompt or ""), values):
            yield update

    async def _write_again(
        self, request: gr.Request, _: Any, *values: Any
    ) -> AsyncGenerator[Update, None]:
        """Answers the last prompt again and replaces its answer, with the current settings and,
        when sampling, another seed."""
        visitor = self._visitor(request)
        if not visitor.entries:
            yield {self._message: markup.note("There is no answer yet to regenerate.", "error")}
            return
        *before, last = visitor.entries
        temperature, seed = values[1], values[-1]
        if temperature and seed in range(2**32):
            seed = (seed + 1) % 2**32
        values = *values[:-1], seed
        async for update in self._answer(visitor, before, last.prompt, values):
            yield {self._controls[-1]: seed} | update

    async def _answer(
        self, visitor: Visitor, before: list[Entry], prompt: str, values: tuple[Any, ...]
    ) -> AsyncGenerator[Update, None]:
        service = self._service
        new = self._buttons(busy=True) | {
            self._history: "".join(map(self._draw, before)),
            self._prompt: "" if service.chat else gr.skip(),
            self._tabs: gr.Tabs(selected="answer"),
        }
        message = ""
        try:
            settings = service.settings(values)
            prepared = service.prepare(service.prompt(before, prompt), settings)
            answer = prepared.answer
            async for line in service.serve(visitor, [prepared]):
                entry = Entry(prompt, markup.runs(answer.pieces), markup.statistics(answer))
                visitor.entries, visitor.last = [*before, entry], (answer, settings.method)
                current = self._draw(entry, busy=not answer.ended)
                yield new | {self._current: current, self._message: markup.note(line)}
                new = {}
        except UserError as error:
            message = _sentence(error)
        if visitor.tickets:  # of another answer
            yield {self._message: message}
            return
        current = self._draw(visitor.entries[-1]) if visitor.entries else NO_ANSWER
        end = {self._current: current, self._message: message}
        yield self._buttons(busy=False) | self._first_step(visitor) | end

    async def _race(
        self, request: gr.Request, prompt: Any, *values: Any
    ) -> AsyncGenerator[Update, None]:
        """Runs two methods on the same prompt, side by side."""
        service, visitor = self._service, self._visitor(request)
        _, *numbers, left, right = values
        before, text, verdict, message = list(visitor.entries), str(prompt or ""), "", ""
        try:
            if service.chat and not text.strip() and before:
                text = before.pop().prompt  # the box is empty after an answer
            words = service.prompt(before, text)
            both = [
                service.prepare(words, service.settings((method, *numbers)))
                for method in (left, right)
            ]
            answers, prefix = [each.answer for each in both], "" if service.chat else text
            async for line in service.serve(visitor, both):
                if all(answer.ended for answer in answers):
                    verdict = markup.note(markup.verdict(*answers), "winner")
                yield (
                    self._buttons(busy=True)
                    | self._progress(answers, prefix, verdict)
                    | {self._message: markup.note(line)}
                )
        except UserError as error:
            message = _sentence(error)
        buttons = {} if visitor.tickets else self._buttons(busy=False)
        yield buttons | {self._message: message}

    def _forget(self, request: gr.Request) -> Update:
        """Clears the conversation; a typed prompt stays."""
        visitor = self._visitor(request)
        visitor.entries, visitor.last = [], None
        empty = (self._history, self._message, self._board, *self._lanes)
        return dict.fromkeys(empty, "") | {self._current: NO_ANSWER} | self._first_step(visitor)

    def _end(self, request: gr.Request) -> None:
        """Stops the visitor's running answer and keeps its text."""
        self._visitor(request).stop()

    def _leave(self, request: gr.Request) -> None:
        """Stops the running answer of a closed page, and forgets its visitor."""
        self._visitor(request).stop()
        self._visitors.pop(request.session_hash or "", None)

    def _show(self, request: gr.Request, number: Any) -> str:
        """Draws the draft tree of a step of the visitor's last answer, the nearest if there is no
        such step."""
        valid = isinstance(number, int | float) and math.isfinite(number)
        return self._picture(self._visitor(request), int(number) if valid else 1)

    # What is drawn.

    def _visitor(self, request: gr.Request) -> Visitor:
        return self._visitors.setdefault(request.session_hash or "", Visitor())

    def _first_step(self, visitor: Visitor) -> Update:
        """Shows the first tree of the visitor's last answer."""
        steps = 0 if visitor.last is None else len(visitor.last[0].verified)
        return {
            self._step: gr.Slider(maximum=max(steps, 2), value=1),
            self._tree: self._picture(visitor, 1),
        }

    def _picture(self, visitor: Visitor, number: int) -> str:
        if visitor.last is None:
            return step_view.NOTHING
        answer, method = visitor.last
        return step_view.picture(answer, self._service.methods[method].model, number)

    def _buttons(self, *, busy: bool) -> Update:
        """Puts Stop in the place of the button that started the answer, or takes it away."""
        # The style sheet shows the one of these two that belongs to the open tab.
        start = gr.Button(visible="hidden" if busy else True)
        other, stop = gr.Button(interactive=not busy), gr.Button(visible=busy)
        buttons = (self._send, self._run, self._again, self._clear, self._stop)
        return dict(zip(buttons, (start, start, other, other, stop), strict=True))

    def _draw(self, entry: Entry, busy: bool = False) -> str:
        return markup.entry(entry, chat=self._service.chat, busy=busy)

    def _progress(self, answers: list[Answer], prompt: str, verdict: str) -> Update:
        texts = (markup.lane(answer, prompt) for answer in answers)
        board = {self._board: markup.board(answers) + verdict}
        return board | dict(zip(self._lanes, texts, strict=True))


def _head(service: Service, name: str, demo: bool) -> str:
    what = "It answers in a chat." if service.chat else "It continues your text; it does not chat."
    if demo:
        what = "It is tiny and completes Python code."
    return (
        f'<div id="head"><h1>dart_jax</h1><p>Speculative decoding with {escape(name)}. '
        f"{escape(what)}</p>{LEGEND}</div>"
    )


def _sentence(error: UserError) -> str:
    text = str(error)
    return markup.note(text[:1].upper() + text[1:] + ".", "error")


def serve(service: Service, name: str, *, demo: bool, host: str, port: int) -> None:
    """Serves the page, prints its address, and closes it and the service with Ctrl-C.

    Raises:
      UserError: the port is taken.
    """
    blocks = Page(service, name, demo).blocks
    blocks.queue(max_size=None, api_open=False)
    if port == 0:
        with socket.create_server((host, 0)) as free:
            port = free.getsockname()[1]
    # Enough contrast for white on green and for small grey text.
    theme = Default(primary_hue="green", font=_FONT, font_mono=_MONO).set(
        color_accent="*primary_700",
        slider_color="*primary_700",
        button_primary_background_fill="*primary_700",
        button_primary_background_fill_hover="*primary_800",
        button_cancel_background_fill=red.c700,
        button_cancel_background_fill_hover=red.c800,
        body_text_color_subdued="*neutral_600",
    )
    try:
        _, address, _ = blocks.launch(
            server_name=host,
            server_port=port,
            quiet=True,
            prevent_thread_lock=True,
            footer_links=[],
            run_history=False,
            ssr_mode=False,
            theme=theme,
            css_paths=[STYLE, TREE_STYLE],
        )
        print(f"dart_jax is at {address}", flush=True)
        threading.Event().wait()
    except OSError as error:
        raise UserError(f"cannot listen at port {port}: {error}; choose another --port") from None
    finally:
        blocks.close(verbose=False)
        service.close()
