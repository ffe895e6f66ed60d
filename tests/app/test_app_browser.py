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
def address():
    """An app that serves one visitor at a time, so that a second one is turned away, and slows down
    steps so that the tests can observe them."""
    limits = ("--visitors", "1", "--queue", "0", "--max-new-tokens", "1504")
    with app(*limits, pace=0.05) as served:
        yield served.address


@pytest.fixture(scope="module")
def chromium(address):
    with browser() as chromium:
        yield chromium


@pytest.fixture
def visit(chromium, address):
    """Opens tabs, each a visitor's own; nothing may go wrong in them or leave this machine."""
    visitors = []

    def visit(context=None) -> Visitor:
        visitors.append(Visitor(context or chromium.new_context(), address))
        return visitors[-1]

    yield visit
    for visitor in visitors:
        visitor.page.context.close()
        assert visitor.problems == []
        hosts = {urlsplit(url).hostname for url in visitor.requests if url.startswith("http")}
        assert hosts == {"127.0.0.1"}


def colours(visitor, kind):
    return visitor.page.eval_on_selector(
        f"#current .{kind}", "e => getComputedStyle(e).color + getComputedStyle(e).backgroundColor"
    )


def test_write_and_look_at_a_tree(visit):
    """Text comes bit by bit, coloured by its origin; it is the text that `generate` gives."""
    visitor = visit()
    visitor.write(HEAP)
    early = visitor.answer
    line = visitor.finished()
    assert visitor.answer.startswith(early)
    assert len(early) < len(visitor.answer)
    expected = "".join(DartModel.demo().stream(HEAP, max_new_tokens=128))
    assert visitor.answer == expected
    assert "128 tokens" in line
    assert "tokens/s" in line
    assert "tau" in line
    assert colours(visitor, "drafted") != colours(visitor, "own")

    visitor.tab("Draft tree")
    visitor.page.wait_for_selector("#tree svg .node.bonus")
    first = visitor.page.inner_html("#tree svg")
    visitor.set("step", 3)
    visitor.page.wait_for_function(
        "document.querySelector('#tree').innerText.includes('Step 3 of')"
    )
    assert visitor.page.inner_html("#tree svg") != first
    # One box per drafted token, plus the root and the bonus token.
    assert visitor.page.locator("#tree svg .node").count() == 8 + 2

    visitor.tab("Answer")
    visitor.method("plain decoding")
    visitor.write()
    visitor.finished()
    assert visitor.answer == expected
    assert visitor.page.locator("#current .drafted").count() == 0
    assert visitor.page.locator("#current .own").count() > 0
    assert visitor.page.locator("#history .entry").count() == 1


def test_race(visit):
    visitor = visit()
    visitor.page.fill("#prompt textarea", HEAP)
    visitor.page.click("button#race")
    visitor.page.wait_for_selector("#verdict .winner")
    verdict = visitor.page.inner_text("#verdict")
    assert " wins: " in verdict
    assert "Both texts are the same" in verdict
    texts = [visitor.page.inner_text(f"#lane-{side} .answer") for side in ("left", "right")]
    assert texts[0] == texts[1] != ""
    assert visitor.page.locator("#lane-left .drafted").count() == 0
    assert visitor.page.locator("#lane-right .drafted").count() > 0


def test_stop_and_the_closed_tab(visit):
    """An answer stops at once; while one is written another visitor is turned away; when the
    first tab is closed, its place is free."""
    first, second = visit(), visit()
    for visitor in (first, second):
        visitor.method("plain decoding")
    first.set("max_new_tokens", 1504)
    first.write(HEAP)
    first.page.click("#stop")
    assert "stopped" in first.finished()
    assert len(first.answer) > 0

    first.page.click("#again")
    first.page.wait_for_selector("#current .cursor")
    first.page.wait_for_selector("#current .own")
    second.page.fill("#prompt textarea", HEAP)
    second.page.click("#send")
    second.page.wait_for_selector("#message .error")
    assert "places are taken" in second.page.inner_text("#message")
    first.page.close()
    for _ in range(120):  # the server notices within moments, on a busy machine within a minute
        second.page.wait_for_timeout(250)
        second.page.click("#send:not([disabled])")
        second.page.wait_for_selector("#send:not([disabled])")
        if "cut at" in second.page.inner_text("#current .line"):
            break
    else:
        pytest.fail("the place of a closed tab was not freed")


def test_text_is_text(visit):
    """Markup, template syntax and control characters have no effect."""
    visitor = visit()
    visitor.write(WICKED)
    visitor.finished()
    shown = visitor.page.inner_text("#current .prompt")
    assert shown == WICKED.replace("\x1b", "\ufffd")
    assert visitor.page.evaluate("window.hacked === undefined")
    assert visitor.page.locator("#current img, #current script").count() == 0


def test_a_reload_keeps_what_should_stay(visit):
    visitor = visit()
    visitor.set("max_new_tokens", 136)
    visitor.set("top_k", 7)
    visitor.page.fill("#prompt textarea", HEAP)
    visitor.write()
    visitor.finished()
    answer = visitor.answer
    visitor.tab("Draft tree")
    tree = visitor.page.inner_html("#tree .wide")
    visitor.page.fill("#prompt textarea", "def typed(")
    visitor.page.wait_for_timeout(1000)  # the browser stores it with a delay
    visitor.page.reload()
    visitor.page.wait_for_selector("#current .answer")
    assert visitor.answer == answer
    assert visitor.page.input_value("#prompt textarea") == "def typed("
    assert visitor.value("max_new_tokens") == "136"
    assert visitor.value("top_k") == "7"
    visitor.tab("Draft tree")
    assert visitor.page.inner_html("#tree .wide") == tree
    # Another visitor sees none of it.
    other = visit()
    assert other.page.locator(".entry").count() == 0
    assert other.value("top_k") == "0"
    other.tab("Draft tree")
    assert other.page.locator("#tree svg").count() == 0


def test_clear_while_an_answer_is_written(visit):
    """It ends, does not come back, not even after a reload, and the next one starts as usual."""
    visitor = visit()
    visitor.method("plain decoding")
    visitor.set("max_new_tokens", 1504)
    visitor.write(HEAP)
    visitor.clear()
    visitor.page.wait_for_selector("#stop[disabled]")
    visitor.page.wait_for_timeout(1000)
    assert visitor.page.locator(".entry").count() == 0
    visitor.page.reload()
    visitor.page.wait_for_selector("#send")
    visitor.page.wait_for_timeout(1000)
    assert visitor.page.locator(".entry").count() == 0
    visitor.set("max_new_tokens", 16)
    visitor.write(HEAP)
    assert "16 tokens" in visitor.finished()


def test_sending_while_an_answer_is_written_again(visit):
    """The old answer ends; the buttons are the new one's, which can be stopped."""
    visitor = visit()
    visitor.method("plain decoding")
    visitor.set("max_new_tokens", 1504)
    visitor.write("def old(")
    visitor.page.click("#stop")
    visitor.finished()
    visitor.page.click("#again")
    visitor.page.wait_for_selector("#current .cursor")
    visitor.page.wait_for_selector("#current .own")
    visitor.page.fill("#prompt textarea", HEAP)
    visitor.page.press("#prompt textarea", "Shift+Enter")
    visitor.page.wait_for_selector("#current .prompt:has-text('heappush')")
    visitor.page.wait_for_selector("#current .own")
    visitor.page.wait_for_timeout(500)
    assert visitor.page.locator("#send[disabled]").count() == 1
    visitor.page.click("#stop:not([disabled])")
    assert "stopped" in visitor.finished()


def test_write_again(visit):
    """The new answer replaces the old one; when sampling, with another seed."""
    visitor = visit()
    visitor.set("temperature", 1)
    visitor.write(HEAP)
    visitor.finished()
    before = visitor.answer
    visitor.page.click("#again")
    visitor.page.wait_for_selector("#current .cursor")
    visitor.finished()
    assert visitor.value("seed") == "1"
    assert visitor.answer != before
    assert visitor.page.locator(".entry").count() == 1


def test_on_a_phone(visit, chromium):
    """Nothing is wider than the screen; a wide tree scrolls by itself."""
    visitor = visit(chromium.new_context(viewport={"width": 390, "height": 844}))
    visitor.write(HEAP)
    visitor.finished()
    visitor.tab("Draft tree")
    visitor.page.wait_for_selector("#tree svg .node.bonus")
    width = "document.documentElement.scrollWidth"
    assert visitor.page.evaluate(width) == 390
    assert visitor.page.evaluate("document.querySelector('#tree svg').clientWidth") > 390


def test_messages_say_what_to_do(visit):
    visitor = visit()
    for text, message in (("", "There is no text yet"), ("x = 1\n" * 900, "too long: at most")):
        visitor.page.fill("#prompt textarea", text)
        visitor.page.click("#send")
        visitor.page.wait_for_function(
            "text => document.querySelector('#message').innerText.includes(text)", arg=message
        )
    assert visitor.page.locator(".entry").count() == 0
