"""The target answers a data set turn by turn, with the same result if interrupted."""

import dataclasses
import json
import resource
import shutil

import jax
import numpy as np
import pytest
import tiny_model
import tokenizers_made

from dart_jax import progress
from dart_jax.data.contents import Tokens, parse
from dart_jax.data.messages import Chat
from dart_jax.errors import InputWarning, UserError
from dart_jax.model import DartModel
from dart_jax.models.networks.pure import abstract_params
from dart_jax.programs.command_line import Advice
from dart_jax.text.tokenizer import Tokenizer
from dart_jax.weights.checkpoint import save_target
from train.data.answers import AnswerLog, prompt_turns
from train.data.examples import digest_of, read_all
from train.regenerate import program as regenerate
from train.regenerate.config import RegenerateConfig
from train.regenerate.program import log_of, run

# Prompts of 17 to 64 tokens: two shapes to compile.
RECORDS = [
    {"messages": [{"role": "user", "content": "Hello, world! It's a test"}]},
    {"conversations": [{"from": who, "value": "-" * 9} for who in ("human", "gpt", "human")]},
    {"data": ["naïve café — ", "and tabs", "x", "return x"]},
    {"prompt": "def f(x):\n    return x ** 2\n" * 2, "completion": "2"},
    {"text": "Hello, world! It's a test, isn't it ?" * 2},
    {"tokens": [*range(5, 55)], "prompt_length": 40},
]
ANSWERS = [1, 2, 2, 1, 1, 1]


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    """A random target with a chat template."""
    directory = tmp_path_factory.mktemp("models") / "target"
    tokenizer = tokenizers_made.byte_level()
    shapes = dataclasses.replace(tiny_model.SHAPES, vocab_size=tokenizer.get_vocab_size())
    rng = np.random.default_rng(0)
    params = jax.tree.map(
        lambda leaf: rng.normal(0, 0.5, leaf.shape).astype(np.float32),
        abstract_params(shapes.target),
    )
    # So many tokens end an answer that some answers end.
    save_target(directory, shapes.target, params, eos=tuple(range(0, 256, 16)))
    tokenizers_made.write_chat(directory, tokenizer, tokenizers_made.TURNS)
    return directory


def settings(target, directory):
    """The settings of a run in a directory, where the records are."""
    return RegenerateConfig(
        target=str(target),
        data=(write(directory / "data.jsonl", RECORDS),),
        out=directory / "out.jsonl",
        max_new_tokens=5,
        temperature=(0.0, 1.0),
        batch_size=4,
    )


@pytest.fixture
def config(target, tmp_path):
    return settings(target, tmp_path)


def write(path, records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return str(path)


class Killed(BaseException):
    """Ends a run as SIGKILL would: nothing handles it."""


@pytest.fixture(scope="module", autouse=True)
def ending():
    """Has a run end by an exception after some answers; counts them. A block is `batch_size`
    records."""
    add, state = AnswerLog.add, {"left": 10**6, "made": 0, "how": KeyboardInterrupt}

    def dying(*arguments):
        if not state["left"]:
            raise state["how"]
        state["left"] -= 1
        state["made"] += 1
        add(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(regenerate, "_BLOCK", 1)
        patch.setattr(AnswerLog, "add", dying)
        yield state


@pytest.fixture(scope="module")
def whole(target, tmp_path_factory):
    """The output of an uninterrupted run."""
    config = settings(target, tmp_path_factory.mktemp("whole"))
    summary = run(config)
    assert {path.name for path in config.out.parent.iterdir()} == {"data.jsonl", "out.jsonl"}
    assert summary.answers == 2 * sum(ANSWERS)
    return config.out.read_bytes()


def interrupted(config, ending, answers, how=KeyboardInterrupt):
    """Runs a command that ends after some answers; returns the file, and what Ctrl-C tells."""
    ending.update(left=answers, how=how)
    advice = Advice()
    with pytest.raises(how):
        run(config, advice)
    ending["left"] = 10**6
    return config.out.read_bytes() if config.out.exists() else b"", advice.text


def test_answers_are_the_targets_own(whole, target, tmp_path):
    model = DartModel.from_pretrained(target)
    records = [json.loads(line) for line in whole.splitlines()]
    for record in records:
        answer = record["tokens"][record["prompt_length"] :]
        assert 1 <= len(answer) <= 5
        assert (answer[-1] in model.eos) == (record["finish"] == "stop")
        assert record["text"] == model.tokenizer.decode(record["tokens"], False)
        assert parse(record) == Tokens(record["tokens"], record["prompt_length"])
    sources = [digest_of(parse(record)) for record in RECORDS]
    assert [int(record["source"], 16) for record in records] == [
        source for source, count in zip(sources, ANSWERS, strict=True) for _ in range(2 * count)
    ]
    path = tmp_path / "again.jsonl"
    path.write_bytes(whole)
    assert [e.digest for e in read_all([path])] == [int(r["source"], 16) for r in records]
    # Of each record the greedy answers come first, then those at temperature 1.
    greedy, drawn = records[6:8], records[8:10]
    assert greedy != drawn
    for answers in (greedy, drawn):
        messages = []
        for record, question in zip(answers, ("naïve café — ", "x"), strict=True):
            messages.append({"role": "user", "content": question})
            prompt = model.tokenizer.encode_chat(messages)
            assert record["tokens"][: record["prompt_length"]] == prompt
            reply = model.tokenizer.decode(record["tokens"][len(prompt) :])
            messages.append({"role": "assistant", "content": reply})
    prompts = [record["tokens"][: record["prompt_length"]] for record in (*greedy, *greedy)]
    made = model.generate(prompts, max_new_tokens=5)
    for record, prompt, completion in zip(greedy, prompts, made, strict=False):
        assert record["tokens"] == [*prompt, *completion.tokens.tolist()]


@pytest.mark.parametrize("how", [KeyboardInterrupt, Killed])
def test_a_run_goes_on_where_it_was(config, whole, ending, how):
    """Wherever it was interrupted or killed, even in the middle of a line; no answer is lost, made
    twice, or missing from the file after Ctrl-C."""
    before, held = ending["made"], 0
    for answers in (0, 3, 1, 9):
        made, told = interrupted(config, ending, answers, how)
        assert set(made.splitlines()) <= set(whole.splitlines())
        assert made.endswith(b"\n") or not made
        count = len(made.splitlines())
        assert held <= count
        held = count
        if how is KeyboardInterrupt and answers:
            assert told == (
                f"{count} answers are in {config.out}; run the same command again to continue"
            )
    assert held == (13 if how is KeyboardInterrupt else 12)  # killed, the finished block is there
    with pytest.raises(UserError, match=r"answers, made with another --seed \(0, now 1\); pass"):
        run(dataclasses.replace(config, seed=1))
    (log,) = config.out.with_name("out.jsonl.work").glob("*.log")
    log.write_bytes(log.read_bytes()[:-1])  # a torn line
    if how is KeyboardInterrupt:
        config.out.write_bytes(config.out.read_bytes()[:-5])
    run(dataclasses.replace(config, batch_size=3))
    assert config.out.read_bytes() == whole
    assert ending["made"] - before == 2 * sum(ANSWERS) + 1  # for the torn line


def test_a_time_limit(config, whole, target, tmp_path, monkeypatch, capsys):
    """Every run answers one record at least, and the last one all that is left; a copy of the
    target goes on, but not another one with files of the same sizes. Progress knows the limit."""
    monkeypatch.setattr(progress, "INTERVAL", 0.0)
    short, answers = dataclasses.replace(config, minutes=1e-9), 0
    for _ in range(3):
        summary = run(short)
        assert not summary.complete
        assert "regenerate: 99 %" in capsys.readouterr().err
        assert "the time is over; run the same command again" in str(summary)
        assert answers < summary.answers == len(config.out.read_bytes().splitlines())
        answers = summary.answers
    copy = tmp_path / "copy"
    shutil.copytree(target, copy)
    weights = copy / "model.safetensors"
    original = weights.read_bytes()
    weights.write_bytes(original[:-1] + bytes([original[-1] ^ 1]))
    config = dataclasses.replace(config, target=str(copy), minutes=5.0)
    with pytest.raises(UserError, match="answers, made with another --target; pass"):
        run(config)
    weights.write_bytes(original)
    assert run(config).complete
    assert config.out.read_bytes() == whole


def test_without_answers_nothing_is_held_against_a_run(config, ending):
    """A run that failed before its first answer leaves settings and data free; a file of others is
    never touched."""
    config.out.write_bytes(b"mine\n")
    with pytest.raises(UserError, match="already exists; delete it or name another file"):
        run(config)
    config.out.unlink()
    write(config.out.with_name("data.jsonl"), [{"query": "a"}, *RECORDS[1:]])
    with pytest.raises(UserError, match=r"data\.jsonl:1: .*it has the fields query; use [^(]*$"):
        run(config)
    write(config.out.with_name("data.jsonl"), RECORDS)
    interrupted(dataclasses.replace(config, seed=3, top_k=5, max_new_tokens=9), ending, 0)
    config.out.write_bytes(b"mine\n")
    with pytest.raises(UserError, match="already exists; delete it or name another file"):
        run(config)
    assert config.out.read_bytes() == b"mine\n"
    config.out.unlink()
    assert run(config).answers == 2 * sum(ANSWERS)


def test_data_repaired_where_they_were_bad(config, whole, ending):
    """A bad record ends a run with all answers before its block; repaired, the run goes on. What
    else changed is answered, what is gone left out, and nothing answered twice."""
    data = config.out.with_name("data.jsonl")
    write(data, [*RECORDS[:5], {"query": "a"}])
    match = r"data\.jsonl:6: .* \(12 answers are in .*out\.jsonl, and the same command goes on\)"
    with pytest.raises(UserError, match=match):
        run(config)
    assert config.out.read_bytes() == b"".join(whole.splitlines(keepends=True)[:12])
    write(data, [{"text": "another"}, *RECORDS[1:4], {"query": "a"}])
    with pytest.raises(UserError, match=r"data\.jsonl:5: .* \(12 answers are in "):
        run(config)
    assert config.out.read_bytes().splitlines()[2:] == whole.splitlines()[2:12]
    write(data, RECORDS)
    made = ending["made"]
    with pytest.warns(InputWarning, match="still holds 2 answers to records that are not in"):
        run(config)
    assert config.out.read_bytes() == whole
    assert ending["made"] == made + 4
    write(data, [*RECORDS, {"text": "another"}])
    run(config)
    assert config.out.read_bytes().startswith(whole)
    assert ending["made"] == made + 4
    assert not log_of(config.out).exists()


def test_a_full_disk_is_one_line(config, whole):
    """And finished answers are kept."""
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, hard))
    try:
        with pytest.raises(UserError, match=r"cannot write to .*out\.jsonl: File too large; free"):
            run(config)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    assert not config.out.exists()
    run(config)
    assert config.out.read_bytes() == whole


@pytest.mark.parametrize(
    ("roles", "unlearned", "expected"),
    [
        (["system", "user", "assistant", "user"], (), [[0, 1], [3]]),
        (["assistant", "user", "user", "assistant", "assistant"], (), [[0, 1, 2]]),
        (["system", "assistant", "user", "assistant", "user"], (), [[0, 1, 2], [4]]),
        (["user", "assistant", "tool", "assistant"], (), [[0]]),
        (["user", "assistant", "user", "assistant"], (1,), [[0, 1, 2]]),
        (["assistant"], (), []),
        (["system"], (), []),
    ],
)
def test_turns(roles, unlearned, expected):
    messages = [{"role": role, "content": str(n)} for n, role in enumerate(roles)]
    found = prompt_turns(Chat(messages, None, unlearned), Tokenizer(tokenizers_made.byte_level()))
    assert [[int(message["content"]) for message in turn] for turn in found] == expected


def test_system_prompts_tools_and_what_is_not_learned_are_in_the_prompts(config, target, tmp_path):
    tools = [{"type": "function", "function": {"name": "f"}}]
    shot = [{"from": "human", "value": "x"}, {"from": "gpt", "value": "y", "weight": 0}]
    record = {"conversations": [*shot, {"from": "human", "value": "a"}], "system": "s"}
    options = json.dumps({"chat_template": "{{ tools | tojson }}" + tokenizers_made.TURNS})
    data = write(tmp_path / "beside.jsonl", [record | {"tools": tools}])
    one = {"temperature": (0.0,), "chat_template_kwargs": options, "data": (data,)}
    assert run(dataclasses.replace(config, **one)).answers == 1
    [answer] = map(json.loads, config.out.read_text().splitlines())
    roles = ("system", "user", "assistant", "user")
    messages = [{"role": r, "content": t} for r, t in zip(roles, "sxya", strict=True)]
    expected = Tokenizer.load(target).encode_chat(messages, tools=tools, **json.loads(options))
    assert answer["tokens"][: answer["prompt_length"]] == expected


@pytest.mark.parametrize(
    ("record", "match"),
    [
        ({"a": 1}, r"bad\.jsonl:1: .* it has the fields a;"),
        (
            {"tokens": [9, 9999], "prompt_length": 2},
            r"bad\.jsonl:1: the prompt's tokens must be in",
        ),
        ({"tokens": [9], "prompt_length": 0}, r"bad\.jsonl:1: there is no prompt in it"),
        (
            {"text": "so " * 1500},
            "no answer to write: .*bad.jsonl:1: a prompt of .* leaves no room",
        ),
    ],
)
def test_bad_records(config, tmp_path, record, match):
    data = (write(tmp_path / "bad.jsonl", [record]),)
    config = dataclasses.replace(config, data=data, temperature=(0.0,))
    with pytest.raises(UserError, match=match) as raised:
        run(config)
    assert "\n" not in str(raised.value)
    assert not config.out.exists()
    write(tmp_path / "bad.jsonl", [record, RECORDS[0]])
    summary = run(dataclasses.replace(config, skip_bad=True))
    assert summary.answers == 1
    assert ", skipped 1 bad records, the first: " in str(summary)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"batch_size": 0}, "batch-size must be at least 1"),
        ({"minutes": 0.0}, "minutes must be above 0"),
        ({"top_p": 2.0}, "top_p must be"),
    ],
)
def test_bad_options(config, options, match):
    with pytest.raises(UserError, match=match):
        dataclasses.replace(config, **options)
