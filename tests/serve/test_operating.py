"""What operators see: pages, log lines, and connections that send nothing."""

import asyncio
import contextlib
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

from dart_jax.errors import UserError
from dart_jax.serve import process
from dart_jax.serve.body import fields
from dart_jax.serve.body.errors import ApiError
from dart_jax.serve.body.fields import DetokenizeFields
from dart_jax.serve.process import address_of, http, open_socket


def test_pages(served):
    """Of people and programs; their example works."""
    page, described = served.read("/"), served.get("/openapi.json")
    assert "demo, served by dart_jax" in page
    for path, methods in described["paths"].items():
        assert path in page
        if "get" in methods:
            served.read(path)
    names = described["components"]["schemas"]["ChatFields"]["properties"]
    assert {"messages", "tools", "temperature", "min_tokens"} <= names.keys()
    assert all(name in page for name in names)
    [path] = re.findall(rf"curl {served.address}(/v1\S+)", page)
    [body] = re.findall(r"--data '(.*)'", page)
    assert served.ask(post(path, body.encode()))[0] == 200


def test_requests_are_logged(served):
    client, before = served.client(), len(served.log.read_text())
    client.completions.create(model="demo", prompt="def mean(", max_tokens=4)
    with contextlib.suppress(Exception):
        client.completions.create(model="demo", prompt="x", max_tokens=0)
    lines = '"POST /v1/completions HTTP/1.1" 200', "+ 4, length, ", "400"
    wait_until(lambda: all(line in served.log.read_text()[before:] for line in lines))


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


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 1e300, "presence_penalty": 1e300, "repetition_penalty": 1e300},
        {"temperature": 1e-300, "top_p": 1e-300, "repetition_penalty": 1e-300},
        {"top_k": 2**40},
        {"seed": -(2**70)},
        {"logit_bias": {"5": 1e300}},
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


def test_a_port_that_is_taken():
    with open_socket("127.0.0.1", 0) as taken:
        taken.listen()
        port = taken.getsockname()[1]
        assert address_of(taken) == f"http://127.0.0.1:{port}"
        with pytest.raises(UserError, match=f"port {port}: Address"):
            open_socket("127.0.0.1", port)
    with pytest.raises(UserError, match=r"cannot listen at no\.such\.host"):
        open_socket("no.such.host.invalid", 1)


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
    monkeypatch.setattr(process, "_PATIENCE", 0.5)
    monkeypatch.setattr(process, "_KEEP_ALIVE", 2)
    monkeypatch.setattr(fields, "MOST_SECONDS", 1.0)
    opened = open_socket("127.0.0.1", 0)
    address, running = opened.getsockname(), uvicorn.Server(http(_app))
    thread = threading.Thread(target=running.run, args=([opened],))
    thread.start()
    wait_until(lambda: running.started)
    yield lambda: socket.create_connection(address, timeout=10)
    running.should_exit = True
    thread.join()


HEAD = b"POST / HTTP/1.1\r\nHost: test\r\n"
WHOLE = HEAD + b'Content-Length: 15\r\n\r\n{"tokens": [1]}'


@pytest.mark.parametrize("sent", [b"", HEAD], ids=["nothing", "half a head"])
def test_headers_that_do_not_come(connect, sent):
    with connect() as connection:
        connection.sendall(sent)
        began = time.monotonic()
        assert connection.recv(1) == b""
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


@pytest.mark.parametrize(
    ("length", "status", "message"),
    [
        (99, 408, "the body did not come within 1 seconds"),
        (1_000_001, 413, "the body is larger than 1,000,000 bytes, the most that is read"),
    ],
)
def test_a_body_that_does_not_come(connect, length, status, message):
    """Nor is it awaited if it says that it is too large."""
    with connect() as connection:
        connection.sendall(HEAD + b"Content-Length: %d\r\n\r\n{" % length)
        found, _, body = answer_of(connection)
    assert (found, json.loads(body)["error"]["message"]) == (status, message)


def test_slow_bodies_and_answers_are_not_cut(connect):
    """Nor by half a request that follows."""
    with connect() as connection:
        for _ in range(2):  # kept alive in between
            for at in range(0, len(WHOLE), 40):
                connection.sendall(WHOLE[at : at + 40])
                time.sleep(0.1)
            received = b""
            while not received.endswith(b"0\r\n\r\n"):
                received += connection.recv(1 << 16) or pytest.fail("cut")
            assert received.count(b"part") == 4
        connection.sendall(WHOLE + HEAD)
        assert answer_of(connection)[2].count(b"part") == 4


def test_what_is_no_request(connect):
    with connect() as connection:
        connection.sendall(b"\x16\x03\x01\x02\x00\x01\r\n\r\n")
        assert answer_of(connection)[0] == 400
