"""Event handlers of the page: from a click to the updates of the page."""

from __future__ import annotations

import dataclasses
import logging
import math
import time
from collections.abc import AsyncGenerator
from typing import Any, NamedTuple

import gradio as gr

from dart_jax.app import markup, step_view
from dart_jax.app.answer import Answer
from dart_jax.app.chat import Entry, full_prompt, restore, store
from dart_jax.app.service import Replaced, Service
from dart_jax.app.settings import Settings
from dart_jax.errors import UserError

_logger = logging.getLogger(__name__)

# Interval in seconds at which the browser stores a running answer: a reload loses no more.
_KEEP = 1.0

Update = dict[Any, Any]


class Outputs(NamedTuple):
    """The components of the page that events update."""

    history: gr.HTML
    current: gr.HTML
    message: gr.HTML
    prompt: gr.Textbox
    send: gr.Button
    run: gr.Button
    stop: gr.Button
    again: gr.Button
    tabs: gr.Tabs
    left: gr.HTML
    right: gr.HTML
    board: gr.HTML
    step: gr.Slider
    tree: gr.HTML
    settings: gr.BrowserState
    chat: gr.BrowserState
    last: gr.BrowserState
    draft: gr.BrowserState


class Events:
    """Handles the page's events. A visitor is a browser tab, identified by Gradio's session.

    All values come unchecked from a browser.
    """

    def __init__(self, service: Service, out: Outputs):
        """`out`: the components to update."""
        self.service, self.out = service, out
        self.seed: Any = None  # the seed control, to show a new seed

    async def write(
        self, request: gr.Request, prompt: Any, stored: Any, *values: Any
    ) -> AsyncGenerator[Update, None]:
        """Answers a prompt."""
        async for update in self._write(request, restore(stored), _text(prompt), values):
            yield update

    async def write_again(
        self, request: gr.Request, prompt: Any, stored: Any, *values: Any
    ) -> AsyncGenerator[Update, None]:
        """Answers the last prompt again and replaces its answer, with the current settings and,
        when sampling, another seed."""
        before = restore(stored)
        if not before:
            yield {self.out.message: markup.note("There is no answer yet to regenerate.", "error")}
            return
        update: Update = {}
        temperature, seed = values[1], values[-1]
        if isinstance(temperature, int | float) and temperature > 0 and seed in range(2**32):
            seed = (seed + 1) % 2**32
            update = {self.seed: seed}
        last = before.pop()
        async for more in self._write(request, before, last.prompt, (*values[:-1], seed)):
            yield update | more

    async def _write(
        self, request: gr.Request, before: list[Entry], prompt: str, values: tuple[Any, ...]
    ) -> AsyncGenerator[Update, None]:
        out, service, visitor = self.out, self.service, _visitor(request)
        try:
            settings = service.settings(values)
            prepared = service.prepare(full_prompt(before, prompt, service.chat), settings)
        except UserError as error:
            yield self._error(error)
            return
        answer, kept = prepared.answer, time.monotonic()
        yield self._buttons(busy=True) | {
            out.history: self._draw_all(before),
            out.current: self._draw(Entry(prompt), busy=True),
            out.message: "",
            out.prompt: "" if service.chat else gr.skip(),
            out.tabs: gr.Tabs(selected="answer"),
            out.chat: store([*before, Entry(prompt)]),
            out.last: "",
        }
        message = ""
        try:
            async for line in service.serve(visitor, [prepared]):
                entry = _entry(prompt, answer)
                update: Update = {
                    out.current: self._draw(entry, busy=not answer.ended),
                    out.message: markup.note(line),
                }
                if time.monotonic() - kept > _KEEP:
                    kept = time.monotonic()
                    update[out.chat] = store([*before, entry])
                yield update
        except Replaced:
            yield self._replaced()
            return
        except UserError as error:
            message = markup.note(_sentence(error), "error")
        service.remember(visitor, answer, settings.method)
        entry = _entry(prompt, answer)
        yield self._buttons(busy=False) | {
            out.current: self._draw(entry),
            out.message: message,
            out.chat: store([*before, entry]),
            out.last: visitor,
            **self._first_step(visitor),
        }

    async def race(
        self,
        request: gr.Request,
        prompt: Any,
        stored: Any,
        left: Any,
        right: Any,
        *values: Any,
    ) -> AsyncGenerator[Update, None]:
        """Runs two methods on the same prompt, side by side."""
        out, service, visitor = self.out, self.service, _visitor(request)
        try:
            before = restore(stored) if service.chat else []
            prompt = _text(prompt)
            if service.chat and not prompt.strip() and before:
                prompt = before.pop().prompt  # the box is empty after an answer
            words = full_prompt(before, prompt, service.chat)
            both = [
                service.prepare(words, service.settings((method, *values[1:])))
                for method in (left, right)
            ]
        except UserError as error:
            yield self._error(error)
            return
        one, other = (prepared.answer for prepared in both)
        shown = "" if service.chat else prompt
        yield self._buttons(busy=True) | self._lanes(one, other, shown) | {out.message: ""}
        message = verdict = ""
        try:
            async for line in service.serve(visitor, both):
                yield self._lanes(one, other, shown) | {out.message: markup.note(line)}
            verdict = markup.note(markup.verdict(one, other), "winner")
        except Replaced:
            yield self._replaced()
            return
        except UserError as error:
            message = markup.note(_sentence(error), "error")
        yield (
            self._buttons(busy=False)
            | self._lanes(one, other, shown, verdict)
            | {out.message: message}
        )

    def stop(self, request: gr.Request) -> None:
        """Stops the visitor's running answer and keeps its text; also when the page is closed,
        since it may be opened again."""
        self.service.stop(_visitor(request))

    async def clear(self, request: gr.Request) -> Update:
        """Clears the conversation and stops the running answer; a typed prompt stays."""
        out = self.out
        await self.service.clear(_visitor(request))
        shown = (out.history, out.message, out.left, out.right, out.board)
        return (
            self._buttons(busy=False)
            | dict.fromkeys(shown, "")
            | {
                out.current: markup.NO_ANSWER,
                out.chat: [],
                out.last: "",
                **self._first_step(_visitor(request)),
            }
        )

    def show_step(self, request: gr.Request, number: Any) -> str:
        """Draws the draft tree of a step of the visitor's last answer, the nearest if there is no
        such step."""
        valid = isinstance(number, int | float) and math.isfinite(number)
        return self._tree(_visitor(request), int(number) if valid else 1)

    def restore(
        self, request: gr.Request, settings: Any, stored: Any, last: Any, draft: Any
    ) -> list[Any]:
        """Restores a page from what its browser stored, and the trees of its last answer."""
        visitor = _visitor(request)
        inherited = isinstance(last, str) and self.service.inherit(visitor, last)
        controls, racers = [gr.skip()] * 7, [gr.skip()] * 2
        if isinstance(settings, list) and len(settings) == 9:
            try:
                made = self.service.settings(settings[:7])
                controls = [getattr(made, field.name) for field in dataclasses.fields(Settings)]
            except (UserError, TypeError):
                _logger.info("a browser's stored settings are no longer valid")
            if all(isinstance(one, str) and one in self.service.methods for one in settings[7:]):
                racers = settings[7:]
        entries = restore(stored)
        current = self._draw(entries[-1]) if entries else markup.NO_ANSWER
        prompt = draft if isinstance(draft, str) else gr.skip()
        shown = [self._draw_all(entries[:-1]), current, prompt, visitor if inherited else gr.skip()]
        return [*controls, *racers, *shown, *self._first_step(visitor).values()]

    def _first_step(self, visitor: str) -> Update:
        """Updates the step slider for the visitor's last answer and shows the first step's tree."""
        last = self.service.last(visitor)
        steps = 0 if last is None else len(last[0].verified)
        return {
            self.out.step: gr.Slider(maximum=max(steps, 2), value=1),
            self.out.tree: self._tree(visitor, 1),
        }

    def _tree(self, visitor: str, number: int) -> str:
        last = self.service.last(visitor)
        if last is None:
            return step_view.NOTHING
        answer, method = last
        return step_view.picture(answer, self.service.methods[method].model, number)

    def _error(self, error: UserError) -> Update:
        """Shows an error message in place of an answer."""
        return {self.out.message: markup.note(_sentence(error), "error")}

    def _replaced(self) -> Update:
        """Ends a replaced answer without changes: Gradio repeats the last update at the end,
        perhaps after updates of the new answer."""
        return {self.out.message: gr.skip()}

    def _buttons(self, *, busy: bool) -> Update:
        """Stop takes the place of the button that started the answer."""
        out = self.out
        # The style sheet shows the one of these two that belongs to the open tab.
        start = gr.Button(visible="hidden" if busy else True)
        return {
            out.send: start,
            out.run: start,
            out.stop: gr.Button(visible=busy),
            out.again: gr.Button(interactive=not busy),
        }

    def _draw(self, entry: Entry, busy: bool = False) -> str:
        return markup.entry(entry.prompt, entry.text, entry.line, chat=self.service.chat, busy=busy)

    def _draw_all(self, entries: list[Entry]) -> str:
        return "".join(map(self._draw, entries))

    def _lanes(self, one: Answer, other: Answer, prompt: str, verdict: str = "") -> Update:
        return {
            self.out.board: markup.board((one, other)) + verdict,
            self.out.left: markup.lane(one, prompt),
            self.out.right: markup.lane(other, prompt),
        }


def _entry(prompt: str, answer: Answer) -> Entry:
    runs = tuple(markup.runs(list(answer.pieces)))
    return Entry(prompt, runs, markup.statistics(answer))


def _sentence(error: UserError) -> str:
    text = str(error)
    return text[:1].upper() + text[1:] + "."


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _visitor(request: gr.Request) -> str:
    """The tab's session."""
    return request.session_hash or ""
