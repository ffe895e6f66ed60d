"""eval.serving: what is asked is fixed, what is read is exact, what is reported follows from it."""

import asyncio
import contextlib
import dataclasses
import itertools
import json
import re
import time

import numpy as np
import pytest
import scipy.stats
from figure_checks import check_style, ends_of
from rich.console import Console
from stub_server import Faults, StubServer

from dart_jax.errors import UserError
from eval.serving import figure
from eval.serving.client.completion import Answer, Reading, Request, Server, ask, same_texts
from eval.serving.client.connection import Address
from eval.serving.client.events import EventReader
from eval.serving.client.load import closed_loop, open_loop, poisson_arrivals
from eval.serving.client.metrics import Counters, parse_metrics
from eval.serving.comparison import compare, measure_server
from eval.serving.config import ServingBenchConfig
from eval.serving.program import main
from eval.serving.report import Report
from eval.serving.server import Process, find_server, resident_memory
from eval.serving.summary import Load, Round, Slo, Summary
from eval.serving.workload import MIXES, load_tokenizer, make_workload

ASKED = Request((1, 2, 3), 12, seed=4)
WHOLE = Reading()


def workload(**options):
    config = ServingBenchConfig(**{"model": "demo"} | options)
    return make_workload(config, load_tokenizer(config))


# What is asked.


@pytest.mark.long(keep=1)
@pytest.mark.parametrize("name", ["demo", "shared-prefix", "chat", "code"])
def test_requests_depend_on_their_number_alone(name):
    one, other = workload(workload=name), workload(workload=name)
    assert one.requests(5, 6) == other.requests(0, 20)[5:11]
    assert len({request.prompt for request in one.requests(0, 30)}) == 30
    assert len({request.seed for request in one.requests(0, 30)}) == 30


def test_other_seeds_ask_for_other_texts():
    some, others = workload(workload="chat", seed=1), workload(workload="chat", seed=2)
    assert some.requests(0, 5) != others.requests(0, 5)


@pytest.mark.long(keep=1)
@pytest.mark.parametrize("name", MIXES)
def test_lengths_are_the_published_ones(name):
    """Quantiles and deviations of thousands of draws, without those that are too long."""
    made = workload(workload=name, longest=60_000).requests(0, 3000)
    mix = MIXES[name]
    prompts = np.log([len(request.prompt) for request in made])
    answers = np.log([request.max_tokens for request in made])
    assert np.exp(np.median(prompts)) == pytest.approx(mix.prompt, rel=0.1)
    assert prompts.std() == pytest.approx(mix.prompt_deviation, rel=0.1)
    assert np.exp(np.median(answers)) == pytest.approx(mix.answer, rel=0.1)
    assert answers.std() == pytest.approx(mix.answer_deviation, rel=0.25)  # whole, 4 at least
    assert all(request.ignore_eos for request in made)


def test_nothing_is_too_long():
    made = workload(workload="chat", longest=300).requests(0, 200)
    assert max(len(request.prompt) + request.max_tokens for request in made) <= 300
    made = workload(workload="demo", longest=100, max_new_tokens=60).requests(0, 200)
    assert max(len(request.prompt) for request in made) <= 40
    with pytest.raises(UserError, match="--longest 100"):
        workload(workload="shared-prefix", longest=100)


def test_a_common_beginning():
    made = workload(workload="shared-prefix", prefix_tokens=50).requests(0, 8)
    plain = workload(workload="demo").requests(0, 8)
    assert len({request.prompt[:50] for request in made}) == 1
    assert [request.prompt[50:] for request in made] == [request.prompt for request in plain]


def test_questions_of_a_file(tmp_path):
    path = tmp_path / "questions.jsonl"
    path.write_text('{"prompt": "def one():"}\n{"prompt": "def two():"}\n')
    config = ServingBenchConfig(model="demo", workload=str(path))
    tokenizer = load_tokenizer(config)
    made = make_workload(config, tokenizer).requests(0, 3)
    texts = [tokenizer.decode(list(request.prompt)) for request in made]
    assert texts == ["def one():", "def two():", "def one():"]


def test_options_of_servers_that_are_started():
    config = ServingBenchConfig(no_ngram=True, dtype="float32", serve_options="--queue 512")
    words = "--no-ngram --dtype float32 --tree-nodes 0 --warmup greedy --queue 512"
    assert config.server_words(0) == words.split()
    assert ServingBenchConfig(temperature=1).server_words(None) == ["--warmup", "filtered"]
    assert ServingBenchConfig(soak=1.0).server_words(None) == []
    words = ServingBenchConfig(ttft_check=True).server_words(None)
    assert words == ["--warmup", "greedy", "--stream-interval", "0"]


# What is read.


def events_of(data, cuts):
    reader = EventReader()
    places = [0, *sorted(cuts), len(data)]
    pieces = [data[a:b] for a, b in itertools.pairwise(places)]
    return [event for piece in pieces for event in reader.feed(piece)]


STREAM = (
    b'data: {"choices":[{"text":"a\xc3\xa9"}]}\n\n'
    b": a comment\r\n\r\n"
    b"event: message\r\ndata: two\r\ndata:lines\r\n\r\n"
    b"id: 3\n\ndata: [DONE]\n\ndata: cut off"
)
EVENTS = ['{"choices":[{"text":"a\u00e9"}]}', "two\nlines", "[DONE]"]


def test_events_in_pieces_of_any_size():
    assert events_of(STREAM, []) == EVENTS
    assert events_of(STREAM, range(1, len(STREAM))) == EVENTS
    rng = np.random.default_rng(0)
    for _ in range(200):
        assert events_of(STREAM, rng.integers(0, len(STREAM), 6)) == EVENTS


# What `dart_jax.serve` sent for a prompt of 4 tokens and an answer of 12, ids shortened: head, and
# the pieces of the body in which it came.
RECORDED = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n",
    *(
        b'data: {"id":"cmpl-1","object":"text_completion","created":1795613765,"model":"demo",'
        b'"choices":[{"index":0,"text":"%s","logprobs":null,"finish_reason":%s}],"usage":null}\n\n'
        % (text, b'"length"' if "if" in text.decode() else b"null")
        for text in (b" =", b" []", rb"\n        for i in", b" range(0", rb"):\n            if")
    ),
    b'data: {"id":"cmpl-1","object":"text_completion","created":1795613765,"model":"demo",'
    b'"choices":[],"usage":{"prompt_tokens":4,"completion_tokens":12,"total_tokens":16}}\n\n'
    b"data: [DONE]\n\n",
)

# Its metrics after that, some left out.
RECORDED_METRICS = """\
# HELP dart:num_requests_running Requests that are decoded.
# TYPE dart:num_requests_running gauge
dart:num_requests_running{model_name="demo"} 0.0
# HELP dart:kv_cache_usage_perc Share of the KV pages in use, from 0 to 1.
# TYPE dart:kv_cache_usage_perc gauge
dart:kv_cache_usage_perc{model_name="demo"} 0.0
# HELP dart:prefix_cache_queries_total Prompt tokens looked up in the prefix cache.
# TYPE dart:prefix_cache_queries_total counter
dart:prefix_cache_queries_total{model_name="demo"} 4.0
# HELP dart:spec_decode_num_drafts_total Draft trees verified.
# TYPE dart:spec_decode_num_drafts_total counter
dart:spec_decode_num_drafts_total{model_name="demo"} 4.0
# HELP dart:spec_decode_num_accepted_tokens_total Drafted tokens that were accepted.
# TYPE dart:spec_decode_num_accepted_tokens_total counter
dart:spec_decode_num_accepted_tokens_total{model_name="demo"} 8.0
# HELP dart:compilations_total Programs compiled while requests waited.
# TYPE dart:compilations_total counter
dart:compilations_total{model_name="demo"} 0.0
# HELP dart:spec_decode_num_accepted_tokens_per_pos_total Drafted tokens that were accepted.
# TYPE dart:spec_decode_num_accepted_tokens_per_pos_total counter
dart:spec_decode_num_accepted_tokens_per_pos_total{model_name="demo",position="0"} 3.0
dart:spec_decode_num_accepted_tokens_per_pos_total{model_name="demo",position="1"} 3.0
# HELP dart:inter_token_latency_seconds Between two steps of a text, of >= 1 tokens.
# TYPE dart:inter_token_latency_seconds histogram
dart:inter_token_latency_seconds_bucket{le="0.01",model_name="demo"} 4.0
dart:inter_token_latency_seconds_bucket{le="+Inf",model_name="demo"} 4.0
dart:inter_token_latency_seconds_count{model_name="demo"} 4.0
dart:inter_token_latency_seconds_sum{model_name="demo"} 0.02
# HELP dart:inter_token_latency_seconds_created Between two steps of a text, of >= 1 tokens.
# TYPE dart:inter_token_latency_seconds_created gauge
dart:inter_token_latency_seconds_created{model_name="demo"} 1.795613764e+09
"""


def test_recorded_metrics():
    counters = Counters.read(RECORDED_METRICS)
    assert counters.tau == 3
    assert (counters.drafts, counters.accepted, counters.compilations) == (4, 8, 0)
    assert (counters.gaps, counters.gap_seconds) == (4, 0.02)
    assert (counters.running, counters.pages_used, counters.reused) == (0, 0, 0)
    assert counters.waiting is None


METRICS = """
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="a {b} \\"c\\""} 2.0
vllm:spec_decode_num_drafts_total{engine="0"} 10.0 1700000000
vllm:spec_decode_num_drafts_total{engine="1"} 5
vllm:spec_decode_num_accepted_tokens_total{engine="0"} 3.0e1
vllm:time_to_first_token_seconds_bucket{le="0.1"} 7
vllm:time_to_first_token_seconds_count 7
not a sample at all
process_resident_memory_bytes NaN
"""


def test_metrics():
    found = parse_metrics(METRICS)
    assert found["num_requests_running"] == 2
    assert found["spec_decode_num_drafts"] == 15
    assert found["time_to_first_token_seconds_count"] == 7
    assert "time_to_first_token_seconds_bucket" not in found
    counters = Counters.read(METRICS)
    assert (counters.drafts, counters.accepted, counters.running) == (15, 30, 2)
    assert counters.tau == 3
    assert counters.compilations is None
    later = Counters.read(METRICS.replace("10.0", "20.0").replace("3.0e1", "45"))
    assert Counters.between(counters, later).tau == 1 + 15 / 10
    assert Counters.between(None, later).tau is None
    assert Counters.sum([counters, Counters.between(counters, later)]).drafts == 25


@pytest.mark.parametrize(
    ("url", "parts"),
    {
        "http://127.0.0.1:8000": ("127.0.0.1", 8000, False, "", ""),
        "http://[::1]:8000/": ("::1", 8000, False, "", ""),
        "https://a.example/llm/v1": ("a.example", 443, True, "/llm", ""),
    }.items(),
)
def test_addresses(url, parts):
    assert Address.parse(url) == parts
    assert Address.parse(str(Address.parse(url))) == parts


def talk(response, request=ASKED, reading=WHOLE):
    """Asks a server that answers with these pieces, with 20 ms between them."""

    async def run():
        ended = asyncio.Event()

        async def client(reader, writer):
            with contextlib.suppress(ConnectionError):
                await reader.readuntil(b"\r\n\r\n")
                for piece in response:
                    writer.write(piece)
                    await writer.drain()
                    await asyncio.sleep(0.02)
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()
            ended.set()

        server = await asyncio.start_server(client, "127.0.0.1", 0)
        address = Address(*server.sockets[0].getsockname())
        async with server:
            answer = await ask(Server(address, "m"), request, reading)
            await ended.wait()
            return answer

    return asyncio.run(run())


HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def chunk(content):
    data = content if isinstance(content, bytes) else b"data: %s\n\n" % json.dumps(content).encode()
    return b"%x\r\n%s\r\n" % (len(data), data)


def text(piece, finish=None):
    return chunk({"choices": [{"text": piece, "finish_reason": finish}]})


def test_recorded_bytes():
    head, *body = RECORDED
    answer = talk([head, *map(chunk, body)])
    assert answer.complete
    assert answer.text == " = []\n        for i in range(0):\n            if"
    assert (answer.finish, answer.tokens, answer.prompt_tokens) == ("length", 12, 4)
    assert len(answer.times) == 5
    # The same in one piece, and byte by byte.
    whole = head + b"".join(map(chunk, body))
    assert talk([whole]).text == answer.text
    assert events_of(b"".join(body), range(1, 700)) == events_of(b"".join(body), [])


USAGE = chunk({"choices": [], "usage": {"completion_tokens": 7, "prompt_tokens": 3}})
DONE = chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"


def test_times_are_those_of_the_chunks():
    """The first text, not the head; the last token, not what follows it."""
    pieces = [HEAD, text(""), text("ab"), text("cd"), text("", "length"), USAGE, DONE]
    answer = talk(pieces)
    assert answer.complete
    assert (answer.text, answer.finish, answer.tokens, answer.prompt_tokens) == (
        "abcd",
        "length",
        7,
        3,
    )
    assert answer.ttft == pytest.approx(0.04, abs=0.018)
    assert answer.itl == [pytest.approx(0.02, abs=0.015)]
    assert answer.tpot == pytest.approx(0.04 / 6, abs=0.004)
    assert answer.latency == pytest.approx(answer.ttft + 6 * answer.tpot)


def test_two_events_in_a_chunk_and_one_in_two():
    whole = text("ab") + text("cd", "stop") + USAGE + DONE
    half = len(whole) // 2
    assert talk([HEAD, whole]).text == "abcd"
    assert talk([HEAD + whole[:half], whole[half:]]).text == "abcd"


@pytest.mark.parametrize(
    ("response", "error"),
    [
        ([HEAD, text("ab")], "closed the connection"),
        ([HEAD, text("ab"), DONE], "without a finish_reason"),
        ([HEAD, text("ab", "stop"), DONE], "number of tokens"),
        ([HEAD, chunk({"error": {"message": "broken"}}), DONE], "within the stream.*broken"),
        ([HEAD, chunk(b"data: {\n\n")], "JSONDecodeError"),
        ([HEAD, b"no size\r\n"], "not its size"),
        ([b"HTTP/1.1 503 Full\r\nContent-Length: 4\r\n\r\nfull"], "status 503: full"),
        ([b"SSH-2.0\r\n"], "not a response of HTTP"),
        ([], "closed the connection"),
    ],
)
def test_what_goes_wrong_is_in_the_answer(response, error):
    answer = talk(response)
    assert not answer.complete
    assert pytest.approx(0, abs=10) == answer.latency
    assert re.search(error, answer.error), answer.error


def test_whole_answers_and_early_ends():
    content = {"choices": [{"text": "ab", "finish_reason": "stop"}]}
    body = json.dumps({**content, "usage": {"completion_tokens": 2}}).encode()
    head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body)
    assert talk([head + body], reading=Reading(stream=False)).complete
    answer = talk([HEAD, *[text("a")] * 5], reading=Reading(cancel_after=2))
    assert answer.cancelled
    assert not answer.error
    assert answer.text == "aa"
    assert "no end after" in talk([HEAD, *[text("a")] * 20], reading=Reading(timeout=0.1)).error


# Loads.


def counting(seconds):
    """An `Ask` that takes some time, and how many were under way at most."""
    state = {"now": 0, "most": 0}

    async def send(request, start):
        state["now"] += 1
        state["most"] = max(state["most"], state["now"])
        await asyncio.sleep(seconds)
        state["now"] -= 1
        now = time.perf_counter()
        return Answer(start or now, now, [now], now, str(request.seed))

    return send, state


def test_a_closed_loop_keeps_its_clients_busy():
    requests = [dataclasses.replace(ASKED, seed=seed) for seed in range(10)]
    send, state = counting(0.02)
    answers = asyncio.run(closed_loop(send, requests, 3))
    assert state["most"] == 3
    assert [answer.text for answer in answers] == [str(seed) for seed in range(10)]


def test_an_open_loop_does_not_wait():
    requests = [dataclasses.replace(ASKED, seed=seed) for seed in range(8)]
    send, state = counting(0.2)
    answers = asyncio.run(open_loop(send, requests, [0.01 * n for n in range(8)]))
    assert state["most"] == 8
    planned = [answer.start - answers[0].start for answer in answers]
    assert planned == pytest.approx([0.01 * n for n in range(8)])
    assert all(answer.latency > 0.19 for answer in answers)


def test_arrivals_are_a_poisson_process():
    arrivals = np.array(poisson_arrivals(5.0, 4000, 0))
    gaps = np.diff(arrivals, prepend=0)
    assert gaps.mean() == pytest.approx(1 / 5, rel=0.05)
    assert scipy.stats.kstest(gaps, "expon", args=(0, 1 / 5)).pvalue > 0.01
    counts = np.histogram(arrivals, np.arange(0, arrivals[-1], 1.0))[0]
    assert counts.var() == pytest.approx(counts.mean(), rel=0.15)
    assert poisson_arrivals(5.0, 4000, 0) == arrivals.tolist()
    assert poisson_arrivals(5.0, 4000, 1) != arrivals.tolist()


# What is reported.


def answer(start, first, end, tokens, chunks=3, written="text"):
    times = np.linspace(first, end, chunks).tolist()
    return Answer(start, start, times, end, written, "length", tokens, 5, 200)


def rounds(scale=1.0, count=3, seed=0, **counters):
    rng = np.random.default_rng(seed)
    made = []
    for _ in range(count):
        starts = rng.uniform(0, 1, 20)
        firsts = starts + scale * rng.uniform(0.05, 0.1, 20)
        answers = [
            answer(a, b, b + scale * rng.uniform(0.5, 1), 11)
            for a, b in zip(starts, firsts, strict=True)
        ]
        made.append(Round(answers, 2.0 * scale, Counters(counters), 0.1))
    return made


def test_statistics_are_numpys():
    summary = Summary("drafted", Load(4), rounds(drafts=10, accepted=15, looked_up=8, found=2))
    answers = [each for one in summary.rounds for each in one.answers]
    expected = {
        "ttft": [a.times[0] - a.start for a in answers],
        "tpot": [(a.times[-1] - a.times[0]) / 10 for a in answers],
        "itl": np.concatenate([np.diff(a.times) for a in answers]),
        "latency": [a.times[-1] - a.start for a in answers],
    }
    for name, values in expected.items():
        assert summary.times[name] == pytest.approx(np.percentile(values, [50, 90, 99]))
    one = summary.rounds[0]
    assert one.token_rate == 20 * 11 / 2
    assert one.request_rate == 10
    assert summary.counters.tau == 2.5
    assert summary.counters.reused == 0.25
    assert summary.chunk_tokens == pytest.approx(11 / 3)


def test_goodput_needs_both_times():
    slo = Slo(0.1, 0.05)
    good, late, slow = answer(0, 0.1, 0.5, 11), answer(0, 0.2, 0.5, 11), answer(0, 0.1, 1.0, 11)
    failed = dataclasses.replace(good, error="broken")
    alone = dataclasses.replace(good, tokens=1)
    some = Round([good, late, slow, failed, alone], 4.0, Counters({}), 0)
    assert some.goodput(slo) == 2 / 4
    assert some.request_rate == 4 / 4


def report(**options):
    config = ServingBenchConfig(model="demo", clients=(1, 4), **options)
    found = []
    for load in (Load(1), Load(4)):
        found.append(Summary("drafted", load, rounds(1.0, drafts=10, accepted=15, compilations=0)))
        found.append(Summary("plain", load, rounds(2.0), (59, 60)))
    found[1].rounds[0].answers[0].error = "broken"
    told = {"drafted": "one server", "plain": "the other"}
    return Report(config, "demo: prompts", told, found, {"drafted": 0.0, "plain": 3.0})


def test_the_tables(capsys):
    made = report()
    for grid in made.grids:
        Console(width=80).print(grid.table())
    shown = capsys.readouterr().out
    assert "…" not in shown
    assert "2.00x ±0.0" in shown
    assert "59/60" in shown
    told = "\n".join(made.remarks)
    assert "drafted: compiled nothing after its warm-up" in told
    assert "WARNING: plain compiled 3 programs" in told
    assert "WARNING: plain at 1: 1 requests failed, the first with: broken" in told
    written = made.markdown()
    assert "| 4 | plain |" in written
    assert "- WARNING: plain compiled 3" in written
    content = json.loads(json.dumps(made.as_json(), default=str))
    assert content["loads"][1]["token_ratios"] == pytest.approx([40 / 19, 2, 2])
    assert content["loads"][0]["tau"] == 2.5


@pytest.mark.parametrize("count", [1, 3])
def test_the_figure(count):
    made = report(rounds=count)
    kept = [dataclasses.replace(each, rounds=each.rounds[:count]) for each in made.summaries]
    drawn = figure.draw(dataclasses.replace(made, summaries=kept))
    check_style(drawn)
    titles = [axes.get_title() for axes in drawn.axes]
    assert titles[3] == "Drafted over the others"
    assert len(ends_of(drawn.axes[1])) == (4 if count > 1 else 0)
    alone = dataclasses.replace(made, summaries=kept[::2])
    assert len(figure.draw(alone).axes) == 3


# All of it.


def test_rounds_are_in_turn_and_ask_the_same(capsys):
    told, asked = [], {"one": [], "two": []}

    def way(name):
        def measure(requests, load):
            told.append(name)
            asked[name].append(requests)
            return Round([answer(0, 0.1, 1, 5, written=name)] * len(requests), 1.0, Counters({}), 0)

        return measure

    ways = {"one": way("one"), "two": way("two")}
    found = compare(ways, workload(), [Load(1), Load(4)], 2, 3, texts=["two"])
    assert told == ["one", "two", "one", "two", "two", "one"] * 2
    assert asked["one"] == asked["two"]
    numbers = [request.seed for requests in asked["one"] for request in requests]
    assert len(set(numbers)) == len(numbers)
    assert [len(requests) for requests in asked["one"]] == [2, 3, 3, 8, 8, 8]
    assert [each.same for each in found] == [None, (0, 6), None, (0, 16)]


@pytest.mark.long
def test_two_servers(tmp_path, capsys):
    files = {name: tmp_path / f"report.{name}" for name in ("json", "md", "png")}
    with StubServer(step=0.005, tau=3) as fast, StubServer(step=0.005, tau=1) as slow:
        words = ["--url", fast.url, slow.url, "--clients", "1", "20", "--rounds", "2"]
        words += [
            "--model",
            "demo",
            "--requests",
            "4",
            "--max-new-tokens",
            "30",
            "--json",
            str(files["json"]),
        ]
        main([*words, "--markdown", str(files["md"]), "--plot", str(files["png"])])
        assert len(fast.seen) == 2 + 2 * 4 + 40 + 2 * 40
        bodies = [sorted(json.dumps(body) for body in each.seen) for each in (fast, slow)]
        assert bodies[0] == bodies[1]
    assert "over the others" in capsys.readouterr().out
    content = json.loads(files["json"].read_text())
    one, other = content["loads"][:2]
    assert one["tau"] == pytest.approx(3)
    assert one["tokens_per_chunk"] == pytest.approx(3)
    assert other["tokens_per_chunk"] == 1
    assert other["same"] == [8, 8]
    assert other["token_ratios"] == [pytest.approx(3, rel=0.4)] * 2
    # 20 clients, 16 slots: the last ones wait.
    beside = content["loads"][2]["seconds"]["ttft"]
    assert beside[2] > 3 * one["seconds"]["ttft"][0]
    assert content["compilations"] == {"first": 0, "second": 0}
    assert files["png"].stat().st_size > 10_000
    assert "| clients | server |" in files["md"].read_text()


def test_a_server_that_compiles_or_fails(capsys):
    with StubServer() as server:
        words = ["--url", server.url, "--clients", "2", "--rounds", "1", "--requests", "2"]
        words += ["--model", "demo"]
        server.faults.compiles = 2
        main([*words, "--max-new-tokens", "4", "--rate", "100"])
        shown = capsys.readouterr().out
        assert "compiled nothing after" in shown  # it had compiled them before
        assert "after its arrival" in shown
        server.faults.fails = True
        with pytest.raises(SystemExit):
            main(words)
        assert "answers no request: status 500" in capsys.readouterr().err


@pytest.fixture(scope="module")
def demo():
    """The demo's server, which compiles few programs, when they are needed."""
    words = (
        "--model demo --slots 2 --tree-nodes 4 --warmup none --max-length 192 --stream-interval 0"
    )
    with Process(words.split()) as process:
        yield process, find_server(process.address, patience=10)
    assert not process.running


@pytest.mark.long
def test_the_demos_server(demo, tmp_path, capsys):
    """Counts and texts are those of `DartModel.generate`."""
    process, server = demo
    assert resident_memory(process.pid) > 10**8
    path = tmp_path / "report.json"
    words = ["--url", str(server.address), "--clients", "2", "--rounds", "1", "--requests", "4"]
    words += ["--longest", "150", "--max-new-tokens", "24", "--baseline", "fixed"]
    words += ["--model", "demo"]
    main([*words, "--json", str(path)])
    served, fixed = json.loads(path.read_text())["loads"]
    assert fixed["same"] == [4, 4]
    assert served["errors"] == []
    assert served["tokens"] == fixed["tokens"] <= 4 * 24
    assert served["prompt_tokens"] == fixed["prompt_tokens"]
    assert 1 < served["tau"] <= 5
    assert 1 < served["tokens_per_chunk"] <= served["tau"] + 1
    assert "WARNING: first compiled " in capsys.readouterr().out


@pytest.mark.long
def test_both_servers_of_the_demo(tmp_path, capsys):
    """Started, measured and ended; the texts are the same."""
    path = tmp_path / "report.json"
    words = ["--clients", "1", "3", "--rounds", "1", "--requests", "2", "--max-new-tokens", "16"]
    words += ["--model", "demo"]
    words += ["--longest", "150", "--tree-nodes", "4", "--slots", "2", "--temperature", "0.7"]
    main([*words, "--serve-options=--max-length 192", "--json", str(path)])
    content = json.loads(path.read_text())
    assert [each["server"] for each in content["loads"]] == ["drafted", "plain"] * 2
    assert [each["same"] for each in content["loads"]] == [None, [2, 2], None, [6, 6]]
    assert content["compilations"] == {"drafted": 0, "plain": 0}
    assert "--tree-nodes 0" in content["servers"]["plain"]


def test_a_server_that_does_not_start():
    with pytest.raises(UserError, match=r"did not start: .*nowhere"):
        Process(["--target", "nowhere"])


def test_no_server(capsys):
    with pytest.raises(UserError, match=r"no server answers at http://127\.0\.0\.1:9"):
        find_server(Address.parse("http://127.0.0.1:9"), patience=0)
    with StubServer(Faults()) as server:
        found = find_server(Address.parse(server.url))
        assert found.model == "stub"
        made = measure_server(found, [ASKED] * 3, Load(2), 10)
        assert same_texts(made.answers, made.answers[::-1]) == (3, 3)
