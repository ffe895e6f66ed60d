"""The web app without a browser: answers from a shared engine, and what is drawn of them."""

import asyncio
import contextlib
import dataclasses
import re
import xml.etree.ElementTree as ET

import gradio as gr
import needs
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tiny_model import make as make_tiny

from dart_jax.app import step_view
from dart_jax.app.__main__ import AppConfig, run
from dart_jax.app.page import QUESTIONS, Page, begun
from dart_jax.engine.config import EngineConfig
from dart_jax.engine.request import Draft
from dart_jax.engine.thread import EngineThread
from dart_jax.errors import UserError
from dart_jax.generation import GenerationConfig
from dart_jax.model import DartModel
from dart_jax.named.models import MODELS

MOST = 24  # new tokens
PROMPT = "def heappush("
SERVING = EngineConfig(slots=2, tree_nodes=8, warmup="none", max_length=256)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return make_tiny(tmp_path_factory.mktemp("app"))


@pytest.fixture(scope="module")
def engine(tiny):
    model = DartModel.from_pretrained(tiny.target, tiny.drafter, tiny.ngram)
    with contextlib.closing(EngineThread(model, SERVING)) as engine:
        yield engine


async def write(engine, message, history=(), system="", *, most=MOST, temperature=0.0, seed=0):
    """All that the page shows of an answer while it is written: the message and its views."""
    page, options = Page(engine, GenerationConfig()), (temperature, 1.0, 0, 0.0, 1.0, seed)
    return [each async for each in page.reply(message, history, system, most, *options)]


def text(shown):
    return shown[-1][0]["content"][0]["text"]


def test_two_tabs_at_once(engine):
    """Each text is the one that `generate` writes, and is coloured; the last tree is shown."""

    async def both():
        return await asyncio.gather(
            write(engine, PROMPT), write(engine, "import ", temperature=1.0, seed=3)
        )

    options = {"max_new_tokens": MOST}
    sampled = {**options, "temperature": 1.0, "seed": 3}
    first, second = asyncio.run(both())
    assert text(first) == engine.model.generate(PROMPT, **options).text
    assert text(second) == engine.model.generate("import ", **sampled).text
    for shown in first, second:
        _, html, steps, slider, tree, box = shown[-1]
        assert sum(len(step.tokens) for step in steps) == MOST - 1
        assert slider["maximum"] == len(steps)
        assert slider["visible"]
        assert '<span class="own">' in html
        assert f"{MOST} tokens" in html
        assert "cut at the maximum length" in html
        assert f"Step {len(steps)} of {len(steps)}: 8 drafted" in tree
        assert (box["submit_btn"], box["stop_btn"]) == (True, False)
        assert shown[0][-1]["stop_btn"]
        assert shown[0][0]["metadata"]["status"] == "pending"
        assert all("metadata" not in said for said, *_ in shown[1:])
        assert begun([said for said, *_ in shown])[0] == [said for said, *_ in shown[1:]]


def test_the_page_says_what_answers(engine, monkeypatch):
    """And who drafts, if anything does."""

    async def header():  # Gradio asks for an event loop
        blocks = Page(engine, GenerationConfig()).blocks("<b>Toy", "It knows little.")
        return next(each.value for each in blocks.blocks.values() if isinstance(each, gr.HTML))

    assert "<h1>&lt;b&gt;Toy</h1>" in asyncio.run(header())
    assert "It knows little. It continues your text" in asyncio.run(header())
    assert "Drafted by: DART" in asyncio.run(header())
    plain = dataclasses.replace(engine.config, tree_nodes=0)
    monkeypatch.setattr(engine, "config", plain)
    assert "Drafted by: nothing" in asyncio.run(header())


def test_another_seed_each_time(engine):
    """Unless one is chosen; it is shown, and gives the same text again."""
    texts = set()
    for _ in range(3):
        shown = asyncio.run(write(engine, PROMPT, temperature=1.0, seed=-1))
        (seed,) = re.findall(r"seed (\d+)", shown[-1][1])
        options = {"max_new_tokens": MOST, "temperature": 1.0, "seed": int(seed)}
        assert text(shown) == engine.model.generate(PROMPT, **options).text
        texts.add(text(shown))
    assert len(texts) > 1


@pytest.mark.long
def test_the_examples_of_a_chat_end():
    needs.smollm2()
    model, options = DartModel.from_pretrained("smollm2"), MODELS["smollm2"].options
    chats = [[{"role": "user", "content": question}] for (question,) in QUESTIONS]
    for seed in range(3):
        ends = [each.finish for each in model.generate(chats, seed=seed, **options)]
        assert ends == ["stop"] * len(chats)


def test_a_closed_answer_is_not_decoded(engine):
    """As after Gradio's stop button, or when the tab is closed."""

    async def stopped():
        page = Page(engine, GenerationConfig())
        reply = page.reply(PROMPT, [], "", 200, 0.0, 1.0, 0, 0.0, 1.0, 0)
        await anext(reply)
        await reply.aclose()
        while engine.statistics().running:
            await asyncio.sleep(0.01)

    asyncio.run(asyncio.wait_for(stopped(), 60))


@pytest.mark.parametrize(
    ("message", "error"),
    [
        ("x " * 3000, "A prompt of 6000 tokens leaves no room in 256 positions"),
        (" \n", "The message is empty; write some text or choose an example"),
        ("a\ud800", "The text holds half of a surrogate pair"),
    ],
)
def test_bad_messages(engine, message, error):
    """The visitor is told, and has the box again; no exception ends what Gradio does after an
    answer."""
    with pytest.warns(UserWarning, match=error):  # a toast on the page
        shown = asyncio.run(write(engine, message))
    ((said, *views, box),) = shown
    assert said == []
    assert views == [gr.skip()] * 4
    assert (box["submit_btn"], box["stop_btn"]) == (True, False)


def test_messages_without_an_answer(engine):
    """Retry takes only the last one; Gradio leaves an empty one in its box, and can send any."""

    async def built():
        return Page(engine, GenerationConfig()).blocks("Toy", "")

    handlers = asyncio.run(built()).fns.values()
    (check,) = filter(None, (each.validator for each in handlers))
    assert [check(each)["is_valid"] for each in ("", " \n", " a")] == [False, False, True]
    named = {each.name: each.fn for each in handlers}
    append, pop = named["_append_message_to_history"], named["_pop_last_user_message"]
    history = append("b", append("a\ud800", []))
    assert history[0]["content"] == [{"type": "text", "text": "a?"}]
    assert pop(history) == (history[:1], "b")
    assert pop([]) == ([], "")


def test_a_chat_without_a_drafter(tiny):
    """The template gets the system prompt and all messages but those without an answer."""
    template = tiny.target / "chat_template.jinja"
    template.write_text("{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}")
    try:
        model = DartModel.from_pretrained(tiny.target, "none")
        said = ("user", "a"), ("assistant", "bc"), ("user", "lost")
        history = [{"role": role, "content": [{"type": "text", "text": it}]} for role, it in said]
        serving = EngineConfig(slots=1, warmup="none", max_length=256)
        with contextlib.closing(EngineThread(model, serving)) as engine:
            shown = asyncio.run(write(engine, "d", history, " s "))
    finally:
        template.unlink()
    prompt = "<system> s <user>a<assistant>bc<user>d"
    assert text(shown) == model.generate(prompt, max_new_tokens=MOST).text
    assert "nothing drafted" in shown[-1][1]
    assert not shown[-1][3]["visible"]


@given(st.text())
@example("<b>${1}{{x}}`\\")
@example("a\x00\x1b[2J\u202e\u2066\ud800\r\n")
def test_escaped_text_is_one_text_node(text):
    """Without what a template would read, or what hides text."""
    escaped = step_view.escape(text).replace(chr(0xFFFE), "").replace(chr(0xFFFF), "")
    assert len(ET.fromstring(f"<p>{escaped}</p>")) == 0
    assert not set(escaped) & set("${}`\\\x00\x1b\u202e\u2066\ud800\r")


def test_drawings(engine):
    """XML with colours of its own, a box for each node, and the accepted path."""
    model = engine.model
    prefill, *steps = model.stream(PROMPT, max_new_tokens=MOST, tree_nodes=8).steps(True)
    with pytest.raises(UserError, match="no drafts"):
        step_view.drawing(prefill, model)
    for step in (step for step in steps if step.draft is not None):
        svg = ET.fromstring(step_view.drawing(step, model))
        assert "fill: var(--panel, #" in step_view.drawing(step, model)
        boxes = [each for each in svg.iter() if each.tag.endswith("rect")]
        assert len({(box.get("x"), box.get("y")) for box in boxes}) == len(boxes)
        nodes = step_view.nodes_of(step, step.draft, model)
        assert len(boxes) == len(nodes) == 9 + (len(step.tokens) > step.drafted)
        kinds = [kind for _, _, kind, _ in nodes]
        assert kinds.count("accepted") == step.drafted
        assert all(
            line.endswith(("%", "text"))
            for *_, kind, line in nodes
            if kind in ("accepted", "rejected")
        )


def test_pair_scores_make_a_probability_depend_on_the_parent():
    ids, logits = np.array([[1, 2], [3, 4]]), np.array([[1.0, 0.0], [0.5, 0.0]])
    pairs = np.array([[[0.0, 2.0], [3.0, 0.0]]])
    draft = Draft(np.zeros((3, 1)), np.full(4, 9), ids, logits, pairs)
    nodes = (0, 1, 9), (0, 2, 9), (1, 3, 1), (1, 3, 2)  # level, token, parent
    found = [step_view.probability(draft, *node) for node in nodes]
    differences = np.array([-1, 1, 2 - 0.5, -3.5])  # the other candidate's logit minus its own
    np.testing.assert_allclose(found, 1 / (1 + np.exp(differences)))


def test_without_gradio(monkeypatch):
    """One line says what to install."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"pip install 'dart-jax\[app\]'"):
        run(AppConfig())
