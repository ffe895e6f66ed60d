"""What operators see: pages, log lines, connections that send nothing, and answers too early."""

import asyncio
import contextlib
import html
import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest
import uvicorn
from serve_process import QUICK, answer_of, post, server, wait_until

from dart_jax.serve import connections
from dart_jax.serve.connections import http, starting
from dart_jax.serve.process import open_socket


@pytest.fixture(scope="module")
def served():
    with server("--served-model-name", "demo", *QUICK) as running:
        yield running


def test_pages(served):
    home, docs = served.read("/"), served.read("/docs")
    assert "demo" in home
    assert f"curl {served.address}/v1/completions" in home
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
        assert "secret" not in running.read("/") + running.read("/metrics")
        running.read("/docs")
        good, bad = "Authorization: Bearer sesame", "Authorization: Bearer x"
        ask = {"prompt": "x", "max_tokens": 1}
        for keys in [(), (bad,), (good, bad), (bad, good), (good.replace("Bearer", "Basic"),)]:
            assert running.ask(post("/v1/completions", ask, *keys))[0] == 401
        for key in (good, good.lower(), "Authorization: BEARER  sesame"):
            assert running.ask(post("/v1/completions", ask, key))[0] == 200
        wait_until(lambda: "POST /v1/completions 401" in running.log.read_text())
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


def test_a_client_that_would_rather_have_http_2(served):
    """Java's asks so."""
    headers = "Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABk"
    request = post("/v1/completions", {"prompt": "def", "max_tokens": 2}, *headers)
    status, _, body = served.ask(request)
    assert (status, json.loads(body)["usage"]["completion_tokens"]) == (200, 2)


def test_a_path_with_line_breaks_is_one_line_of_the_log(served):
    served.ask(b"GET /x%0Aforged HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n")
    wait_until(lambda: "GET /x%0Aforged 404" in served.log.read_text())


def test_a_log_that_nobody_reads_holds_up_nothing():
    """As a terminal that is stopped: a pipe, which is full."""
    reader, writer = os.pipe()
    code = """if True:
        import logging
        from dart_jax.serve.__main__ import log_to_stderr
        with log_to_stderr(True):
            for _ in range(2000):
                logging.getLogger("dart_jax.serve.log").info("x" * 50)
            print("went on", flush=True)
    """
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=writer, text=True) as process:
        os.close(writer)
        assert process.stdout is not None
        assert process.stdout.readline() == "went on\n"
        with open(reader) as log:
            assert log.read().count("x" * 50) == 2000
        assert process.wait(30) == 0


def test_the_example_of_the_first_page(served):
    """The demo has no chat template."""
    page = html.unescape(served.read("/"))
    [path] = re.findall(r"curl \S*?(/v1\S+)", page)
    [body] = re.findall(r"--data '(.*)'", page)
    assert served.ask(post(path, body.encode()))[0] == 200


def test_web_pages(served):
    """Those of this machine may ask; the model does nothing for others."""
    for origin, expected in {"http://localhost:3000": 200, "https://example.com": 403}.items():
        request = post("/v1/completions", {"prompt": "x"}, f"Origin: {origin}")
        status, headers, body = served.ask(request)
        assert status == expected
        assert (headers.get("access-control-allow-origin") == origin) == (status == 200)
        assert status == 200 or origin in json.loads(body)["error"]["message"]


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
    if scope["path"] == "/whole":
        await _whole(receive, send)
        return
    await send({"type": "http.response.start", "status": 200, "headers": []})
    for _ in range(4):
        await asyncio.sleep(0.2)
        await send({"type": "http.response.body", "body": b"part", "more_body": True})
    await send({"type": "http.response.body", "body": b""})


_gone = threading.Event()


async def _whole(receive, send):
    """Answers at once after a while, unless the client goes."""
    _gone.clear()
    gone = asyncio.ensure_future(receive())
    await asyncio.wait([gone], timeout=1.5)
    if gone.done():
        _gone.set()
    headers = [(b"content-length", b"5")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"whole"})


@pytest.fixture
def connect(monkeypatch) -> Iterator:
    monkeypatch.setattr(connections, "_PATIENCE", 0.5)
    listening = open_socket("127.0.0.1", 0)
    running = uvicorn.Server(http(_app))
    thread = threading.Thread(target=running.run, args=([listening],))
    thread.start()
    wait_until(lambda: running.started)
    yield lambda: socket.create_connection(listening.getsockname(), timeout=10)
    running.should_exit = True
    thread.join()


HEAD = b"POST / HTTP/1.1\r\nHost: test\r\n"


@pytest.mark.parametrize(
    ("sent", "part"),
    [
        (b"", None),
        (b"POST", "the headers"),
        (HEAD, "the headers"),
        (HEAD + b"Content-Length: 9\r\n\r\n1234", "the rest of the body"),
    ],
)
def test_half_a_request(connect, sent, part):
    with connect() as connection:
        connection.sendall(sent)
        began = time.monotonic()
        if part is None:
            assert connection.recv(1 << 16) == b""
        else:
            status, _, body = answer_of(connection)
            assert status == 408
            message = json.loads(body)["error"]["message"]
            assert message == f"{part} did not come within 0.5 seconds"
        assert 0.3 < time.monotonic() - began < 5


def test_headers_without_an_end(connect):
    with connect() as connection:
        connection.sendall(HEAD)
        with pytest.raises(ConnectionError):
            connection.sendall((b"X: " + b"x" * 50_000 + b"\r\n") * 1000)


def test_half_a_request_after_a_whole_one_does_not_cut_its_answer(connect):
    with connect() as connection:
        connection.sendall(HEAD + b"\r\n" + HEAD)
        received = b""
        while part := connection.recv(1 << 16):
            received += part
    assert received.count(b"part") == 4
    assert b"408" in received.split(b"0\r\n\r\n", 1)[1]


def test_large_bodies_on_one_connection(connect):
    body = b"x" * 200_000
    with connect() as connection:
        for _ in range(2):
            connection.sendall(HEAD + b"Content-Length: 200000\r\n\r\n" + body)
            received = b""
            while not received.endswith(b"0\r\n\r\n"):
                part = connection.recv(1 << 16)
                assert part
                received += part
            assert received.startswith(b"HTTP/1.1 200 OK")


def test_what_is_no_request(connect):
    with connect() as connection:
        connection.sendall(b"\x16\x03\x01\x02\x00\x01\r\n\r\n")
        status, _, body = answer_of(connection)
    assert status == 400
    assert json.loads(body)["error"]["type"] == "invalid_request_error"


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


def test_bodies_that_drip(connect, monkeypatch):
    """Each part comes in time, all of them do not."""
    monkeypatch.setattr(connections, "_MOST_BODY", 1.0)
    with connect() as connection:
        connection.sendall(HEAD + b"Content-Length: 99\r\n\r\n")
        with contextlib.suppress(ConnectionError):
            for _ in range(8):
                time.sleep(0.2)
                connection.sendall(b"x")
        status, _, body = answer_of(connection)
    assert status == 408
    assert json.loads(body)["error"]["message"] == "the body did not come within 1 seconds"


@pytest.mark.parametrize("path", [b"/whole", b"/"])
def test_a_client_that_sends_no_more_gets_its_answer(connect, path):
    with connect() as connection:
        connection.sendall(b"POST " + path + b" HTTP/1.1\r\nHost: test\r\n\r\n")
        connection.shutdown(socket.SHUT_WR)
        received = b""
        while part := connection.recv(1 << 16):
            received += part
    if path == b"/whole":
        *before, head, rest = received.split(b"\r\n\r\n")
        assert {*before} == {b"HTTP/1.1 100 Continue"}
        assert head.startswith(b"HTTP/1.1 200 OK")
        assert rest == b"whole"
        assert not _gone.is_set()
    else:
        assert received.count(b"part") == 4
        assert b"\r\n:\n\n\r\n" in received  # a comment among events
        assert received.endswith(b"0\r\n\r\n")


def test_a_client_that_goes_is_found(connect):
    with connect() as connection:
        connection.sendall(b"POST /whole HTTP/1.1\r\nHost: test\r\n\r\n")
        time.sleep(0.1)
    assert _gone.wait(5)


def test_answers_before_the_server_is_there():
    """Also behind clients that send nothing, and one that does not end."""
    listening = open_socket("127.0.0.1", 0)
    listening.listen()
    with contextlib.ExitStack() as stack:
        silent = [socket.create_connection(listening.getsockname()) for _ in range(20)]
        for each in silent:
            stack.enter_context(each)
        silent[0].sendall(HEAD + b"Content-Length: 99\r\n\r\nx")
        began = time.monotonic()
        ask_early(listening)
        assert time.monotonic() - began < 5
    # It listens on, for the server.
    socket.create_connection(listening.getsockname()).close()
    listening.close()


def ask_early(listening):
    with starting(listening):
        for path in (b"/health", b"/v1/models"):
            with socket.create_connection(listening.getsockname(), timeout=10) as connection:
                connection.sendall(b"GET " + path + b" HTTP/1.1\r\nHost: test\r\n\r\n")
                status, headers, body = answer_of(connection)
            assert (status, headers["retry-after"]) == (503, "5")
            assert "starting" in json.loads(body)["error"]["message"]
