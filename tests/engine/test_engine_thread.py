"""The engine gives every request the text of `generate`, whatever else it serves."""

import dataclasses
import itertools
import re
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from engine_requests import Answer, ask, closed_loop, tokens_of

from dart_jax.decoding.sampling import Sampling
from dart_jax.engine.config import EngineConfig
from dart_jax.engine.request import Request
from dart_jax.engine.thread import EngineClosed, EngineThread, QueueFull
from dart_jax.errors import UserError
from dart_jax.grammar.outputs import StructuredOutputs
from dart_jax.model import DEMO

TEXT = (DEMO.parent / "errors.py").read_text() + (DEMO.parent / "files.py").read_text()
SMALL = {"slots": 4, "page": 16, "max_length": 320, "warmup": "none", "tree_nodes": 4}

# One of each mode, and each of their options.
OPTIONS = [
    {},
    {"temperature": 1.0},
    {"temperature": 0.8, "top_k": 20, "top_p": 0.9},
    {"temperature": 0.9, "min_p": 0.05},
    {"temperature": 0.7, "top_p": 0.8, "repetition_penalty": 1.2},
    {"repetition_penalty": 1.3},
]


@pytest.fixture(scope="module")
def model(demo):
    return demo


@pytest.fixture(scope="module")
def engine(model):
    engine = EngineThread(model, EngineConfig(**SMALL))
    yield engine
    engine.close()


def case(n):
    """A prompt of the text, its options, a seed and a budget: all different."""
    rng = np.random.default_rng(n)
    begin, size = int(rng.integers(0, 900)), int(rng.choice([1, 30, 200, 600]))
    return TEXT[begin : begin + size], OPTIONS[n % len(OPTIONS)], 100 + n, int(rng.integers(3, 50))


def request_of(model, n, **others):
    text, options, seed, budget = case(n)
    return Request(
        tokens_of(model, text), budget, Sampling(**options), seed=seed, stop_ids=model.eos, **others
    )


@pytest.fixture(scope="module")
def expected(model):
    """The tokens of `generate`, by case, alone and without drafting."""
    texts = {}

    def of(n):
        if n not in texts:
            text, options, seed, budget = case(n)
            generated = model.generate(
                text, max_new_tokens=budget, seed=seed, tree_nodes=0, **options
            )
            texts[n] = generated.tokens.tolist()
        return texts[n]

    return of


def test_every_text_is_that_of_generate(model, engine, expected):
    """Among neighbours of all kinds, in any slot, drafted; and once more, with the kept pages."""
    cases = (0, 3, 4)  # of every mode but that of 1, which another test has
    for _ in range(2):
        answers = ask(engine, *(request_of(model, n) for n in cases))
        assert [answer.tokens for answer in answers] == [expected(n) for n in cases]
    statistics = engine.statistics()
    assert (statistics.running, statistics.waiting, statistics.pages_used) == (0, 0, 0)
    assert statistics.prefix_hits > 0
    assert statistics.accepted_tokens == sum(statistics.accepted_per_position) > 0
    assert statistics.generation_tokens == 2 * sum(len(expected(n)) for n in cases)


def test_when_pages_run_out(model, expected):
    """The youngest waits and is read again; its text is the same."""
    config = SMALL | {"kv_memory": "2.2MB", "prefix_cache": False}
    engine = EngineThread(model, EngineConfig(**config))
    pages = engine.statistics().pages
    assert pages < 2 * 320 / 16
    text = case(1)[0]
    options = {"max_new_tokens": 240, "temperature": 1.0, "eos_token_id": ()}
    alone = [
        model.generate(text, seed=n, tree_nodes=0, **options).tokens.tolist() for n in range(3)
    ]
    requests = [Request(tokens_of(model, text), 240, Sampling(1.0), seed=n) for n in range(3)]
    assert [answer.tokens for answer in ask(engine, *requests)] == alone
    statistics = engine.statistics()
    engine.close()
    assert statistics.preemptions > 0
    assert statistics.pages_used == 0
    assert statistics.prompt_tokens == 3 * len(requests[0].tokens)


@pytest.mark.parametrize("nodes", [4, 0])
def test_texts_that_begin_alike_are_those_without_reuse(model, nodes):
    """So are drafts; with common beginnings of every length, while pages are needed for others."""
    rng, tokens = np.random.default_rng(nodes), tokens_of(model, TEXT)
    requests = [
        Request(
            np.concatenate([tokens[:size], rng.integers(0, 4096, 4, np.int32)]),
            int(rng.integers(1, 13)),
            Sampling(0.8 * (size % 2)),
            seed=size,
        )
        for size in rng.permutation(40)
    ]
    requests += [dataclasses.replace(requests[0], choice=choice) for choice in range(8)]
    texts, hits = [], []
    for reuse in (False, True):
        config = SMALL | {"kv_memory": "1.8MB", "prefix_cache": reuse, "tree_nodes": nodes}
        engine = EngineThread(model, EngineConfig(**config))
        texts.append([(answer.tokens, answer.drafted) for answer in ask(engine, *requests)])
        hits.append(engine.statistics().prefix_hits)
        assert engine.statistics().pages_used == 0
        engine.close()
    assert texts[0] == texts[1]
    assert hits[0] == 0
    assert hits[1] > 0.6 * sum(len(request.tokens) for request in requests)


@pytest.mark.long
def test_no_program_is_compiled_after_the_warm_up(model):
    options = {"tree_nodes": 2, "chunk": 32, "compile_first": True}
    config = EngineConfig(slots=2, page=16, max_length=128, **options)
    messages, words = [], model.grammars.check(StructuredOutputs(regex="[a-z ]+"))
    engine = EngineThread(model, config, messages.append)
    assert re.fullmatch(r"compiled (\d+) of \1 programs", messages[-1])
    requests = [
        Request(
            tokens_of(model, TEXT[: 40 * n + 1]),
            9,
            Sampling(**options),
            seed=n,
            logprobs=n % 3 or None,
            prompt_logprobs=1 if n % 4 == 1 else None,
            logit_bias={n: 1.0} if n == 2 else {},
            grammar=words if n % 2 else None,
        )
        for n, options in enumerate(OPTIONS)
    ]
    for clients in (1, 2):
        closed_loop(engine, requests, clients)
    assert engine.statistics().compilations == engine.statistics().compilation_seconds == 0
    engine.close()


@pytest.mark.long
def test_penalties_and_bias_of_logits(model, engine):
    """As functions of `generate` compute them, which know nothing of drafts."""
    text = case(3)[0]
    prompt = tokens_of(model, text)
    bias = {int(prompt[0]): 4.0, 17: -3.0, 99: 2.5}
    biased = np.zeros(model.target.vocab_size, np.float32)
    biased[[*bias]] = [*bias.values()]

    def penalize(tokens, logits, length):
        at = jnp.arange(len(tokens), dtype=jnp.int32)
        new = jnp.where((at >= len(prompt)) & (at < length), tokens, len(logits))
        counts = jnp.zeros(len(logits), jnp.int32).at[new].add(1, mode="drop")
        return logits + biased - 0.6 * counts.astype(jnp.float32) - jnp.where(counts > 0, 1.1, 0.0)

    for temperature in (0.0, 0.9):
        options = {"max_new_tokens": 40, "temperature": temperature, "seed": 8}
        alone = model.generate(
            text, logits_processor=[penalize], tree_nodes=0, eos_token_id=(), **options
        )
        request = Request(
            prompt,
            40,
            Sampling(temperature),
            seed=8,
            frequency_penalty=0.6,
            presence_penalty=1.1,
            logit_bias=bias,
        )
        (answer, _) = ask(engine, request, request_of(model, 0))
        assert answer.tokens == alone.tokens.tolist()


def test_ends(model, engine, expected):
    """At a stop id, at the budget, and at the longest length."""
    text, _, _, _ = case(0)
    tokens, whole = tokens_of(model, text), expected(0)
    stop = whole[len(whole) // 2]
    stopped, budget, longest = ask(
        engine,
        Request(tokens, 50, stop_ids=(stop, 4000)),
        Request(tokens, 1),
        Request(np.resize(tokens, 310), 50),
    )
    assert (stopped.finish, stopped.tokens) == ("stop", whole[: whole.index(stop) + 1])
    assert (budget.finish, budget.tokens) == ("length", whole[:1])
    assert (longest.finish, len(longest.tokens)) == ("length", 10)
    # The tree is cut where the text ends, so the last token is seldom a draft that counts.
    assert len(stopped.drafted) == len(stopped.tokens)


def test_what_does_not_fit_is_refused(model, engine):
    for tokens, others, message in [
        (np.zeros(320, np.int32), {}, "leaves no room in 320 positions"),
        (np.array([4096], np.int32), {}, "must be in 0..4095"),
        (np.zeros(1, np.int32), {"logit_bias": {4096: 1.0}}, "must be in 0..4095"),
        (np.zeros(1, np.int32), {"logprobs": 21}, "logprobs must be in"),
        (np.zeros(1, np.int32), {"stop_ids": tuple(range(17))}, "at most 16 stop ids"),
    ]:
        with pytest.raises(UserError, match=message):
            engine.submit(Request(tokens, 5, **others), Answer())
    for options, message in [
        ({"max_new_tokens": 0}, "max_new_tokens must be in"),
        ({"seed": -1}, "the seed must be in"),
        ({"presence_penalty": 3.0}, "presence_penalty must be between"),
        ({"logit_bias": {1: 101.0}}, "logit_bias of 1 must be between"),
        ({"tokens": np.zeros(0, np.int32)}, "a prompt is empty"),
    ]:
        with pytest.raises(UserError, match=message):
            Request(**{"tokens": np.zeros(1, np.int32), "max_new_tokens": 1, **options})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kv_memory": "1MB"}, "is too little for one request of 320 tokens, which takes"),
        ({"max_length": 4096}, "beyond the target's 2048 positions"),
        ({"slots": 0}, "--slots must be at least 1"),
        ({"tree_nodes": 999}, "a tree cannot have 999 nodes"),
    ],
)
def test_options_that_do_not_fit(model, options, message):
    with pytest.raises(UserError, match=message):
        EngineThread(model, EngineConfig(**SMALL | options))


def test_cancel_frees_the_slot(model, engine):
    answer = Answer()
    ticket = engine.submit(Request(np.zeros(1, np.int32), 300), answer)
    assert answer.started.wait(60)
    ticket.cancel()
    ticket.cancel()
    assert wait_until(lambda: engine.statistics().running == 0)
    count = len(answer.outputs)
    assert engine.statistics().pages_used == 0
    time.sleep(0.1)
    assert len(answer.outputs) <= count + 1
    assert not answer.ended.is_set()


def test_a_failing_listener_harms_nobody(model, engine, expected):
    def fail(output):
        raise RuntimeError("no")

    engine.submit(request_of(model, 0), fail)
    (answer,) = ask(engine, request_of(model, 0))
    assert answer.tokens == expected(0)
    assert wait_until(lambda: engine.statistics().running == 0)


def test_numbers_that_are_none(model, engine, expected):
    """A request whose logits are NaN fails by name, and its neighbours do not."""
    broken = request_of(model, 5)
    object.__setattr__(broken, "logit_bias", {0: float("nan")})
    failed = Answer()
    engine.submit(broken, failed)
    (answer,) = ask(engine, request_of(model, 5))
    assert answer.tokens == expected(5)
    with pytest.raises(UserError, match="NaN at new token 1"):
        failed.wait()


def test_a_failure_of_the_device_ends_all(model):
    engine = EngineThread(model, EngineConfig(**SMALL))

    def fail(*_, **options):
        raise MemoryError("out of memory")

    engine._engine.runner.burst = fail
    answer = Answer()
    engine.submit(Request(np.zeros(1, np.int32), 5), answer)
    with pytest.raises(UserError, match="the engine failed: MemoryError"):
        answer.wait()
    assert wait_until(lambda: engine.statistics().failed)
    with pytest.raises(EngineClosed):
        engine.submit(Request(np.zeros(1, np.int32), 5), Answer())
    engine.close()


def test_a_full_queue(model):
    """A request that is cancelled frees its place at once, though nothing has moved yet."""
    engine = EngineThread(model, EngineConfig(**SMALL | {"slots": 1, "queue": 1}))
    gate, request, answers = threading.Event(), Request(np.zeros(1, np.int32), 3), [Answer()]

    def hold(output):
        answers[0](output)
        gate.wait(60)

    engine.submit(request, hold)
    assert answers[0].started.wait(60)
    waiting = engine.submit(request, Answer())
    with pytest.raises(QueueFull, match="1 requests are waiting") as full:
        engine.submit(request, Answer())
    assert full.value.retry_after > 0
    waiting.cancel()
    answers.append(Answer())
    engine.submit(request, answers[1])
    gate.set()
    assert [len(answer.wait().tokens) for answer in answers] == [3, 3]
    engine.close()
    with pytest.raises(EngineClosed):
        engine.submit(request, Answer())


def test_a_run_that_fails_leaves_nothing_behind(model, expected):
    engine = model.engine(EngineConfig(**SMALL))
    good = request_of(model, 0)
    with pytest.raises(UserError, match="leaves no room"):
        engine.run([good, Request(np.zeros(400, np.int32), 5)])
    broken = request_of(model, 5)
    object.__setattr__(broken, "logit_bias", {0: float("nan")})
    with pytest.raises(UserError, match="NaN"):
        engine.run([good, broken])
    assert not engine.busy
    [output] = engine.run([good])
    assert output.tokens.tolist() == expected(0)
    assert output.scores is None


@pytest.mark.long
def test_programs_are_dropped_when_there_are_too_many(model, expected, monkeypatch):
    """As their memory mappings are limited; the texts stay the same."""
    monkeypatch.setattr("dart_jax.engine.thread._MOST_COMPILED", 1)
    jax.clear_caches()  # those of other tests
    clear, count = jax.clear_caches, itertools.count()
    monkeypatch.setattr(jax, "clear_caches", lambda: (next(count), clear()))
    engine = EngineThread(model, EngineConfig(**SMALL))
    for n in range(4):
        (answer,) = ask(engine, request_of(model, n))
        assert answer.tokens == expected(n)
    engine.close()
    assert next(count) > 1


def wait_until(holds, seconds=60):
    end = time.monotonic() + seconds
    while not (held := holds()) and time.monotonic() < end:
        time.sleep(0.01)
    return held
