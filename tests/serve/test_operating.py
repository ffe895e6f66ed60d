"""What operators see: pages, log lines, connections that send nothing, and answers too early."""

import asyncio
import contextlib
import json
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest
import uvicorn
from serve_process import QUICK, answer_of, post, server, wait_until

from dart_jax.serve import connections
from dart_jax.serve.connections import Connection, starting
from dart_jax.serve.process import open_socket


@pytest.fixture(scope="module")
def served():
    with server("--served-model-name", "demo", *QUICK) as running:
        yield running


def test_pages(served):
    home, docs = served.read("/"), served.read("/docs")
    assert "demo" in home
    assert f"curl {served.address}/v1/chat/completions" in home
    described = served.get("/openapi.json")
    for path, methods in described["paths"].items():
        assert path in home
        [method] = methods
        if method == "get":
            served.read(path)
        else:
            assert path in docs
    fields = described["components"]["schemas"]["ChatFields"]["properties"]
    assert {"messages", "tools", "temperature", "min_tokens"} <= fields.keys()
    assert "max_output_tokens" in docs


def test_pages_of_a_server_with_a_key():
    with server("--served-model-name", "secret", "--api-key", "sesame", *QUICK) as running:
        assert "secret" not in running.read("/")
        running.read("/docs")
        with pytest.raises(urllib.error.HTTPError):
            running.read("/v1/models")


def test_requests_are_logged(served):
    client = served.client()
    client.completions.create(model="demo", prompt="def mean(", max_tokens=4)
    with contextlib.suppress(Exception):
        client.completions.create(model="demo", prompt="x", max_tokens=0)
    served.read("/health")

    def logged():
        log = served.log.read_text()
        whole = "POST /v1/completions 200" in log and "+ 4, length" in log
        return whole and "POST /v1/completions 400" in log and "GET /health 200" in log

    wait_until(logged)


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 1e300},
        {"temperature": 1e-300},
        {"top_p": 1e-300},
        {"repetition_penalty": 1e300},
        {"repetition_penalty": 1e-300},
        {"seed": 2**70},
        {"seed": -(2**70)},
        {"top_k": 2**40},
        {"logit_bias": {"5": 1e300}},
        {"presence_penalty": 1e300},
    ],
)
def test_huge_numbers(served, fields):
    """They work or are refused in a line, without a warning."""
    before = served.log.read_text()
    body = {"prompt": "def", "max_tokens": 3, **fields}
    status, _, content = served.ask(post("/v1/completions", body))
    assert status == 200 or "\n" not in json.loads(content)["error"]["message"]
    wait_until(lambda: served.log.read_text() != before)
    lines = served.log.read_text()[len(before) :].splitlines()
    assert all(" INFO " in line for line in lines), lines


def test_compressed_bodies(served):
    request = post("/v1/completions", b"\x1f\x8b", "Content-Encoding: gzip")
    status, _, content = served.ask(request)
    assert status == 415
    assert "'gzip'" in json.loads(content)["error"]["message"]


# Connections.


async def _app(scope, receive, send):
    """Reads a body, and answers slowly."""
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 200, "headers": []})
    for _ in range(4):
        await asyncio.sleep(0.2)
        await send({"type": "http.response.body", "body": b"part", "more_body": True})
    await send({"type": "http.response.body", "body": b""})


@pytest.fixture
def connect(monkeypatch) -> Iterator:
    monkeypatch.setattr(connections, "_PATIENCE", 0.5)
    listening = open_socket("127.0.0.1", 0)
    config = uvicorn.Config(_app, http=Connection, lifespan="off", log_config=None, ws="none")
    running = uvicorn.Server(config)
    running.capture_signals = contextlib.nullcontext  # of the main thread
    thread = threading.Thread(target=running.run, args=([listening],))
    thread.start()
    wait_until(lambda: running.started)
    yield lambda: socket.create_connection(listening.getsockname(), timeout=10)
    running.should_exit = True
    thread.join()


HEAD = b"POST / HTTP/1.1\r\nHost: test\r\n"


@pytest.mark.parametrize("sent", [b"", b"POST", HEAD, HEAD + b"Content-Length: 9\r\n\r\n1234"])
def test_half_a_request(connect, sent):
    with connect() as connection:
        connection.sendall(sent)
        began = time.monotonic()
        assert connection.recv(1 << 16) == b""
        assert 0.3 < time.monotonic() - began < 5


def test_headers_that_drip(connect):
    def drip(connection):
        for _ in range(50):
            connection.sendall(b"P" if _ else b"POST / HTTP/1.1\r\nX: ")
            time.sleep(0.1)

    with connect() as connection, pytest.raises(ConnectionError):
        drip(connection)


def test_slow_bodies_and_answers_are_not_cut(connect):
    with connect() as connection:
        for _ in range(2):  # kept alive in between
            connection.sendall(HEAD + b"Content-Length: 4\r\n\r\n")
            for _ in range(4):
                time.sleep(0.3)
                connection.sendall(b"x")
            received = b""
            while not received.endswith(b"0\r\n\r\n"):
                part = connection.recv(1 << 16)
                assert part
                received += part
            assert received.count(b"part") == 4
            time.sleep(0.7)


def test_answers_before_the_server_is_there():
    listening = open_socket("127.0.0.1", 0)
    with starting(listening):
        for path in (b"/health", b"/v1/models"):
            with socket.create_connection(listening.getsockname(), timeout=10) as connection:
                connection.sendall(b"GET " + path + b" HTTP/1.1\r\nHost: test\r\n\r\n")
                status, headers, body = answer_of(connection)
            assert (status, headers["retry-after"]) == (503, "5")
            assert "starting" in json.loads(body)["error"]["message"]
    listening.close()
