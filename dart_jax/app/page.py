"""The page: Gradio's chat, and two views of its last answer."""

from __future__ import annotations

import contextlib
import dataclasses
import random
import time
from collections.abc import AsyncGenerator, Iterator, Sequence
from pathlib import Path
from typing import Any

import gradio as gr
from gradio.themes import Default

from dart_jax.app import answers, step_view
from dart_jax.app.step_view import coloured, escape
from dart_jax.data.messages import cleaned
from dart_jax.decoding.drafting import drafter_title
from dart_jax.engine.thread import EngineThread
from dart_jax.errors import UserError
from dart_jax.generation import GeneratedText, GenerationConfig, Step

_CODE = [["def mean(values):\n"], ['class Stack:\n    """A stack."""\n\n'], ["import os\n"]]
QUESTIONS = [  # short ones, whose answers end
    ["Write a Python function that checks whether a number is even."],
    ["Explain photosynthesis in two sentences."],
    ["What is machine learning, in one sentence?"],
    ["Describe a sunset in one sentence."],
]
_PAPER = "https://arxiv.org/abs/2601.19278"
_HINT = "Enter sends, Shift+Enter begins a new line"
_LEGEND = """<span class="drafted">Drafted</span> and accepted, or the target's
<span class="own">own</span>."""
# While nothing is written yet.
_READING = {"title": "Reading; the first answers also wait for compilation", "status": "pending"}
_NOTHING = '<p class="note">The tokens and draft trees of the next answer will be here.</p>'

# Nothing is loaded from other hosts, which could learn what was said by the images of an answer.
_POLICY = "default-src 'self' 'unsafe-inline' 'unsafe-eval' data: blob:"
_HEAD = f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'

_STYLE = Path(__file__).with_name("style.css")
_REFRESH = 0.08  # seconds between updates of the page

_SEEDS = 10_000  # to choose from

# Name of an option -> label, hint, least, most, step.
_OPTIONS = {
    "max_new_tokens": ("Maximum new tokens", None, 8, 4096, 1),
    "temperature": ("Temperature", "0 is greedy decoding", 0, 2, 0.05),
    "top_p": ("Top-p", "1 for all", 0.05, 1, 0.05),
    "top_k": ("Top-k", "0 for all", 0, 200, 1),
    "min_p": ("Min-p", "0 for all", 0, 1, 0.05),
    "repetition_penalty": ("Repetition penalty", "1 for none", 0.5, 2, 0.05),
    "seed": ("Seed", "-1 for another one each time", -1, _SEEDS - 1, 1),
}


class _Chat(gr.ChatInterface):
    def _message_as_message_dict(self, message: Any, role: Any) -> list[Any]:
        """Keeps the white space of messages, with which a text to be continued may end; replaces
        unpaired surrogates, which Gradio cannot send."""
        message = _said(role, cleaned(message)) if isinstance(message, str) else message
        return super()._message_as_message_dict(message, role)

    def _pop_last_user_message(self, history: list[Any]) -> Any:
        """Takes one message only, not also those before it that got no answer."""
        last = max((i for i, each in enumerate(history) if each["role"] == "user"), default=0)
        return history[:last], super()._pop_last_user_message(history[last:])[1]


def _said(role: str, text: str) -> dict[str, Any]:
    return {"role": role, "content": [{"type": "text", "text": text}]}


def begun(chat: Sequence[Any]) -> Any:
    """Leaves out an answer of which nothing is written; returns it twice, to show and to keep."""
    rest = [each for each in chat if (each.get("metadata") or {}).get("status") != "pending"]
    return rest, rest


class Page:
    """The page of an engine's model."""

    def __init__(self, engine: EngineThread, own: GenerationConfig):
        """Takes the engine, and the options with which the page begins."""
        self._engine, self._own, self._model = engine, own, engine.model
        self._chat = bool(engine.model.tokenizer.chat_template)

    def blocks(self, name: str, about: str) -> gr.Blocks:
        """Builds the Gradio app; `name` is the model's, `about` what to expect of it."""
        chat, model = self._chat, self._model
        drafts = self._engine.config.tree_nodes != 0
        by = drafter_title(model.drafter, text=model.text_drafts) if drafts else "nothing"
        line = f"{escape(about)} " if about else ""
        line += "" if chat else "It continues your text; it does not chat. "
        line += f'Drafted by: {by}. <a href="{_PAPER}" target="_blank">How drafting works</a>'
        private: dict[str, Any] = {"api_visibility": "private", "show_progress": "hidden"}
        with gr.Blocks(title=name, analytics_enabled=False, fill_height=True) as blocks:
            gr.HTML(f'<h1>{escape(name)}</h1><p class="note">{line}</p>', padding=False)
            with gr.Row(scale=1):
                column = gr.Column(scale=3, min_width=320)
                with gr.Column(scale=2, min_width=320):
                    tokens = gr.HTML(_NOTHING, elem_id="tokens", padding=False)
                    number = gr.Slider(1, 2, step=1, label="Step", visible=False, elem_id="step")
                    tree = gr.HTML(elem_id="tree", padding=False)
            box: Any = {"submit_btn": True, "stop_btn": True, "max_lines": 12, "render": False}
            textbox = gr.Textbox(placeholder=_HINT, **box)
            look: Any = {"show_label": False, "scale": 1, "min_height": 400, "elem_id": "chat"}
            look |= {"render_markdown": chat, "elem_classes": [] if chat else ["plain"]}
            look |= {"buttons": ["copy", "copy_all"], "editable": "user", "render": False}
            chatbot = gr.Chatbot(**look)
            views = [tokens, steps := gr.State(), number, tree, textbox]
            settings = gr.Accordion("Settings", open=False, render=False)
            parts: Any = {"chatbot": chatbot, "textbox": textbox, "additional_outputs": views}
            parts |= {"additional_inputs": self._settings(), "concurrency_limit": None, **private}
            parts |= {"additional_inputs_accordion": settings, "analytics_enabled": False}
            parts |= {"examples": QUESTIONS if chat else _CODE, "save_history": True}
            # Enter in an empty box does nothing.
            parts |= {"validator": lambda message: gr.validate(bool(message.strip()), "")}
            with column:
                interface = _Chat(self.reply, editable=True, **parts)
            # Gradio's own reaction leaves out answers to edited messages.
            cancels: Any = [f.get_config() for f in blocks.fns.values() if f.name == "_submit_fn"]
            ready: Any = {"interactive": True, "submit_btn": True, "stop_btn": False}
            stop = textbox.stop(lambda: gr.update(**ready), None, textbox, cancels=cancels)
            stop.then(begun, chatbot, [chatbot, interface.chatbot_state], **private)
            nothing = _NOTHING, None, gr.update(visible=False), "", gr.skip()
            chatbot.clear(lambda: nothing, None, views, **private)
            number.input(self._picture, [steps, number], tree, queue=False, **private)
        return blocks

    def _settings(self) -> list[Any]:
        """Returns the inputs of `reply` after the history."""
        own: Any = dataclasses.asdict(self._own.sampling) | {"max_new_tokens": 256, "seed": -1}
        options: Any = {"placeholder": "The chat template's own", "visible": self._chat}
        settings: list[Any] = [gr.Textbox("", label="System prompt", render=False, **options)]
        for name, (label, info, least, most, step) in _OPTIONS.items():
            ends, value = (min(least, own[name]), max(most, own[name])), own[name]
            options = {"label": label, "info": info, "elem_id": name, "render": False}
            settings.append(gr.Slider(*ends, value, step=step, **options))
        return settings

    async def reply(
        self, message: str, history: Sequence[Any], system: str, *numbers: float | None
    ) -> AsyncGenerator[tuple[Any, ...], None]:
        """Yields an answer's message and its views while it is written. `numbers` are values of
        `_OPTIONS`; a UserError is shown to the visitor, and is not in the log."""
        shown = 0.0
        try:
            if not message.strip():
                raise UserError("the message is empty; write some text or choose an example")
            options: dict[str, Any] = dict(zip(_OPTIONS, numbers, strict=True))
            if options["seed"] == -1:
                options["seed"] = random.randrange(_SEEDS)
            config = GenerationConfig.of(self._own, options)
            prompt = self._messages(message, history, system) if self._chat else message
            async with contextlib.aclosing(answers.write(self._engine, prompt, config)) as writing:
                async for text, steps, seconds in writing:
                    if text.finish or time.monotonic() > shown + _REFRESH:
                        said = _said("assistant", "".join(text.pieces))
                        said |= {} if text.tokens else {"metadata": _READING}
                        yield said, *self._views(message, text, steps, seconds, config)
                        shown = time.monotonic()
        except UserError as error:
            # Not a gr.Error, after which Gradio would not run what enables the box again. The
            # message stays in the chat without an answer, and can be edited.
            gr.Warning(escape(f"{str(error)[:1].upper()}{str(error)[1:]}."))
            box = gr.update(submit_btn=True, stop_btn=False, placeholder=_HINT)
            yield [], gr.skip(), gr.skip(), gr.skip(), gr.skip(), box

    def _messages(self, message: str, history: Sequence[Any], system: str) -> list[dict[str, Any]]:
        """Returns what the model reads. A message that got no answer is left out."""
        messages = [{"role": "system", "content": system}] if system.strip() else []
        for each in [*history, _said("user", message)]:
            if each["role"] == "user" and messages and messages[-1]["role"] == "user":
                messages.pop()
            text = "".join(part.get("text", "") for part in each["content"])
            messages.append({"role": each["role"], "content": text})
        return cleaned(messages)

    def _views(
        self,
        message: str,
        text: GeneratedText,
        steps: list[Step],
        seconds: float,
        config: GenerationConfig,
    ) -> Any:
        """Returns the tokens, the steps, the slider, the newest tree, and the message's box."""
        count, own, last = len(text.tokens), text.drafted[:-1].count(False), len(steps)
        drafts, ended = any(step.draft for step in steps), bool(text.finish)
        line = f"{count} tokens"
        if steps and own:
            tau = f"tau {(count - 1) / own:.2f}" if drafts else "nothing drafted"
            line += f" · {(count - 1) / seconds:,.0f} tokens/s · {tau}"
        if config.sampling.temperature:
            line += f" · seed {config.seed}"
        if ended:
            line += " · finished" if text.finish == "stop" else " · cut at the maximum length"
        before = "" if self._chat else f'<span class="prompt">{escape(message)}</span>'
        after = coloured(text.pieces) if drafts else escape("".join(text.pieces))
        note = f'<p class="note">{line}. {_LEGEND if drafts else ""}</p>'
        html = f'{note}<div class="end"><div class="text">{before}{after}</div></div>'
        slider = gr.update(maximum=max(last, 2), value=max(last, 1), visible=drafts)
        box = gr.update(submit_btn=ended, stop_btn=not ended, placeholder=_HINT)
        return html, steps, slider, self._picture(steps, last), box

    def _picture(self, steps: list[Step], number: int) -> str:
        """Draws one of an answer's steps, counted from 1."""
        if not 0 < number <= len(steps):
            return ""
        step = steps[number - 1]
        svg = "" if step.draft is None else step_view.drawing(step, self._model)
        line = f"Step {number} of {len(steps)}: {step_view.counts(step)}."
        return f'<p class="note">{line}</p><div class="wide">{svg}</div>'


@contextlib.contextmanager
def served(
    engine: EngineThread, own: GenerationConfig, name: str, about: str, host: str, port: int
) -> Iterator[str]:
    """Serves the page of an engine's model, called `name`, with a sentence `about` it, which begins
    with the options `own`; yields its address. Port 0 is the first free one from 7860 on. A
    UserError if it is taken."""
    blocks = Page(engine, own).blocks(name, about)
    blocks.queue(api_open=False)
    theme = Default(primary_hue="green").set(button_primary_background_fill="*primary_700")
    options: Any = {"theme": theme, "css_paths": _STYLE, "head": _HEAD, "footer_links": []}
    options |= {"quiet": True, "run_history": False, "ssr_mode": False, "prevent_thread_lock": True}
    try:
        _, address, _ = blocks.launch(server_name=host, server_port=port or None, **options)
        yield address
    except OSError as error:
        raise UserError(f"cannot listen at port {port}: {error}; choose another --port") from None
    finally:
        blocks.close(verbose=False)
