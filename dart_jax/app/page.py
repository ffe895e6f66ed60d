"""The page: its layout, and which events call which handlers."""

from __future__ import annotations

import dataclasses
import hashlib
import socket
from pathlib import Path
from typing import Any

import gradio as gr
from gradio.themes import Default

from dart_jax.app.events import Events, Outputs
from dart_jax.app.markup import LEGEND, escape
from dart_jax.app.methods import PLAIN
from dart_jax.app.service import Service
from dart_jax.app.settings import LEAST, SIZES, Settings
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

_RACE_RULES = (
    "Both methods continue the same text with the same seed and share one target in memory. The "
    "device runs one step at a time, always for the method that has used less time so far. A clock "
    "counts only its method's own steps: prefill, verification and drafting. It excludes "
    "compilation, the other method's steps and other visitors' steps, but compiling for another "
    "visitor at the same time slows it down."
)


def build(service: Service, name: str, demo: bool) -> gr.Blocks:
    """Builds the page of a service; `name` is the model's, `demo` whether it is the demo model."""
    examples = QUESTIONS if service.chat else CODE
    with gr.Blocks(title="dart_jax", analytics_enabled=False) as blocks:
        gr.HTML(_head(service, name, demo))
        with gr.Row():
            with gr.Column(scale=3, min_width=320):
                with gr.Tabs(selected="answer") as tabs:
                    with gr.Tab("Answer", id="answer"):
                        kind = ["chat"] if service.chat else []
                        history = gr.HTML(elem_id="history", elem_classes=kind)
                        current = gr.HTML(elem_id="current", elem_classes=kind)
                    with gr.Tab("Race", id="race"):
                        gr.HTML(f'<p class="fine">{escape(_RACE_RULES)}</p>')
                        with gr.Row():
                            racers = [
                                gr.Dropdown(
                                    service.methods.choices,
                                    value=value,
                                    label=label,
                                    elem_id=f"racer-{n}",
                                    min_width=150,
                                )
                                for n, (label, value) in enumerate(
                                    (("Left", PLAIN), ("Right", service.methods.default))
                                )
                            ]
                        verdict = gr.HTML(elem_id="verdict")
                        with gr.Row():
                            lanes = [
                                gr.HTML(elem_id=f"lane-{side}", min_width=260)
                                for side in ("left", "right")
                            ]
                    with gr.Tab("Draft tree", id="tree"):
                        step = gr.Slider(
                            1, 2, value=1, step=1, label="Step of the last answer", elem_id="step"
                        )
                        tree = gr.HTML(NOTHING, elem_id="tree")
                message = gr.HTML(elem_id="message")
                prompt = gr.Textbox(
                    value="" if service.chat else CODE["mean"],
                    label="Your message" if service.chat else "Text to continue",
                    lines=5,
                    max_lines=5,  # fixed: resizing takes minutes for long texts
                    elem_id="prompt",
                    elem_classes=[] if service.chat else ["code"],
                    info="Shift+Enter sends it.",
                )
                with gr.Row():
                    send = gr.Button(
                        "Send" if service.chat else "Continue",
                        variant="primary",
                        elem_id="send",
                        min_width=120,
                    )
                    run = gr.Button("Race", elem_id="race", min_width=80)
                    stop = gr.Button(
                        "Stop", variant="stop", elem_id="stop", interactive=False, min_width=80
                    )
                    again = gr.Button("Regenerate", elem_id="again", min_width=100)
                    clear = gr.Button("Clear", elem_id="clear", min_width=80)
                with gr.Row(elem_classes="examples"):
                    for key, text in examples.items():
                        title = text.strip().split("\n")[0]
                        button = gr.Button(
                            title, size="sm", elem_id=f"example-{key}", min_width=140
                        )
                        # Runs in the browser only.
                        button.click(None, None, prompt, js=f"() => {_quoted(text)}")
            with gr.Column(scale=1, min_width=260):
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
            verdict=verdict,
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
        what = (
            "It completes Python code and does not chat. It is tiny and its code is seldom good: "
            "watch how the code is drafted and verified."
        )
    return (
        f'<div class="head"><h1>dart_jax</h1><p>Speculative decoding with {escape(name)}. '
        f"{escape(what)}</p>{LEGEND}</div>"
    )


def _controls(service: Service) -> list[Any]:
    """Creates the controls, in the order of the fields of `Settings`."""
    default = service.default
    controls = [
        gr.Radio(service.methods.choices, value=default.method, label="Method", elem_id="method"),
        gr.Slider(0, 2, step=0.05, label="Temperature", info="0 is greedy decoding"),
        gr.Slider(0.05, 1, step=0.05, label="Top-p"),
        gr.Slider(0, 200, step=1, label="Top-k", info="0 for all"),
        gr.Slider(SIZES.start, SIZES[-1], step=SIZES.step, label="Tree nodes"),
        gr.Slider(LEAST, service.most, step=LEAST, label="Maximum new tokens"),
        gr.Number(precision=0, minimum=0, maximum=2**32 - 1, label="Seed"),
    ]
    for field, control in zip(dataclasses.fields(Settings), controls, strict=True):
        control.value = getattr(default, field.name)
        control.elem_id = field.name
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
    # No concurrency limit: handlers share only the worker, which schedules fairly. None is an API.
    quiet: dict[str, Any] = {
        "show_progress": "hidden",
        "concurrency_limit": None,
        "api_visibility": "private",
    }
    inputs = [out.prompt, out.chat, *controls]
    outputs = [
        out.history, out.current, out.message, out.prompt, out.send, out.run, out.stop, out.again,
        out.tabs, out.step, out.tree, out.chat, out.last, controls[-1],
    ]  # fmt: skip
    events.seed = controls[-1]
    gr.on([out.send.click, out.prompt.submit], events.write, inputs, outputs, **quiet)
    out.again.click(events.write_again, inputs, outputs, **quiet)
    race_outputs = [
        out.left, out.right, out.verdict, out.message, out.send, out.run, out.stop, out.again,
    ]  # fmt: skip
    out.run.click(
        events.race, [out.prompt, out.chat, *racers, *controls], [*race_outputs, out.tabs], **quiet
    )
    out.stop.click(events.stop, None, None, queue=False, **quiet)
    # Queued, so that it runs after pending updates of an answer.
    clear.click(events.clear, None, [*outputs[:-1], out.left, out.right, out.verdict], **quiet)
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
        """Serves until Ctrl-C."""
        self.blocks.block_thread()
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
            theme=Default(primary_hue="green", font=_FONT, font_mono=_MONO),
            css_paths=[STYLE, TREE_STYLE],
        )
    except OSError as error:
        service.close()
        raise UserError(f"cannot listen at port {port}: {error}; choose another --port") from None
    example = CODE["mean"]
    service.warm_up([{"role": "user", "content": example}] if service.chat else example)
    return Running(address, service, blocks)
