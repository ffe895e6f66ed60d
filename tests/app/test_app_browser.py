"""The web app in a real browser."""

from urllib.parse import urlsplit

import pytest
from app_browser import Visitor, app, browser

from dart_jax.model import DartModel

HEAP = "def heappush(heap, item):\n"
WICKED = (
    '<script>window.hacked=1</script><img src=x onerror="window.hacked=1"> {{value}} ${6*7} \x1b'
)
pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def served():
    with app() as served:
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


def test_write_and_look_at_a_tree(visit):
    """The text is the one that `generate` gives, coloured by its origin."""
    visitor = visit()
    visitor.set("tree_nodes", 8)
    visitor.write(HEAP)
    line = visitor.finished()
    expected = DartModel.demo().generate(HEAP, max_new_tokens=128).text
    assert visitor.answer == expected
    assert all(words in line for words in ("128 tokens", "tokens/s", "tau"))
    colours = {
        visitor.page.eval_on_selector(f".entry .{kind}", "e => getComputedStyle(e).color")
        for kind in ("drafted", "own")
    }
    assert len(colours) == 2

    visitor.tab("Draft tree")
    visitor.page.wait_for_selector("#tree svg .node.bonus")
    first = visitor.page.inner_html("#tree svg")
    visitor.set("step", 3)
    visitor.page.wait_for_selector("#tree:has-text('Step 3 of')")
    assert visitor.page.inner_html("#tree svg") != first
    # One box per drafted token, plus the root and the bonus token.
    assert visitor.page.locator("#tree svg .node").count() == 8 + 2

    visitor.tab("Answer")
    visitor.method("plain decoding")
    visitor.write(HEAP)
    visitor.finished()
    assert visitor.answer == expected
    assert visitor.page.locator(".entry").count() == 2
    assert visitor.page.locator(".entry:last-child .drafted").count() == 0
    # Another visitor sees none of it.
    assert visit().page.locator(".entry").count() == 0
    visitor.page.click("#clear")
    visitor.page.wait_for_selector(".entry", state="detached")


def test_stop(visit):
    """The text stays, and the next visitor's turn comes."""
    first, second = visit(), visit()
    first.set("max_new_tokens", 1024)
    first.write(HEAP)
    first.page.click("#stop")
    second.set("max_new_tokens", 8)
    second.write(HEAP)
    assert "8 tokens" in second.finished()
    assert len(first.answer) > 0
    first.tab("Draft tree")
    first.page.wait_for_selector("#tree svg .node.bonus")


def test_text_is_text(visit):
    """Markup, template syntax and control characters have no effect."""
    visitor = visit()
    visitor.set("max_new_tokens", 16)
    visitor.write(WICKED)
    visitor.finished()
    prompt = visitor.page.inner_text(".entry .prompt")
    assert prompt == WICKED.replace("\x1b", "\ufffd")
    assert visitor.page.evaluate("window.hacked === undefined")
    assert visitor.page.locator(".entry img, .entry script").count() == 0


def test_bad_input_is_said(visit):
    visitor = visit()
    visitor.page.click("#send")
    visitor.page.wait_for_selector(".toast-body:has-text('The prompt is empty')")
    visitor.set("temperature", 9)  # the page takes the nearest number
    visitor.set("seed", "")
    visitor.set("max_new_tokens", 1)
    visitor.write(HEAP)
    assert "8 tokens" in visitor.finished()
    assert visitor.page.locator("#temperature input[type=number]").input_value() == "2"


def test_on_a_phone(visit):
    """Nothing is wider than the screen; a wide tree scrolls by itself."""
    visitor = visit(viewport={"width": 390, "height": 844})
    visitor.set("tree_nodes", 8)
    visitor.write(HEAP)
    visitor.finished()
    for name in ("Answer", "Draft tree"):
        visitor.tab(name)
        assert visitor.page.evaluate("document.documentElement.scrollWidth") == 390
    visitor.page.wait_for_selector("#tree svg")
    assert visitor.page.evaluate("document.querySelector('#tree svg').clientWidth") > 390
