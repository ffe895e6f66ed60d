"""Replicas under Ray Serve on this machine: the texts of one engine, also after one was killed."""

import concurrent.futures
import importlib.util
import json
import os
import signal
import sys

import pytest
from serve_process import QUICK, Served, post, server, wait_until

from dart_jax.engine.config import EngineConfig
from dart_jax.errors import UserError
from dart_jax.programs.model_choice import ModelChoice
from dart_jax.serve.cluster.options import ClusterOptions

needs_ray = pytest.mark.skipif(
    os.environ.get("DART_REQUIRE_RAY") != "1"
    and not all(map(importlib.util.find_spec, ("ray", "grpc"))),
    reason="pip install 'dart-jax[ray]'",
)


def with_ray(test):
    return needs_ray(pytest.mark.long(test))


OPTIONS = (*QUICK, "--slots", "2", "--queue", "20")
PATIENCE = 240  # seconds
NEW = 400
# Greedy and sampled, streamed and whole.
BODIES = [
    {
        "prompt": f"def function_{number}(",
        "max_tokens": NEW,
        "ignore_eos": True,
        "temperature": 0.8 * (number % 2),
        "seed": number,
        "stream": number % 4 > 1,
    }
    for number in range(8)
]


def ask(served: Served, body):
    """The whole text of an answer, streamed or not; the status of an error."""
    status, _, content = served.ask(post("/v1/completions", body))
    if status != 200:
        return status
    if not body["stream"]:
        return json.loads(content)["choices"][0]["text"]
    # Between the events there are the sizes of chunks.
    events = [line[6:] for line in content.split(b"\r\n") for line in line.split(b"\n\n") if line]
    events = [event for event in events if event.startswith(b"{")]
    if "error" in json.loads(events[-1]):
        return json.loads(events[-1])["error"]["code"]
    return "".join(json.loads(event)["choices"][0]["text"] for event in events)


@pytest.fixture(scope="module")
def texts():
    """The answers of one engine."""
    with server(*OPTIONS) as one:
        return [ask(one, body) for body in BODIES]


@pytest.fixture(scope="module")
def served(texts):
    with server("--replicas", "2", *OPTIONS) as running:
        yield running
        pids = replicas_of(running)
        assert pids
        running.process.send_signal(signal.SIGTERM)
        assert running.process.wait(PATIENCE) == 0
        wait_until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in pids))


def replicas_of(served: Served):
    """Process numbers of the replicas, which Ray starts somewhere below the server."""

    def below(pid):
        children = []
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/children") as file:
                children += map(int, file.read().split())
        return [*children, *(each for child in children for each in below(child))]

    def title(pid):
        with open(f"/proc/{pid}/cmdline") as file:
            return file.read()

    return [pid for pid in below(served.process.pid) if "ServeReplica" in title(pid)]


def all_texts(served: Served):
    with concurrent.futures.ThreadPoolExecutor(len(BODIES)) as pool:
        return list(pool.map(lambda body: ask(served, body), BODIES))


@with_ray
def test_texts_are_those_of_one_engine(served, texts):
    assert all_texts(served) == texts
    metrics = served.metrics()
    assert metrics["num_replicas"] == 2
    # With two slots each, half of the requests had to wait.
    assert metrics["request_queue_time_seconds_sum"] > 0.1
    wait_until(lambda: served.metrics()["generation_tokens_total"] == 8 * NEW)


@with_ray
def test_a_client_that_goes_away_ends_its_request(served):
    before = served.metrics()["generation_tokens_total"]
    body = BODIES[2] | {"max_tokens": 450}
    with served.connect(post("/v1/completions", body)) as connection:
        while b"data: " not in connection.recv(1 << 10):
            pass
    wait_until(lambda: served.metrics()["generation_tokens_total"] > before)
    wait_until(served.idle)
    assert served.metrics()["generation_tokens_total"] - before < 450


@with_ray
def test_a_killed_replica_is_replaced(served, texts):
    """Its requests end with an error that says so; the others, and later ones, are right."""
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        future = pool.submit(all_texts, served)
        wait_until(lambda: served.metrics()["num_requests_running"] > 2)  # on both
        os.kill(replicas_of(served)[0], signal.SIGKILL)
        answers = future.result()
    lost = [answer for answer, text in zip(answers, texts, strict=True) if answer != text]
    assert lost
    assert set(lost) <= {503, "unavailable"}
    assert len(lost) < len(BODIES)
    wait_until(lambda: served.metrics()["num_replicas"] == 2, PATIENCE)
    assert all_texts(served) == texts
    assert served.read("/health") == ""


@with_ray
def test_a_server_without_replicas_is_not_healthy(served):
    for pid in replicas_of(served):
        os.kill(pid, signal.SIGKILL)
    health = b"GET /health HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n"
    wait_until(lambda: served.ask(health)[0] == 503)
    wait_until(lambda: served.metrics()["num_replicas"] == 2, PATIENCE)


@with_ray
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--drafter", "/proc"], "the replicas do not start: no file .*config.json"),
        (["--ray-address", "127.0.0.1:1"], "cannot reach a Ray cluster at 127.0.0.1:1: "),
        (["--replica-gpus", "99"], "the replicas need 99 GPUs, and this machine has "),
    ],
)
def test_what_cannot_start_says_why(words, message):
    with (
        pytest.raises(AssertionError, match=f"error: {message}"),
        server("--replicas", "1", *words),
    ):
        pass


def test_no_ray(monkeypatch):
    from dart_jax.serve.cluster.cluster import Cluster

    monkeypatch.setitem(sys.modules, "ray", None)
    choice = ModelChoice(model="demo")
    with pytest.raises(UserError, match=r"--replicas needs Ray Serve: pip install 'dart-jax\[ray"):
        Cluster(choice, EngineConfig(), ClusterOptions(replicas=1, ray_address="auto"), 1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"replicas": 0}, "--replicas must be at least 1"),
        ({"replicas": 3, "max_replicas": 2}, "--max-replicas must be at least 3"),
        ({"ray_address": "auto"}, "--ray-address needs --replicas"),
        ({"replicas": 1, "replica_gpus": -1}, "--replica-gpus must be at least 0"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(UserError, match=message):
        ClusterOptions(**options)
