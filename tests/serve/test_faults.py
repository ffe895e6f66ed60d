"""Faults of clients and signals of operators: over raw connections, with the demo model."""

import concurrent.futures
import contextlib
import json
import signal
import time

import pytest
from serve_process import QUICK, answer_of, post, server, wait_until

COMPLETIONS = "/v1/completions"
LONG = {"prompt": "def f", "max_tokens": 400, "ignore_eos": True, "temperature": 0}


@pytest.fixture(scope="module")
def served():
    """With one slot, so that a second request waits and a third one is refused; its metrics have
    vLLM's names."""
    with server(*QUICK, "--slots", "1", "--queue", "1", "--metrics-names", "vllm") as running:
        assert "vllm:num_requests_running" in running.read("/metrics")
        yield running


def error_of(served, request):
    """Status and error of the answer to something bad; the server goes on."""
    status, headers, body = served.ask(request)
    assert headers["content-type"] == "application/json"
    assert served.read("/health") == ""
    return status, json.loads(body)["error"]


@pytest.mark.parametrize(
    ("body", "headers", "status", "message"),
    [
        (b"", [], 400, "the body is not JSON: EOF"),
        (b'{"prompt": "\xff"}', [], 400, "the body is not JSON: invalid unicode code point"),
        (b'["prompt"]', [], 400, "the body must be a JSON object"),
        (b'{"prompt": "a", "top_p": NaN}', [], 400, "top_p should be a finite number"),
        (b"[" * 100_000, [], 400, "the body is not JSON: recursion limit exceeded"),
        (b"{}", [], 400, "prompt is missing"),
        (b"\x1f\x8b", ["Content-Encoding: gzip"], 415, "bodies in 'gzip' are not read"),
    ],
    ids=range(7),
)
def test_bad_bodies(served, body, headers, status, message):
    found, error = error_of(served, post(COMPLETIONS, body, *headers))
    assert (found, error["type"]) == (status, "invalid_request_error")
    assert error["message"].startswith(message)


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_that_is_too_large_is_not_read(served, chunked):
    """100 MB, of which the server takes at most the 8 MB that it accepts and what is under way."""
    length = "Transfer-Encoding: chunked" if chunked else "Content-Length: 100000000"
    # A length, so that `post` adds none.
    head = post(COMPLETIONS, b"", length, "X-Length: 0")
    part = b"x" * 1_000_000
    parts = 0
    with served.connect(head) as connection:
        with contextlib.suppress(OSError):
            for _ in range(100):
                connection.sendall(b"f4240\r\n" + part + b"\r\n" if chunked else part)
                parts += 1
        status, headers, body = answer_of(connection)
    assert parts < 30
    assert (status, headers["connection"]) == (413, "close")
    assert json.loads(body)["error"]["code"] == "request_too_large"


@pytest.mark.parametrize(
    ("request_line", "status", "message"),
    [
        ("GET /nothing HTTP/1.1", 404, "there is no /nothing"),
        ("GET /v1/completions HTTP/1.1", 405, "/v1/completions has no GET"),
    ],
)
def test_wrong_routes(served, request_line, status, message):
    request = f"{request_line}\r\nHost: test\r\nConnection: close\r\n\r\n".encode()
    found, error = error_of(served, request)
    assert (found, error["message"]) == (status, message)


@pytest.mark.long(keep=1)
@pytest.mark.parametrize("stream", [False, True])
def test_a_client_cut_in_the_middle(served, stream):
    served.ask(post(COMPLETIONS, LONG))  # nothing is compiled below
    before = served.metrics()
    # Two, one after the other, since it takes a moment to find that the client has gone.
    connection = served.connect(post(COMPLETIONS, LONG | {"stream": stream, "n": 2}))
    wait_until(lambda: not served.idle())
    connection.close()
    wait_until(served.idle)
    after = served.metrics()
    assert after["generation_tokens_total"] - before["generation_tokens_total"] < 2 * 400
    assert after["request_success_total,abort"] > before["request_success_total,abort"]


def test_a_client_cut_before_its_request_is_complete(served):
    served.connect(post(COMPLETIONS, b'{"prompt"', "Content-Length: 1000")).close()
    served.connect(b"POST /v1/completions HTT").close()
    assert served.read("/health") == ""


def accepted(served):
    """Number of requests that run or wait."""
    metrics = served.metrics()
    return metrics["num_requests_running"] + metrics["num_requests_waiting"]


def test_a_full_queue(served):
    with served.connect(post(COMPLETIONS, LONG | {"n": 2})) as connection:
        wait_until(lambda: accepted(served) == 2)
        status, headers, body = served.ask(post(COMPLETIONS, LONG))
        assert status == 429
        assert int(headers["retry-after"]) >= 1
        assert json.loads(body)["error"]["type"] == "rate_limit_error"
        assert answer_of(connection)[0] == 200


@pytest.mark.long
@pytest.mark.parametrize("signals", [1, 2])
def test_answers_that_are_cut_off(signals):
    """That take too long after a signal, or by a second one."""
    drain = "0.5" if signals == 1 else "60"
    with server(*QUICK, "--max-length", "2048", "--drain", drain) as served:
        body = LONG | {"max_tokens": 2000}
        with (
            served.connect(post(COMPLETIONS, body)) as whole,
            served.connect(post(COMPLETIONS, body | {"stream": True})) as stream,
        ):
            wait_until(lambda: served.metrics()["generation_tokens_total"] > 0)
            began = time.monotonic()
            for _ in range(signals):
                served.process.send_signal(signal.SIGTERM)
                time.sleep(0.2)
            status, _, content = answer_of(whole)
            assert (status, json.loads(content)["error"]["code"]) == (503, "unavailable")
            status, _, content = answer_of(stream)
            assert status == 200
            assert b"the server was stopped before the answer was complete" in content
        assert served.process.wait(30) == 0
        assert time.monotonic() - began < 10


def test_sigterm_lets_the_running_answers_finish(served):
    """And one that waits; others find nobody. The last test of this server."""
    with concurrent.futures.ThreadPoolExecutor() as pool:
        bodies = [LONG | {"stream": stream} for stream in (False, True)]
        answers = [pool.submit(served.ask, post(COMPLETIONS, body)) for body in bodies]
        wait_until(lambda: accepted(served) == 2)
        served.process.send_signal(signal.SIGTERM)
        time.sleep(0.3)
        with pytest.raises(ConnectionError):
            served.ask(post(COMPLETIONS, LONG))
        for answer in answers:
            status, _, body = answer.result()
            assert status == 200
            assert b'"finish_reason":"length"' in body
    assert served.process.wait(30) == 0
    [line] = [line for line in served.log.read_text().splitlines() if " INFO " not in line]
    assert line.startswith("room for the keys and values of 512 tokens: ")
