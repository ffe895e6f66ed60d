"""A headless browser for the web app."""

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
_PATIENCE = 240_000  # milliseconds; on a busy machine programs take a while to compile


class Served(NamedTuple):
    """A running app: its address, and the file with what it writes to stderr."""

    address: str
    log: Path


@contextlib.contextmanager
def app(*options: str) -> Iterator[Served]:
    """Starts an app with these options on a free port."""
    command = [sys.executable, "-m", "dart_jax.app", "--port", "0", *options]
    with (
        tempfile.NamedTemporaryFile() as log,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True) as process,
    ):
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            problem = line + Path(log.name).read_text()
            assert line.startswith("dart_jax is at http://127.0.0.1:"), problem
            yield Served(line.split()[-1], Path(log.name))
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
        instance = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        try:
            yield instance
        finally:
            instance.close()


class Visitor:
    """One tab, used as a visitor would."""

    def __init__(self, context: Any, address: str):
        """Opens the page."""
        self.page = context.new_page()
        self.page.set_default_timeout(_PATIENCE)
        self.problems: list[str] = []
        self.requests: list[str] = []
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.on("dialog", lambda dialog: self.problems.append(dialog.message))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(address)
        self.page.wait_for_selector(MESSAGE)

    def set(self, name: str, value: float) -> None:
        """Types a number into a control of the settings, or of the trees."""
        box = self.page.locator(f"#{name} input[type=number]")
        if not box.is_visible():
            self.page.get_by_role("button", name="Settings").click()
        box.fill(str(value))
        box.press("Tab")

    def send(self, message: str) -> None:
        """Sends a message, and waits for the first tokens of its answer."""
        self.page.evaluate("document.querySelector('#tokens .text')?.classList.add('old')")
        self.page.fill(MESSAGE, message)
        self.page.press(MESSAGE, "Enter")
        self.page.wait_for_selector("#tokens .text:not(.old)")

    def finished(self) -> str:
        """Waits for the answer's end; the line above its tokens."""
        self.page.wait_for_selector("#tokens .note:text-matches('cut|finished')")
        self.page.wait_for_selector(f"{MESSAGE}:enabled")
        return self.page.inner_text("#tokens .note")

    @property
    def tokens(self) -> str:
        """The text of the view of tokens."""
        return self.page.evaluate("document.querySelector('#tokens .text').textContent")


MESSAGE = "textarea[data-testid=textbox]:not(#system *)"
