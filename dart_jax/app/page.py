"""The page: its layout, and which events call which handlers."""

from __future__ import annotations

import dataclasses
import hashlib
import socket
import threading
from pathlib import Path
from typing import Any

import gradio as gr
from gradio.themes import Base, Default
from gradio.themes.utils.colors import red

from dart_jax.app.answer import prompt_label
from dart_jax.app.events import Events, Outputs
from dart_jax.app.markup import LEGEND, NO_ANSWER, escape
from dart_jax.app.methods import PLAIN
from dart_jax.app.service import Service
from dart_jax.app.settings import fields
from dart_jax.app.step_view import NOTHING
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


_SUBMIT = """() => {
    const race = document.querySelector('#tab-race-button[aria-selected=true]');
    document.querySelector(race ? '#race' : '#send').click();
}"""


def build(service: Service, name: str, demo: bool) -> gr.Blocks:
    """Builds the page of a service; `name` is the model's, `demo` whether it is the demo model."""
    with gr.Blocks(title="dart_jax", analytics_enabled=False) as blocks:
        gr.HTML(_head(service, name, demo))
        with gr.Row(elem_id="layout"):
            with gr.Column(elem_id="main"):
                with gr.Tabs(selected="answer") as tabs:
                    with gr.Tab("Answer", id="answer", elem_id="tab-answer"):
                        history, current = _texts(service)
                    with gr.Tab("Race", id="race", elem_id="tab-race"):
                        racers, board, lanes = _race(service)
                    with gr.Tab("Draft tree", id="tree", elem_id="tab-tree"):
                        step = gr.Slider(
                            1, 2, value=1, step=1, label="Step of the last answer", elem_id="step"
                        )
                        tree = gr.HTML(NOTHING, elem_id="tree")
                with gr.Column(elem_id="composer"):
                    message = gr.HTML(elem_id="message")
                    prompt = _prompt(service)
                    with gr.Row(elem_id="buttons"):
                        send, run, stop, again, clear = _buttons(service)
            with gr.Column(elem_id="settings", scale=0, min_width=336):
                controls = _controls(service)
        settings, chat, last, draft = (
            gr.BrowserState(storage_key=f"dart_jax {what} {_key(name)}", secret="not a secret")
            for what in ("settings", "chat", "last", "prompt")
        )
        outputs = Outputs(
            history=history,
            current=current,
            message=message,
            prompt=prompt,
            send=send,
            run=run,
            stop=stop,
            again=again,
            tabs=tabs,
            left=lanes[0],
            right=lanes[1],
            board=board,
            step=step,
            tree=tree,
            settings=settings,
            chat=chat,
            last=last,
            draft=draft,
        )
        _connect(blocks, Events(service, outputs), outputs, controls, racers, clear)
    return blocks


def _head(service: Service, name: str, demo: bool) -> str:
    what = "It answers in a chat." if service.chat else "It continues your text; it does not chat."
    if demo:
        what = "It is tiny and completes Python code."
    return (
        f'<div id="head"><h1>dart_jax</h1><p>Speculative decoding with {escape(name)}. '
        f"{escape(what)}</p>{LEGEND}</div>"
    )


def _texts(service: Service) -> tuple[gr.HTML, gr.HTML]:
    """Creates the places of the former answers and of the newest one."""
    kind = ["chat"] if service.chat else []
    # The outer column scrolls and stays at its end while the inner one grows.
    with gr.Column(elem_id="answers"), gr.Column():
        history = gr.HTML(elem_id="history", elem_classes=kind)
        current = gr.HTML(NO_ANSWER, elem_id="current", elem_classes=kind)
    return history, current


def _race(service: Service) -> tuple[list[Any], gr.HTML, list[gr.HTML]]:
    """Creates the choice of two methods, the progress of their race, and their texts."""
    gr.HTML(f'<p class="fine">{escape(_RACE_RULE)}</p>')
    with gr.Row(elem_id="racers"):
        racers: list[Any] = [
            gr.Dropdown(
                service.methods.choices,
                value=value,
                label=label,
                filterable=False,
                elem_id=f"racer-{label.lower()}",
                min_width=130,
            )
            for label, value in (("Left", PLAIN), ("Right", service.methods.default))
        ]
    board = gr.HTML(elem_id="board")
    with gr.Row(elem_id="lanes"):
        lanes = [gr.HTML(elem_id=f"lane-{side}", min_width=260) for side in ("left", "right")]
    return racers, board, lanes


def _prompt(service: Service) -> gr.Textbox:
    """Creates the prompt with its examples."""
    label = prompt_label(service.chat)
    prompt = gr.Textbox(
        value="" if service.chat else CODE["mean"],
        label=label,
        info="Shift+Enter starts.",
        lines=3,
        max_lines=3,  # fixed: resizing takes minutes for long texts
        elem_id="prompt",
        elem_classes=[] if service.chat else ["code"],
        render=False,
    )
    with gr.Row(elem_id="examples"):
        gr.HTML('<span class="fine">Examples</span>', min_width=60)
        for key, text in (QUESTIONS if service.chat else CODE).items():
            button = gr.Button(key, size="sm", elem_id=f"example-{key}", min_width=60)
            # Runs in the browser only.
            button.click(None, None, prompt, js=f"() => {_quoted(text)}")
    prompt.render()
    return prompt


def _buttons(service: Service) -> list[gr.Button]:
    """Creates the buttons; one of the first three is visible."""
    start = "Send" if service.chat else "Continue"
    return [
        gr.Button(start, variant="primary", elem_id="send", min_width=90),
        gr.Button("Race", variant="primary", elem_id="race", min_width=90),
        gr.Button("Stop", variant="stop", elem_id="stop", visible=False, min_width=90),
        gr.Button("Regenerate", elem_id="again", min_width=90),
        gr.Button("Clear", elem_id="clear", min_width=70),
    ]


def _controls(service: Service) -> list[Any]:
    """Creates the controls, in the order of the fields of `Settings`."""
    default = service.default
    controls: list[Any] = [gr.Radio(service.methods.choices, label="Method", elem_id="method")]
    for name, field in fields(service.most).items():
        shown: dict[str, Any] = {"label": field.label, "info": field.hint, "elem_id": name}
        if name == "seed":  # too many values for a slider
            controls.append(gr.Number(**shown))
        else:
            controls.append(gr.Slider(field.least, field.most, step=field.step, **shown))
    for name, control in zip(dataclasses.asdict(default), controls, strict=True):
        control.value = getattr(default, name)
    return controls


def _connect(
    blocks: gr.Blocks,
    events: Events,
    out: Outputs,
    controls: list[Any],
    racers: list[Any],
    clear: gr.Button,
) -> None:
    """Connects events to their handlers."""
    # No concurrency limit: handlers share only the engine, which has its own. None is an API.
    # They check what they are given themselves: Gradio's messages do not name the field, and it
    # logs their tracebacks.
    quiet: dict[str, Any] = {
        "show_progress": "hidden",
        "concurrency_limit": None,
        "api_visibility": "private",
        "preprocess": False,
    }
    inputs = [out.prompt, out.chat, *controls]
    outputs = [
        out.history, out.current, out.message, out.prompt, out.send, out.run, out.stop, out.again,
        out.tabs, out.step, out.tree, out.chat, out.last, controls[-1],
    ]  # fmt: skip
    events.seed = controls[-1]
    out.send.click(events.write, inputs, outputs, **quiet)
    # Shift+Enter starts what the open tab shows.
    out.prompt.submit(None, None, None, js=_SUBMIT, api_visibility="private")
    out.again.click(events.write_again, inputs, outputs, **quiet)
    race_outputs = [
        out.left, out.right, out.board, out.message, out.send, out.run, out.stop, out.again,
    ]  # fmt: skip
    out.run.click(events.race, [out.prompt, out.chat, *racers, *controls], race_outputs, **quiet)
    out.stop.click(events.stop, None, None, queue=False, **quiet)
    # Queued, so that it runs after pending updates of an answer.
    clear.click(events.clear, None, [*outputs[:-1], out.left, out.right, out.board], **quiet)
    gr.on(
        [out.step.change, out.step.release],
        events.show_step,
        out.step,
        out.tree,
        trigger_mode="always_last",
        **quiet,
    )
    # Typed text and settings are stored in the browser without a call to the server.
    out.prompt.change(None, out.prompt, out.draft, js="text => [text]", api_visibility="private")
    gr.on(
        [control.change for control in (*controls, *racers)],
        None,
        [*controls, *racers],
        out.settings,
        js="(...values) => [values]",
        api_visibility="private",
    )
    blocks.load(
        events.restore,
        [out.settings, out.chat, out.last, out.draft],
        [*controls, *racers, out.history, out.current, out.prompt, out.last, out.step, out.tree],
        **quiet,
    )
    blocks.unload(events.stop)


def _quoted(text: str) -> str:
    """Quotes a text as a JavaScript string."""
    signs = "".join(f"\\u{ord(sign):04x}" for sign in text)
    return f'"{signs}"'


def _key(name: str) -> str:
    """A short key for the browser's storage, so that models do not share stored data."""
    return hashlib.sha256(name.encode()).hexdigest()[:12]


def _theme() -> Base:
    """Gradio's theme, with enough contrast for white on green and for small grey text."""
    return Default(primary_hue="green", font=_FONT, font_mono=_MONO).set(
        color_accent="*primary_700",
        slider_color="*primary_700",
        slider_color_dark="*primary_500",
        button_primary_background_fill="*primary_700",
        button_primary_background_fill_hover="*primary_800",
        button_primary_background_fill_dark="*primary_700",
        button_primary_background_fill_hover_dark="*primary_800",
        button_cancel_background_fill=red.c700,
        button_cancel_background_fill_hover=red.c800,
        body_text_color_subdued="*neutral_600",
        block_label_text_color="*neutral_800",
        block_title_text_color="*neutral_800",
    )


@dataclasses.dataclass(frozen=True)
class Running:
    """A page that is being served.

    Attributes:
      address: its URL.
      service: generates the answers.
      blocks: the Gradio app.
    """

    address: str
    service: Service
    blocks: gr.Blocks

    def wait(self) -> None:
        """Serves until Ctrl-C, which it raises after closing the page."""
        try:
            threading.Event().wait()
        finally:
            self.blocks.close(verbose=False)
            self.service.close()


def launch(service: Service, name: str, *, demo: bool, host: str, port: int) -> Running:
    """Starts serving the page.

    Raises:
      UserError: the port is taken.
    """
    blocks = build(service, name, demo)
    blocks.queue(max_size=None, api_open=False)
    if port == 0:
        with socket.create_server((host, 0)) as free:
            port = free.getsockname()[1]
    try:
        _, address, _ = blocks.launch(
            server_name=host,
            server_port=port,
            share=False,
            quiet=True,
            prevent_thread_lock=True,
            footer_links=[],
            run_history=False,
            enable_monitoring=False,
            mcp_server=False,
            ssr_mode=False,
            pwa=False,
            theme=_theme(),
            css_paths=[STYLE, TREE_STYLE],
        )
    except OSError as error:
        service.close()
        raise UserError(f"cannot listen at port {port}: {error}; choose another --port") from None
    return Running(address, service, blocks)
