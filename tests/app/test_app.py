"""The web app's parts: escaped text, pictures, counts, and answers to visitors."""

import asyncio
import subprocess
import sys
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from stub_engine import StubEngine
from tiny_model import make as make_tiny

from dart_jax.app import markup, service, step_view
from dart_jax.app.__main__ import AppConfig, run
from dart_jax.app.answer import Answer
from dart_jax.app.methods import DART, DART_NO_NGRAM, PLAIN, methods
from dart_jax.app.scores import scores
from dart_jax.app.service import COMPILING, Entry, Service, Visitor
from dart_jax.app.tree_picture import Node, draw, label
from dart_jax.decoding.search.config import SearchConfig
from dart_jax.engine.request import Draft, Request
from dart_jax.errors import UserError
from dart_jax.generation import Piece, Step
from dart_jax.model import DartModel
from dart_jax.serving.engine import EngineFailed
from dart_jax.serving.interface import QueueFull

MOST = 24  # new tokens


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    tiny = make_tiny(tmp_path_factory.mktemp("app"))
    return DartModel.from_pretrained(tiny.target, tiny.drafter, tiny.ngram)


@pytest.fixture(scope="module")
def served(model):
    served = Service(methods(model), most=MOST, longest=128, together=4, warmup="none")
    yield served
    served.close()


def settings_of(served, *, tree_nodes=8, **changes):
    """The page's initial settings with trees of one size, of which less must be compiled."""
    return served.default._replace(tree_nodes=tree_nodes, **changes)


async def answered(served, prompt, visitor=None, **changes):
    answer = served.prepare([], prompt, settings_of(served, **changes))
    async for _ in served.serve(visitor or Visitor(), [answer]):
        pass
    return answer


def alone(served, prompt, **changes):
    """The text of `generate` with the same settings."""
    options = settings_of(served, **changes)._asdict()
    base = served.methods[options.pop("method")].model.with_drafter(None)
    return base.generate(prompt, **options | {"tree_nodes": 0}).text


# Text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("<script>alert('1')</script>", "&lt;script&gt;alert(&#x27;1&#x27;)&lt;/script&gt;"),
        ('"&amp;"', "&quot;&amp;amp;&quot;"),
        ("${1}{{x}}`\\", "&#36;&#123;1&#125;&#123;&#123;x&#125;&#125;&#96;&#92;"),
        ("a\x00\x1b[2J\x7f\x9b\u202e\u2066\ud800", "a\ufffd\ufffd[2J" + 5 * "\ufffd"),
        ("a\tb\r\nc\rd", "a\tb\nc\nd"),
        ("žluť 木 👩\u200d💻", "žluť 木 👩\u200d💻"),
    ],
)
def test_escape(text, shown):
    assert markup.escape(text) == shown


@given(st.text())
def test_escaped_text_is_one_text_node(text):
    escaped = markup.escape(text).replace(chr(0xFFFE), "").replace(chr(0xFFFF), "")
    assert len(ET.fromstring(f"<p>{escaped}</p>")) == 0


def answer_of(title, text="", seconds=0.0, finish=None, limit=12):
    answer = Answer(title, Request(np.zeros(1, np.int32), limit), None)
    state = answer._text
    state.tokens, state.pieces, state.finish = [0] * len(text), [Piece(text, False)], finish
    answer.seconds, answer.ended = seconds, finish is not None
    return answer


def test_an_entry_is_escaped_and_coloured_by_origin():
    answer = answer_of("DART")
    answer._text.pieces = [Piece("a", 0), Piece("<", 1), Piece("b", 1), Piece("c", 0)]
    body = (
        '<span class="answer"><span class="own">a</span><span class="drafted">&lt;b</span>'
        '<span class="own">c</span></span>'
    )
    for chat in (False, True):
        entry = ET.fromstring(markup.entry("p<", answer, chat=chat))
        assert "".join(entry.itertext()) == "p<a<bc"
        assert body in markup.entry("p<", answer, chat=chat)


def test_statistics():
    answer = answer_of("DART", "abcdefghi", 0.5, "length")
    assert markup.statistics(answer) == "9 tokens · 18 tokens/s · cut at the maximum length"
    answer.steps = [Step([], np.zeros(4, int), 3, object())] * 2
    assert "tau 4.00" in markup.statistics(answer)
    assert markup.statistics(answer, with_limit=True).startswith("9 of 12 tokens · ")
    assert markup.statistics(answer_of("DART")) == ""


def bars(*answers):
    board = ET.fromstring(f"<div>{markup.board(answers)}</div>")
    return [
        (
            row.get("class").split()[1:],
            [int(row.find("progress").get(name)) for name in ("value", "max")],
            [part.text for part in row.iter("span")],
        )
        for row in board
    ]


def test_bars_of_a_race():
    """The bars show the tokens of each method, and at the end who won."""
    running = answer_of("plain", "xyz", 0.5)
    fast, slow = (
        answer_of(title, "x" * 12, seconds, "length")
        for title, seconds in (("DART", 0.5), ("plain", 1.0))
    )
    assert bars(running, fast) == [
        ([], [3, 12], ["plain", "0.50 s", "3 of 12 tokens · 6 tokens/s"]),
        ([], [12, 12], ["DART", "0.50 s", "12 of 12 tokens · 24 tokens/s"]),
    ]
    assert [state for state, *_ in bars(slow, fast)] == [["lost"], ["won"]]
    assert bars(answer_of("DART", "x" * 5, 0.5, "stop"))[0][1] == [12, 12]
    assert markup.verdict(slow, fast) == (
        "DART wins: 0.50 s against 1.00 s, 2.00 times as fast as plain. Both texts are the same."
    )
    assert "The texts differ" in markup.verdict(fast, answer_of("plain", "y", 1.0, "stop"))
    assert markup.verdict(fast, running) == "The race was stopped."


# Trees


def test_a_tree_is_drawn():
    nodes = [
        Node("the", None, "root"),
        Node("<b>", 0, "accepted", "-0.5 · 61%", 'a "detail" & more'),
        Node(" dog\n", 0, "rejected"),
        Node("sat", 1, "bonus"),
    ]
    svg = ET.fromstring(draw(nodes, "a <title>"))
    name = "{http://www.w3.org/2000/svg}"
    assert svg.find(f"{name}title").text == "a <title>"
    groups = svg.findall(f"{name}g")
    assert [group.get("class") for group in groups] == [f"node {node.kind}" for node in nodes]
    assert [group.find(f"{name}text").text for group in groups] == ["the", "<b>", "·dog↵", "sat"]
    assert groups[1].find(f"{name}title").text == 'a "detail" & more'
    columns = [float(group.find(f"{name}rect").get("x")) for group in groups]
    assert columns[0] < columns[1] == columns[2] < columns[3]
    assert len(svg.findall(f"{name}path")) == 3
    assert label("a long token's text") == "a·long·tok…"


def test_boxes_do_not_overlap():
    rng = np.random.default_rng(0)
    for _ in range(20):
        nodes = [Node("r", None, "root")]
        nodes += [Node("x", int(rng.integers(n)), "rejected") for n in range(1, 40)]
        svg = ET.fromstring(draw(nodes, ""))
        places = [
            (rect.get("x"), rect.get("y")) for rect in svg.iter("{http://www.w3.org/2000/svg}rect")
        ]
        assert len(set(places)) == len(nodes)


@pytest.fixture(scope="module")
def watched(served):
    """An answer of every method, whose drafts are seldom accepted."""
    keys = (DART, DART_NO_NGRAM, PLAIN)
    return {key: asyncio.run(answered(served, "def heappush(", method=key)) for key in keys}


def test_every_method_writes_the_same(served, watched):
    for answer in watched.values():
        assert answer.text == alone(served, "def heappush(")
        assert (answer.tokens, answer.finish) == (MOST, "length")
        assert answer.tau == (MOST - 1) / len(answer.steps)
        assert answer.seconds > 0
    assert {step.draft.tree.shape[1] for step in watched[DART].steps} == {9}
    assert {step.draft for step in watched[PLAIN].steps} == {None}


@pytest.mark.parametrize("key", [DART, DART_NO_NGRAM])
def test_scores_are_the_searchs(served, watched, key):
    """By depth and then by score, as the search sorts nodes."""
    ngram = served.methods[key].model.ngram
    for step in watched[key].steps:
        ranks = scores(step.draft, watched[key].search, ngram)
        depths = step.draft.tree[2]
        assert ranks[0] is None
        nodes = [(depth, score) for depth, score in zip(depths, ranks, strict=True) if score]
        assert len(nodes) == np.count_nonzero(depths) > 0
        totals = [(depth, -round(score.total, 3)) for depth, score in nodes]
        assert totals == sorted(totals)
        assert all(0 <= score.drafter <= 1 for _, score in nodes)
        assert all((score.ngram is None) == (ngram is None or depth == 1) for depth, score in nodes)


def test_pair_scores_make_a_probability_depend_on_the_parent():
    ids, logits = np.array([[1, 2], [3, 4]]), np.array([[1.0, 0.0], [0.5, 0.0]])
    pairs = np.array([[[0.0, 2.0], [3.0, 0.0]]])
    tree = np.array([[9, 1, 2, 3, 3], [0, 0, 0, 1, 2], [0, 1, 1, 2, 2]])
    draft = Draft(tree, np.full(4, 9), ids, logits, pairs)
    ranks = [score.drafter for score in scores(draft, SearchConfig(), None)[1:]]
    differences = np.array([-1, 1, 2 - 0.5, -3.5])  # the other candidate's logit minus its own
    np.testing.assert_allclose(ranks, 1 / (1 + np.exp(differences)))


def test_pictures_of_steps(served, watched):
    """Trees of a size, and of one that changes."""
    watched = watched | {"changing": asyncio.run(answered(served, "def f(", tree_nodes=0))}
    assert watched["changing"].text == alone(served, "def f(")
    for answer in watched.values():
        model = served.model_of(answer)
        for number, step in enumerate(answer.steps, 1):
            picture = step_view.picture(answer, model, number)
            assert f"Step {number} of {len(answer.steps)}: " in picture
            if step.draft is None:
                assert "nothing is drafted; the target emits one token." in picture
                continue
            path = step_view.accepted_path(step, step.draft)
            assert step.draft.tree[0][path[1:]].tolist() == step.tokens[: step.drafted].tolist()
            nodes = step_view.nodes_of(step, step.draft, model, answer.search)
            assert sum(node.kind == "accepted" for node in nodes) == step.drafted
            drafted = np.count_nonzero(step.draft.tree[2])
            assert len(nodes) == 1 + drafted + (len(step.tokens) > step.drafted)
    assert step_view.picture(answer_of("x"), served.methods[DART].model, 1) == step_view.NOTHING


def test_a_step_drawn_without_a_page(model):
    """It is XML with colours of its own, and a box per node, the root and the bonus token."""
    prefill, *steps = model.stream("def heappush(", max_new_tokens=MOST).steps(with_drafts=True)
    with pytest.raises(UserError, match="no drafts"):
        step_view.drawing(prefill, model)
    steps = [step for step in steps if step.draft is not None]
    assert steps
    for step in steps:
        svg = ET.fromstring(step_view.drawing(step, model))
        named = {element.tag.rpartition("}")[2]: element for element in svg.iter()}
        assert "fill: var(--panel, #" in named["style"].text
        boxes = sum(element.tag.endswith("rect") for element in svg.iter())
        bonus = len(step.tokens) > step.drafted
        assert boxes == 1 + np.count_nonzero(step.draft.tree[2]) + bonus


# Visitors


def test_visitors_at_once(served):
    """All are answered with what they get alone."""
    changes = [
        {"seed": n, "temperature": n % 2, "method": (DART, PLAIN)[n % 3 == 0], "tree_nodes": 4 * n}
        for n in range(5)
    ]

    async def everyone():
        return await asyncio.gather(
            *(answered(served, f"def f{n}(", **change) for n, change in enumerate(changes))
        )

    for n, answer in enumerate(asyncio.run(everyone())):
        assert answer.text == alone(served, f"def f{n}(", **changes[n])


def test_a_race(served):
    """Both sides are answered, and each has its own clock."""

    async def race():
        both = [
            served.prepare([], "def f(", settings_of(served, method=method, temperature=1, seed=3))
            for method in (PLAIN, DART)
        ]
        async for _ in served.serve(Visitor(), both):
            pass
        return both

    one, other = asyncio.run(race())
    assert one.text == other.text == alone(served, "def f(", temperature=1, seed=3)
    assert one.finish == other.finish is not None
    assert one.seconds != other.seconds


class Stub(StubEngine):
    """An engine that gives what a test says, and has room for one request."""

    def __init__(self, *_, **__):
        super().__init__()

    def submit(self, *args):
        if self.accepted:
            raise QueueFull("full", 1.0)
        ticket = super().submit(*args)
        ticket.compiling, ticket.ahead = False, None
        return ticket

    def search(self, _):
        return SearchConfig()


@pytest.fixture
def stubbed(model, monkeypatch):
    monkeypatch.setattr(service, "Engine", Stub)
    return Service(methods(model), most=MOST, longest=64)


def test_who_waits_is_told_why_and_beyond_these_nobody_is_served(stubbed):
    async def visit():
        visitor = Visitor()
        serving = stubbed.serve(visitor, [stubbed.prepare([], "def f(", stubbed.default)])
        lines = [await anext(serving)]
        with pytest.raises(UserError, match="an answer is being written; stop it first"):
            await answered(stubbed, "def f(", visitor)
        with pytest.raises(UserError, match=r"places are taken \(2 at once, 2 waiting\)"):
            await answered(stubbed, "def f(")
        [ticket] = visitor.tickets
        for ticket.compiling, ticket.ahead in ((False, 3), (True, 3), (False, None)):
            lines.append(await anext(serving))
        stubbed.engine.give("x", "length")
        lines += [line async for line in serving]
        assert visitor.tickets == []
        return lines

    waiting = "3 waiting ahead of you."
    assert asyncio.run(visit()) == ["", waiting, COMPILING, "", ""]


@pytest.mark.parametrize("how", ["stop", "leave"])
def test_a_visitor_who_stops_or_leaves_frees_the_place(stubbed, how):
    async def visit():
        visitor, answer = Visitor(), stubbed.prepare([], "def f(", stubbed.default)
        serving = stubbed.serve(visitor, [answer])
        await anext(serving)
        if how == "stop":
            stubbed.engine.give("x")
            visitor.stop()
            assert [line async for line in serving] == [""]
            assert answer.tokens > 0  # what came before
        else:
            await serving.aclose()
        assert stubbed.engine.accepted[0][2].cancelled
        assert (visitor.tickets, answer.ended) == ([], True)

    asyncio.run(visit())


@pytest.mark.parametrize(
    ("failure", "message"),
    [
        (UserError("the logits are NaN"), "^the logits are NaN$"),
        (EngineFailed("the engine failed"), "the engine failed; the app must be started again"),
    ],
)
def test_failures_are_reported_in_one_line(stubbed, failure, message):
    async def visit():
        serving = stubbed.serve(Visitor(), [stubbed.prepare([], "def f(", stubbed.default)])
        await anext(serving)
        stubbed.engine.accepted[0][1](failure)
        await anext(serving)

    with pytest.raises(UserError, match=message):
        asyncio.run(visit())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x " * 200, "the prompt is too long: 104 tokens fit beside the answer; shorten it"),
        ("x" * 10**6, "the prompt is too long: 104 tokens"),
        (" \n", "the prompt is empty; write some text or choose an example"),
        ("a\ud800", "the text holds half of a surrogate pair"),
    ],
)
def test_bad_prompts(served, text, message):
    with pytest.raises(UserError, match=message):
        served.prepare([], text, settings_of(served))


def test_a_chat(tmp_path, monkeypatch):
    """A target with a template reads the whole chat."""
    tiny = make_tiny(tmp_path)
    (tiny.target / "chat_template.jinja").write_text(
        "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
    )
    model = DartModel.from_pretrained(tiny.target, tiny.drafter, tiny.ngram)
    monkeypatch.setattr(service, "Engine", Stub)
    chatty = Service(methods(model), most=MOST, longest=64)
    before = [Entry("a", "bc")]
    tokens = chatty.prepare(before, "d", chatty.default).request.tokens.tolist()
    assert tokens == model.tokenizer.encode("<user>a<assistant>bc<user>d")
    with pytest.raises(UserError, match="shorten it, clear the chat, or lower Maximum new tokens"):
        chatty.prepare(before * 9, "d", chatty.default)
    with pytest.raises(UserError, match="the prompt is empty"):
        chatty.prepare(before, " ", chatty.default)


# The command


def test_without_gradio(monkeypatch):
    """One line says what to install; the library itself does not need it."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"pip install 'dart-jax\[app\]'"):
        run(AppConfig())
    assert not AppConfig().listen
    code = "import sys, dart_jax.app.__main__, dart_jax.model; assert 'gradio' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=250)
