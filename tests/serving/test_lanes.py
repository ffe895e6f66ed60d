"""Several methods in one engine: each gives the texts of `generate`, and they share the device."""

import itertools
import threading

import jax
import numpy as np
import pytest
from engine_requests import Answer, ask, closed_loop, tokens_of

from dart_jax.decoding.sampling import Sampling
from dart_jax.engine.request import Request
from dart_jax.errors import UserError
from dart_jax.generation import default_tree
from dart_jax.model import DEMO
from dart_jax.serving.config import ServingConfig
from dart_jax.serving.engine import Engine, EngineClosed
from dart_jax.serving.interface import QueueFull

TEXT = (DEMO.parent / "errors.py").read_text()
SMALL = {"slots": 2, "page": 16, "max_length": 256, "warmup": "none"}


@pytest.fixture(scope="module")
def models(demo, demo_drafters):
    return {
        "dart": demo,
        "eagle3": demo.with_drafter(demo_drafters["eagle3"]),
        "plain": demo.with_drafter(None),
    }


@pytest.fixture(scope="module")
def engine(models):
    engine = Engine(models, ServingConfig(**SMALL))
    yield engine
    engine.close()


def request_of(models, n, **others):
    """A prompt of the text, sampled or not, with a budget: all different."""
    tokens = tokens_of(models["dart"], TEXT[40 * n : 60 * n + 30])
    sampling = Sampling((0.0, 0.9)[n % 2])
    return Request(tokens, 20 + n, sampling, seed=n, **others)


@pytest.fixture(scope="module")
def expected(models):
    """The tokens of `generate` for such a request."""
    texts = {}

    def of(n):
        if n not in texts:
            request = request_of(models, n)
            texts[n] = models["plain"].generate(
                request.tokens.tolist(),
                max_new_tokens=request.max_new_tokens,
                temperature=request.sampling.temperature,
                top_k=request.sampling.top_k,
                seed=n,
                eos_token_id=(),
            )
        return texts[n].tokens.tolist()

    return of


def test_every_method_next_to_the_others(models, engine, expected):
    pairs = [(n, method) for n, method in enumerate(2 * list(models))]
    answers = ask(engine, *(request_of(models, n, method=method) for n, method in pairs))
    assert [answer.tokens for answer in answers] == [expected(n) for n, _ in pairs]
    for (_, method), answer in zip(pairs, answers, strict=True):
        assert any(answer.drafted) == (method != "plain")
    statistics = engine.statistics()
    assert (statistics.slots, statistics.replicas) == (6, 1)
    assert (statistics.running, statistics.pages_used) == (0, 0)
    assert statistics.generation_tokens == sum(len(expected(n)) for n, _ in pairs)


def test_methods_that_there_are(models, engine, expected):
    (first,) = ask(engine, request_of(models, 0))
    assert first.tokens == expected(0)
    assert any(first.drafted)
    assert engine.model is models["dart"]
    with pytest.raises(UserError, match="no method 'x'; choose one of dart, eagle3, plain"):
        engine.submit(request_of(models, 0, method="x"), Answer())
    assert engine.search("eagle3") == default_tree(models["eagle3"].drafter)[1]
    assert engine.search("eagle3") != engine.search("dart") == engine.search()


def pace(engine, costs):
    """Replaces the engine's clock: a step takes as long as these are, by method, and nothing else
    takes any time."""
    now = [0.0]

    def slow(method, step):
        def slower(*args, **options):
            now[0] += costs[method]
            return step(*args, **options)

        return slower

    for method in costs:
        batch = engine._runner(method).batch
        batch.burst = slow(method, batch.burst)
    engine._clock = lambda: now[0]


@pytest.mark.long
def test_methods_share_the_time_of_the_device(models):
    """Whatever their steps cost and however many requests they have; a method that was idle neither
    catches up nor waits."""
    engine = Engine(models, ServingConfig(**SMALL))
    costs = {"dart": 7.0, "eagle3": 2.0, "plain": 1.0}
    pace(engine, costs)
    turns = []
    for method in costs:
        lane = engine._runner(method)

        def watched(clock, lane=lane, turn=lane.turn):
            lanes = engine._runners.items()
            turns.append({name: each.seconds for name, each in lanes if each.busy})
            turn(clock)

        lane.turn = watched
    alone = [request_of(models, 3, method="plain")]
    ask(engine, *alone)  # the others are far behind, and then it is
    ask(engine, *(request_of(models, n, method="dart") for n in range(2)))
    crowd = [
        request_of(models, n, method=method)
        for n, method in enumerate(["dart", "plain", "plain", "eagle3", "plain", "dart"])
    ]
    ask(engine, *crowd)
    engine.close()
    together = [list(busy.values()) for busy in turns if len(busy) > 1]
    assert any(len(busy) == 3 for busy in together)
    assert max(max(busy) - min(busy) for busy in together) <= max(costs.values())
    assert engine._runner("dart").seconds > engine._runner("plain").seconds > 0


def test_a_race(models):
    """Both methods have used the same time whenever one writes, but for a step of each, as if each
    had a device of its own; and updates tell that time."""
    engine = Engine(models, ServingConfig(**SMALL))
    costs = {"dart": 3.0, "plain": 1.0}
    pace(engine, costs)
    log, gate, ends = [], threading.Event(), [threading.Event() for _ in costs]

    def racer(method, end):
        def put(update):
            log.append((method, update.seconds, update.finish))
            if update.finish:
                end.set()

        return put

    # So that both begin together.
    engine.submit(Request(np.zeros(1, np.int32), 1, method="eagle3"), lambda _: gate.wait(60))
    for method, end in zip(costs, ends, strict=True):
        engine.submit(Request(np.zeros(1, np.int32), 60, method=method), racer(method, end))
    gate.set()
    assert all(end.wait(120) for end in ends)
    engine.close()
    clocks = dict.fromkeys(costs, 0.0)
    first_end = next(place for place, (*_, finish) in enumerate(log) if finish)
    for method, seconds, _ in log[:first_end]:
        assert seconds == clocks[method] + costs[method]
        clocks[method] = seconds
        assert abs(clocks["dart"] - clocks["plain"]) <= 3
    assert first_end > 20


@pytest.mark.long
@pytest.mark.parametrize("method", ["dart", "eagle3"])
def test_every_request_has_trees_of_the_size_that_it_asks_for(models, engine, expected, method):
    """Beside others in the same step, and as many nodes as it says."""
    asked_sizes = [None, 0, 3, 8, 20, 1]
    requests = [
        request_of(models, n, method=method, tree_nodes=nodes, drafts=nodes != 8)
        for n, nodes in enumerate(asked_sizes)
    ]
    answers = ask(engine, *requests)
    assert [answer.tokens for answer in answers] == [expected(n) for n in range(len(asked_sizes))]
    for nodes, answer in zip(asked_sizes, answers, strict=True):
        drafts = [update.draft for update in answer.updates if update.draft is not None]
        sizes = {draft.tree.shape[1] - 1 for draft in drafts}
        if nodes in (0, 8):
            assert drafts == []
        else:
            assert len(drafts) >= len(answer.updates) - 2
        if nodes in (3, 20, 1):
            assert sizes == {nodes}
        if nodes == 0:
            assert not any(answer.drafted)
    # In a few sizes only.
    batch = engine._runner(method).batch
    programs = {program.config.nodes for program in batch._programs.values()}
    assert programs <= {*itertools.chain(*batch.shapes.sizes.values()), 4, 8, 32}


@pytest.mark.long(keep=1)
@pytest.mark.parametrize("method", ["dart", "eagle3", "plain"])
def test_updates_report_what_was_verified(models, engine, method):
    batch, trees = engine._runner(method).batch, []
    run = batch._run

    def watched(program, rows, packed, *how):
        trees.append(None if packed is None else packed[0].copy())
        return run(program, rows, packed, *how)

    batch._run = watched
    request = Request(tokens_of(models["dart"], TEXT[:90]), 40, method=method, drafts=True)
    (answer,) = ask(engine, request)
    batch._run = run
    tokens, drafted = request.tokens.tolist(), 0
    assert len(trees) == len(answer.updates)
    for tree, update in zip(trees, answer.updates, strict=True):
        draft = update.draft
        used = 0 if tree is None else np.count_nonzero(tree[2])
        assert (draft is None) == (used == 0)
        if draft is not None:
            drafted += 1
            assert draft.tree.tolist() == tree[:, : used + 1].tolist()
            assert draft.context.tolist() == tokens[-4:]
            assert draft.tree[0, 0] == tokens[-1]
            place = 0  # the accepted tokens lie on a path of the tree
            for token in update.tokens[: sum(update.drafted)]:
                (place,) = (
                    node
                    for node in range(1, used + 1)
                    if draft.tree[1, node] == place and draft.tree[0, node] == token
                )
            if method == "dart":
                assert set(draft.tree[0, 1:]) <= set(draft.ids.ravel())
                assert len(draft.pairs) == len(draft.ids) - 1 > 0
                assert draft.logits.shape == draft.ids.shape
            for part in draft:
                assert part.base is None  # it keeps no buffer alive
        tokens += update.tokens
    assert drafted == (0 if method == "plain" else len(answer.updates) - 1)


def test_the_place_in_the_queue(models):
    engine = Engine(models, ServingConfig(**SMALL | {"slots": 1, "queue": 2}))
    gate, running = threading.Event(), Answer()

    def hold(update):
        running(update)
        gate.wait(60)

    first = engine.submit(Request(np.zeros(1, np.int32), 3, method="plain"), hold)
    assert running.started.wait(60)
    answers = [Answer(), Answer()]
    request = Request(np.zeros(1, np.int32), 3, method="plain")
    second, third = (engine.submit(request, answer) for answer in answers)
    assert (first.ahead, second.ahead, third.ahead) == (None, 0, 1)
    with pytest.raises(QueueFull, match="2 requests are waiting") as full:
        engine.submit(request, Answer())
    assert full.value.retry_after >= 1
    other = Answer()
    engine.submit(Request(np.zeros(1, np.int32), 3), other)  # there is room for another method
    second.cancel()
    assert (second.ahead, third.ahead) == (None, 0)
    answers.append(Answer())
    assert engine.submit(request, answers[-1]).ahead == 1  # at once, though nothing has moved yet
    gate.set()
    assert [len(answer.wait().tokens) for answer in (*answers[1:], other)] == [3, 3, 3]
    assert engine.drain(60)
    assert third.ahead is None
    with pytest.raises(EngineClosed):
        engine.submit(request, Answer())
    engine.close()


def test_who_waits_for_a_compilation_is_told(models):
    engine = Engine(models, ServingConfig(**SMALL))
    tickets, flags = [], []
    for lane in engine._runners.values():
        run = lane.batch._run

        def watched(*args, run=run):
            flags.append([ticket.compiling for ticket in tickets])
            return run(*args)

        lane.batch._run = watched
    for _ in range(2):
        for method in ("dart", "plain"):
            answer = Answer()
            tickets.append(engine.submit(Request(np.zeros(1, np.int32), 40, method=method), answer))
            answer.wait()
            tickets.clear()
    engine.close()
    half = len(flags) // 2
    assert [True] in flags[:half]
    assert flags[-5:] == [[False]] * 5


@pytest.mark.long
def test_warming_up_in_idle_moments(models, expected, monkeypatch):
    """Requests are accepted at once and have their texts, whatever is compiled between them; in the
    end nothing is left to compile."""

    def fewer_sizes(drafter, rows, fixed):
        return (0,) if drafter is None else (0, 4 // rows, 8)

    monkeypatch.setattr("dart_jax.serving.setup._sizes", fewer_sizes)
    config = ServingConfig(slots=2, page=64, max_length=128, warmup="filtered", chunk=32)
    engine = Engine(models, config, warm_up_idle=True)
    ready = threading.Event()
    pairs = [(n, method) for n, method in enumerate(2 * list(models)) if n < 5]
    for n, method in pairs:
        (answer,) = ask(engine, request_of(models, n, method=method))
        assert answer.tokens == expected(n)
        assert not engine.warm
    while not engine.warm:
        assert not ready.wait(0.05)
        assert not engine.statistics().failed
    compiled = engine.statistics().compilations
    assert compiled > 0
    requests = [request_of(models, n, method=method) for n, method in pairs]
    for clients in (1, 3, 5):
        answers = closed_loop(engine, requests, clients)
        assert [answer.tokens for answer in answers] == [expected(n) for n, _ in pairs]
    assert engine.statistics().compilations == compiled
    engine.close()


@pytest.mark.long
def test_programs_are_dropped_when_there_are_too_many(models, expected, monkeypatch):
    """As their memory mappings are limited; the texts stay the same."""
    monkeypatch.setattr("dart_jax.serving.engine._MOST_COMPILED", 3)
    jax.clear_caches()  # those of other tests
    engine = Engine(models, ServingConfig(**SMALL))
    batch, counts = engine._runner("dart").batch, []
    forget = batch.forget_programs

    def watched():
        counts.append(len(batch._compiled))
        forget()

    batch.forget_programs = watched
    for n, nodes in enumerate((0, 4, 8, 30)):
        (answer,) = ask(engine, request_of(models, n, tree_nodes=nodes))
        assert answer.tokens == expected(n)
    engine.close()
    assert len(counts) > 1
