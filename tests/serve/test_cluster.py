"""Two replicas under Ray Serve on this machine: killed, restarted, and asked by many at once."""

import concurrent.futures
import importlib.util
import json
import os
import signal
import time

import numpy as np
import pytest
from serve_process import QUICK, Served, answer_of, post, server, wait_until

from dart_jax.model import DartModel

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(
        os.environ.get("DART_REQUIRE_RAY") != "1"
        and not all(map(importlib.util.find_spec, ("ray", "grpc"))),
        reason="pip install 'dart-jax[ray]'",
    ),
]

PAGE = 16
OPTIONS = (*QUICK, "--slots", "2", "--page", str(PAGE), "--queue", "20")
NEW = 200
PATIENCE = 240  # seconds


def body_of(number):
    """The request with this number: greedy or sampled, streamed or whole."""
    return {
        "prompt": f"def function_{number}(",
        "max_tokens": NEW,
        "ignore_eos": True,
        "temperature": 0.8 * (number % 2),
        "seed": number,
        "stream": number % 4 > 1,
    }


BODIES = [body_of(number) for number in range(8)]


def text_of(body, answer):
    """The whole text of a complete answer, streamed or not."""
    status, _, content = answer
    assert status == 200, content
    if not body["stream"]:
        [choice] = json.loads(content)["choices"]
    else:
        # The connection has no other frames than the sizes of chunks.
        lines = [line for line in content.split(b"\r\n") if line.startswith(b"data: ")]
        events = b"".join(lines).split(b"data: ")[1:]
        assert events.pop().strip() == b"[DONE]"
        pieces = [json.loads(event)["choices"][0] for event in events]
        choice = pieces[-1] | {"text": "".join(piece["text"] for piece in pieces)}
    assert choice["finish_reason"] == "length"
    return choice["text"]


def ask(served, body):
    return text_of(body, served.ask(post("/v1/completions", body)))


@pytest.fixture(scope="module")
def texts():
    """What one engine answers."""
    with server(*OPTIONS) as one:
        return [ask(one, body) for body in BODIES]


@pytest.fixture(scope="module")
def served(texts):
    with server("--replicas", "2", *OPTIONS) as running:
        try:
            yield running
        finally:
            end(running)


def end(served: Served):
    """Ends a server; nothing of it stays."""
    pids = [replica["pid"] for replica in replicas_of(served)]
    served.process.send_signal(signal.SIGTERM)
    assert served.process.wait(PATIENCE) == 0
    for pid in pids:
        wait_until(lambda pid=pid: not alive(pid))


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def replicas_of(served):
    return served.get("/server_info")["replicas"]


def both(served):
    """The replicas, as soon as there are two; a little later every report is new."""
    wait_until(lambda: len(replicas_of(served)) == 2, PATIENCE)
    time.sleep(1.5)
    return replicas_of(served)


def tokens_by_replica(served):
    return {each["replica"]: each["statistics"]["prompt_tokens"] for each in both(served)}


class Load:
    """Asks everything at once, and checks the answers at the end."""

    def __init__(self, served, bodies=BODIES):
        self.served = served
        self.pool = concurrent.futures.ThreadPoolExecutor(len(bodies))
        self.asked = [self.pool.submit(ask, served, body) for body in bodies]

    def __enter__(self):
        wait_until(lambda: any(each["statistics"]["running"] for each in replicas_of(self.served)))
        return self

    def __exit__(self, *_):
        self.pool.shutdown()

    @property
    def texts(self):
        return [each.result() for each in self.asked]


def test_texts_are_those_of_one_engine(served, texts):
    with Load(served) as load:
        assert load.texts == texts
    assert all(tokens_by_replica(served).values())


def test_the_turns_of_a_conversation_stay_on_a_replica(served):
    tokenizer = DartModel.demo().tokenizer
    rng = np.random.default_rng(0)
    before = tokens_by_replica(served)
    for _ in range(4):
        talk = rng.integers(100, 1000, 3 * PAGE).tolist()
        for _ in range(3):
            body = {"prompt": talk, "max_tokens": 8, "temperature": 0, "ignore_eos": True}
            [choice] = json.loads(served.ask(post("/v1/completions", body))[2])["choices"]
            talk += tokenizer.encode(choice["text"]) + rng.integers(100, 1000, PAGE).tolist()
        after = tokens_by_replica(served)
        assert sum(after[replica] > before[replica] for replica in after) == 1
        before = after
    assert served.metrics()["prefix_cache_hits_total"] >= 4 * 2 * 3 * PAGE


@pytest.mark.parametrize("count", [1, 2])
def test_killed_replicas_lose_no_request(served, texts, count):
    before = both(served)
    with Load(served) as load:
        busy = sorted(replicas_of(served), key=lambda each: -each["statistics"]["running"])
        for replica in busy[:count]:
            os.kill(replica["pid"], signal.SIGKILL)
        assert load.texts == texts
    assert "a replica was lost during a request" in served.log.read_text()
    after = both(served)
    kept = {replica["pid"] for replica in before} & {replica["pid"] for replica in after}
    assert len(kept) == 2 - count
    assert served.read("/health") == ""


def test_counts_do_not_fall_with_a_replica(served):
    [first, _] = both(served)
    before = served.metrics()["generation_tokens_total"]
    assert before > NEW
    os.kill(first["pid"], signal.SIGKILL)
    wait_until(lambda: served.metrics()["num_replicas"] == 1)
    assert served.metrics()["generation_tokens_total"] == before


def test_a_restart_under_load_loses_no_request(served, texts):
    old = {replica["replica"] for replica in both(served)}
    with Load(served) as load:
        served.process.send_signal(signal.SIGHUP)
        assert load.texts == texts
    while old & {replica["replica"] for replica in replicas_of(served)}:
        with Load(served) as load:
            assert load.texts == texts
    assert "lost" not in served.log.read_text().rpartition("are restarted")[2]
    assert not old & {replica["replica"] for replica in both(served)}


def test_a_client_that_goes_away_ends_its_request(served):
    both(served)
    before = served.metrics()["generation_tokens_total"]
    body = body_of(2) | {"max_tokens": 450}
    with served.connect(post("/v1/completions", body)) as connection:
        connection.recv(1 << 10)
        connection.recv(1 << 10)
    wait_until(lambda: not any(each["statistics"]["running"] for each in replicas_of(served)))
    time.sleep(1.5)
    assert 0 < served.metrics()["generation_tokens_total"] - before < 450


def test_bad_requests_are_refused(served):
    for prompt, message in (([10**6], "token ids outside"), ("word " * 1000, "at most 512 here")):
        with served.connect(post("/v1/completions", {"prompt": prompt})) as connection:
            status, _, content = answer_of(connection)
        assert status == 400
        assert message in json.loads(content)["error"]["message"]


def test_replicas_that_cannot_start(tmp_path):
    message = "error: the replicas do not start: dart_jax.errors.UserError"
    with (
        pytest.raises(AssertionError, match=message),
        server("--replicas", "1", "--drafter", str(tmp_path)),
    ):
        pass
