"""The web app's parts: what is escaped, drawn and counted, and what visitors get."""

import asyncio
import dataclasses
import gc
import re
import subprocess
import sys
import threading
import xml.etree.ElementTree as ET

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import SEED, Oracle, sequences
from decoding import Options, Prompts
from decoding import start as first_draft
from hypothesis import given
from hypothesis import strategies as st
from tiny_model import make as make_tiny

from dart_jax.app import chat, markup, settings, step_view
from dart_jax.app.__main__ import AppConfig, start
from dart_jax.app.answer import Answer, Verified
from dart_jax.app.methods import DART, DART_NO_NGRAM, PLAIN, Methods
from dart_jax.app.scores import scores
from dart_jax.app.service import COMPILING, Replaced, Service
from dart_jax.app.settings import Settings
from dart_jax.app.tree_picture import Node, draw, label
from dart_jax.decoding.sampling import Sampling
from dart_jax.decoding.search.config import SearchConfig
from dart_jax.decoding.search.host import HostSearch
from dart_jax.decoding.state import DecodeConfig
from dart_jax.errors import UserError
from dart_jax.generation import Piece
from dart_jax.model import DartModel
from dart_jax.models.pure import abstract_params

MOST = 24  # new tokens


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    tiny = make_tiny(tmp_path_factory.mktemp("app"))
    return DartModel.from_pretrained(tiny.target, tiny.drafter, tiny.ngram)


@pytest.fixture(scope="module")
def service(model):
    service = Service(Methods(model), most=MOST, longest=128, together=4, warmup="none")
    yield service
    service.close()


@pytest.fixture
def narrow(model):
    """One visitor at a time, and one who waits; nobody's answer goes on before `gate` is set."""
    service = Service(Methods(model), most=MOST, longest=64, together=1, waiting=1, warmup="none")
    service.gate = threading.Event()
    for name in service.methods:
        batch = service.engine._runner(name).batch

        def held(*args, burst=batch.burst, **options):
            assert service.gate.wait(60)
            return burst(*args, **options)

        batch.burst = held
    yield service
    service.gate.set()
    service.close()


def settings_of(service, *, tree_nodes=8, **changes):
    """The page's initial settings with trees of one size, of which less must be compiled."""
    return dataclasses.replace(service.default, tree_nodes=tree_nodes, **changes)


async def answered(service, visitor, prompt, **changes):
    prepared = service.prepare(prompt, settings_of(service, **changes))
    async for _ in service.serve(visitor, [prepared]):
        pass
    return prepared.answer


def alone(service, prompt, **changes):
    """The text of `generate` with the same settings."""
    settings = settings_of(service, **changes)
    return service.methods.base.generate(
        prompt,
        max_new_tokens=settings.max_new_tokens,
        temperature=settings.temperature,
        top_k=settings.top_k,
        top_p=settings.top_p,
        seed=settings.seed,
        tree_nodes=0,
    ).text


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
    node = ET.fromstring(
        f"<p>{markup.escape(text).replace(chr(0xFFFE), '').replace(chr(0xFFFF), '')}</p>"
    )
    assert len(node) == 0


def test_pieces_are_coloured_by_origin():
    pieces = [Piece("a", False), Piece("<", True), Piece("b", True), Piece("c", False)]
    assert markup.runs(pieces) == [("a", False), ("<b", True), ("c", False)]
    assert markup.coloured(markup.runs(pieces)) == (
        '<span class="own">a</span><span class="drafted">&lt;b</span><span class="own">c</span>'
    )


def finished_answer(title, text, seconds, finish="length"):
    answer = Answer(title, 12, None)
    made = answer._text
    made.tokens, made.pieces, made.finish = [0] * len(text), [Piece(text, False)], finish
    answer.seconds, answer.ended = seconds, True
    return answer


def test_statistics():
    answer = finished_answer("DART", "abcdefghi", 0.5)
    assert markup.statistics(answer) == "9 tokens · 18 tokens/s · cut at the maximum length"
    verified = type("Verified", (), {"tree": np.zeros((3, 9), np.int32)})()
    answer.verified = [verified, verified]
    assert "tau 4.00" in markup.statistics(answer)
    assert markup.statistics(answer, with_limit=True).startswith("9 of 12 tokens · ")
    assert markup.statistics(Answer("DART", 12, None)) == ""


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
    running = Answer("plain", 12, None)
    fast, slow = finished_answer("DART", "x" * 12, 0.5), finished_answer("plain", "x" * 12, 1.0)
    assert bars(running) == [([], [0, 12], ["plain", "0.00 s", None])]
    running._text.tokens, running.seconds = [0] * 3, 0.5
    assert bars(running, fast) == [
        ([], [3, 12], ["plain", "0.50 s", "3 of 12 tokens · 6 tokens/s"]),
        ([], [12, 12], ["DART", "0.50 s", "12 of 12 tokens · 24 tokens/s"]),
    ]
    assert [state for state, *_ in bars(slow, fast)] == [["lost"], ["won"]]
    early = finished_answer("DART", "x" * 5, 0.5, "stop")
    assert bars(early)[0][1:] == (
        [12, 12],
        ["DART", "0.50 s", "5 of 12 tokens · 10 tokens/s · finished"],
    )


@pytest.mark.parametrize(
    ("left", "right", "said"),
    [
        (
            ("A", "xy", 2.0),
            ("B", "xy", 1.0),
            ["B wins: 1.00 s against 2.00 s, 2.00 times", "same."],
        ),
        (("A", "xyz", 1.0), ("B", "xyw", 3.0), ["A wins: 1.00 s", "differ from character 3 on"]),
        (("A", "xy", 1.0), ("B", "xyz", 3.0), ["differ from character 3 on"]),
        (("A", "xy", 1.0), ("A", "xy", 2.0), ["both sides use the same method"]),
        (("A", "xy", 1.0, None), ("B", "x", 2.0), ["The race was stopped."]),
    ],
)
def test_verdict(left, right, said):
    verdict = markup.verdict(finished_answer(*left), finished_answer(*right))
    assert all(words in verdict for words in said)


def test_what_a_browser_kept():
    entries = [chat.Entry(f"p{n}", (("a", True), ("b", False)), "line") for n in range(30)]
    assert chat.restore(chat.store(entries)) == entries[-20:]
    long = chat.Entry("p" * 150_000)
    assert chat.restore(chat.store([long, long])) == [long]
    for junk in (None, 3, "x", {}, [1, {"prompt": 2}], [{"prompt": "x", "text": "y", "line": ""}]):
        assert chat.restore(junk) == []
    odd = {"prompt": "p", "text": [["a", 1], ["b"], 3, [4, True]], "line": ""}
    assert chat.restore([odd]) == [chat.Entry("p", (("a", True),))]
    said = chat.full_prompt(entries[:1], "q", chat=True)
    assert [message["content"] for message in said] == ["p0", "ab", "q"]
    assert chat.full_prompt(entries[:1], "q", chat=False) == "q"


# Trees


def test_a_tree_is_drawn():
    nodes = [
        Node("the", None, "root"),
        Node("<b>", 0, "accepted", "-0.5 · 61%", 'a "detail" & more'),
        Node(" dog\n", 0, "rejected"),
        Node("sat", 1, "bonus"),
    ]
    drawn = draw(nodes, "a <title>")
    svg = ET.fromstring(drawn)
    name = "{http://www.w3.org/2000/svg}"
    assert svg.find(f"{name}title").text == "a <title>"
    groups = svg.findall(f"{name}g")
    assert [group.get("class") for group in groups] == [f"node {node.kind}" for node in nodes]
    assert [group.find(f"{name}text").text for group in groups] == ["the", "<b>", "·dog↵", "sat"]
    assert groups[1].find(f"{name}title").text == 'a "detail" & more'
    columns = [float(group.find(f"{name}rect").get("x")) for group in groups]
    assert columns[0] < columns[1] == columns[2] < columns[3]
    assert len(svg.findall(f"{name}path")) == 3
    assert "<b>" not in drawn
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
def watched(service):
    """An answer of every method, whose drafts are seldom accepted."""
    methods = (DART, DART_NO_NGRAM, PLAIN)
    return service.methods, {
        key: asyncio.run(answered(service, "v", "def heappush(", method=key)) for key in methods
    }


@pytest.mark.long
def test_every_method_writes_the_same(service, watched):
    _, made = watched
    for answer in made.values():
        assert answer.text == alone(service, "def heappush(")
        assert answer.tokens == MOST
        assert answer.finish == "length"
        assert answer.tau == (MOST - 1) / len(answer.verified)
        assert answer.seconds > 0
    assert {step.tree.shape[1] for step in made[DART].verified} == {9}
    assert {step.tree.shape[1] for step in made[PLAIN].verified} == {1}


@pytest.mark.parametrize("key", [DART, DART_NO_NGRAM])
def test_scores_are_the_searchs(watched, key):
    """By depth and then by score, as the search sorts nodes."""
    methods, made = watched
    method = methods[key]
    for step in made[key].verified:
        ngram = method.model.ngram
        found = scores(step, made[key].search, ngram)
        depths = step.tree[2]
        assert found[0] is None
        totals = [
            (depth, -score.total)
            for depth, score in zip(depths[1:], found[1:], strict=True)
            if score
        ]
        assert len(totals) == (depths > 0).sum() > 0
        rounded = [(depth, round(total, 3)) for depth, total in totals]
        assert rounded == sorted(rounded)
        assert all(0 <= score.drafter <= 1 for score in found if score)
        assert all(
            (score.ngram is None) == (ngram is None or depth == 1)
            for depth, score in zip(depths, found, strict=True)
            if score
        )


def test_scores_with_pair_scores_are_the_searchs(models, prompts):
    """A candidate's probability depends on its parent."""
    drafter = dataclasses.replace(models.drafter, pair_rank=4)
    rng = np.random.default_rng(0)
    pairs = jax.tree.map(
        lambda leaf: jnp.asarray(rng.normal(0, 1, leaf.shape), jnp.float32),
        abstract_params(drafter)["pairs"],
    )
    params = {**models.params, "drafter": {**models.params["drafter"], "pairs": pairs}}
    config = DecodeConfig(models.target, drafter, 12)
    pruner = HostSearch(config.host_buffer, 12, ngram=models.ngram)
    _, packed = first_draft(config, params, prompts, Options(seed=SEED))
    packed = np.asarray(packed)
    trees, totals = pruner.scored(packed)
    drafts = *config.host_buffer.candidates_of(packed), config.host_buffer.pairs_of(packed)
    for tree, total, *parts in zip(trees, totals, *drafts, strict=True):
        step = Verified(tree, *parts, tokens=np.zeros(0, np.int32), drafted=0)
        found = scores(step, SearchConfig(), models.ngram)
        ours = [score.total if score else 0.0 for score in found]
        np.testing.assert_allclose(ours, total, rtol=1e-4, atol=1e-5)


def test_pictures_of_steps(watched):
    methods, made = watched
    for key, answer in made.items():
        for number, step in enumerate(answer.verified, 1):
            path = step_view.accepted_path(step)
            assert step.tree[0][path[1:]].tolist() == step.tokens[: step.drafted].tolist()
            nodes = step_view.nodes_of(step, methods[key].model, answer.search)
            assert sum(node.kind == "accepted" for node in nodes) == step.drafted
            assert len(nodes) == 1 + (step.tree[2] > 0).sum() + (len(step.tokens) > step.drafted)
            assert f"Step {number} of" in step_view.picture(answer, methods[key].model, number)
    assert step_view.picture(Answer("x", 1, None), methods[DART].model, 1) == step_view.NOTHING


def test_a_step_drawn_without_a_page(model):
    """It is XML with colours of its own, and its boxes are those of the page's picture."""
    prefill, *steps = model.stream("def heappush(", max_new_tokens=MOST).steps(with_drafts=True)
    with pytest.raises(UserError, match="no drafts"):
        step_view.drawing(prefill, model)
    steps = [step for step in steps if step.draft is not None]
    assert steps
    for step in steps:
        svg = ET.fromstring(step_view.drawing(step, model))
        named = {element.tag.rpartition("}")[2]: element for element in svg.iter()}
        assert "fill: var(--panel, #" in named["style"].text
        nodes = step_view.nodes_of(Verified.of(step), model)
        assert sum(element.tag.endswith("rect") for element in svg.iter()) == len(nodes)


@pytest.mark.long
def test_the_devices_trees_can_be_watched(models):
    """EAGLE-3's never leave the device otherwise. Its accepted tokens lie on a path of them."""
    config = DecodeConfig(models.target, models.eagle, 8)
    prompts = Prompts.pad([models.of_prompts("prompt")[0][:8]], 20, 55)
    for drafts in (False, True):
        steps = list(
            stream(config, models.eagle_params, None, prompts, Options(), with_drafts=drafts)
        )
        assert steps[0].drafts is None
        assert all((won.drafts is not None) == drafts for won in steps[1:])
    known = np.concatenate([prompts.tokens[0, :8], steps[0].tokens[0]])
    for won in steps[1:]:
        tree = won.drafts.trees[0]
        assert tree[0, 0] == known[-1] == won.drafts.context[0, -1]
        assert (tree[2] > 0).sum() == 8
        parts = (part[0] for part in won.drafts)
        step = Verified(*parts, tokens=won.tokens[0], drafted=int(won.drafted[0]))
        assert len(step_view.accepted_path(step)) == won.drafted[0] + 1
        known = np.concatenate([known, won.tokens[0]])


@pytest.mark.long
def test_accepted_paths(models, prompts, plain):
    """The accepted tokens are found in the tree, node by node."""
    config = DecodeConfig(models.target, models.drafter, 8)
    truth = sequences(prompts, plain(Sampling()).tokens)
    oracle, options = Oracle(config, truth), Options(seed=SEED)
    steps = stream(config, models.params, oracle, prompts, options, with_drafts=True)
    accepted = 0
    for won in steps:
        for row, tokens in enumerate(won.tokens):
            if won.drafts is None or not len(tokens):
                continue
            parts = (part[row] for part in won.drafts)
            step = Verified(*parts, tokens=tokens, drafted=int(won.drafted[row]))
            path = step_view.accepted_path(step)
            assert step.tree[0][path[1:]].tolist() == tokens[: step.drafted].tolist()
            assert step.tree[2][path].tolist() == list(range(len(path)))
            accepted += step.drafted
    assert accepted > 20


# Visitors


@pytest.mark.long
def test_ten_visitors_at_once(service):
    """All are answered with what they get alone; memory and threads stay flat."""
    prompts = [f"def f{n}(" for n in range(10)]
    changes = [
        {
            "seed": n,
            "temperature": n % 2,
            "method": (DART, PLAIN)[n % 3 == 0],
            "tree_nodes": 4 * (n % 4),
        }
        for n in range(10)
    ]

    async def everyone():
        visits = (
            answered(service, f"v{n}", prompt, **changes[n]) for n, prompt in enumerate(prompts)
        )
        return await asyncio.gather(*visits)

    def held():
        gc.collect()
        return len(jax.live_arrays()), threading.active_count()

    asyncio.run(everyone())  # compiles
    before = held()
    answers = asyncio.run(everyone())
    assert held() == before
    for answer, prompt, change in zip(answers, prompts, changes, strict=True):
        assert answer.tokens == MOST or answer.finish == "stop"
        assert answer.text == alone(service, prompt, **change)


def test_a_race(service):
    """Both sides are answered, and each has its own clock."""

    async def run():
        both = [
            service.prepare("def f(", settings_of(service, method=method, temperature=1, seed=3))
            for method in (PLAIN, DART)
        ]
        async for _ in service.serve("v", both):
            pass
        return [prepared.answer for prepared in both]

    answers = asyncio.run(run())
    for answer in answers:
        assert answer.text == alone(service, "def f(", temperature=1, seed=3)
        assert answer.seconds > 0
        assert answer.finish
    assert answers[0].seconds != answers[1].seconds


def test_who_waits_is_told_how_many_do_before(narrow):
    """Beyond these a visitor is turned away; who leaves makes room."""

    async def everyone():
        def serve(visitor):
            prepared = narrow.prepare("def f(", settings_of(narrow, method=PLAIN))
            return narrow.serve(visitor, [prepared])

        first, second, third = map(serve, ("first", "second", "third"))
        await anext(first)
        while narrow._visits["first"].tickets[0].begun is None:
            await asyncio.sleep(0.01)
        while (line := await anext(second)) == COMPILING:
            pass
        assert line == "0 waiting ahead of you."
        with pytest.raises(
            UserError, match=r"places are taken \(1 at once, 1 waiting\); try again in a moment"
        ):
            await anext(third)
        narrow.gate.set()
        lines = [line async for line in first], [line async for line in second]
        assert [each[-1] for each in lines] == ["", ""]

    asyncio.run(everyone())
    assert narrow._visits == {}


def test_a_visitor_who_leaves_frees_the_place(service):
    async def leave(how):
        prepared = service.prepare("def f(", settings_of(service))
        serving = service.serve("v", [prepared])
        async for _ in serving:
            how(service)
            break
        await serving.aclose()
        assert prepared.answer.ended

    for how in (lambda _: None, lambda service: service.stop("v")):
        asyncio.run(leave(how))
        for _ in range(1000):
            if not service.engine.statistics().running:
                break
            threading.Event().wait(0.01)
        seen = service.engine.statistics()
        assert (seen.running, seen.waiting, seen.pages_used) == (0, 0, 0)
        assert service._visits == {}
    assert service.last("v") is None


def test_a_page_that_is_loaded_again_has_its_last_answer(service):
    """By the key that its browser keeps; any other gives nothing, and what was cleared is gone."""
    answer = service.prepare("def f(", settings_of(service)).answer
    service.remember("page", answer, DART)
    service.remember("", answer, DART)  # a visitor without a key
    for key, found in (("", None), ("other", None), ("page", (answer, DART))):
        assert service.inherit("again", key) == (found is not None)
        assert service.last("again") == found
    asyncio.run(service.clear("again"))
    assert service.last("again") is None
    for number in range(1000):
        service.remember(f"visitor {number}", answer, DART)
    assert len(service._last) < 100
    assert service.last("visitor 999") == (answer, DART)


def test_a_new_request_replaces_the_running_one(narrow):
    """No more updates of the old answer, neither when another begins nor when the visitor
    clears the page; a stopped one is shown to its end."""

    def serve():
        return narrow.serve("v", [narrow.prepare("def f(", settings_of(narrow))])

    async def interrupted(how):
        serving = serve()
        await anext(serving)
        task = how()
        lines = [line async for line in serving]
        if task is not None:
            await task
        return lines

    async def other():
        serving = serve()
        await anext(serving)
        await serving.aclose()

    assert asyncio.run(interrupted(lambda: narrow.stop("v"))) == [""]
    with pytest.raises(Replaced):
        asyncio.run(interrupted(lambda: asyncio.ensure_future(narrow.clear("v"))))
    with pytest.raises(Replaced):
        asyncio.run(interrupted(lambda: asyncio.ensure_future(other())))
    assert narrow._visits == {}


def test_who_waits_for_a_program_is_told(model):
    """And can stop meanwhile."""
    service = Service(Methods(model), most=MOST, longest=64, together=1, warmup="none")
    batch, gate = service.engine._runner(DART).batch, threading.Event()
    run = batch._run

    def slow(*args):
        gate.wait(60)
        return run(*args)

    batch._run = slow

    async def visit():
        made = service.prepare("def f(", settings_of(service))
        lines = []
        async for line in service.serve("one", [made]):
            lines.append(line)
            if line == COMPILING:
                service.stop("one")
        return lines

    assert asyncio.run(asyncio.wait_for(visit(), 60))[-2:] == [COMPILING, ""]
    gate.set()
    assert asyncio.run(answered(service, "two", "def f(")).tokens == MOST
    service.close()


def test_trees_whose_size_changes(service):
    answer = asyncio.run(answered(service, "v", "def f(", tree_nodes=0))
    assert answer.text == alone(service, "def f(")
    for number in range(1, len(answer.verified) + 1):
        drawn = step_view.picture(answer, service.methods[DART].model, number)
        assert f"Step {number} of" in drawn


def test_failures_are_reported(model):
    """In one line: those of one answer, and one of the device, after which nothing is answered."""
    service = Service(Methods(model), most=MOST, longest=64, together=1, warmup="none")
    broken = service.prepare("def f(", settings_of(service, method=PLAIN))
    object.__setattr__(broken.request, "logit_bias", {0: float("nan")})

    async def run(prepared):
        async for _ in service.serve("v", [prepared]):
            pass

    with pytest.raises(UserError, match="the target's logits are NaN at new token 1 of a text"):
        asyncio.run(run(broken))
    assert asyncio.run(answered(service, "v", "def f(", method=PLAIN)).tokens == MOST

    def fail(*_, **__):
        raise MemoryError

    service.engine._runner(PLAIN).batch.burst = fail
    with pytest.raises(UserError, match="the engine failed: MemoryError; the app must be started"):
        asyncio.run(answered(service, "v", "def f(", method=PLAIN))
    with pytest.raises(UserError, match="the engine has failed; it must be started again"):
        asyncio.run(answered(service, "v", "def f("))
    service.close()


def test_settings_from_a_browser(service):
    default = service.default
    values = [getattr(default, field.name) for field in dataclasses.fields(Settings)]
    assert service.settings(values) == default
    seeds = "Seed must be a whole number from 0 to 4,294,967,295, got "
    for name, wrong, message in [
        ("method", "x", "Method must be one of DART, DART without n-gram, plain decoding, got 'x'"),
        ("method", ["dart"], "Method must be one of"),
        ("temperature", -1, "Temperature must be a number from 0 to 2, got -1"),
        ("temperature", "hot", "Temperature must be a number from 0 to 2, got 'hot'"),
        ("top_p", 0, "Top-p must be a number from 0.05 to 1, got 0"),
        ("top_k", float("nan"), "Top-k must be a whole number from 0 to 200, got nan"),
        ("top_k", 10**6, "Top-k must be a whole number from 0 to 200, got 1000000"),
        ("top_k", True, "Top-k must be a whole number from 0 to 200, got 'True'"),
        ("tree_nodes", 1000, "Tree nodes must be a whole number from 0 to 64, got 1000"),
        ("max_new_tokens", MOST + 1, f"Maximum new tokens must be a whole number from 8 to {MOST}"),
        ("seed", -1, f"{seeds}-1"),
        ("seed", 1.5, f"{seeds}1.5"),
        ("seed", 2**32, f"{seeds}4294967296"),
        ("seed", None, f"{seeds}nothing"),
        ("seed", float("inf"), f"{seeds}inf"),
    ]:
        sent = dataclasses.asdict(default) | {name: wrong}
        with pytest.raises(UserError, match=re.escape(message)):
            service.settings(sent.values())
    for name, field in settings.fields(MOST).items():
        for value in (field.least, field.most):
            sent = dataclasses.asdict(default) | {name: value}
            assert getattr(service.settings(sent.values()), name) == value


@pytest.mark.long
def test_every_seed_that_the_page_accepts_decodes(service):
    texts = [
        asyncio.run(answered(service, "v", "def f(", temperature=1.0, seed=seed)).text
        for seed in (0, 2**31, 2**32 - 1)
    ]
    assert len(set(texts)) == len(texts)


def test_long_inputs(service):
    for text, message in [
        (
            "x " * 200,
            r"Text to continue has \d+ tokens, which is too long: 104 tokens fit beside the "
            "answer; shorten it, lower Maximum new tokens",
        ),
        ("x" * 10**6, "Text to continue has 1,000,000 characters, which is too long: 104"),
        (" \n", "Text to continue is empty; write some text or choose an example"),
        ("a\ud800", "Text to continue cannot be read: .* surrogate"),
    ]:
        with pytest.raises(UserError, match=message):
            service.prepare(text, settings_of(service))


def test_a_chat(model, tmp_path_factory):
    """Where the target has a template it reads the whole chat."""
    tiny = make_tiny(tmp_path_factory.mktemp("chat"))
    (tiny.target / "chat_template.jinja").write_text(
        "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
    )
    chatty = DartModel.from_pretrained(tiny.target, tiny.drafter, tiny.ngram)
    service = Service(Methods(chatty), most=MOST, longest=64, together=1, warmup="none")
    try:
        assert service.chat
        before = [chat.Entry("a", (("b", True), ("c", False)))]
        said = chat.full_prompt(before, "d", service.chat)
        tokens = service.prepare(said, service.default).request.tokens.tolist()
        assert tokens == chatty.tokenizer.encode("<user>a<assistant>bc<user>d")
        for words, message in [
            (chat.full_prompt(before * 9, "d", True), "Your message, with the chat before it, has"),
            (chat.full_prompt(before * 9, "d", True), "lower Maximum new tokens or clear the chat"),
            (chat.full_prompt(before, " ", True), "Your message is empty"),
        ]:
            with pytest.raises(UserError, match=message):
                service.prepare(words, service.default)
    finally:
        service.close()


# The command


def test_wrong_options():
    with pytest.raises(UserError, match="--port must be in"):
        AppConfig(port=70000)


def test_without_gradio(monkeypatch):
    """One line says what to install; the library itself does not need it."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"pip install 'dart-jax\[app\]'"):
        start(AppConfig())
    code = "import sys, dart_jax.app.__main__, dart_jax.model; assert 'gradio' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=250)


def test_only_this_machine_can_open_it():
    assert not AppConfig().listen
