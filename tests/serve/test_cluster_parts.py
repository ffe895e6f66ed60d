"""Several engines: which one gets a request, and what happens when one of them dies."""

import asyncio
import contextlib
import json
import logging
import sys
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest
from engine_requests import Answer
from serve_process import wait_until
from stub_engine import StubEngine
from tokenizers_made import byte_level

from dart_jax.errors import UserError
from dart_jax.serve.cluster.affinity import Affinity, prefixes_of
from dart_jax.serve.cluster.cluster import MOST_LOSSES, Cluster, RemoteModel
from dart_jax.serve.cluster.connection import connect
from dart_jax.serve.cluster.messages import Begun, Busy, Refused
from dart_jax.serve.cluster.options import ClusterOptions
from dart_jax.serve.cluster.resume import Diverged, Resumable
from dart_jax.serve.cluster.totals import Report, Totals
from dart_jax.serve.information import Information
from dart_jax.serve.service import Limits, Service
from dart_jax.serving.config import ServingConfig
from dart_jax.serving.engine import EngineClosed
from dart_jax.serving.request import Logprobs, QueueFull, Request, Update
from dart_jax.serving.statistics import Statistics
from dart_jax.text.tokenizer import Tokenizer

PAGE = 4
NAMES = ("a", "b", "c")


def request_of(*tokens, new=8, **options):
    return Request(np.array(tokens or (1, 2), np.int32), new, **options)


def update_of(*tokens, finish=None):
    return Update(tokens, (False,) * len(tokens), finish)


def test_whole_pages_name_a_beginning():
    tokens = np.arange(11, dtype=np.int32)
    names = prefixes_of(tokens, PAGE)
    assert len(names) == 2
    assert prefixes_of(tokens[:9], PAGE) == names
    assert prefixes_of(tokens[:7], PAGE) == names[:1]
    # The second page alone does not have the name of the second page after the first.
    assert prefixes_of(tokens[4:], PAGE)[0] not in names


def test_the_turns_of_a_conversation_stay_together():
    rng, affinity = np.random.default_rng(0), Affinity(PAGE, slack=2)
    homes = {}
    for turn in range(1, 6):
        for talk in range(20):
            tokens = np.random.default_rng(talk).integers(0, 1000, turn * 10)
            loads = dict(zip(NAMES, rng.integers(0, 3, 3).tolist(), strict=True))
            home = affinity.order(tokens, loads)[0]
            assert homes.setdefault(talk, home) == home
    assert set(homes.values()) == set(NAMES)


def test_a_busy_replica_is_passed_over():
    tokens, affinity = np.arange(40), Affinity(PAGE, slack=2)
    home = affinity.order(tokens, dict.fromkeys(NAMES, 0))[0]
    busy = {name: 2 * (name == home) for name in NAMES}
    assert affinity.order(tokens, busy)[0] == home
    busy[home] = 3
    other = affinity.order(tokens, busy)[0]
    assert other != home
    # Now both have read it, and the one with less to do gets it.
    assert affinity.order(tokens, busy | {home: 1, other: 2})[0] == home
    assert affinity.order(tokens, busy | {home: 2, other: 1})[0] == other


def test_prompts_that_nobody_has_read_go_where_least_is_to_do():
    affinity = Affinity(PAGE, slack=4)
    for number in range(30):
        tokens = np.full(10, number)
        assert affinity.order(tokens, {"a": 2, "b": 1, "c": 3}) == ["b", "a", "c"]
    assert affinity.order(np.arange(2), {"a": 1, "b": 0}) == ["b", "a"]


def test_equals_are_told_apart_by_the_beginning_alone():
    """So that another server, or this one after a restart, decides in the same way."""
    firsts = set()
    for number in range(30):
        tokens = np.full(10, number)
        orders = {
            Affinity(PAGE, 1).order(tokens, dict.fromkeys(names, 0))[0]
            for names in (NAMES, NAMES[::-1])
        }
        assert len(orders) == 1
        firsts |= orders
    assert firsts == set(NAMES)


def test_a_replica_that_died_loses_only_its_own_conversations():
    affinity = Affinity(PAGE, slack=100)
    talks = [np.full(10, number) for number in range(30)]
    loads = dict.fromkeys(NAMES, 0)
    before = [affinity.order(tokens, loads)[0] for tokens in talks]
    del loads["b"]
    after = [affinity.order(tokens, loads)[0] for tokens in talks]
    for old, new in zip(before, after, strict=True):
        assert new == old if old != "b" else new in loads
    assert affinity.order(talks[0], {}) == []


def test_memory_is_limited():
    affinity = Affinity(PAGE, slack=100, most=10)
    loads = {"a": 1, "b": 0}
    for number in range(100):
        affinity.order(np.full(40, number), loads)
    assert len(affinity._readers) == 10
    assert affinity.order(np.full(40, 99), {"a": 0, "b": 5})[0] == "b"
    assert affinity.order(np.full(40, 0), {"a": 0, "b": 5})[0] == "a"


def test_what_was_passed_on_is_skipped():
    text = Resumable(request_of())
    text.begin_again()
    assert text.push(update_of(5, 6, 7)) == update_of(5, 6, 7)
    text.begin_again()
    assert text.push(update_of(5, 6)) is None
    assert text.push(update_of(7)) is None
    assert text.push(update_of(8)) == update_of(8)
    text.begin_again()
    end = Update((5, 6, 7, 8, 9), (False, True, False, True, True), "stop")
    assert text.push(end) == Update((9,), (True,), "stop")


def test_log_probabilities_are_skipped_too():
    text = Resumable(request_of())
    text.begin_again()
    text.push(update_of(5))
    text.begin_again()
    own, top = np.array([-1.0, -2.0], np.float32), np.array([[1, 2], [3, 4]], np.float32)
    new = text.push(Update((5, 6), (False, True), None, Logprobs(own, top.astype(int), top)))
    assert new.logprobs.own.tolist() == [-2]
    assert new.logprobs.top_ids.tolist() == new.logprobs.top.tolist() == [[3, 4]]


def test_the_continuation_of_a_text_that_comes_out_differently():
    request = request_of(1, 2, new=6, seed=7, presence_penalty=1.0, frequency_penalty=0.5)
    text = Resumable(request)
    text.begin_again()
    text.push(update_of(5, 6, 5))
    text.begin_again()
    with pytest.raises(Diverged, match="at new token 0"):
        text.push(update_of(5, 9))
    continued = text.request
    assert continued.tokens.tolist() == [1, 2, 5, 6, 5]
    assert (continued.max_new_tokens, continued.seed) == (3, 7)
    assert continued.logit_bias == {5: -2.0, 6: -1.5}
    text.begin_again()
    assert text.push(update_of(8)) == update_of(8)
    text.begin_again()
    assert text.push(update_of(8, 3, finish="length")) == update_of(3, finish="length")


def test_sums_never_fall():
    totals = Totals()

    def report(name, **counts):
        return Report(name, "here", 1, Statistics(slots=2, **counts))

    assert totals.sum(0).failed
    totals.update(
        [
            report("a", running=2, generation_tokens=10, accepted_per_position=(3, 1)),
            report("b", running=1, generation_tokens=5, accepted_per_position=(1,), tree_nodes=4),
        ]
    )
    total = totals.sum(accepted=5)
    assert (total.generation_tokens, total.accepted_per_position) == (15, (4, 1))
    assert (total.running, total.waiting, total.slots, total.tree_nodes) == (3, 2, 4, 4)
    assert (total.replicas, total.failed) == (2, False)
    totals.update([report("b", generation_tokens=6)])
    total = totals.sum(accepted=0)
    assert (total.generation_tokens, total.slots, total.replicas) == (16, 2, 1)
    assert [each.replica for each in total.reports] == ["b"]
    totals.update([])
    assert (totals.sum(1).generation_tokens, totals.sum(1).waiting) == (16, 1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"replicas": 0}, "--replicas must be at least 1, got 0"),
        ({"replicas": 3, "max_replicas": 2}, "--max-replicas must be at least --replicas, 3"),
        ({"ray_address": "auto"}, "--ray-address needs --replicas"),
        ({"replicas": 1, "target_requests": 0}, "--target-requests must be more than 0"),
        ({"replicas": 1, "replica_gpus": -1}, "--replica-gpus must be 0 or a positive number"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(UserError, match=message):
        ClusterOptions(**options)


class ScriptedReplicas:
    """Each of them does what the test says: gives messages, and then perhaps fails."""

    def __init__(self, *scripts):
        self.scripts, self.asked, self.closed = list(scripts), [], False
        self.cancelled = threading.Event()
        self.live = [Report("a", "here", 1, Statistics())]

    async def generate(self, request):
        self.asked.append(request)
        try:
            for message in self.scripts.pop(0):
                if message == "hang":
                    await asyncio.sleep(1000)
                if isinstance(message, BaseException):
                    raise message
                yield message
        except asyncio.CancelledError:
            self.cancelled.set()
            raise

    async def reports(self, seconds):
        return self.live

    def close(self):
        self.closed = True


@contextlib.contextmanager
def cluster_of(*scripts, **config):
    replicas = ScriptedReplicas(*scripts)
    tokenizer = Tokenizer(byte_level())
    target = SimpleNamespace(vocab_size=tokenizer.vocab_size)
    config = ServingConfig(**{"slots": 1, "queue": 0} | config)
    made = Cluster(replicas, RemoteModel(target, tokenizer, (0,)), config, 100, 2)
    try:
        yield made, replicas
    finally:
        made.close()
        assert replicas.closed


WHOLE = [[update_of(5, 6)], [update_of(7), update_of(8, finish="stop")]]


def ask(cluster, request=None):
    answer = Answer()
    cluster.submit(request or request_of(), answer)
    return answer.wait()


def test_when_a_request_got_its_slot():
    with cluster_of([Begun(2.0), [update_of(5)], ConnectionError()], [Begun(0.0), *WHOLE]) as (
        cluster,
        _,
    ):
        began, answer = time.monotonic(), Answer()
        ticket = cluster.submit(request_of(), answer)
        answer.wait()
        assert ticket.begun is not None
        assert -2 <= ticket.begun - began < 0


def test_several_updates_in_a_message():
    with cluster_of(WHOLE) as (cluster, _):
        answer = ask(cluster)
        assert (answer.tokens, answer.finish) == ([5, 6, 7, 8], "stop")
        assert cluster.drain(1)
        with pytest.raises(EngineClosed):
            ask(cluster)


@pytest.mark.parametrize(
    "lost",
    [
        [ConnectionError("killed")],
        [[update_of(5, 6)], ConnectionError("killed")],
        [[update_of(5, 6), update_of(7)], asyncio.CancelledError()],
        [[update_of(5)]],
        [Busy()],
    ],
    ids=["before", "during", "stopped", "no end", "busy"],
)
def test_a_lost_request_is_sent_again(lost, caplog):
    with cluster_of(lost, lost, WHOLE) as (cluster, replicas):
        answer = ask(cluster)
        assert (answer.tokens, answer.finish) == ([5, 6, 7, 8], "stop")
        assert replicas.asked[0] is replicas.asked[2]
        wait_until(lambda: cluster.statistics().waiting == 0)


def test_a_text_that_comes_out_differently_is_continued():
    first, other = [[update_of(5, 6)], ConnectionError()], [[update_of(5, 9)]]
    rest = [[update_of(7, finish="stop")]]
    with cluster_of(first, other, rest) as (cluster, replicas):
        assert ask(cluster).tokens == [5, 6, 7]
        assert replicas.asked[2].tokens.tolist() == [1, 2, 5, 6]


def test_a_request_at_fault_is_not_sent_again():
    with cluster_of([Refused("too odd")]) as (cluster, replicas):
        with pytest.raises(UserError, match="too odd"):
            ask(cluster)
        assert len(replicas.asked) == 1
        with pytest.raises(UserError, match="token ids must be in"):
            ask(cluster, request_of(10**6))


def test_a_request_that_kills_replicas_is_given_up(caplog):
    with cluster_of(*[[ConnectionError()]] * MOST_LOSSES) as (cluster, replicas):
        with pytest.raises(UserError, match="5 replicas were lost during a request"):
            ask(cluster)
        assert not replicas.scripts


def test_cancelled_and_too_many_requests():
    with cluster_of(["hang"], ["hang"], WHOLE) as (cluster, replicas):
        tickets = [cluster.submit(request_of(), Answer()) for _ in range(2)]
        with pytest.raises(QueueFull):
            cluster.submit(request_of(), Answer())
        wait_until(lambda: len(replicas.asked) == 2)
        assert not cluster.drain(0.01)
        cluster._accepting = True
        tickets[0].cancel()
        tickets[0].cancel()
        assert replicas.cancelled.wait(10)
        assert ask(cluster).tokens == [5, 6, 7, 8]


def test_no_replica_is_alive():
    with cluster_of() as (cluster, replicas):
        assert (cluster.statistics().failed, cluster.statistics().replicas) == (False, 1)
        replicas.live = []
        wait_until(lambda: cluster.statistics().failed)


def test_a_restart_is_reported(caplog):
    with cluster_of() as (cluster, replicas):
        done = threading.Event()
        replicas.run = done.set
        with caplog.at_level(logging.WARNING):
            cluster.restart()
            assert done.wait(10)
            wait_until(lambda: "the replicas have been restarted" in caplog.text)


def test_what_the_server_tells_about_replicas():
    engine, totals = StubEngine(), Totals()
    routes = Information(Service(engine, ["stub"], "stub", Limits()))

    def read(endpoint):
        return asyncio.run(endpoint(SimpleNamespace(url=None)))

    engine.counts = totals.sum(0)
    assert read(routes.health).status_code == 503
    totals.update([Report("a", "here", 7, Statistics())])
    engine.counts = totals.sum(0)
    assert read(routes.health).status_code == 200
    [replica] = json.loads(read(routes.server_info).body)["replicas"]
    assert (replica["replica"], replica["node"], replica["pid"]) == ("a", "here", 7)
    assert b'dart:num_replicas{model_name="stub"} 1.0' in read(routes.metrics).body


def test_no_ray(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    options = ClusterOptions(replicas=1, ray_address="127.0.0.1:1")
    with pytest.raises(UserError, match=r"--replicas needs Ray Serve: pip install 'dart-jax\[ray"):
        connect(options)
