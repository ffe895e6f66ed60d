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
from engine_requests import Answer, ask, lists, tokens_of

from dart_jax.decoding.options import Sampling
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
def engine(demo):
    engine = EngineThread(demo, EngineConfig(**SMALL))
    yield engine
    engine.close()


def case(n):
    """A prompt of the text, its options, a seed and a budget: all different."""
    rng = np.random.default_rng(n)
    begin, size = int(rng.integers(0, 900)), int(rng.choice([1, 30, 200, 600]))
    return TEXT[begin : begin + size], OPTIONS[n % len(OPTIONS)], 100 + n, int(rng.integers(3, 50))


def request_of(demo, n, **others):
    text, options, seed, budget = case(n)
    return Request(
        tokens_of(demo, text), budget, Sampling(**options), seed=seed, stop_ids=demo.eos, **others
    )


@pytest.fixture(scope="module")
def expected(demo):
    """The tokens of `generate`, by case, alone and without drafting."""
    texts = {}

    def of(n):
        if n not in texts:
            text, options, seed, budget = case(n)
            generated = demo.generate(
                text, max_new_tokens=budget, seed=seed, tree_nodes=0, **options
            )
            texts[n] = generated.tokens.tolist()
        return texts[n]

    return of


def test_every_text_is_that_of_generate(demo, engine, expected):
    """Among neighbours of all kinds, in any slot, drafted; and once more, with the kept pages."""
    cases = (0, 3, 4)  # of every mode but that of 1, which another test has
    for _ in range(2):
        answers = ask(engine, *(request_of(demo, n) for n in cases))
        assert lists(answers) == [expected(n) for n in cases]
    statistics = engine.statistics()
    assert (statistics.running, statistics.waiting, statistics.pages_used) == (0, 0, 0)
    assert statistics.prefix_hits > 0
    assert statistics.accepted_tokens == sum(statistics.accepted_per_position) > 0
    assert statistics.generation_tokens == 2 * sum(len(expected(n)) for n in cases)


def test_when_pages_run_out(demo):
    """The youngest waits and is read again; its text is the same."""
    text, sampling, new = case(1)[0], {"temperature": 1.0}, 240
    alone = [
        demo.generate(text, seed=n, tree_nodes=0, max_new_tokens=new, eos_token_id=(), **sampling)
        for n in range(3)
    ]
    engine = demo.engine(EngineConfig(**SMALL, kv_memory="2.2MB", no_prefix_cache=True))
    assert engine.statistics().pages < 2 * 320 / 16
    requests = [Request(tokens_of(demo, text), new, Sampling(**sampling), seed=n) for n in range(3)]
    assert lists(engine.run(requests)) == lists(alone)
    statistics = engine.statistics()
    assert statistics.preemptions > 0
    assert statistics.pages_used == 0
    assert statistics.prompt_tokens == 3 * len(requests[0].tokens)


def test_texts_that_begin_alike_are_those_without_reuse(demo):
    """So are a drafter's drafts (how far texts are trusted is learned from all); with common
    beginnings of every length, while pages are needed for others."""
    demo = demo.with_drafter(demo.drafter, text_drafts=False)
    rng, tokens = np.random.default_rng(0), tokens_of(demo, TEXT)
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
        engine = demo.engine(EngineConfig(**SMALL, kv_memory="1.8MB", no_prefix_cache=not reuse))
        outputs = engine.run(requests)
        texts.append((lists(outputs), [output.drafted.tolist() for output in outputs]))
        hits.append(engine.statistics().prefix_hits)
        assert engine.statistics().pages_used == 0
    assert texts[0] == texts[1]
    assert hits[0] == 0
    assert hits[1] > 0.6 * sum(len(request.tokens) for request in requests)


@pytest.mark.long
def test_no_program_is_compiled_after_the_warm_up(demo):
    options = {"tree_nodes": 2, "chunk": 32, "compile_first": True}
    config = EngineConfig(slots=2, page=16, max_length=128, **options)
    messages, words = [], demo.grammars.check(StructuredOutputs(regex="[a-z ]+"))
    engine = EngineThread(demo, config, messages.append)
    assert re.fullmatch(r"compiled (\d+) of \1 programs", messages[-1])
    requests = [
        Request(
            tokens_of(demo, TEXT[: 40 * n + 1]),
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
    for together in (*[[each] for each in requests], requests):
        ask(engine, *together)
    assert engine.statistics().compilations == engine.statistics().compilation_seconds == 0
    engine.close()


@pytest.mark.long
def test_penalties_and_bias_of_logits(demo, engine):
    """As functions of `generate` compute them, which know nothing of drafts."""
    text = case(3)[0]
    prompt = tokens_of(demo, text)
    bias = {int(prompt[0]): 4.0, 17: -3.0, 99: 2.5}
    biased = np.zeros(demo.target.vocab_size, np.float32)
    biased[[*bias]] = [*bias.values()]

    def penalize(tokens, logits, length):
        at = jnp.arange(len(tokens), dtype=jnp.int32)
        new = jnp.where((at >= len(prompt)) & (at < length), tokens, len(logits))
        counts = jnp.zeros(len(logits), jnp.int32).at[new].add(1, mode="drop")
        return logits + biased - 0.6 * counts.astype(jnp.float32) - jnp.where(counts > 0, 1.1, 0.0)

    for temperature in (0.0, 0.9):
        options = {"max_new_tokens": 40, "temperature": temperature, "seed": 8}
        alone = demo.generate(
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
        (answer, _) = ask(engine, request, request_of(demo, 0))
        assert answer.tokens.tolist() == alone.tokens.tolist()


def test_ends(demo, engine, expected):
    """At a stop id, at the budget, and at the longest length."""
    text, _, _, _ = case(0)
    tokens, whole = tokens_of(demo, text), expected(0)
    stop = whole[len(whole) // 2]
    stopped, budget, longest = ask(
        engine,
        Request(tokens, 50, stop_ids=(stop, 4000)),
        Request(tokens, 1),
        Request(np.resize(tokens, 310), 50),
    )
    assert (stopped.finish, budget.finish) == ("stop", "length")
    assert lists([stopped, budget]) == [whole[: whole.index(stop) + 1], whole[:1]]
    assert (longest.finish, len(longest.tokens)) == ("length", 10)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"tokens": np.zeros(320, np.int32)}, "leaves no room in 320 positions"),
        ({"max_length": 1}, "leaves no room in 1 positions"),
        ({"tokens": np.array([4096], np.int32)}, "must be in 0..4095"),
        ({"logit_bias": {4096: 1.0}}, "must be in 0..4095"),
        ({"logprobs": 21}, "logprobs must be in"),
        ({"prompt_logprobs": 21}, r"prompt_logprobs must be in 0\.\.20"),
        ({"stop_ids": tuple(range(17))}, "at most 16 stop ids"),
        ({"max_new_tokens": 0}, r"max_new_tokens must be in 1\.\."),
        ({"seed": -1}, "the seed must be in"),
        ({"presence_penalty": 3.0}, "presence_penalty must be between"),
        ({"logit_bias": {1: 101.0}}, "logit_bias of 1 must be between"),
        ({"tokens": np.zeros(0, np.int32)}, "a prompt is empty"),
    ],
)
def test_what_does_not_fit_is_refused(engine, fields, message):
    fields = {"tokens": np.zeros(1, np.int32), "max_new_tokens": 1} | fields
    with pytest.raises(UserError, match=message):
        engine.submit(Request(**fields), Answer())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kv_memory": "1MB"}, "is too little for one request of 320 tokens, which takes"),
        ({"max_length": 4096}, "beyond the target's 2048 positions"),
        ({"slots": 0}, "--slots must be at least 1"),
        ({"tree_nodes": 999}, "a tree cannot have 999 nodes"),
    ],
)
def test_options_that_do_not_fit(demo, options, message):
    with pytest.raises(UserError, match=message):
        EngineThread(demo, EngineConfig(**SMALL | options))


def test_cancel_frees_the_slot(demo, engine):
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


def test_what_fails_harms_no_neighbour(demo, engine, expected):
    """A listener, or a request whose logits are NaN."""

    def fail(output):
        raise RuntimeError("no")

    broken, failed = request_of(demo, 5), Answer()
    object.__setattr__(broken, "logit_bias", {0: float("nan")})
    engine.submit(request_of(demo, 0), fail)
    engine.submit(broken, failed)
    (answer,) = ask(engine, request_of(demo, 0))
    assert answer.tokens.tolist() == expected(0)
    with pytest.raises(UserError, match="NaN at new token 1"):
        failed.wait()
    assert wait_until(lambda: engine.statistics().running == 0)
    offline = demo.engine(EngineConfig(**SMALL))
    with pytest.raises(UserError, match="NaN"):
        offline.run([request_of(demo, 0), broken])
    assert not offline.busy
    [output] = offline.run([request_of(demo, 0)])
    assert (output.tokens.tolist(), output.scores) == (expected(0), None)


def test_a_failure_of_the_device_ends_all(demo):
    engine = EngineThread(demo, EngineConfig(**SMALL))

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


def test_a_full_queue(demo):
    """A request that is cancelled frees its place at once, though nothing has moved yet."""
    engine = EngineThread(demo, EngineConfig(**SMALL | {"slots": 1, "queue": 1}))
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


@pytest.mark.long
def test_programs_are_dropped_when_there_are_too_many(demo, expected, monkeypatch):
    """As their memory mappings are limited; the texts stay the same."""
    monkeypatch.setattr("dart_jax.engine.thread._MOST_COMPILED", 1)
    jax.clear_caches()  # those of other tests
    clear, count = jax.clear_caches, itertools.count()
    monkeypatch.setattr(jax, "clear_caches", lambda: (next(count), clear()))
    engine = EngineThread(demo, EngineConfig(**SMALL))
    for n in range(4):
        (answer,) = ask(engine, request_of(demo, n))
        assert answer.tokens.tolist() == expected(n)
    engine.close()
    assert next(count) > 1


def wait_until(holds, seconds=60):
    end = time.monotonic() + seconds
    while not (held := holds()) and time.monotonic() < end:
        time.sleep(0.01)
    return held
