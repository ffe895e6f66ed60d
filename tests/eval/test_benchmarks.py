"""Benchmarks: names, files, record formats, and prompts."""

import json
import os
import subprocess
import sys
from pathlib import Path

import duckdb
import local_hub
import numpy as np
import pytest
import tokenizers_made

from dart_jax.data.messages import alternating
from dart_jax.data.records import Record
from dart_jax.errors import UserError
from dart_jax.text.tokenizer import Tokenizer
from eval.benchmarks.prompts import long_question
from eval.benchmarks.questions import Question, prompt_tokens, read_question
from eval.benchmarks.registry import BENCHMARKS, COPY, find, load, load_all, parse_names

BENCH = os.environ.get("DART_BENCH")
NAMES = (
    *("alpaca", "code_alpaca", "humaneval", "livecodebench", "math500", "mbpp", "mt_bench"),
    *("gsm8k", "spec_bench"),
)
TURNS = [{"turns": [f"q{n}"], "category": "c"} for n in range(3)]


def write(path, records):
    """Writes JSONL."""
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def read(value, **options):
    return read_question(Record("f:7", value, 0), "b", "Title", **options)


def question(*turns, raw=None):
    return Question("b", "b", turns, "f:1", raw)


# Records

TESTS = ["assert f(1)", "assert f(2)"]
PASS = "Write it in Python, so that these tests pass:"
PASS += "\n\n```python\nassert f(1)\nassert f(2)\n```"
STDIN = "Solve this with a Python program that reads its input from stdin and writes its output to "
STDIN += "stdout."
CODE = "Solve this in Python. Go on from this code:\n\n```python\nclass A:\n    def f():\n```"


@pytest.mark.parametrize(
    ("record", "turns"),
    [
        ({"turns": ["a", " b\n"], "prompt": "no", "entry_point": "no"}, ("a", " b\n")),
        ({"prompt": ["a", "b"], "turns": None, "entry_point": "no"}, ("a", "b")),
        ({"instruction": "a", "output": "b", "text": "no"}, ("a",)),
        ({"instruction": "a", "input": " \n"}, ("a",)),
        ({"instruction": "a", "input": "x"}, ("a\n\nx",)),
        ({"instruction": "a", "context": "c", "response": "x"}, ("a\n\nc",)),
        ({"question": " a ", "answer": "b"}, (" a ",)),
        ({"query": "a", "response": "x"}, ("a",)),
        ({"prompt": "a\n", "entry_point": None, "test_list": None}, ("a\n",)),
        (
            {"problem": "a", "solution": "no"},
            ("a\n\nReason step by step and put the final answer in \\boxed{}.",),
        ),
        ({"text": "a", "test_list": TESTS, "code": "no"}, (f"a\n\n{PASS}",)),
        ({"prompt": "a", "test_list": TESTS, "test_imports": []}, (f"a\n\n{PASS}",)),
        (
            {"question_content": "a", "starter_code": "class A:\n    def f():\n        "},
            (f"a\n\n{CODE}",),
        ),
        ({"question_content": "a", "starter_code": "", "tests": "no"}, (f"a\n\n{STDIN}",)),
        ({"question_content": "a"}, (f"a\n\n{STDIN}",)),
    ],
)
def test_formats(record, turns):
    assert read(record) == Question("b", "Title", turns, "f:7")


def test_humaneval():
    prompt = '\n\ndef f(x):\n    """Say x. """\n'
    result = read({"prompt": prompt, "entry_point": "f", "canonical_solution": "no"})
    assert result.turns == (
        "Complete this Python function. Answer with the whole function.\n\n"
        '```python\ndef f(x):\n    """Say x. """\n```',
    )
    assert result.raw == prompt


CALL = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f"}}]}
SYSTEM = {"role": "system", "content": "s"}


@pytest.mark.parametrize(
    ("record", "turns", "before"),
    [
        ({"conversations": [{"from": "human", "value": "a"}]}, ("a",), ()),
        ({"messages": alternating(["a", "x", "b"]), "prompt": "a"}, ("a", "b"), ()),
        ({"messages": [SYSTEM, *alternating(["a", "x"])]}, ("a",), (SYSTEM,)),
        ({"messages": [*alternating(["a", "x", "b"]), CALL]}, ("a", "b"), ()),
        ({"data": ["a", "x", "b", "y"]}, ("a", "b"), ()),
        ({"prompt": alternating(["a"]), "completion": alternating(["a", "x"])[1:]}, ("a",), ()),
        ({"instruction": "a", "input": "", "system": "s"}, ("a",), (SYSTEM,)),
    ],
)
def test_chats(record, turns, before):
    tools = [{"function": {"name": "f"}}]
    expected = Question("b", "Title", turns, "f:7", before=before, tools=tools)
    assert read(record | {"tools": tools}) == expected


def test_groups():
    record = {"turns": ["a"], "category": "writing"}
    assert read(record).group == "Title"
    assert read(record, by_category=True).group == "writing"
    for category in (" ", None, 3):
        assert read(record | {"category": category}, by_category=True).group == "Title"


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"id": 1, "turn": "a"}, "no question .* it has the fields id, turn; use `turns` or"),
        ({}, "no question .* it has the fields none;"),
        ({"turns": ["a", ""]}, "`turns`, number 2, is empty"),
        ({"turns": ["a", {}]}, "`turns`, number 2, must be a string, not an object"),
        ({"question": "a\ud800"}, "`question` holds half of a surrogate pair; replace it"),
        ({"messages": alternating(["a"]) * 2}, "user and assistant do not take turns"),
        ({"question": "a", "context": "c"}, "`context` beside `question` is not read"),
    ],
)
def test_bad_records(record, message):
    with pytest.raises(UserError, match=f"^f:7: .*{message}"):
        read(record)


# Names


def test_names():
    assert parse_names(" mt_bench , alpaca,mt_bench,") == ("mt_bench", "alpaca")
    assert parse_names("gsm8k,all") == ("gsm8k", *NAMES[:7], "spec_bench")
    listed = f"pass all, copy, a file, or some of {', '.join((*NAMES, 'questions', *COPY))}"
    for text, wrong, cure in (
        ("alpaca,MT-bench", "MT-bench", r"did you mean mt_bench\?"),
        ("no/such.jsonl", "no/such.jsonl", listed),
    ):
        with pytest.raises(UserError, match=f"^no benchmark or file {wrong!r}; {cure}$"):
            parse_names(text)
    with pytest.raises(UserError, match=f"^no benchmark; {listed}"):
        parse_names(" , ")


def test_files_as_benchmarks(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    write(Path("my.v2.jsonl"), TURNS)
    # In a user's file, categories are not groups.
    assert load("~/my.v2.jsonl", Path("no directory"), 2) == [
        Question("my.v2", "my.v2", (f"q{n}",), f"{tmp_path}/my.v2.jsonl:{n + 1}") for n in range(2)
    ]
    for name in ("x.jsonl.gz", "x.parquet", "gsm8k", "my.txt"):
        Path(name).touch()
    assert find("x.jsonl.gz").name == find("x.parquet").name == "x"
    with pytest.raises(UserError, match=r"my\.txt holds no records; pass a \.jsonl, \.json or"):
        parse_names("my.txt")
    # A benchmark's name never means a file of that name.
    with pytest.raises(UserError, match=r"^no gsm8k_test\.jsonl in"):
        load("gsm8k", tmp_path)
    write(Path("gsm8k.jsonl"), TURNS)
    with pytest.raises(UserError, match=r"^gsm8k and gsm8k\.jsonl would both be called gsm8k;"):
        parse_names("gsm8k,gsm8k.jsonl")


# Files


def test_a_directory(tmp_path):
    write(tmp_path / "humaneval_eagle.jsonl", TURNS)
    assert load("humaneval", tmp_path)[0].turns == ("q0",)
    prompts = [{"prompt": f"p{n}", "entry_point": "f"} for n in range(2)]
    path = write(tmp_path / "HumanEval.jsonl", prompts)  # preferred over the other
    places = [(one.raw, one.where, one.group) for one in load("humaneval", tmp_path)]
    assert places == [(f"p{n}", f"{path}:{n + 1}", "HumanEval") for n in range(2)]
    write(tmp_path / "mt_bench.jsonl", TURNS)
    assert {one.group for one in load("mt_bench", tmp_path)} == {"c"}


def test_missing_files(tmp_path):
    with pytest.raises(UserError) as raised:
        load("humaneval", tmp_path)
    assert str(raised.value) == (
        f"no HumanEval.jsonl or humaneval_eagle.jsonl in {tmp_path}; put it there, or pass no "
        "--data-dir, to download hub:openai/openai_humaneval/openai_humaneval/test-*.parquet"
    )
    with pytest.raises(UserError, match=r"^Spec-Bench is not on the .* hub; put question"):
        load("spec_bench", None)


def test_limit(tmp_path):
    """Nothing after the limit is read; blank lines count."""
    path = write(tmp_path / "my.jsonl", TURNS)
    path.write_text("\n" + path.read_text() + '{"turns": ["q3"\n')
    assert [one.where for one in load(str(path), None, 2)] == [f"{path}:2", f"{path}:3"]
    assert len(load(str(path), None, 3)) == 3
    with pytest.raises(UserError, match=rf"^{path}:5: broken JSON: "):
        load(str(path), None)
    path.write_text("\n\n")
    with pytest.raises(UserError, match=f"^{path} holds no questions; check the file"):
        load(str(path), None)


def test_our_own_questions(thinking):
    """The default with a chat template. The first are of all kinds; they need no files."""
    [(name, questions)] = load_all(None, thinking, None, 99)[0].items()
    assert name == "questions"
    assert len(questions) == len({one.turns for one in questions}) == 24
    kinds = {one.group for one in questions}
    assert len(kinds) == len({one.group for one in questions[:4]}) == 4
    assert load_all(None, Tokenizer(tokenizers_made.byte_level()), None, 99) == ({}, [])


# The hub


@pytest.mark.long
def test_from_the_hub(tmp_path):
    """In a new process, which reads the hub's settings from its environment."""
    program = """
import dataclasses, json
from dart_jax.programs.command_line import program
from eval.benchmarks.registry import load
with program():
    print(json.dumps([dataclasses.asdict(one) for one in load("gsm8k", None)]))
"""

    def ask(endpoint):
        environment = local_hub.environment(tmp_path / "home", endpoint)
        pipes = {"capture_output": True, "text": True, "timeout": 120}
        return subprocess.run([sys.executable, "-c", program], **pipes, env=environment)

    rows, parquet = tmp_path / "rows.jsonl", tmp_path / "rows.parquet"
    write(rows, [{"question": "a", "answer": "3"}])
    duckdb.execute(f"copy (select * from read_json('{rows}')) to '{parquet}' (format parquet)")
    owner, repository, pattern = str(BENCHMARKS["gsm8k"].hub).split("/", 2)
    file = pattern.replace("*", "00000-of-00001")
    with local_hub.serve() as hub:
        contents = {file: parquet.read_bytes(), "data/test-0.parquet": b"!", "README.md": b"#"}
        hub.repositories[f"datasets/{owner}/{repository}"] = contents
        done = ask(hub.address)
        assert done.returncode == 0, done.stderr
        assert hub.fetched == [file]
        [question] = json.loads(done.stdout)
        assert question["where"].endswith(f"/{file}, row 1")
        assert (question["bench"], question["turns"]) == ("gsm8k", ["a"])
        # Without a network, downloaded files are enough; others are reported in one line.
        assert ask("http://127.0.0.1:9").stdout == done.stdout
        hub.repositories.clear()
        (tmp_path / "home").rename(tmp_path / "other")
        missing = ask(hub.address)
    assert missing.returncode == 2
    line = missing.stderr.splitlines()[-1]
    assert line.endswith("; to read a local gsm8k_test.jsonl, pass --data-dir")
    assert "Repository Not Found" in line


# Prompts


@pytest.fixture(scope="module")
def thinking(tmp_path_factory):
    directory = tmp_path_factory.mktemp("thinking")
    tokenizers_made.write_chat(directory, tokenizers_made.byte_level(), tokenizers_made.THINKING)
    return Tokenizer.load(directory)


def said(tokenizer, asked, answers=(), thinking=False):
    """Returns the prompt as text."""
    ids = prompt_tokens(asked, answers, tokenizer, thinking)
    assert (ids.dtype, ids.ndim) == (np.int32, 1)
    return tokenizer.decode(ids, skip_special_tokens=False)


def test_prompts_in_a_template(thinking):
    two = question("one?", "two?", raw="not this")
    header, no_thought = "<|im_start|>assistant\n", "<think>\n\n</think>\n\n"
    first = f"<|im_start|>user\none?<|im_end|>\n{header}"
    assert said(thinking, two, thinking=True) == first
    assert said(thinking, two, thinking=False) == first + no_thought
    second = f"{first}one.<|im_end|>\n<|im_start|>user\ntwo?<|im_end|>\n{header}"
    # The template drops earlier thinking.
    assert said(thinking, two, ["<think>\nhm\n</think>\n\none."], thinking=True) == second
    after = Question("b", "b", ("one?", "two?"), "f:1", before=(SYSTEM, *alternating(["q", "r"])))
    text = said(thinking, after)
    assert text.startswith("<|im_start|>system\ns<|im_end|>\n<|im_start|>user\nq<|im_end|>\n")
    assert said(Tokenizer(tokenizers_made.byte_level()), after) == "s\n\nq\n\nr\n\none?"


def test_plain_prompts():
    bare, two = Tokenizer(tokenizers_made.byte_level()), question("one?", "two?\n")
    assert said(bare, two, ["one."], thinking=True) == "one?\n\none.\n\ntwo?\n"
    assert said(bare, question("Complete ..", raw="\ndef f():\n")) == "\ndef f():\n"
    # With the tokenizer's special tokens.
    spaced = Tokenizer(tokenizers_made.byte_fallback())
    ids = prompt_tokens(question("hello"), (), spaced, False).tolist()
    assert ids == spaced.encode("hello")
    assert ids[0] == spaced.backend.token_to_id("<s>")


@pytest.mark.parametrize("turns", [("one?", "two?"), ("one?" * 400,)], ids=["short", "long"])
@pytest.mark.parametrize("chat", [True, False], ids=["chat", "plain"])
def test_long_prompts(thinking, turns, chat):
    """A passage makes them as long as asked for, the longer one ends with the shorter one; prompts
    that are longer already are left as they are."""
    tokenizer = thinking if chat else Tokenizer(tokenizers_made.byte_level())
    asked = question(*turns, raw="def f():")
    bare = len(prompt_tokens(asked, (), tokenizer, False))
    texts = []
    for most in (700, 1200):
        longer = long_question(asked, 3, tokenizer, most, thinking=False)
        length = len(prompt_tokens(longer, (), tokenizer, False))
        assert max(most - 4, bare) <= length <= max(most, bare)
        assert longer.turns[0].endswith(turns[0])
        assert longer.raw.endswith("def f():")
        texts.append(longer.raw if not chat else longer.turns[0])
        assert longer.turns[1:] == turns[1:]
    assert texts[1].endswith(texts[0])
    again = long_question(asked, 4, tokenizer, 1200, thinking=False)
    assert (again == longer) is (longer == asked)


# Published files

# Name or file -> questions, turns of the first one, groups.
PUBLISHED = {
    "alpaca": (80, 1, 1),
    "code_alpaca": (4535, 1, 1),
    "humaneval": (164, 1, 1),
    "math500": (500, 1, 1),
    "mbpp": (974, 1, 1),
    "mt_bench": (80, 2, 8),
    "gsm8k": (1319, 1, 1),
    "spec_bench": (480, 2, 13),
    **{"summarization": (80, 1, 1), "rag": (80, 1, 1), "second_turns": (80, 2, 1)},
    "editing": (164, 1, 3),
    "humaneval_eagle.jsonl": (80, 1, 1),
    "gsm8k_train.jsonl": (7473, 1, 1),
}


@pytest.mark.skipif(not BENCH, reason="DART_BENCH names no directory")
@pytest.mark.long(keep=3)
@pytest.mark.parametrize("name", PUBLISHED)
def test_published_data(thinking, name):
    directory = Path(str(BENCH))
    questions = load(name if name in {**BENCHMARKS, **COPY} else str(directory / name), directory)
    groups = {one.group for one in questions}
    assert (len(questions), len(questions[0].turns), len(groups)) == PUBLISHED[name]
    continued = ("humaneval", "summarization", "rag", "editing")
    assert all(one.raw for one in questions) is (name in continued)
    for one in questions[:20]:
        assert f"\n{one.turns[0]}<|im_end|>" in said(thinking, one)
