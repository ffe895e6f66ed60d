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
from collections.abc import Iterator

import pytest
import uvicorn
from serve_process import answer_of, post, wait_until
from starlette.requests import Request

from dart_jax.serve import connections
from dart_jax.serve.body import fields
from dart_jax.serve.body.errors import ApiError
from dart_jax.serve.body.fields import DetokenizeFields
from dart_jax.serve.connections import http, starting
from dart_jax.serve.process import open_socket


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


def test_requests_are_logged(served):
    client, before = served.client(), len(served.log.read_text())
    client.completions.create(model="demo", prompt="def mean(", max_tokens=4)
    with contextlib.suppress(Exception):
        client.completions.create(model="demo", prompt="x", max_tokens=0)
    served.read("/health")

    def logged():
        log = served.log.read_text()[before:]
        whole = "POST /v1/completions 200" in log and "+ 4, length" in log
        return whole and "POST /v1/completions 400" in log and "GET /health 200" in log

    wait_until(logged)


@pytest.mark.parametrize(
    "options",
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
def test_huge_numbers(served, options):
    """They work or are refused in a line, without a warning."""
    before = served.log.read_text()
    body = {"prompt": "def", "max_tokens": 3, **options}
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
    """Reads a body within a time, and answers slowly."""
    request = Request(scope, receive)
    try:
        await fields.receive(DetokenizeFields, request, 10**6)
    except ApiError as error:
        await error.response(scope, receive, send)
        return
    await send({"type": "http.response.start", "status": 200, "headers": []})
    for _ in range(4):
        await asyncio.sleep(0.2)
        await send({"type": "http.response.body", "body": b"part", "more_body": True})
    await send({"type": "http.response.body", "body": b""})


@pytest.fixture
def connect(monkeypatch) -> Iterator:
    monkeypatch.setattr(connections, "_PATIENCE", 0.5)
    monkeypatch.setattr(connections, "_KEEP_ALIVE", 2)
    monkeypatch.setattr(fields, "MOST_SECONDS", 1.0)
    listening = open_socket("127.0.0.1", 0)
    running = uvicorn.Server(http(_app))
    thread = threading.Thread(target=running.run, args=([listening],))
    thread.start()
    wait_until(lambda: running.started)
    yield lambda: socket.create_connection(listening.getsockname(), timeout=10)
    running.should_exit = True
    thread.join()


HEAD = b"POST / HTTP/1.1\r\nHost: test\r\n"
WHOLE = HEAD + b'Content-Length: 15\r\n\r\n{"tokens": [1]}'


def received_of(connection) -> bytes:
    """All that comes until the other side ends."""
    return b"".join(iter(lambda: connection.recv(1 << 16), b""))


@pytest.mark.parametrize("sent", [b"", b"POST", HEAD], ids=["nothing", "a word", "half a head"])
def test_headers_that_do_not_come(connect, sent):
    with connect() as connection:
        connection.sendall(sent)
        began = time.monotonic()
        assert received_of(connection) == b""
        assert 0.3 < time.monotonic() - began < 5


@pytest.mark.parametrize("part", [b"x", b"X: " + b"x" * 50_000 + b"\r\n"], ids=["slow", "endless"])
def test_headers_without_an_end(connect, part):
    def drip(connection):
        for _ in range(100):
            connection.sendall(part)
            time.sleep(0.05)

    with connect() as connection:
        connection.sendall(HEAD)
        with pytest.raises(ConnectionError):
            drip(connection)


@pytest.mark.parametrize("pause", [0.2, 2], ids=["slow", "silent"])
def test_bodies_that_do_not_come(connect, pause):
    with connect() as connection:
        connection.sendall(HEAD + b"Content-Length: 99\r\n\r\n{")
        with contextlib.suppress(ConnectionError):
            for _ in range(int(2 / pause)):
                time.sleep(pause)
                connection.sendall(b" ")
        status, _, body = answer_of(connection)
    assert status == 408
    assert json.loads(body)["error"]["message"] == "the body did not come within 1 seconds"


def test_half_a_request_after_a_whole_one_does_not_cut_its_answer(connect):
    with connect() as connection:
        connection.sendall(WHOLE + HEAD)
        assert received_of(connection).count(b"part") == 4


def test_slow_bodies_and_answers_are_not_cut(connect):
    with connect() as connection:
        for _ in range(2):  # kept alive in between
            for at in range(0, len(WHOLE), 40):
                connection.sendall(WHOLE[at : at + 40])
                time.sleep(0.1)
            received = b""
            while not received.endswith(b"0\r\n\r\n"):
                received += connection.recv(1 << 16) or pytest.fail("cut")
            assert received.count(b"part") == 4
            time.sleep(0.7)


@pytest.mark.parametrize("sent", [b"\x16\x03\x01\x02\x00\x01\r\n\r\n", b"GET\r\n\r\n"])
def test_what_is_no_request(connect, sent):
    with connect() as connection:
        connection.sendall(sent)
        assert answer_of(connection)[0] == 400


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
