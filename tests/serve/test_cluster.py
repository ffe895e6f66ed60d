"""Replicas under Ray Serve on this machine: the texts of one engine, also after one was killed."""

import concurrent.futures
import importlib.util
import json
import os
import signal
import sys

import psutil
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
    """The whole text of an answer, streamed or not; the status or code of an error."""
    status, _, content = served.ask(post("/v1/completions", body))
    if status != 200:
        return status
    # Between the events of a stream there are the sizes of chunks.
    lines = (line.removeprefix(b"data: ") for line in content.replace(b"\r", b"\n").split(b"\n"))
    events = [json.loads(line) for line in lines if line.startswith(b"{")]
    if "error" in events[-1]:
        return events[-1]["error"]["code"]
    return "".join(event["choices"][0]["text"] for event in events)


def all_texts(served: Served):
    with concurrent.futures.ThreadPoolExecutor(len(BODIES)) as pool:
        return list(pool.map(lambda body: ask(served, body), BODIES))


def replicas_of(served: Served):
    """Process numbers of the replicas, which Ray starts somewhere below the server."""
    below = psutil.Process(served.process.pid).children(recursive=True)
    return [each.pid for each in below if "ServeReplica" in " ".join(each.cmdline())]


@needs_ray
@pytest.mark.long
def test_replicas():
    """One that is killed is replaced: its requests end with an error that says so; the others, and
    later ones, are right. Without any the server is not healthy."""
    with server(*OPTIONS) as one:
        texts = [ask(one, body) for body in BODIES]
    with server("--replicas", "2", *OPTIONS) as served:
        assert all_texts(served) == texts
        metrics = served.metrics()
        assert metrics["num_replicas"] == 2
        # With two slots each, half of the requests had to wait.
        assert metrics["request_queue_time_seconds_sum"] > 0.1
        wait_until(lambda: served.metrics()["generation_tokens_total"] == 8 * NEW)

        with served.connect(post("/v1/completions", BODIES[2])) as connection:
            while b"data: " not in connection.recv(1 << 10):
                pass
        wait_until(lambda: served.metrics()["generation_tokens_total"] > 8 * NEW)
        wait_until(served.idle)
        assert served.metrics()["generation_tokens_total"] < 9 * NEW

        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            future = pool.submit(all_texts, served)
            wait_until(lambda: served.metrics()["num_requests_running"] > 2)  # on both
            os.kill(replicas_of(served)[0], signal.SIGKILL)
            answers = future.result()
        lost = [answer for answer, text in zip(answers, texts, strict=True) if answer != text]
        assert 0 < len(lost) < len(BODIES)
        assert set(lost) <= {503, "unavailable"}
        wait_until(lambda: served.metrics()["num_replicas"] == 2, PATIENCE)
        assert all_texts(served) == texts

        for pid in replicas_of(served):
            os.kill(pid, signal.SIGKILL)
        health = b"GET /health HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n"
        wait_until(lambda: served.ask(health)[0] == 503)
        wait_until(lambda: served.metrics()["num_replicas"] == 2, PATIENCE)
        pids = replicas_of(served)
        served.process.send_signal(signal.SIGTERM)
        assert served.process.wait(PATIENCE) == 0
        wait_until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in pids))


@needs_ray
@pytest.mark.long
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
    ],
)
def test_bad_options(options, message):
    with pytest.raises(UserError, match=message):
        ClusterOptions(**options)
