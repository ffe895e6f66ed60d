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

# On a busy machine programs take a while to compile.
PATIENCE = 240_000  # milliseconds


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
        sampling = self.page.locator("#sampling > button")
        if "open" not in (sampling.get_attribute("class") or ""):
            sampling.click()
        box = self.page.locator(f"#{name} input[type=number]")
        box.fill(str(value))
        box.press("Tab")

    def method(self, title: str) -> None:
        """Chooses a method."""
        self.page.locator("#method").get_by_label(title, exact=True).check()

    def write(self, prompt: str) -> None:
        """Sends a prompt, and waits for the first tokens of its answer."""
        before = self.page.locator(".entry").count()
        self.page.fill("#prompt textarea", prompt)
        self.page.press("#prompt textarea", "Enter")
        self.page.wait_for_function(
            f"document.querySelectorAll('.written')[{before}]?.textContent.length > 0"
        )

    def finished(self) -> str:
        """Waits for the newest answer's end; its line."""
        line = ".entry:last-child > .note > span"
        self.page.wait_for_function(
            f"/cut|finished/.test(document.querySelector('{line}')?.textContent)"
        )
        return self.page.inner_text(line)

    @property
    def answer(self) -> str:
        """The newest answer's text."""
        return self.page.evaluate(
            "document.querySelector('.entry:last-child .written').textContent"
        )

    def tab(self, name: str) -> None:
        """Shows a part of the page."""
        self.page.get_by_role("tab", name=name).click()
