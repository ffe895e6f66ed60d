"""The web app's parts: escaped text, pictures of draft trees, answers to visitors, and the race."""

import html.parser
import json
import re
import subprocess
import sys
import xml.etree.ElementTree as ET

import gradio as gr
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_model import make as make_tiny

from dart_jax.app import answer, markup, race, step_view
from dart_jax.app.__main__ import AppConfig, run
from dart_jax.app.page import Page, Visit, _newest
from dart_jax.app.scores import scores
from dart_jax.app.tree_picture import Node, draw, label
from dart_jax.decoding.sampling import Sampling
from dart_jax.decoding.search.config import SearchConfig
from dart_jax.engine.request import Draft
from dart_jax.errors import InputWarning, UserError
from dart_jax.generation import Completion, Piece
from dart_jax.model import DartModel

MOST = 24  # new tokens
PROMPT = "def heappush("


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    tiny = make_tiny(tmp_path_factory.mktemp("app"))
    return DartModel.from_pretrained(tiny.target, tiny.drafter, tiny.ngram)


@pytest.fixture(scope="module")
def page(model):
    return Page(model)


def numbers(temperature=0, tree_nodes=8, seed=0):
    """Values of `page._NUMBERS`."""
    return (MOST, temperature, 1, 0, 0, 1, seed, tree_nodes)


def write(page, prompt, visit=None, *, method="DART", system="", **changes):
    """The conversation after an answer, and the page's HTML each time that it was drawn."""
    given = numbers(**changes)
    drawn = list(page.write(visit or Visit(), prompt, method, system, *given))
    assert drawn[0][2] == ""  # emptied once, and then the visitor's while an answer is written
    assert "" not in [prompt for _, _, prompt in drawn[1:]]
    return drawn[-1][0], [html for _, html, _ in drawn]


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


def completion_of(*pieces, seconds=0.5, **changes):
    count = sum(map(len, pieces))
    drafted = np.array([bool(piece.drafted) for piece in pieces for _ in piece], bool)
    fields = {"drafted": drafted, "finish": "length"} | changes
    return Completion(
        "".join(pieces), np.zeros(count, np.int32), prompt_tokens=1, seconds={"device": seconds},
        pieces=pieces, **fields,
    )  # fmt: skip


class Tags(html.parser.HTMLParser):
    """The tags and the attributes that a browser would find."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.tags, self.attributes, self.text = [], [], ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data):
        self.text += data


MARKDOWN_TAGS = {
    *("a", "blockquote", "br", "button", "code", "div", "em", "h1", "h2", "h3", "h4", "h5", "h6"),
    *("hr", "li", "ol", "p", "pre", "s", "strong", "table", "tbody", "td", "th", "thead", "tr"),
    "ul",
}
MARKDOWN_ATTRIBUTES = {"class", "href", "rel", "start", "style", "target", "title", "type"}
SIGNS = st.sampled_from(
    [*"<>&\"'`*_[]()!#-|~:/\\ \n\t{}$=1.", "<script>", "<img src=x onerror=alert(1)>", "](",
     "javascript:alert(1)", "data:text/html,<b>", "http://a.b", "```", "~~~html\n", "&lt;",
     "&#x202e;", "|-|\n", "<!--", "</div>", "[a]: ", "\u202e", "\ud800"]
)  # fmt: skip


@given(st.lists(st.one_of(SIGNS, st.text()), max_size=30).map("".join))
def test_markdown_has_no_html_of_the_text(text):
    rendered = answer.markdown(text)
    found = Tags(rendered)
    assert set(found.tags) <= MARKDOWN_TAGS
    for name, value in found.attributes:
        assert name in MARKDOWN_ATTRIBUTES
        if name == "href":
            assert not value.lower().lstrip().startswith(("javascript:", "data:", "vbscript:"))
        if name == "style":
            assert value in {f"text-align:{side}" for side in ("left", "center", "right")}
    assert not set(rendered) & set("$`{}\\")
    assert markup.visible(rendered) == rendered


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a **b** <i>c</i>", "<p>a <strong>b</strong> &lt;i&gt;c&lt;/i&gt;</p>"),
        ("![x](http://a.b/c.png)", '<p>!<a href="http://a.b/c.png" target="_blank" rel="noopener'),
        ("[x](javascript:alert(1))", "<p>[x](javascript:alert(1))</p>"),
        ("&#x202e;", "<p>\ufffd</p>"),
        ("```py\nif a < b:\n  $x\n```", '<pre><code class="language-py">if a &lt; b:\n  &#36;x'),
        ("    <b>", "<pre><code>&lt;b&gt;"),
        ("```\nnot ended <", "<code>not ended &lt;"),
    ],
)
def test_markdown(text, shown):
    assert shown in answer.markdown(text)


@pytest.mark.parametrize("chat", [False, True])
def test_an_entry_is_escaped_and_coloured_by_origin(chat):
    pieces = Piece("a", 0), Piece("<", 1), Piece("b", 1), Piece("c", 0)
    html = answer.entry("p<", completion_of(*pieces), chat=chat, drafts=True)
    assert (
        '<span class="own">a</span><span class="drafted">&lt;b</span><span class="own">c</span>'
    ) in html
    text = Tags(html).text
    assert text.startswith("p<a<bc\na<bc" if chat else "p<a<bc")
    assert "4 tokens · 8 tokens/s · tau 3.00 · cut at the maximum length" in text
    assert "Drafted and accepted, or the target's own." in text


@pytest.mark.parametrize("chat", [False, True])
def test_where_nothing_was_drafted_there_are_no_colours(chat):
    html = answer.entry("p", completion_of(Piece("ab", 0)), chat=chat, drafts=False)
    assert "nothing drafted" in html
    assert not set(Tags(html).attributes) & {("class", kind) for kind in ("drafted", "own")}


def test_statistics():
    completion = completion_of(Piece("ab", 0), Piece("cdefghi", 1), finish=None)
    assert answer.statistics(completion, drafts=True) == "9 tokens · 18 tokens/s · tau 4.00"
    nothing = completion_of(finish=None)
    assert answer.statistics(nothing, drafts=False) == "no tokens yet"


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
def visits(page):
    """An answer of every method, with trees of a size and of one that changes."""
    return {
        "dart": write(page, PROMPT)[0],
        "plain": write(page, PROMPT, method="plain decoding")[0],
        "changing": write(page, PROMPT, tree_nodes=0)[0],
    }


def test_every_method_writes_the_same(model, visits):
    expected = model.generate(PROMPT, max_new_tokens=MOST, tree_nodes=0).text
    for visit in visits.values():
        assert visit.turns == [PROMPT, expected]
        assert sum(len(step.tokens) for step in visit.steps) == MOST - 1
    assert {step.draft.tree.shape[1] for step in visits["dart"].steps} == {9}
    assert {step.draft for step in visits["plain"].steps} == {None}


def test_scores_are_the_searchs(visits):
    """By depth and then by score, as the search sorts nodes."""
    visit = visits["dart"]
    for step in visit.steps:
        ranks = scores(step.draft, visit.search, visit.model.ngram)
        depths = step.draft.tree[2]
        assert ranks[0] is None
        nodes = [(depth, score) for depth, score in zip(depths, ranks, strict=True) if score]
        assert len(nodes) == np.count_nonzero(depths) > 0
        totals = [(depth, -round(score.total, 3)) for depth, score in nodes]
        assert totals == sorted(totals)
        assert all(0 <= score.drafter <= 1 for _, score in nodes)
        assert all((score.ngram is None) == (depth == 1) for depth, score in nodes)


def test_pair_scores_make_a_probability_depend_on_the_parent():
    ids, logits = np.array([[1, 2], [3, 4]]), np.array([[1.0, 0.0], [0.5, 0.0]])
    pairs = np.array([[[0.0, 2.0], [3.0, 0.0]]])
    tree = np.array([[9, 1, 2, 3, 3], [0, 0, 0, 1, 2], [0, 1, 1, 2, 2]])
    draft = Draft(tree, np.full(4, 9), ids, logits, pairs)
    ranks = [score.drafter for score in scores(draft, SearchConfig(), None)[1:]]
    differences = np.array([-1, 1, 2 - 0.5, -3.5])  # the other candidate's logit minus its own
    np.testing.assert_allclose(ranks, 1 / (1 + np.exp(differences)))


def test_pictures_of_steps(visits):
    for visit in visits.values():
        for number, step in enumerate(visit.steps, 1):
            picture = step_view.picture(visit.steps, number, visit.model, visit.search)
            assert f"Step {number} of {len(visit.steps)}: " in picture
            if step.draft is None:
                assert "nothing is drafted; the target emits one token." in picture
                continue
            path = step_view.accepted_path(step, step.draft)
            assert step.draft.tree[0][path[1:]].tolist() == step.tokens[: step.drafted].tolist()
            nodes = step_view.nodes_of(step, step.draft, visit.model, visit.search)
            assert sum(node.kind == "accepted" for node in nodes) == step.drafted
            drafted = np.count_nonzero(step.draft.tree[2])
            assert len(nodes) == 1 + drafted + (len(step.tokens) > step.drafted)
        slider, first, _ = _newest(visit)
        assert slider.maximum == len(visit.steps)
        assert slider.visible == visit.drafts == (visit is not visits["plain"])
        assert ("Step 1 of" if visit.drafts else "Nothing was drafted") in first
    assert _newest(Visit())[1] == step_view.NOTHING


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


def test_sampled_answers_one_after_the_other(page, model):
    """Drawn while they are written; a target without a template reads only the last prompt."""
    visit = None
    for seed in (1, 2):
        visit, html = write(page, "def f(", visit, temperature=1, seed=seed)
        options = {"temperature": 1, "seed": seed, "max_new_tokens": MOST}
        expected = model.generate("def f(", **options).text
        assert visit.turns[-2:] == ["def f(", expected]
        assert len(html) > 1
        assert html[-1] == "".join(visit.html)
    assert len(visit.turns) == 4


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x " * 3000, "A prompt of 6000 tokens leaves no room in 2048 positions; shorten it"),
        (" \n", "The prompt is empty; write some text or choose an example"),
        ("a\ud800", "The text holds half of a surrogate pair"),
    ],
)
def test_bad_prompts(page, text, message):
    with pytest.raises(gr.Error, match=message):
        write(page, text)


def test_a_chat(tmp_path, monkeypatch):
    """A target with a template reads the whole chat, and so do both sides of a race."""
    tiny = make_tiny(tmp_path)
    (tiny.target / "chat_template.jinja").write_text(
        "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
    )
    model = DartModel.from_pretrained(tiny.target, tiny.drafter, tiny.ngram)
    page, before = Page(model), Visit(["a", "bc"], ["<p>before</p>"])
    for system, first in (("", ""), (" s ", "<system> s ")):
        visit, _ = write(page, "d", before, system=system)
        prompt = f"{first}<user>a<assistant>bc<user>d"
        expected = model.generate(prompt, max_new_tokens=MOST).text
        assert visit.turns == ["a", "bc", "d", expected]
        assert visit.html[0] == "<p>before</p>"

    asked = []
    stream = DartModel.stream
    monkeypatch.setattr(
        DartModel, "stream", lambda self, *given: asked.append(given[0]) or stream(self, *given)
    )
    lanes = list(page.race(visit, "s", *numbers()))
    assert len(asked) == 2 * (race.ROUNDS + 1) == len(lanes) - 1
    roles = ["system", "user", "assistant", "user"]
    assert all([message["role"] for message in messages] == roles for messages in asked)
    assert all(messages[-1]["content"] == "d" for messages in asked)
    assert 'class="verdict"' in lanes[-1]
    assert "verdict" not in "".join(lanes[:-1])


def test_the_targets_own_sampling(tmp_path):
    """A page begins with it, where it can be used; an answer follows the visitor."""
    tiny = make_tiny(tmp_path)
    path = tiny.target / "generation_config.json"
    own = {"temperature": 0.6, "top_k": 20, "top_p": 0.95, "min_p": 0.05}
    path.write_text(json.dumps({"do_sample": True, **own}))
    model = DartModel.from_pretrained(tiny.target, tiny.drafter, tiny.ngram)
    page = Page(model)
    assert page.own == Sampling(**own)
    assert write(page, PROMPT)[0].turns[1] == model.generate(PROMPT, max_new_tokens=MOST).text

    path.write_text(json.dumps({"num_beams": 4}))
    with pytest.warns(InputWarning, match="num_beams=4"):
        page = Page(DartModel.from_pretrained(tiny.target))
    assert page.own == Sampling()


def test_without_a_drafter(model, visits):
    visit, drawn = write(Page(model.with_drafter(None)), PROMPT, method="plain decoding")
    assert visit.turns == visits["plain"].turns
    assert "nothing drafted" in drawn[-1]
    assert not visit.drafts


# The race


def lane(speeds, tau=2):
    """Answers of 4 tokens with these speeds."""
    drafted = np.array([False, tau > 1, False, False])
    return [completion_of(Piece("abcd", 0), seconds=4 / speed, drafted=drafted) for speed in speeds]


@pytest.mark.parametrize(
    ("drafted", "plain", "tau", "sentence"),
    [
        ([30] * 8 + [10], [15] * 9, 2, "X won 8 of 9 rounds; it is 2.00 times as fast."),
        (
            [10, 20] * 4 + [9],
            [15, 30] * 4 + [9.9],
            2,
            "Plain decoding won 9 of 9 rounds; it is",
        ),
        ([30] * 7 + [10] * 2, [15] * 9, 2, "No winner: the difference is within the noise."),
        ([20.4] * 9, [20] * 9, 2, "No winner: the difference is within the noise."),
        ([20] * 9, [20.4] * 9, 2, "No winner: the difference is within the noise."),
        ([30] * 9, [20] * 9, 1, "No winner: no drafted token was accepted"),
    ],
)
def test_a_winner_wins_beyond_noise(drafted, plain, tau, sentence):
    lanes = lane(drafted, tau), lane(plain, 1)
    assert race.verdict("X", *lanes).startswith(sentence)
    html = race.standings("<X>", *lanes)
    assert "&lt;X&gt;" in html
    widths = [float(width) for width in re.findall(r"width: (\d+)%", html)]
    assert max(widths) == 100
    assert ("tau" in html) == (tau > 1)


def test_a_race_before_a_message(page):
    with pytest.raises(gr.Error, match="Nothing to race with yet; send a message first"):
        list(page.race(Visit(), "", *numbers()))


# The command


def test_without_gradio(monkeypatch):
    """One line says what to install; the library itself does not need it."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"pip install 'dart-jax\[app\]'"):
        run(AppConfig())
    assert not AppConfig().listen
    code = "import sys, dart_jax.app.__main__, dart_jax.model; assert 'gradio' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=250)
