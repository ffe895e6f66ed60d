"""The web app in a real browser."""

from urllib.parse import urlsplit

import pytest
from app_browser import Visitor, app, browser

from dart_jax.model import DartModel

HEAP = "def heappush(heap, item):\n"
WICKED = (
    '<script>window.hacked=1</script><img src=x onerror="window.hacked=1"> {{value}} ${6*7} \x1b'
)
LONG = 1504  # new tokens, which take some seconds

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def served():
    """An app that serves one visitor at a time, so that a second one is turned away."""
    with app("--visitors", "1", "--queue", "0", "--max-new-tokens", str(LONG)) as served:
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
    expected = "".join(DartModel.demo().stream(HEAP, max_new_tokens=128))
    assert visitor.answer == expected
    assert all(words in line for words in ("128 tokens", "tokens/s", "tau"))
    colours = {
        visitor.page.eval_on_selector(f"#current .{kind}", "e => getComputedStyle(e).color")
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
    assert visitor.page.locator("#current .drafted").count() == 0
    assert visitor.page.locator("#history .entry").count() == 1


def test_race(visit):
    """A bar per method grows to the maximum number of tokens, and one sentence says who won."""
    visitor = visit()
    visitor.set("tree_nodes", 8)
    visitor.set("max_new_tokens", 64)
    visitor.tab("Race")
    visitor.page.fill("#prompt textarea", HEAP)
    visitor.page.press("#prompt textarea", "Shift+Enter")
    visitor.page.wait_for_selector("#board .winner")
    verdict = visitor.page.inner_text("#board .winner")
    assert " wins: " in verdict
    assert "Both texts are the same" in verdict
    values = "[...document.querySelectorAll('#board progress')].map(e => [e.value, e.max])"
    assert visitor.page.evaluate(values) == [[64, 64], [64, 64]]
    texts = [visitor.page.inner_text(f"#lane-{side} .answer") for side in ("left", "right")]
    assert texts[0] == texts[1] != ""
    assert visitor.page.locator("#lane-left .drafted").count() == 0
    assert visitor.page.locator("#lane-right .drafted").count() > 0
    assert visitor.page.locator(".entry").count() == 0


def test_stop_and_a_full_house(visit):
    """An answer stops at once; while one is written another visitor is turned away."""
    first, second = visit(), visit()
    for visitor in (first, second):
        visitor.method("plain decoding")
    first.set("max_new_tokens", LONG)
    first.write(HEAP)
    first.page.click("#stop")
    assert "stopped" in first.finished()
    assert len(first.answer) > 0

    first.page.click("#again")
    first.page.wait_for_selector("#current .busy")
    second.page.fill("#prompt textarea", HEAP)
    second.page.click("#send")
    second.page.wait_for_selector(".toast-body:has-text('places are taken')")
    first.page.click("#stop")
    first.finished()
    second.set("max_new_tokens", 8)
    second.write(HEAP)
    assert "8 tokens" in second.finished()


def test_text_is_text(visit):
    """Markup, template syntax and control characters have no effect."""
    visitor = visit()
    visitor.set("max_new_tokens", 16)
    visitor.write(WICKED)
    visitor.finished()
    prompt = visitor.page.inner_text("#current .prompt")
    assert prompt == WICKED.replace("\x1b", "\ufffd")
    assert visitor.page.evaluate("window.hacked === undefined")
    assert visitor.page.locator("#current img, #current script").count() == 0


def test_regenerate_and_clear(visit):
    """The new answer replaces the old one; when sampling, with another seed."""
    visitor = visit()
    visitor.set("temperature", 1)
    visitor.set("max_new_tokens", 32)
    visitor.write(HEAP)
    visitor.finished()
    before = visitor.answer
    visitor.page.click("#again")
    visitor.page.wait_for_function(
        "before => document.querySelector('#current .answer').textContent != before", arg=before
    )
    visitor.finished()
    assert visitor.page.locator("#seed input[type=number]").input_value() == "1"
    assert visitor.page.locator(".entry").count() == 1
    visitor.page.click("#clear")
    visitor.page.wait_for_selector(".entry", state="detached")
    visitor.tab("Draft tree")
    assert visitor.page.locator("#tree svg").count() == 0
    # Another visitor sees none of it.
    assert visit().page.locator(".entry").count() == 0


def test_bad_input_is_said(visit):
    visitor = visit()
    for button, text in (("#send", "The prompt is empty"), ("#again", "There is no answer yet")):
        visitor.page.fill("#prompt textarea", "")
        visitor.page.click(button)
        visitor.page.wait_for_selector(f".toast-body:has-text('{text}')")
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
    for name in ("Answer", "Race", "Draft tree"):
        visitor.tab(name)
        assert visitor.page.evaluate("document.documentElement.scrollWidth") == 390
    assert visitor.page.evaluate("document.querySelector('#tree svg').clientWidth") > 390
