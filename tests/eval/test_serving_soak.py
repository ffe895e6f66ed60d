"""eval.serving --soak and --ttft-check: a good server passes, and every fault is found."""

import dataclasses
import json

import numpy as np
import pytest
from stub_server import Faults, StubServer

from eval.serving import comparison, first_token, program
from eval.serving.client.completion import Answer
from eval.serving.client.metrics import Counters
from eval.serving.first_token import FirstTokens
from eval.serving.program import main
from eval.serving.soak import checks
from eval.serving.soak.pool import make_pool, malformed
from eval.serving.soak.visits import Visit


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    """What never happens here is not waited for."""
    monkeypatch.setattr(comparison, "_QUIET", 0.5)
    monkeypatch.setattr(first_token, "_STARTING", 0.5)
    monkeypatch.setattr(program, "_SHORT_PROMPTS", 8)


def soak(server, *words, seconds=1.0):
    options = ["--model", "demo", "--soak", str(seconds), "--pool", "24", "--longest", "80"]
    main(["--url", server.url, *options, *words])


@pytest.mark.long
def test_a_good_server_passes(tmp_path, capsys):
    path = tmp_path / "soak.json"
    with StubServer(step=0.001, slots=16) as server:
        soak(server, "--clients", "30", "--json", str(path), seconds=1.5)
    shown = capsys.readouterr().out
    assert "WRONG" not in shown
    assert shown.count("ok: ") == 6
    assert "unknown: the server's memory is flat" in shown
    content = json.loads(path.read_text())
    assert content["visits"] > 100
    assert content["tokens"] > 500
    assert {check["held"] for check in content["checks"]} == {True, None}


@pytest.mark.long(keep=1)
@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("mixes", "WRONG: texts are those of each request alone"),
        ("leaks", "WRONG: nothing is left of the requests"),
        ("accepts", "WRONG: malformed requests are refused"),
        ("fails", "WRONG: requests are answered"),
        ("unfair", "WRONG: requests are served in the order of their arrival"),
    ],
)
def test_a_fault_is_found(fault, said, capsys):
    # Many wait, and long, where their order matters.
    slots, step = (2, 0.01) if fault == "unfair" else (16, 0.001)
    with (
        StubServer(Faults(**{fault: True}), slots=slots, step=step) as server,
        pytest.raises(SystemExit) as end,
    ):
        soak(server, "--clients", "24", "--timeout", "30")
    assert end.value.code == 1
    assert said in capsys.readouterr().out


@pytest.mark.long
def test_the_demos_server_passes(capsys):
    words = "--model demo --soak 12 --clients 12 --pool 40 --longest 150 --slots 3 --tree-nodes 4"
    main([*words.split(), "--serve-options=--max-length 192 --warmup filtered"])
    shown = capsys.readouterr().out
    assert "WRONG" not in shown
    assert shown.count("ok: ") == 9


def test_the_pool_has_every_kind():
    text = np.arange(5000)
    pool = make_pool(text, 120, 400, 3)
    assert pool == make_pool(text, 120, 400, 3)
    assert pool != make_pool(text, 120, 400, 4)
    assert {bool(each.stop) for each in pool} == {True, False}
    assert {bool(each.temperature) for each in pool} == {True, False}
    assert {each.ignore_eos for each in pool} == {True, False}
    prompts, answers = [len(each.prompt) for each in pool], [each.max_tokens for each in pool]
    assert min(prompts) < 5
    assert max(prompts) > 100
    assert max(p + a for p, a in zip(prompts, answers, strict=True)) <= 400
    assert len({case.what for case in malformed("model", 10)}) > 15


# Checks of what clients saw.


def visit(kind="streamed", sent=0.0, first=1.0, number=0, **fields):
    fields = {"text": "text", "finish": "length", "tokens": 3, "status": 200, **fields}
    return Visit(kind, number, Answer(sent, sent, [first], first + 1, **fields))


ALONE = {0: visit().answer}


@pytest.mark.parametrize(
    ("fields", "held"),
    [
        ({}, True),
        ({"text": "tex"}, False),
        ({"text": "tExt"}, False),
        ({"finish": "stop"}, False),
        ({"tokens": 4}, False),
        ({"cancelled": True, "text": "te", "finish": None, "tokens": None}, True),
        ({"cancelled": True, "text": "ta", "finish": None, "tokens": None}, False),
    ],
)
def test_texts(fields, held):
    assert checks.check_texts([visit(), visit(**fields)], ALONE).held is held


def test_texts_of_generate():
    assert checks.check_generated({0: "text"}, ALONE).held
    assert not checks.check_generated({0: "other"}, ALONE).held


def test_a_full_queue_is_no_fault():
    full = visit(error="status 429: full", status=429)
    assert checks.check_errors([visit(), full]).held
    assert "1 refused" in checks.check_errors([visit(), full]).detail
    assert not checks.check_errors([visit(error="status 500", status=500)]).held
    assert not checks.check_errors([visit(error="BrokenResponse", status=200)]).held


def test_overtaking():
    """By those that were sent clearly later and were first by far, beyond the slots."""
    late = visit(sent=0.0, first=2.0)
    early = [visit(sent=0.5, first=1.0) for _ in range(5)]
    assert checks.check_fairness([late, *early], slots=5).held
    assert not checks.check_fairness([late, *early], slots=4).held
    together = [visit(sent=0.05, first=1.0) for _ in range(5)]
    assert checks.check_fairness([late, *together], slots=0).held
    close = [visit(sent=0.5, first=1.95) for _ in range(5)]
    assert checks.check_fairness([late, *close], slots=0).held
    # What is held back says nothing of when it was served.
    assert checks.check_fairness([visit(kind="slow", first=2.0), *early], slots=0).held
    assert checks.check_fairness([visit(finish="stop", first=2.0), *early], slots=0).held
    assert checks.check_fairness([visit(kind="at once")], slots=0).held is None


def test_memory():
    flat = [100e6, 300e6, *[400e6] * 30]
    assert checks.check_memory(flat).held
    assert checks.check_memory([*flat, *[405e6] * 12]).held
    grows = np.linspace(400e6, 480e6, 40).tolist()
    assert not checks.check_memory(grows).held
    assert checks.check_memory(flat[:4]).held is None


def test_leaks_and_compilations():
    quiet = Counters({"running": 0, "waiting": 0, "pages_used": 0, "compilations": 0})
    assert checks.check_leaks(quiet).held
    assert checks.check_compilations(quiet).held
    assert not checks.check_leaks(Counters({"running": 0, "waiting": 0, "pages_used": 2})).held
    assert not checks.check_compilations(Counters({"compilations": 1})).held
    assert checks.check_leaks(None).held is None
    assert checks.check_compilations(Counters({})).held is None


# Time to the first token.


def test_the_bound():
    made = FirstTokens([0.1, 0.2, 0.3], [0.2] * 99 + [0.5], [5] * 100, 0.02, "", [])
    assert made.bound == pytest.approx(0.26)
    assert made.p99 == pytest.approx(np.percentile(made.beside, 99))
    assert made.held
    assert not dataclasses.replace(made, step=0.0).held
    assert dataclasses.replace(made, step=0.0, steps=[3] * 99 + [4]).held
    assert not dataclasses.replace(made, errors=["broken"]).held
    assert "allowed 260.0 ms = 3 steps of 20.0 ms" in str(made)


@pytest.mark.long
def test_first_tokens(tmp_path, capsys):
    path = tmp_path / "first.json"
    with StubServer(step=0.004) as server:
        words = ["--url", server.url, "--ttft-check", "--longest", "300", "--json", str(path)]
        words += ["--requests", "1", "--model", "demo"]
        main(words)
        content = json.loads(path.read_text())
        assert content["how"] == "mean TPOT times tau"
        assert content["step"] == pytest.approx(0.004, rel=0.6)
        assert len(content["beside"]) == 8
        assert 1 <= np.median(content["steps"]) <= 3
        assert "ok: time to the first token" in capsys.readouterr().out
    # With fewer slots than texts, short prompts wait for a whole text.
    with StubServer(step=0.004, slots=8) as server:
        words[1] = server.url
        with pytest.raises(SystemExit) as end:
            main([*words, "--longest", "160"])
        assert end.value.code == 1
        assert "WRONG: time to the first token" in capsys.readouterr().out
