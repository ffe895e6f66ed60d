"""The web app in a real browser."""

import shutil
from urllib.parse import urlsplit

import pytest
from app_browser import Visitor, app, browser

from dart_jax.app import race
from dart_jax.model import DartModel
from dart_jax.named.models import MODELS

HEAP = "def heappush(heap, item):\n"
WICKED = (
    '<script>window.hacked=1</script><img src=x onerror="window.hacked=1"> {{value}} ${6*7} \x1b'
)
pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def served():
    with app("--model", "demo") as served:
        yield served


@pytest.fixture(scope="module")
def served_chat(tmp_path_factory):
    """The demo's target without its drafter, with a template that joins what is said."""
    target = tmp_path_factory.mktemp("chat") / "target"
    shutil.copytree(MODELS["demo"].target(), target)
    (target / "chat_template.jinja").write_text(
        "{% for m in messages %}{{ m.content }}{% endfor %}"
    )
    with app("--target", str(target), "--name", "Ada & <b>") as served:
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

    def visit(address=served.address, **options) -> Visitor:
        visitors.append(Visitor(chromium.new_context(**options), address))
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
    assert visitor.page.input_value("#prompt textarea") == ""
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

    visitor.tab("Text")
    visitor.method("plain decoding")
    visitor.write(HEAP)
    assert "nothing drafted" in visitor.finished()
    assert visitor.answer == expected
    visitor.tab("Draft tree")
    visitor.page.wait_for_selector("#tree:has-text('Nothing was drafted')")
    assert not visitor.page.locator("#step").is_visible()
    visitor.tab("Text")
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
    for prompt in ("x" * 200, HEAP):
        visitor.write(prompt)
        visitor.finished()
    for name in ("Race", "Text", "Draft tree"):
        visitor.tab(name)
        assert visitor.page.evaluate("document.documentElement.scrollWidth") == 390
    visitor.page.wait_for_selector("#tree svg")
    assert visitor.page.evaluate("document.querySelector('#tree svg').clientWidth") > 390


def test_race(visit):
    visitor = visit()
    visitor.set("max_new_tokens", 16)
    visitor.write(HEAP)
    visitor.finished()
    visitor.tab("Race")
    visitor.page.click("#start")
    visitor.page.wait_for_selector("#track .verdict")
    assert visitor.page.locator("#track .lane").count() == 2
    visitor.write(HEAP)  # another message, another race
    visitor.finished()
    visitor.page.wait_for_selector(f"#track:has-text('answered {race.ROUNDS} times')")


def test_a_chat_without_a_drafter(visit, served_chat):
    """Markdown that can be copied, a system prompt, a name; nothing about drafting."""
    visitor = visit(served_chat.address)
    page = visitor.page
    assert page.title() == "Ada & <b>"
    assert page.inner_text("h1") == "Ada & <b>"
    assert "there is no drafter" in page.inner_text("h1 + .note")
    assert page.get_by_role("tab").all_inner_texts() == ["Chat"]
    for hidden in ("#view", "#method", "#tree_nodes"):
        assert not page.locator(hidden).is_visible()
    visitor.set("max_new_tokens", 128)
    system, message = 'class Heap:\n    """A heap."""\n\n', "    def push(self, item):\n"
    page.fill("#system textarea", system)

    box = page.locator("#prompt textarea")
    low = box.bounding_box()["height"]
    box.fill(message.strip("\n"))
    box.press("Shift+Enter")
    assert box.bounding_box()["height"] > low
    box.press("Enter")
    line = visitor.finished()
    assert "nothing drafted" in line
    assert page.locator(":is(.drafted, .own)").count() == 0
    model = DartModel.from_pretrained(MODELS["demo"].target())
    assert visitor.answer == model.generate(system + message, max_new_tokens=128).text
    # The demo indents its code: a block in Markdown.
    code = page.inner_text(".markdown pre >> nth=0")
    for selector, text in ((".entry .code .copy", code), (".entry .note .copy", visitor.answer)):
        page.locator(selector).first.click()
        page.fill("#system textarea", "")
        page.press("#system textarea", "Control+V")
        assert page.input_value("#system textarea").strip() == text.strip()

    page.fill("#system textarea", "")
    visitor.write(WICKED + "\n\n")
    visitor.finished()
    assert page.evaluate("window.hacked === undefined")
    assert page.locator(".entry :is(img, script)").count() == 0
    assert "Traceback" not in served_chat.log.read_text()
