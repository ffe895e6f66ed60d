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
    """An app that serves one visitor at a time, so that a second one is turned away, and slows down
    steps so that the tests can observe them."""
    limits = ("--visitors", "1", "--queue", "0", "--max-new-tokens", "1504")
    with app(*limits, pace=0.05) as served:
        yield served


@pytest.fixture(scope="module")
def address(served):
    return served.address


@pytest.fixture(scope="module")
def chromium(address):
    with browser() as chromium:
        yield chromium


@pytest.fixture
def visit(chromium, address, served):
    """Opens tabs, each a visitor's own; nothing may go wrong in them, appear as a traceback in the
    server's log, or leave this machine."""
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
    assert "Traceback" not in served.log.read_text()


WINDOWS = pytest.mark.parametrize("window", [(1280, 800), (390, 844)], ids=["wide", "phone"])


def in_window_of(chromium, window, **options):
    width, height = window
    return chromium.new_context(viewport={"width": width, "height": height}, **options)


def colours(visitor, kind):
    return visitor.page.eval_on_selector(
        f"#current .{kind}", "e => getComputedStyle(e).color + getComputedStyle(e).backgroundColor"
    )


def test_write_and_look_at_a_tree(visit):
    """Text comes bit by bit, coloured by its origin; it is the text that `generate` gives."""
    visitor = visit()
    visitor.set("tree_nodes", 8)
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
    visitor.set("tree_nodes", 8)
    visitor.set("max_new_tokens", 64)
    visitor.race(HEAP)
    visitor.page.wait_for_selector("#board .winner")
    verdict = visitor.page.inner_text("#board .winner")
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
    second.set("max_new_tokens", 8)
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
    visitor.set("max_new_tokens", 16)
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
    visitor.page.wait_for_selector("#stop", state="hidden")
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
    assert not visitor.page.is_visible("#send")
    visitor.page.click("#stop")
    assert "stopped" in visitor.finished()


def test_write_again(visit):
    """The new answer replaces the old one; when sampling, with another seed."""
    visitor = visit()
    visitor.set("temperature", 1)
    visitor.set("max_new_tokens", 32)
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
    """Nothing is wider than the screen; a wide tree scrolls by itself; while programs are compiled,
    the notice is in view; the prompt covers the page, not the other way round."""
    visitor = visit(in_window_of(chromium, (390, 844)))
    visitor.set("tree_nodes", 60)  # a size that no other test compiles
    visitor.page.fill("#prompt textarea", HEAP)
    visitor.page.click("#send")
    visitor.page.wait_for_selector("#message:has-text('Compiling')")
    assert visitor.in_window("#message .note")
    visitor.finished()
    visitor.tab("Draft tree")
    visitor.page.wait_for_selector("#tree svg .node.bonus")
    width = "document.documentElement.scrollWidth"
    assert visitor.page.evaluate(width) == 390
    assert visitor.page.evaluate("document.querySelector('#tree svg').clientWidth") > 390
    for name in ("Answer", "Race", "Draft tree"):
        visitor.tab(name)
        assert visitor.page.evaluate(width) == 390
        for place in (0, 10**6):  # the top and the end of the page
            visitor.page.evaluate(f"scrollTo(0, {place})")
            for part in ("textarea", "[data-testid=block-info]"):
                assert visitor.in_window(f"#prompt {part}"), (name, place, part)
            for button in ("#clear", "#example-class"):
                assert visitor.in_window(button), (name, place, button)
            covered = visitor.page.evaluate(COVERED)
            assert covered == [], (name, place)


# Points of the prompt's area at which something else is on top.
COVERED = """() => {
    const area = document.querySelector('#composer'), box = area.getBoundingClientRect();
    const found = [];
    for (let x = box.left + 2; x < box.right; x += 9)
        for (let y = box.top + 2; y < Math.min(box.bottom, innerHeight); y += 9) {
            const top = document.elementFromPoint(x, y);
            if (!area.contains(top)) found.push([x, y, top && top.outerHTML.slice(0, 80)]);
        }
    return found;
}"""


@WINDOWS
def test_stop_and_the_newest_text_stay_in_view(visit, chromium, window):
    """Wherever the page is scrolled, Stop can be pressed; the text shows its end as it grows,
    unless the visitor has scrolled up in it."""
    visitor = visit(in_window_of(chromium, window))
    visitor.method("plain decoding")
    visitor.set("max_new_tokens", 1504)
    visitor.page.evaluate("scrollTo(0, 0)")
    visitor.write(HEAP)
    visitor.page.wait_for_function(
        "(() => { const e = document.querySelector('#answers');"
        " return e.scrollHeight > 1.5 * e.clientHeight })()"
    )
    visitor.page.evaluate("scrollTo(0, 0)")
    assert visitor.in_window("#stop")
    assert visitor.in_window("#prompt textarea")
    assert visitor.in_window("#current .line")
    visitor.page.evaluate("document.querySelector('#answers').scrollTop = -100")
    length = len(visitor.answer)
    visitor.page.wait_for_function(
        f"document.querySelector('#current .answer').innerText.length > {length}"
    )
    assert visitor.page.evaluate("document.querySelector('#answers').scrollTop") < -90
    visitor.page.evaluate("scrollTo(0, document.body.scrollHeight)")
    assert visitor.in_window("#stop")
    visitor.page.click("#stop")
    assert "stopped" in visitor.finished()


@WINDOWS
def test_one_primary_button(visit, chromium, window):
    """In every tab, with and without a running answer, exactly one button is not grey."""
    visitor = visit(in_window_of(chromium, window))
    visitor.method("plain decoding")
    visitor.set("max_new_tokens", 1504)

    def coloured():
        buttons = visitor.page.locator("button.primary, button.stop").locator("visible=true")
        return buttons.all_inner_texts()

    idle = {"Answer": "Continue", "Race": "Race", "Draft tree": "Continue"}
    for name, start in idle.items():
        visitor.tab(name)
        assert coloured() == [start]
        assert visitor.in_window("button.primary")
    visitor.tab("Answer")
    visitor.write(HEAP)
    for name in idle:
        visitor.tab(name)
        assert coloured() == ["Stop"]
    visitor.page.click("#stop")
    visitor.page.wait_for_selector("#stop", state="hidden")
    for name, start in idle.items():
        visitor.tab(name)
        assert coloured() == [start]


@WINDOWS
def test_the_bars_of_a_race(visit, chromium, window):
    """A bar per method grows to the maximum number of tokens; one sentence explains, and the one
    that says who won is in view without scrolling."""
    visitor = visit(in_window_of(chromium, window))
    visitor.set("max_new_tokens", 128)
    visitor.page.evaluate("scrollTo(0, 0)")
    visitor.race(HEAP)
    values = "[...document.querySelectorAll('#board progress')].map(e => [e.value, e.max])"
    (plain, most), (dart, _) = visitor.page.evaluate(values)
    assert most == 128
    assert 0 < plain < 128
    assert dart > 0
    assert visitor.in_window("#stop")
    assert visitor.in_window("#board .runner:first-child progress")
    visitor.page.wait_for_selector("#board .winner")
    assert visitor.page.evaluate(values) == [[128, 128], [128, 128]]
    assert visitor.in_window("#board .winner")
    assert visitor.page.locator("#board .won").count() == 1
    # Beside its end, a text shows which method's it is.
    lane, name = visitor.box("#lane-right"), visitor.box("#lane-right h2")
    assert lane["top"] <= name["top"] < lane["top"] + 5
    assert visitor.page.inner_text("#board .won .name") in visitor.page.inner_text(".winner")
    rule = visitor.page.inner_text("#tab-race .fine")
    assert rule.count(".") == 1
    if window[0] == 1280:
        box = visitor.box("#tab-race .fine")
        assert box["bottom"] - box["top"] < 30  # one line


@WINDOWS
def test_the_title_the_tabs_and_the_boxes_are_aligned(visit, chromium, window):
    visitor = visit(in_window_of(chromium, window))
    visitor.set("max_new_tokens", 8)
    visitor.write(HEAP)
    visitor.finished()
    text = """e => {
        const range = document.createRange();
        range.selectNodeContents(e);
        return range.getBoundingClientRect().left;
    }"""
    title = visitor.page.locator("h1").evaluate(text)
    assert abs(visitor.page.get_by_role("tab", name="Answer").evaluate(text) - title) < 1
    for box in ("#current .entry", "#prompt", "#send"):
        assert abs(visitor.box(box)["left"] - title) < 2, box


CONTRAST = """e => {
    const canvas = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
    const light = colours => {
        canvas.clearRect(0, 0, 1, 1);
        for (const colour of colours) {
            canvas.fillStyle = colour;
            canvas.fillRect(0, 0, 1, 1);
        }
        const parts = [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3).map(value => {
            const part = value / 255;
            return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
        });
        return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2];
    };
    const behind = [];
    for (let up = e; up; up = up.parentElement)
        behind.unshift(getComputedStyle(up).backgroundColor);
    const pair = [light(behind), light([...behind, getComputedStyle(e).color])];
    return (Math.max(...pair) + 0.05) / (Math.min(...pair) + 0.05);
}"""


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_texts_can_be_read(visit, chromium, theme):
    """Texts have the contrast that WCAG's level AA asks for, and drafted tokens differ from the
    target's own in more than colour."""
    visitor = visit(in_window_of(chromium, (1280, 800), color_scheme=theme))
    visitor.set("max_new_tokens", 64)
    visitor.write(HEAP)
    visitor.finished()
    for selector in (
        ".legend .drafted", ".legend .own", "#head p", "h1", "#current .drafted", "#current .own",
        "#current .prompt", "#current .line", "#send", "#again", "#prompt .info-text",
        "#temperature .info-text", "#temperature [data-testid=block-info]", "#example-class",
        "[role=tab][aria-selected=true]", "#prompt textarea",
    ):  # fmt: skip
        ratio = visitor.page.locator(selector).locator("visible=true").first.evaluate(CONTRAST)
        assert ratio >= 4.5, (selector, ratio)
    lines = [
        visitor.page.eval_on_selector(
            f"#current .{kind}", "e => getComputedStyle(e).borderBottomWidth"
        )
        for kind in ("drafted", "own")
    ]
    assert lines == ["0px", "2px"]
    visitor.page.fill("#prompt textarea", "")
    visitor.page.click("#send")
    visitor.page.wait_for_selector("#message .error")
    assert visitor.page.locator("#message .error").evaluate(CONTRAST) >= 4.5


@WINDOWS
def test_messages_say_what_to_do(visit, chromium, window):
    """They name the field as the page does, are in view, and leave the conversation alone."""
    visitor = visit(in_window_of(chromium, window))

    def said(text, message):
        visitor.page.fill("#prompt textarea", text)
        visitor.page.click("#send")
        visitor.page.wait_for_function(
            "text => document.querySelector('#message').innerText.includes(text)", arg=message
        )
        assert visitor.in_window("#message .error")

    said("", "Text to continue is empty")
    said("x = 1\n" * 900, "which is too long")
    assert visitor.message().startswith("Text to continue has ")
    label = visitor.page.inner_text("#seed [data-testid=block-info]").strip()
    for wrong in (-1, 1.5, 2**32, ""):
        visitor.set("seed", wrong)
        number = "nothing" if wrong == "" else wrong
        said(HEAP, f"{label} must be a whole number from 0 to 4,294,967,295, got {number}.")
    assert visitor.page.locator(".entry").count() == 0
    assert visitor.page.locator(".toast-body").count() == 0
    hint = visitor.page.inner_text("#seed .info-text")
    assert "0 to 4,294,967,295" in hint
    visitor.set("seed", 2**32 - 1)
    visitor.set("max_new_tokens", 8)
    visitor.write(HEAP)
    assert "8 tokens" in visitor.finished()
    visitor.tab("Draft tree")
    visitor.page.wait_for_selector("#tree svg")
    visitor.page.locator("#step input[type=number]").fill("")
    visitor.page.wait_for_timeout(1000)
    assert visitor.page.locator(".toast-body").count() == 0
    visitor.tab("Race")
    visitor.page.fill("#prompt textarea", "")
    visitor.page.click("#race")
    visitor.page.wait_for_selector("#message:has-text('Text to continue is empty')")


def test_shift_enter_starts_what_the_tab_shows(visit):
    visitor = visit()
    visitor.set("max_new_tokens", 8)
    visitor.tab("Race")
    visitor.page.fill("#prompt textarea", HEAP)
    visitor.page.press("#prompt textarea", "Shift+Enter")
    visitor.page.wait_for_selector("#board .winner")
    assert visitor.page.locator(".entry").count() == 0
    visitor.tab("Draft tree")
    visitor.page.press("#prompt textarea", "Shift+Enter")
    visitor.page.wait_for_selector("#current .entry")
    assert "8 tokens" in visitor.finished()
