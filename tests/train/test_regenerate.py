"""The target answers a data set turn by turn, with the same result if interrupted."""

import dataclasses
import json
import resource

import jax
import numpy as np
import pytest
import tiny_model
import tokenizers_made

from dart_jax.data.contents import Chat, Tokens, parse
from dart_jax.errors import UserError
from dart_jax.model import DartModel
from dart_jax.models.pure import abstract_params
from dart_jax.text.tokenizer import Tokenizer
from dart_jax.weights.checkpoint import save_target
from train import regenerate
from train.data.answers import prompt_turns
from train.data.examples import digest_of, read_all
from train.regenerate import RegenerateConfig, run

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
    # Many tokens end an answer, so that some answers end.
    save_target(directory, shapes.target, params, eos=tuple(range(0, 256, 5)))
    tokenizers_made.write_chat(directory, tokenizer, tokenizers_made.TURNS)
    return directory


@pytest.fixture
def config(target, tmp_path):
    return RegenerateConfig(
        target=str(target),
        data=(write(tmp_path / "data.jsonl", RECORDS),),
        out=tmp_path / "out.jsonl",
        max_new_tokens=5,
        temperature=(0.0, 1.0),
        batch_size=4,
    )


def write(path, records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return str(path)


@pytest.fixture(scope="module")
def whole(target, tmp_path_factory):
    """The output of an uninterrupted run."""
    directory = tmp_path_factory.mktemp("whole")
    config = RegenerateConfig(
        target=str(target),
        data=(write(directory / "data.jsonl", RECORDS),),
        out=directory / "out.jsonl",
        max_new_tokens=5,
        temperature=(0.0, 1.0),
        batch_size=4,
    )
    summary = run(config)
    assert sorted(path.name for path in directory.iterdir()) == ["data.jsonl", "out.jsonl"]
    assert summary.answers == 2 * sum(ANSWERS)
    return config.out.read_bytes()


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
    assert [e.digest for e, _ in read_all([path])] == [int(r["source"], 16) for r in records]
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


def test_a_run_goes_on_where_it_was(config, monkeypatch):
    """Wherever it was killed, even in the middle of a line."""
    monkeypatch.setattr(regenerate, "_BLOCK", 1)
    generate, left, calls = DartModel.generate, 10**6, 0

    def dying(*arguments):
        nonlocal left, calls
        if not left:
            raise KeyboardInterrupt
        left, calls = left - 1, calls + 1
        return generate(*arguments)

    monkeypatch.setattr(DartModel, "generate", dying)
    run(config)
    uninterrupted, all_calls = config.out.read_bytes(), calls
    config.out.unlink()
    calls = 0
    for allowed in (0, 2, 2, 1):
        left = allowed
        with pytest.raises(KeyboardInterrupt):
            run(config)
    with pytest.raises(UserError, match=r"started with another --seed; delete it or pass"):
        run(dataclasses.replace(config, seed=1))
    (part,) = config.out.with_name("out.jsonl.work").glob("*.part")
    part.write_bytes(part.read_bytes()[:-1])  # a torn line
    left = 10**6
    run(config)
    assert config.out.read_bytes() == uninterrupted
    assert calls == all_calls + 1  # for the torn line


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


def test_unfinished_answers_can_be_left_out(config, whole):
    summary = run(dataclasses.replace(config, unfinished=False))
    kept = config.out.read_bytes().splitlines()
    assert summary.unfinished == 0
    finished = [line for line in whole.splitlines() if json.loads(line)["finish"] == "stop"]
    assert len(kept) == summary.answers < len(whole.splitlines())
    assert set(kept) <= set(finished)


def test_turns():
    tokenizer = Tokenizer(tokenizers_made.byte_level())

    def turns(roles):
        messages = [{"role": role, "content": str(n)} for n, role in enumerate(roles)]
        found = prompt_turns(Chat(messages), tokenizer)
        return [[int(message["content"]) for message in turn] for turn in found]

    assert turns(["system", "user", "assistant", "user"]) == [[0, 1], [3]]
    assert turns(["assistant", "user", "user", "assistant", "assistant"]) == [[1, 2]]
    assert turns(["user", "assistant", "tool", "assistant"]) == [[0]]
    # What is not to be learned stays as it is.
    roles = ("user", "assistant", "user", "assistant")
    given = Chat([{"role": role, "content": role} for role in roles], None, (1,))
    assert prompt_turns(given, tokenizer) == [given.messages[:3]]
    for roles in (["assistant"], ["system"]):
        with pytest.raises(UserError, match="no prompt in it"):
            turns(roles)


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


def test_the_end_of_an_array_that_is_cut_off(config, tmp_path):
    """It costs one record, whose place is told."""
    chats = [{"conversations": [{"from": "human", "value": f"{n}?"}]} for n in range(9)]
    data = tmp_path / "cut.json"
    data.write_text(json.dumps(chats, indent=1)[:-20])
    one = dataclasses.replace(config, data=(str(data),), temperature=(0.0,), skip_bad=True)
    summary = run(one)
    assert (summary.answers, summary.skipped) == (8, 1)
    assert summary.first_skipped.startswith(f"{data}:")
    one.out.unlink()
    with pytest.raises(UserError, match="the file ends inside of this record; --skip-bad skips"):
        run(dataclasses.replace(one, skip_bad=False))


def test_errors(config, tmp_path):
    def fails(match, *records, **options):
        data = (write(tmp_path / "bad.jsonl", records),) if records else config.data
        with pytest.raises(UserError, match=match) as raised:
            run(dataclasses.replace(config, data=data, work=tmp_path / "w", **options))
        assert "\n" not in str(raised.value)
        assert not config.out.exists()
        regenerate.work_directory.remove(tmp_path / "w")

    fails(r"bad\.jsonl:1: .* it has the fields a;", {"a": 1})
    fails(
        r"bad\.jsonl:1: the prompt's tokens must be in", {"tokens": [9, 9999], "prompt_length": 2}
    )
    fails(r"bad\.jsonl:1: there is no prompt in it", {"tokens": [9], "prompt_length": 0})
    fails(
        "no answer to write: .*bad.jsonl:1: a prompt of .* leaves no room in",
        {"text": "so " * 1500},
    )
    with pytest.raises(UserError, match="batch-size must be at least 1"):
        dataclasses.replace(config, batch_size=0)
    with pytest.raises(UserError, match="seed must not be negative"):
        dataclasses.replace(config, seed=-1)
    with pytest.raises(UserError, match="top_p must be"):
        dataclasses.replace(config, top_p=2.0)
    config.out.write_text("")
    with pytest.raises(UserError, match="already exists; delete it"):
        run(config)
