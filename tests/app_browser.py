"""Runs the web app in a separate process and drives it with a headless browser."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

REQUIRED = os.environ.get("DART_REQUIRE_BROWSER") == "1"
_BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")

_PACED = Path(__file__).with_name("paced_app.py")

# On a busy machine programs take a while to compile.
PATIENCE = 240_000  # milliseconds


class Served(NamedTuple):
    """A running app: its address, its process, and the file with what it writes to stderr."""

    address: str
    pid: int
    log: Path


@contextlib.contextmanager
def app(
    *options: str, model: str = "demo", pace: float = 0, **environment: str
) -> Iterator[Served]:
    """Starts an app of a model with a name, with these options on a free port and additional
    environment variables; each step takes `pace` seconds longer."""
    program = ["-m", "dart_jax.app"] if not pace else [str(_PACED), str(pace)]
    command = [sys.executable, *program, "--model", model, "--port", "0", *options]
    environ = os.environ | environment
    with (
        tempfile.NamedTemporaryFile() as log,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=log, text=True, env=environ
        ) as process,
    ):
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            problem = line + Path(log.name).read_text()
            assert line.startswith("dart_jax is at http://127.0.0.1:"), problem
            yield Served(line.split()[-1], process.pid, Path(log.name))
        finally:
            process.terminate()


@contextlib.contextmanager
def browser() -> Iterator[Any]:
    """Headless Chromium; without one the test is skipped, or fails where one is required."""
    path = next(filter(None, map(shutil.which, _BROWSERS)), None)
    try:
        from playwright.sync_api import sync_playwright
    except ModuleNotFoundError:
        path = None
    if path is None:
        message = "needs Playwright and Chromium (apt-get install chromium)"
        pytest.fail(message) if REQUIRED else pytest.skip(message)
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        try:
            yield launched
        finally:
            launched.close()


class Visitor:
    """One tab, used as a visitor would."""

    def __init__(self, context: Any, address: str):
        """Opens the page."""
        self.page = context.new_page()
        self.page.set_default_timeout(PATIENCE)
        self.problems: list[str] = []
        self.requests: list[str] = []
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.on("dialog", lambda dialog: self.problems.append(dialog.message))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(address)
        self.page.wait_for_selector("#send")

    def set(self, name: str, value: float | str) -> None:
        """Types a number into a control; an empty string empties it."""
        box = self.page.locator(f"#{name} input[type=number]")
        box.fill(str(value))
        box.press("Tab")

    def value(self, name: str) -> str:
        """The value of a control."""
        return self.page.locator(f"#{name} input[type=number]").input_value()

    def method(self, title: str) -> None:
        """Chooses a method."""
        self.page.locator("#method").get_by_label(title, exact=True).check()

    def write(self, prompt: str | None = None) -> None:
        """Sends a prompt, or the text in the box, and waits for the first tokens."""
        if prompt is not None:
            self.page.fill("#prompt textarea", prompt)
        self.page.click("#send")
        self.page.wait_for_selector("#current .cursor")
        self.page.wait_for_function("document.querySelector('#current .answer')?.innerText.length")

    def race(self, prompt: str) -> None:
        """Starts a race in its tab, and waits for the first tokens of both sides."""
        self.tab("Race")
        self.page.fill("#prompt textarea", prompt)
        self.page.click("#race")
        for side in ("left", "right"):
            self.page.wait_for_selector(f"#lane-{side} .answer span", state="attached")

    def box(self, selector: str) -> dict[str, float]:
        """The place of a visible element in the window: left, top, right, bottom."""
        box = "e => e.getBoundingClientRect().toJSON()"
        return self.page.locator(selector).locator("visible=true").evaluate(box)

    def in_window(self, selector: str) -> bool:
        """Whether the visible element of a CSS selector lies in the window and nothing covers its
        middle. Asked in one piece, since a page that grows replaces its elements."""
        return self.page.evaluate(
            """selector => {
            const found = [...document.querySelectorAll(selector)];
            const e = found.find(e => e.checkVisibility());
            const box = e.getBoundingClientRect();
            const [x, y] = [(box.left + box.right) / 2, (box.top + box.bottom) / 2];
            const inside = box.top >= 0 && box.left >= 0
                && box.bottom <= innerHeight && box.right <= innerWidth;
            return inside && e.contains(document.elementFromPoint(x, y));
        }""",
            selector,
        )

    def message(self) -> str:
        """The message above the prompt."""
        return self.page.inner_text("#message").strip()

    def clear(self) -> None:
        """Presses Clear, and waits until nothing stands there."""
        self.page.click("#clear")
        self.page.wait_for_selector(".entry", state="detached")

    def finished(self) -> str:
        """Waits for the answer's end; its line."""
        self.page.wait_for_selector("#current .cursor", state="detached")
        self.page.wait_for_selector("#send:not([disabled])")
        return self.page.inner_text("#current .line")

    @property
    def answer(self) -> str:
        """The newest answer's text."""
        return self.page.evaluate("document.querySelector('#current .answer').textContent")

    def tab(self, name: str) -> None:
        """Shows a part of the page."""
        self.page.get_by_role("tab", name=name).click()
