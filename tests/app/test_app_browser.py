"""The web app in a real browser."""

import time
from urllib.parse import urlsplit

import pytest
from app_browser import MESSAGE, Visitor, app, browser

from dart_jax.model import DartModel

STACK = "class Stack:\n    def __init__(self):\n"
WICKED = '<script>hacked=1</script><img src=x onerror="hacked=1">![](http://a.invalid/b.png) ${6*7}'
pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def served():
    with app("--model", "demo", "--tree-nodes", "8") as served:
        yield served


@pytest.fixture(scope="module")
def chromium(served):
    with browser() as chromium:
        yield chromium


@pytest.fixture
def visit(chromium, served):
    """Opens tabs, each a visitor's own; nothing may go wrong in them, appear as a traceback in the
    server's log, or leave this machine."""
    visitors = []

    def visit(**options) -> Visitor:
        visitors.append(Visitor(chromium.new_context(**options), served.address))
        return visitors[-1]

    yield visit
    for visitor in visitors:
        visitor.page.context.close()
        assert visitor.problems == []
        hosts = {urlsplit(url).hostname for url in visitor.requests if url.startswith("http")}
        assert hosts == {"127.0.0.1"}
    assert "Traceback" not in served.log.read_text()


def test_an_answer_its_tokens_and_trees(visit):
    visitor = visit()
    page = visitor.page
    visitor.set("max_new_tokens", 128)
    visitor.send(STACK)
    line = visitor.finished()
    expected = DartModel.demo().generate(STACK, max_new_tokens=128).text
    assert visitor.tokens == STACK + expected
    assert all(words in line for words in ("128 tokens", "tokens/s", "tau"))
    assert page.inner_text("#chat .bot").strip() == expected.strip()
    colours = {
        page.eval_on_selector(f"#tokens .text .{kind}", "e => getComputedStyle(e).color")
        for kind in ("drafted", "own")
    }
    assert len(colours) == 2
    first = page.inner_html("#tree svg")
    visitor.set("step", 3)
    page.wait_for_selector("#tree:has-text('Step 3 of')")
    assert page.inner_html("#tree svg") != first
    # One box per drafted token, plus the root and the bonus token.
    assert page.locator("#tree svg .node").count() == 8 + 2
    page.get_by_label("Retry").click()
    page.wait_for_selector("#tree:not(:has-text('Step 3 of'))")
    visitor.finished()
    assert visitor.tokens == STACK + expected
    # Another visitor sees none of it.
    assert visit().page.locator("#tokens .text").count() == 0
    page.get_by_label("Clear").click()
    page.wait_for_selector("#tokens .text", state="detached")


def test_stop_and_edit(visit):
    """What was written stays, and the next message is answered; an edited one as well."""
    visitor = visit()
    page = visitor.page
    visitor.set("max_new_tokens", 2048)
    visitor.send("import os\n")
    page.click(".stop-button")
    page.wait_for_selector(f"{MESSAGE}:enabled")
    before = visitor.tokens
    time.sleep(0.5)
    assert visitor.tokens == before
    visitor.set("max_new_tokens", 16)
    page.get_by_label("Edit").first.click()
    page.fill("#chat textarea", "def mean(values):\n")
    page.get_by_label("Submit").click()
    page.wait_for_selector("#tokens .prompt:has-text('def mean')")
    assert "16 tokens" in visitor.finished()
    assert page.locator(".stop-button").count() == 0


def test_text_is_text(visit):
    """Markup and template syntax have no effect, and nothing is loaded."""
    visitor = visit()
    visitor.set("max_new_tokens", 16)
    visitor.send(WICKED)
    visitor.finished()
    assert visitor.page.inner_text("#tokens .prompt") == WICKED
    assert visitor.page.evaluate("window.hacked === undefined")
    visitor.page.fill(MESSAGE, " ")
    visitor.page.press(MESSAGE, "Enter")
    visitor.page.wait_for_selector(".toast-body:has-text('The message is empty')")


def test_on_a_phone(visit):
    """Nothing is wider than the screen; a wide tree scrolls by itself."""
    visitor = visit(viewport={"width": 390, "height": 844})
    for message in ("x" * 200, STACK):
        visitor.send(message)
        visitor.finished()
    assert visitor.page.evaluate("document.documentElement.scrollWidth") == 390
    assert visitor.page.evaluate("document.querySelector('#tree svg').clientWidth") > 390
