"""The web app in a real browser; Gradio's own parts are tested by Gradio."""

import os
import shutil
import subprocess
import sys
import time
from urllib.parse import urlsplit

import pytest

from dart_jax.model import DartModel

STACK = "class Stack:\n    def __init__(self):\n"
WICKED = '<script>hacked=1</script><img src=x onerror="hacked=1">![](http://a.invalid/b.png) ${6*7}'
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
PATIENCE = 240_000  # milliseconds; on a busy machine programs take a while to compile
MESSAGE = "textarea[data-testid=textbox]:not(#system *)"
pytestmark = pytest.mark.long


@pytest.fixture
def page(tmp_path):
    """The page of the demo; nothing may go wrong in it, appear as a traceback in the server's log,
    or leave this machine."""
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None and os.environ.get("DART_REQUIRE_BROWSER") != "1":
        pytest.skip("needs Chromium (apt-get install chromium)")
    from playwright.sync_api import sync_playwright

    command = [sys.executable, "-m", "dart_jax.app", "--port", "0", "--model", "demo"]
    command += ["--tree-nodes", "8"]
    problems, requests, log = [], [], tmp_path / "log"
    with (
        log.open("w") as errors,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True) as process,
        sync_playwright() as playwright,
    ):
        try:
            assert process.stdout is not None
            address = process.stdout.readline().removeprefix("dart_jax is at ").strip()
            assert address, log.read_text()
            browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
            page = browser.new_page(viewport={"width": 390, "height": 844})  # a phone's
            page.set_default_timeout(PATIENCE)
            page.on("pageerror", lambda error: problems.append(str(error)))
            page.on("dialog", lambda dialog: problems.append(dialog.message))
            page.on("request", lambda request: requests.append(request.url))
            page.goto(address)
            page.wait_for_selector(MESSAGE)
            yield page
            browser.close()
        finally:
            process.terminate()
    assert problems == []
    hosts = {urlsplit(url).hostname for url in requests if url.startswith("http")}
    assert hosts == {"127.0.0.1"}
    assert "Traceback" not in log.read_text()


def set_number(page, name, value):
    """Types a number into a control of the settings, or of the trees."""
    box = page.locator(f"#{name} input[type=number]")
    if not box.is_visible():
        page.get_by_role("button", name="Settings").click()
    box.fill(str(value))
    box.press("Tab")


def send(page, message):
    """Sends a message, and waits until it is being read."""
    page.evaluate("document.querySelector('#tokens .text')?.classList.add('old')")
    page.fill(MESSAGE, message)
    page.press(MESSAGE, "Enter")
    page.wait_for_selector("#tokens .text:not(.old)")


def finished(page):
    """Waits for the answer's end; the line above its tokens."""
    page.wait_for_selector("#tokens .note:text-matches('cut|finished')")
    page.wait_for_selector(f"{MESSAGE}:enabled")
    return page.inner_text("#tokens .note")


def tokens(page):
    """The text of the view of tokens."""
    return page.evaluate("document.querySelector('#tokens .text').textContent")


def test_answers_their_tokens_and_trees(page):
    """Also after a retry, a stop, an edit and an error; markup and template syntax have no
    effect."""
    set_number(page, "max_new_tokens", 128)
    send(page, STACK)
    line, expected = finished(page), DartModel.demo().generate(STACK, max_new_tokens=128).text
    assert tokens(page) == STACK + expected
    assert all(words in line for words in ("128 tokens", "tokens/s", "tau"))
    assert page.inner_text("#chat .bot").strip() == expected.strip()
    colours = {
        page.eval_on_selector(f"#tokens .text .{kind}", "e => getComputedStyle(e).color")
        for kind in ("drafted", "own")
    }
    assert len(colours) == 2
    first = page.inner_html("#tree svg")
    set_number(page, "step", 3)
    page.wait_for_selector("#tree:has-text('Step 3 of')")
    assert page.inner_html("#tree svg") != first
    # One box per drafted token, plus the root and the bonus token.
    assert page.locator("#tree svg .node").count() == 8 + 2
    # A wide tree scrolls by itself.
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    assert page.evaluate("document.querySelector('#tree svg').clientWidth") > 390
    page.get_by_label("Retry").click()
    page.wait_for_selector("#tree:not(:has-text('Step 3 of'))")
    finished(page)
    assert tokens(page) == STACK + expected
    page.get_by_label("Clear").click()
    page.wait_for_selector("#tokens .text", state="detached")

    set_number(page, "max_new_tokens", 2048)
    # Clicked by the page itself, before a busy machine has written everything.
    page.evaluate(
        """() => new MutationObserver((changes, observer) => {
          const button = document.querySelector(".stop-button");
          const note = document.querySelector("#tokens .note")?.textContent;
          if (button && /^[1-9].* tokens/.test(note)) {
            observer.disconnect();
            button.click();
          }
        }).observe(document.body, {childList: true, subtree: true})"""
    )
    send(page, "import os\n")
    page.wait_for_selector(f"{MESSAGE}:enabled")
    before = tokens(page)
    time.sleep(0.5)
    assert tokens(page) == before
    set_number(page, "max_new_tokens", 16)
    page.get_by_label("Edit").first.click()
    page.fill("#chat textarea", "def mean(values):\n")
    page.get_by_label("Submit").click()
    page.wait_for_selector("#tokens .prompt:has-text('def mean')")
    assert "16 tokens" in finished(page)
    assert page.locator(".stop-button").count() == 0

    send(page, WICKED)
    finished(page)
    assert page.inner_text("#tokens .prompt") == WICKED
    assert page.evaluate("window.hacked === undefined")
    # An empty message does nothing; one that gets no answer leaves the chat and the box usable.
    chat = page.inner_text("#chat")
    with page.expect_response(lambda response: response.status == 422):
        page.fill(MESSAGE, " ")
        page.press(MESSAGE, "Enter")
    page.wait_for_selector(f"{MESSAGE}:enabled")
    assert page.inner_text("#chat") == chat
    page.fill(MESSAGE, "x " * 3000)
    page.press(MESSAGE, "Enter")
    page.wait_for_selector(".toast-body:has-text('leaves no room')")
    page.wait_for_selector(".submit-button")
    page.wait_for_selector(f"{MESSAGE}:enabled")
    assert page.inner_text("#chat").startswith(chat)
    send(page, "import re\n")
    assert "16 tokens" in finished(page)
