"""The page: its layout, and what its buttons do."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import AsyncGenerator, Iterable, Iterator
from pathlib import Path
from typing import Any

import gradio as gr
from gradio.themes import Default
from gradio.themes.utils.colors import red

from dart_jax.app import markup, step_view
from dart_jax.app.markup import LEGEND, NO_ANSWER, escape
from dart_jax.app.methods import PLAIN
from dart_jax.app.service import LEAST, Entry, Service, Settings, Visitor
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

    A visitor is a browser tab, identified by Gradio's session.

    Attributes:
      blocks: the Gradio app.
    """

    def __init__(self, service: Service, name: str):
        """Builds the page; `name` is the model's."""
        self._service = service
        self._visitors: dict[str, Visitor] = {}
        with gr.Blocks(title="dart_jax", analytics_enabled=False) as self.blocks:
            gr.HTML(_head(service, name))
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
                                1, 2, 1, step=1, precision=0, label=label, elem_id="step"
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
        default = self._service.default
        self._controls: list[Any] = [
            gr.Radio(self._choices, value=default.method, label="Method", elem_id="method")
        ]
        for name, label, hint, least, most, step in (
            ("temperature", "Temperature", "0 is greedy decoding", 0, 2, 0.05),
            ("top_p", "Top-p", "1 for all", 0.05, 1, 0.05),
            ("top_k", "Top-k", "0 for all", 0, 200, 1),
            ("tree_nodes", "Tree nodes", "0 for as many as pay", 0, 64, 4),
            ("max_new_tokens", "Maximum new tokens", "", LEAST, self._service.most, LEAST),
        ):
            options: dict[str, Any] = {"label": label, "info": hint, "elem_id": name, "step": step}
            options |= {"value": getattr(default, name), "precision": 0 if step >= 1 else None}
            self._controls.append(gr.Slider(least, most, **options))
        seed = gr.Number(
            0, precision=0, label="Seed", info="for sampling; 0 to 4,294,967,295", elem_id="seed"
        )
        self._controls.append(seed)

    @property
    def _choices(self) -> list[tuple[str, str]]:
        return [(method.title, key) for key, method in self._service.methods.items()]

    def _connect(self) -> None:
        """Connects the buttons to their handlers."""
        # No concurrency limit: handlers share only the engine, which has its own. None is an API.
        quiet: dict[str, Any] = {
            "show_progress": "hidden",
            "concurrency_limit": None,
            "api_visibility": "private",
        }
        outputs = [
            self._history, self._current, self._message, self._prompt, self._send, self._run,
            self._stop, self._again, self._clear, self._tabs, self._step, self._tree, self._board,
            *self._lanes, self._controls[-1],
        ]  # fmt: skip
        inputs = [self._prompt, *self._controls]
        for start in (
            self._send.click(self._write, inputs, outputs, **quiet),
            self._again.click(self._write_again, inputs[1:], outputs, **quiet),
            self._run.click(self._race, [*inputs, *self._racers], outputs, **quiet),
        ):
            start.then(self._rest, None, outputs, **quiet)  # after an error too
        self._clear.click(self._forget, None, outputs, **quiet)
        self._stop.click(self._end, None, None, queue=False, **quiet)
        self._prompt.submit(None, None, None, js=_SUBMIT, api_visibility="private")
        changes = [self._step.change, self._step.release]
        gr.on(changes, self._show, self._step, self._tree, trigger_mode="always_last", **quiet)
        self.blocks.unload(self._leave)

    async def _write(
        self, request: gr.Request, prompt: str, *values: Any
    ) -> AsyncGenerator[Update, None]:
        """Answers a prompt."""
        visitor = self._visitor(request)
        async for update in self._answer(visitor, list(visitor.entries), prompt, values):
            yield update

    async def _write_again(self, request: gr.Request, *values: Any) -> AsyncGenerator[Update, None]:
        """Answers the last prompt again and replaces its answer, with the current settings and,
        when sampling, another seed."""
        visitor, settings = self._visitor(request), _settings(values)
        with _errors():
            if not visitor.entries:
                raise UserError("there is no answer yet to regenerate")
        if settings.temperature:
            settings = settings._replace(seed=(settings.seed + 1) % 2**32)
        *before, last = visitor.entries
        async for update in self._answer(visitor, before, last.prompt, settings):
            yield {self._controls[-1]: settings.seed} | update

    async def _answer(
        self, visitor: Visitor, before: list[Entry], prompt: str, values: tuple[Any, ...]
    ) -> AsyncGenerator[Update, None]:
        service = self._service
        new = self._buttons(busy=True) | {
            self._history: "".join(entry.html for entry in before),
            self._prompt: "" if service.chat else gr.skip(),
            self._tabs: gr.Tabs(selected="answer"),
        }
        with _errors():
            answer = service.prepare(before, prompt, _settings(values))
            async for line in service.serve(visitor, [answer]):
                html = markup.entry(prompt, answer, chat=service.chat)
                visitor.entries, visitor.last = [*before, Entry(prompt, answer.text, html)], answer
                busy = f'<div class="busy">{html}</div>'
                yield new | {self._current: busy, self._message: markup.note(line)}
                new = {}

    async def _race(
        self, request: gr.Request, prompt: str, *values: Any
    ) -> AsyncGenerator[Update, None]:
        """Runs two methods on the same prompt, side by side."""
        service, visitor = self._service, self._visitor(request)
        *controls, left, right = values
        before = list(visitor.entries)
        if service.chat and not prompt.strip() and before:
            prompt = before.pop().prompt  # the box is empty after an answer
        with _errors():
            settings = _settings(controls)
            answers = [
                service.prepare(before, prompt, settings._replace(method=method))
                for method in (left, right)
            ]
            async for line in service.serve(visitor, answers):
                over = all(answer.ended for answer in answers)
                verdict = markup.note(markup.verdict(*answers), "winner") if over else ""
                text = "" if service.chat else prompt
                lanes = (markup.lane(answer, text) for answer in answers)
                yield {
                    **self._buttons(busy=True),
                    **dict(zip(self._lanes, lanes, strict=True)),
                    self._board: markup.board(answers) + verdict,
                    self._message: markup.note(line),
                }

    def _rest(self, request: gr.Request) -> Update:
        """Shows what an answer or a race has left, unless another one is running."""
        visitor = self._visitor(request)
        if visitor.tickets:
            return self._buttons(busy=True)
        current = visitor.entries[-1].html if visitor.entries else NO_ANSWER
        steps = len(visitor.last.steps) if visitor.last else 0
        return self._buttons(busy=False) | {
            self._current: current,
            self._message: "",
            self._step: gr.Slider(maximum=max(steps, 2), value=1),
            self._tree: self._show(request, 1),
        }

    def _forget(self, request: gr.Request) -> Update:
        """Clears the conversation; a typed prompt stays."""
        visitor = self._visitor(request)
        visitor.entries, visitor.last = [], None
        return dict.fromkeys((self._history, self._board, *self._lanes), "") | self._rest(request)

    def _end(self, request: gr.Request) -> None:
        """Stops the visitor's running answer and keeps its text."""
        self._visitor(request).stop()

    def _leave(self, request: gr.Request) -> None:
        """Stops the running answer of a closed page, and forgets its visitor."""
        self._visitor(request).stop()
        self._visitors.pop(request.session_hash or "", None)

    def _show(self, request: gr.Request, number: int) -> str:
        """Draws the draft tree of a step of the visitor's last answer, the nearest if there is no
        such step."""
        answer = self._visitor(request).last
        if answer is None:
            return step_view.NOTHING
        return step_view.picture(answer, self._service.model_of(answer), number)

    def _visitor(self, request: gr.Request) -> Visitor:
        return self._visitors.setdefault(request.session_hash or "", Visitor())

    def _buttons(self, *, busy: bool) -> Update:
        """Puts Stop in the place of the button that started the answer, or takes it away."""
        # The style sheet shows the one of these two that belongs to the open tab.
        start = gr.Button(visible="hidden" if busy else True)
        other, stop = gr.Button(interactive=not busy), gr.Button(visible=busy)
        buttons = (self._send, self._run, self._again, self._clear, self._stop)
        return dict(zip(buttons, (start, start, other, other, stop), strict=True))


def _settings(values: Iterable[Any]) -> Settings:
    """Reads the controls, whose values Gradio has checked; an empty seed is 0."""
    settings = Settings(*values)
    return settings._replace(seed=(settings.seed or 0) % 2**32)


@contextlib.contextmanager
def _errors() -> Iterator[None]:
    """Shows a UserError to the visitor, and not in the log."""
    try:
        yield
    except UserError as error:
        sentence = escape(f"{str(error)[:1].upper()}{str(error)[1:]}.")
        raise gr.Error(sentence, print_exception=False) from None


def _head(service: Service, name: str) -> str:
    task = "It answers in a chat." if service.chat else "It continues your text; it does not chat."
    return (
        f'<div id="head"><h1>dart_jax</h1><p>Speculative decoding with {escape(name)}. '
        f"{task}</p>{LEGEND}</div>"
    )


def serve(service: Service, name: str, *, host: str, port: int) -> None:
    """Serves the page, prints its address, and closes it and the service with Ctrl-C.

    Raises:
      UserError: the port is taken.
    """
    blocks = Page(service, name).blocks
    blocks.queue(max_size=None, api_open=False)
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
            server_port=port or None,  # the first free one from 7860 on
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
