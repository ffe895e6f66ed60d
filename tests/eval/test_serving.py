"""eval.serving: the same requests to all servers, and their answers in pieces."""

import asyncio
import contextlib
import itertools
import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console
from serve_process import wait_until
from stub_server import StubServer

from dart_jax.errors import UserError
from dart_jax.text.tokenizer import Tokenizer
from dart_jax.weights import hub
from eval.serving.__main__ import main, run
from eval.serving.client import Answer, Choice, Client
from eval.serving.config import ServingBenchConfig
from eval.serving.servers import bench_requests, start


@pytest.mark.parametrize("file", [False, True])
def test_requests_depend_on_options_and_number_alone(file, tmp_path):
    path = tmp_path / "questions.jsonl"
    path.write_text('{"prompt": "def one():"}\n{"prompt": "def two():"}\n')
    config = ServingBenchConfig(model="demo", seed=3, bench=str(path) if file else "demo")
    tokenizer = Tokenizer.load(hub.resolve(config.target_path, patterns=hub.TARGET))
    some, same = bench_requests(config, tokenizer), bench_requests(config, tokenizer)
    assert [some(number) for number in range(5, 25)] == [same(n) for n in range(25)][5:]
    assert len({str(some(number)["prompt"]) for number in range(50)}) == (2 if file else 50)
    assert len({some(number)["seed"] for number in range(50)}) == 50


def test_options_of_servers_that_are_started():
    config = ServingBenchConfig(no_ngram=True, dtype="float32", serve_options="--queue 512")
    words = "--no-ngram --dtype float32 --warmup greedy --generation-config none --queue 512"
    assert config.server_options("--tree-nodes", "0") == [*words.split(), "--tree-nodes", "0"]
    with pytest.raises(UserError, match="--serve-options: No closing quotation"):
        ServingBenchConfig(serve_options="'")


# The client.


def talk(pieces, timeout=20, **options):
    """The answer to a client of a server that sends these bytes, with pauses between them."""

    handlers = []

    async def serve(reader, writer):
        handlers.append(asyncio.current_task())
        try:
            with contextlib.suppress(ConnectionError, EOFError):
                await reader.readuntil(b"\r\n\r\n")
                for piece in pieces:
                    writer.write(piece)
                    await asyncio.sleep(0.01)
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    async def run():
        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            client = Client(f"http://127.0.0.1:{port}/v1/", timeout)
            answer = await client.ask({"prompt": [1]}, stream=True, **options)
            await client.__aexit__()
            for handler in handlers:
                handler.cancel()
            await asyncio.gather(*handlers, return_exceptions=True)
        return answer

    return asyncio.run(run())


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
DONE = b"data: [DONE]\n\n"
USAGE = b'data: {"choices": [], "usage": {"completion_tokens": 7}}\n\n'


def event(text, finish=None):
    content = {"choices": [{"text": text, "finish_reason": finish}]}
    return b"data: %s\n\n" % json.dumps(content, ensure_ascii=False).encode()


def test_streams_in_pieces_of_any_size():
    """Also with characters at which some clients end lines."""
    events = [b": a comment\n\n", event("é\u2028b"), event("c\x85"), event("", "length"), USAGE]
    whole = HEAD + b"".join(events) + DONE + b"data: cut off"
    for cuts in ([], range(len(HEAD), len(whole), 7)):
        places = [0, *cuts, len(whole)]
        answer = talk([whole[a:b] for a, b in itertools.pairwise(places)])
        assert answer.choices == {0: Choice("é\u2028bc\x85", finish="length")}
        assert (answer.tokens, answer.error) == (7, "")


def test_times_are_those_of_tokens():
    answer = talk([HEAD, event(""), event("ab"), event("cd"), event("", "length"), USAGE + DONE])
    assert len(answer.times) == 2
    assert answer.first >= 0.02 < answer.times[1] - answer.start
    assert answer.per_token == pytest.approx((answer.end - answer.times[0]) / 6)


def test_faults_are_in_the_answer():
    for pieces, error in [
        ([HEAD, event("ab"), DONE], "without a finish_reason or usage"),
        ([HEAD, b'data: {"error": {"message": "broken"}}\n\n'], "within the answer.*broken"),
        ([HEAD, b"data: {\n\n"], "JSONDecodeError"),
        ([b"HTTP/1.1 503 Full\r\nContent-Length: 4\r\n\r\nfull"], "status 503: full"),
        ([], "RemoteProtocolError"),
    ]:
        assert re.search(error, talk(pieces).error)
    endless = [HEAD, *[event("a")] * 50]
    assert "no end after 0.1 s" in talk(endless, timeout=0.1).error
    answer = talk(endless, patience=0.1)
    assert (answer.cancelled, answer.error, set(answer.text)) == (True, "", {"a"})


def test_the_same_answer_in_pieces_and_whole():
    """A chat with a call, log-probabilities, and scores of the prompt beside the texts."""
    scores = [{"token": "a", "logprob": -1.0}, {"token": "b", "logprob": -2.0}]
    function = {"name": "f", "arguments": '{"a": 1}'}
    choice = {"index": 0, "finish_reason": "tool_calls", "logprobs": {"content": scores}}
    message = {"content": "ab", "tool_calls": [{"id": "1", "function": function}]}
    whole, pieces = Answer(), Answer()
    whole.add({"choices": [choice | {"message": message}], "usage": {"total_tokens": 3}})
    first, second = ({"index": 0, "logprobs": {"content": [score]}} for score in scores)
    for piece in (
        first | {"delta": {"role": "assistant", "content": "a"}},
        second | {"delta": {"content": "b"}},
        {"delta": {"tool_calls": [{"index": 0, "function": function | {"arguments": ""}}]}},
        {"delta": {"tool_calls": [{"index": 0, "function": {"arguments": '{"a": 1}'}}]}},
        {"delta": {}, "finish_reason": "tool_calls"},
    ):
        pieces.add({"choices": [piece], "usage": None})
    assert whole.choices == pieces.choices
    assert whole.choices[0].calls == '\nf {"a": 1}'


# Servers in turn.


def test_two_servers_get_the_same_in_turn(tmp_path, capsys):
    path = tmp_path / "report.json"
    with StubServer(tau=3) as fast, StubServer(tau=1) as slow:
        slow.compiles = 5
        words = ["--url", fast.url, slow.url, "--model", "demo", "--rounds", "2", "--requests", "4"]
        main([*words, "--clients", "1", "6", "--max-new-tokens", "30", "--json", str(path)])
        assert len(fast.seen) == 2 + 2 * 4 + 12 + 2 * 12
        bodies = [sorted(json.dumps(body) for body in each.seen) for each in (fast, slow)]
        assert bodies[0] == bodies[1]
    one, many = json.loads(path.read_text())["loads"]
    assert (one["same"], many["same"]) == ([8, 8], [24, 24])
    assert len(one["ratios"]) == 2
    assert min(one["ratios"]) > 1.3  # 3 on an idle machine
    assert [each["tau"] for each in one["rounds"]["first"]] == [pytest.approx(3)] * 2
    # 6 clients, 4 slots: the last ones wait.
    assert many["rounds"]["first"][0]["first"] > one["rounds"]["first"][0]["first"]
    output = capsys.readouterr().out
    assert re.search(r"\n +1 +second +\d+ ±\d+ .*\d\.\d\dx ±\d.* 8/8", output), output
    assert "WARNING" not in output  # what was compiled before does not count


def test_a_server_that_fails():
    """`tests/programs/test_bad_input.py` has one that does not listen."""
    with StubServer(fails=True) as server:
        config = ServingBenchConfig(model="demo", clients=(2,), url=(server.url,))
        with pytest.raises(UserError, match="the first server answers no request: status 500"):
            run(config, Console())


@pytest.mark.long
def test_drafted_and_plain_servers_of_the_demo(tmp_path, capsys):
    path = tmp_path / "report.json"
    words = "--model demo --clients 1 3 --rounds 1 --requests 2 --max-new-tokens 16"
    words += " --temperature 0.7"
    options = "--serve-options=--tree-nodes 4 --slots 2 --max-length 192"
    main([*words.split(), options, "--json", str(path)])
    one, three = json.loads(path.read_text())["loads"]
    assert (one["same"], three["same"]) == ([2, 2], [6, 6])
    for load in (one, three):
        assert 1 < load["rounds"]["drafted"][0]["tau"] <= 5
        assert load["rounds"]["plain"][0]["tau"] is None
    assert "WARNING" not in capsys.readouterr().out
    with (
        pytest.raises(UserError, match=r"did not start: .*nowhere"),
        start(["--target", "nowhere"]),
    ):
        pass


@pytest.mark.long
def test_a_stop_leaves_no_server_behind(tmp_path):
    command = [sys.executable, "-m", "eval.serving", "--model", "demo", "--clients", "1"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        wait_until(lambda: bool(children.read_text()))
        time.sleep(1)
        pids = children.read_text().split()
        process.terminate()
        assert process.wait(60) == 128 + signal.SIGTERM
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]
