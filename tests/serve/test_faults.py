"""Faults of clients and signals of operators: over raw connections, with the demo model."""

import contextlib
import json
import signal
import threading
import time
import urllib.error

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
    ("body", "message"),
    [
        (b"", "the body is not JSON: EOF while parsing a value at line 1 column 0"),
        (b'{"prompt": "a",}', "the body is not JSON: trailing comma at line 1 column 16"),
        (b'{"prompt": "\xff"}', "the body is not JSON: invalid unicode code point"),
        (b'["prompt"]', "the body must be a JSON object"),
        (b'{"prompt": "a", "temperature": NaN}', "temperature should be a finite number"),
        (b"[" * 100_000, "the body is not JSON: recursion limit exceeded"),
        (b'{"seed": %s}' % (b"1" * 5000), "the body is not JSON: number out of range"),
        (b'{"prompt": "\\ud800"}', "the body is not JSON: unexpected end of hex escape"),
        (b"{}", "prompt is missing"),
    ],
    ids=range(9),
)
def test_bad_bodies(served, body, message):
    status, error = error_of(served, post(COMPLETIONS, body))
    assert status == 400
    assert error["message"].startswith(message)
    assert error["type"] == "invalid_request_error"


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


def test_a_prompt_longer_than_the_context(served):
    """So long that it is encoded beside other work."""
    status, error = error_of(served, post(COMPLETIONS, {"prompt": "word " * 100_000}))
    assert (status, error["code"]) == (400, "context_length_exceeded")
    assert error["message"].startswith("this model's maximum context length is ")
    assert error["param"] == "prompt"


@pytest.mark.parametrize(
    ("request_line", "status", "message"),
    [
        ("GET /nothing HTTP/1.1", 404, "there is no /nothing"),
        ("GET /v1/completions HTTP/1.1", 405, "/v1/completions has no GET"),
        ("DELETE /health HTTP/1.1", 405, "/health has no DELETE"),
    ],
)
def test_wrong_routes(served, request_line, status, message):
    request = f"{request_line}\r\nHost: test\r\nConnection: close\r\n\r\n".encode()
    assert error_of(served, request)[0] == status
    assert error_of(served, request)[1]["message"] == message


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
    served.connect(b"\x00\x01\x02\r\n\r\n").close()
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
    status, error = error_of(served, post(COMPLETIONS, LONG | {"n": 3}))
    assert (status, error["message"]) == (400, "3 texts were asked for at once; the most is 2")


def ask_in_thread(served, stream):
    answers = []
    body = LONG | {"stream": stream}
    thread = threading.Thread(target=lambda: answers.append(served.ask(post(COMPLETIONS, body))))
    thread.start()
    return thread, answers


def end_under_load(served, number):
    """Sends a signal; the running answer and the one that waits are completed."""
    threads = [ask_in_thread(served, stream) for stream in (False, True)]
    wait_until(lambda: accepted(served) == 2)
    served.process.send_signal(number)
    with pytest.raises(urllib.error.HTTPError) as caught:
        wait_until(lambda: served.read("/health") != "")
    caught.value.close()
    assert caught.value.code == 503
    status, headers, _ = served.ask(post(COMPLETIONS, LONG))
    assert (status, headers["retry-after"]) == (503, "5")
    for thread, answers in threads:
        thread.join()
        [(status, _, body)] = answers
        assert status == 200
        assert b'"finish_reason":"length"' in body
    assert served.process.wait(30) == 0
    [line] = [line for line in served.log.read_text().splitlines() if " INFO " not in line]
    assert line.startswith("room for the keys and values of 512 tokens: ")


@pytest.mark.long
def test_answers_that_take_too_long_after_a_signal():
    with server(*QUICK, "--max-length", "2048", "--drain", "0.5") as served:
        served.ask(post(COMPLETIONS, LONG | {"n": 2, "max_tokens": 4}))
        body = LONG | {"max_tokens": 2000}
        with (
            served.connect(post(COMPLETIONS, body)) as whole,
            served.connect(post(COMPLETIONS, body | {"stream": True})) as stream,
        ):
            wait_until(lambda: accepted(served) == 2)
            began = time.monotonic()
            served.process.send_signal(signal.SIGTERM)
            status, _, content = answer_of(whole)
            assert (status, json.loads(content)["error"]["code"]) == (503, "unavailable")
            status, _, content = answer_of(stream)
            assert status == 200
            assert b"the server was stopped before the answer was complete" in content
        assert served.process.wait(30) == 0
        assert time.monotonic() - began < 10


@pytest.mark.long
def test_a_second_signal_ends_it_at_once():
    with server(*QUICK, "--max-length", "2048") as served:
        with served.connect(post(COMPLETIONS, LONG | {"max_tokens": 2000})) as connection:
            wait_until(lambda: not served.idle())
            for _ in range(2):
                served.process.send_signal(signal.SIGTERM)
                time.sleep(0.1)
            assert answer_of(connection)[0] == 503
        assert served.process.wait(10) == 0


def test_sigterm_lets_the_running_answers_finish(served):
    """The last test of this server."""
    end_under_load(served, signal.SIGTERM)
