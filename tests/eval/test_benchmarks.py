"""Benchmarks: names, files, record formats, and prompts."""

import hashlib
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
from eval.benchmarks.questions import Question, prompt_tokens, read_question
from eval.benchmarks.registry import BENCHMARKS, PAPER, find, load, load_all, parse_names

BENCH = os.environ.get("DART_BENCH")

TURNS = [{"turns": [f"q{n}"], "category": "c"} for n in range(3)]


def write(path, records):
    """Writes JSONL."""
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def parquet(directory, rows):
    """Returns the bytes of a file. DuckDB infers the types from the values."""
    source, made = write(directory / "rows.jsonl", rows), directory / "rows.parquet"
    duckdb.execute(f"copy (select * from read_json('{source}')) to '{made}' (format parquet)")
    return made.read_bytes()


def read(value, **options):
    return read_question(Record("f:7", value, 0), "b", "Title", **options)


def question(*turns, raw=None):
    return Question("b", "b", turns, "f:1", raw)


# Records


@pytest.mark.parametrize(
    ("record", "turns"),
    [
        ({"turns": ["a", " b\n"], "prompt": "no", "entry_point": "no"}, ("a", " b\n")),
        ({"prompt": ["a", "b"], "reference": ["x"], "entry_point": "no"}, ("a", "b")),
        ({"prompt": ["a"], "turns": None}, ("a",)),
        ({"instruction": "a", "output": "b", "text": "no"}, ("a",)),
        ({"instruction": "a", "input": " \n"}, ("a",)),
        ({"instruction": "a", "input": "x"}, ("a\n\nx",)),
        ({"question": "a", "answer": "b"}, ("a",)),
        ({"question": " a "}, (" a ",)),
        ({"prompt": "a\n", "answer": "b"}, ("a\n",)),
    ],
)
def test_formats_used_unchanged(record, turns):
    assert read(record) == Question("b", "Title", turns, "f:7")


TESTS = ["assert f(1)", "assert f(2)"]
FENCED = "\n\n```python\nassert f(1)\nassert f(2)\n```"


@pytest.mark.parametrize(
    ("record", "end"),
    [
        ({"problem": "a", "solution": "no"}, r" put the final answer in \boxed{}."),
        ({"text": "a", "test_list": TESTS, "code": "no"}, FENCED),
        ({"prompt": "a", "test_list": TESTS, "test_imports": [], "code": "no"}, FENCED),
        (
            {"question_content": "a", "starter_code": "class A:\n    def f():\n        "},
            "\n\n```python\nclass A:\n    def f():\n```",
        ),
        ({"question_content": "a", "starter_code": "", "tests": "no"}, " its output to stdout."),
        ({"question_content": "a"}, " its output to stdout."),
    ],
)
def test_formats_with_instructions(record, end):
    (text,) = read(record).turns
    assert text.startswith("a\n\n")
    assert text.endswith(end)
    assert "no" not in text
    assert read(record).raw is None


CALL = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f"}}]}
SYSTEM = {"role": "system", "content": "s"}


@pytest.mark.parametrize(
    ("record", "turns", "before"),
    [
        (
            {"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]},
            ("a",),
            (),
        ),
        ({"messages": alternating(["a", "x", "b"]), "prompt": "a"}, ("a", "b"), ()),
        ({"messages": [SYSTEM, *alternating(["a", "x"])]}, ("a",), (SYSTEM,)),
        ({"messages": alternating(["a", "x"]), "system": "s"}, ("a",), (SYSTEM,)),
        ({"messages": [*alternating(["a", "x", "b"]), CALL]}, ("a", "b"), ()),
        ({"data": ["a", "x", "b", "y"]}, ("a", "b"), ()),
        ({"prompt": alternating(["a"]), "ability": "math"}, ("a",), ()),
        ({"instruction": "a", "context": "c", "response": "x"}, ("a\n\nc",), ()),
        ({"query": "a", "response": "x"}, ("a",), ()),
        ({"prompt": alternating(["a"]), "completion": alternating(["a", "x"])[1:]}, ("a",), ()),
        ({"instruction": "a", "input": "", "system": "s"}, ("a",), (SYSTEM,)),
        (
            {"instruction": "a", "history": [["q", "r"]]},
            ("a",),
            tuple(alternating(["q", "r"])),
        ),
    ],
)
def test_chats(record, turns, before):
    assert read(record) == Question("b", "Title", turns, "f:7", before=before)
    tools = [{"function": {"name": "f"}}]
    assert read(record | {"tools": tools}).tools == tools


def test_messages_without_a_name():
    assert read([SYSTEM, *alternating(["a", "x", "b"])]).turns == ("a", "b")


@pytest.mark.parametrize(
    ("record", "match"),
    [
        ({"messages": alternating(["a"])[:1] * 2}, "user and assistant do not take turns"),
        ({"messages": [{"role": "assistant", "content": "a"}]}, "does not begin with the user"),
        ({"messages": [SYSTEM]}, "there is no turn of the user"),
        ({"messages": alternating([" "])}, "turn 1 is empty"),
        ({"messages": []}, "must be a list of messages"),
        ({"question": "a", "images": ["x"]}, "`images` is not supported"),
        ({"question": "a", "system": 3}, "`system` must be a string"),
        ({"question": "a", "context": "c"}, "`context` beside `question` is not read"),
    ],
)
def test_chats_without_answers(record, match):
    with pytest.raises(UserError, match=f"^f:7: .*{match}"):
        read(record)


def test_bad_questions_can_be_skipped(tmp_path):
    path = tmp_path / "my.json"
    path.write_text(json.dumps([*TURNS, {"turns": 1}, *TURNS])[:-20])
    with pytest.raises(UserError, match=r"must be a list of strings.*; --skip-bad skips such"):
        load(str(path), None)
    found, left_out = load_all(str(path), None, 9, skip_bad=True)
    assert len(found[str(path)]) == 5
    assert left_out == [
        f"{path}, skipped 2 bad records, the first: {path}:1: `turns` must be a list of strings, "
        "not 1"
    ]


def test_humaneval():
    prompt = '\n\ndef f(x):\n    """Say x. """\n'
    made = read({"prompt": prompt, "entry_point": "f", "test": "no", "canonical_solution": "no"})
    (text,) = made.turns
    assert text.startswith("Complete this Python function.")
    assert text.endswith('\n\n```python\ndef f(x):\n    """Say x. """\n```')
    assert made.raw == prompt


def test_fields_that_parquet_fills():
    filled = {"turns": None, "entry_point": None, "test_list": None, "starter_code": None}
    assert read(filled | {"prompt": "a"}) == read({"prompt": "a"})
    assert read(filled | {"question_content": "a"}) == read({"question_content": "a"})


RECORDS = [
    {"turns": ["a", "b"], "category": "c"},
    {"prompt": ["a", "b"], "category": "c"},
    {"prompt": "a", "entry_point": "f"},
    {"text": "a", "test_list": ["t"]},
    {"prompt": "a", "test_list": ["t"]},
    {"question_content": "a", "starter_code": "c"},
    {"instruction": "a", "input": "x"},
    *({name: "a"} for name in ("problem", "question", "query", "prompt")),
]


@pytest.mark.parametrize("record", RECORDS)
def test_columns_of_parquet(tmp_path, record):
    """All columns that a format needs are read."""
    path = tmp_path / "mt_bench.jsonl"
    write(path, [record])
    (expected,) = load("mt_bench", tmp_path)
    rows = tmp_path / "mt_bench.parquet"
    rows.write_bytes(parquet(tmp_path, [record | {"large": "no", "category": "c"}]))
    (made,) = load(str(rows), None)
    assert made.where == f"{rows}, row 1"
    assert (made.turns, made.raw) == (expected.turns, expected.raw)


def test_groups():
    record = {"turns": ["a"], "category": "writing"}
    assert read(record).group == "Title"
    assert read(record, by_category=True).group == "writing"
    for category in ("", " ", None, 3):
        assert read(record | {"category": category}, by_category=True).group == "Title"


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"id": 1, "turn": "a"}, "no question .* it has the fields id, turn; use `turns` or"),
        ({}, "no question .* it has the fields none;"),
        ({"entry_point": "f"}, "no question .* it has the fields entry_point;"),
        ({"test_list": ["a"], "text": None}, "no question .* it has the fields test_list;"),
        ({"starter_code": "a"}, "no question .* it has the fields starter_code;"),
        ({"input": "a"}, "no question .* it has the fields input;"),
        ({"answer": "a"}, "no question .* it has the fields answer;"),
        (["a"], "a record must be an object, not an array"),
        ("a", "a record must be an object, not a string"),
        ({"turns": "a"}, "`turns` must be a list of strings, not a string"),
        ({"turns": []}, "`turns` must be a list of strings, not empty"),
        ({"turns": ["a", ""]}, "`turns`, number 2, is empty"),
        ({"turns": [" \n"]}, "`turns`, number 1, is empty"),
        ({"turns": ["a", {}]}, "`turns`, number 2, must be a string, not an object"),
        ({"prompt": [""]}, "`prompt`, number 1, is empty"),
        ({"prompt": ""}, "`prompt` is empty"),
        ({"prompt": 3}, "`prompt` must be a string, not 3"),
        ({"prompt": "\n", "entry_point": "f"}, "`prompt` is empty"),
        ({"prompt": 1, "entry_point": "f"}, "`prompt` must be a string, not 1"),
        ({"text": " ", "test_list": ["a"]}, "`text` is empty"),
        ({"text": "a", "test_list": "a"}, "`test_list` must be a list of strings, not a string"),
        ({"text": "a", "test_list": []}, "`test_list` must be a list of strings, not empty"),
        ({"question_content": ""}, "`question_content` is empty"),
        ({"question_content": "a", "starter_code": 1}, "`starter_code` must be a string, not 1"),
        ({"instruction": ""}, "`instruction` is empty"),
        ({"instruction": "a", "input": []}, "`input` must be a string, not an array"),
        ({"problem": " "}, "`problem` is empty"),
        ({"question": ""}, "`question` is empty"),
        ({"question": "a\ud800"}, "`question` holds half of a surrogate pair; replace it"),
    ],
)
def test_bad_records(tmp_path, record, message):
    """Blank lines count in line numbers."""
    path = tmp_path / "my.jsonl"
    path.write_text('{"turns": ["a"]}\n\n' + json.dumps(record) + "\n")
    with pytest.raises(UserError, match=rf"^{path}:3: {message}") as raised:
        load(str(path), None)
    assert "\n" not in str(raised.value)
    assert len(load(str(path), None, limit=1)) == 1


# Names


def test_names():
    assert PAPER == (
        "alpaca",
        "code_alpaca",
        "humaneval",
        "livecodebench",
        "math500",
        "mbpp",
        "mt_bench",
    )
    titles = ["Alpaca", "CodeAlpaca", "HumanEval", "LiveCode", "Math500", "MBPP", "MT-bench"]
    assert [find(name).title for name in PAPER] == titles
    assert parse_names("mt_bench,humaneval") == ("mt_bench", "humaneval")
    assert parse_names(" mt_bench , alpaca,mt_bench,") == ("mt_bench", "alpaca")
    assert parse_names("all") == (*PAPER, "gsm8k", "spec_bench")
    first, *rest = parse_names("gsm8k,all")
    assert (first, *rest) == ("gsm8k", *PAPER, "spec_bench")


@pytest.mark.parametrize("text", ["mtbench", "alpaca,MT-bench", "no/such.jsonl", "."])
def test_unknown_names(text):
    listed = f"{', '.join(PAPER)}, gsm8k, spec_bench, questions"
    wrong = text.split(",")[-1]
    with pytest.raises(UserError) as raised:
        parse_names(text)
    assert str(raised.value) == (
        f"no benchmark or file {wrong!r}; pass all, a file, or some of {listed}"
    )
    with pytest.raises(UserError, match=r"^no benchmark or file"):
        load(wrong, None)


@pytest.mark.parametrize("text", ["", " , "])
def test_no_names(text):
    with pytest.raises(UserError, match=r"^no benchmark; pass all, .* alpaca, code_alpaca"):
        parse_names(text)


def test_files_as_benchmarks(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(Path("my.v2.jsonl"), TURNS)
    assert parse_names("my.v2.jsonl,alpaca,./my.v2.jsonl") == ("my.v2.jsonl", "alpaca")
    # In a user's file, categories are not groups.
    assert load("my.v2.jsonl", Path("no directory"), 2) == [
        Question("my.v2", "my.v2", (f"q{n}",), f"my.v2.jsonl:{n + 1}") for n in range(2)
    ]
    monkeypatch.setenv("HOME", str(tmp_path))
    assert len(load("~/my.v2.jsonl", None)) == 3
    for ending, name in ((".jsonl.gz", "x"), (".parquet", "x.y"), (".json", "x")):
        (tmp_path / f"{name}{ending}").touch()
        assert find(f"{name}{ending}").name == name
    # A benchmark's name never means a file of that name.
    write(Path("alpaca"), TURNS)
    with pytest.raises(UserError, match=r"^no alpaca\.jsonl in"):
        load("alpaca", tmp_path)


def test_two_of_a_name(tmp_path):
    (tmp_path / "a").mkdir()
    one, other = write(tmp_path / "x.jsonl", TURNS), write(tmp_path / "a" / "x.jsonl", TURNS)
    with pytest.raises(UserError, match=f"^{one} and {other} would both be called x; rename"):
        parse_names(f"{one},{other}")
    named = write(tmp_path / "gsm8k.jsonl", TURNS)
    assert parse_names(str(named)) == (str(named),)
    with pytest.raises(UserError, match=f"^gsm8k and {named} would both be called gsm8k;"):
        parse_names(f"gsm8k,{named}")
    with pytest.raises(UserError, match=f"^{named} and gsm8k would both"):
        parse_names(f"{named},gsm8k")


# Files


def test_a_directory(tmp_path):
    write(tmp_path / "humaneval_eagle.jsonl", TURNS)
    assert load("humaneval", tmp_path)[0].turns == ("q0",)
    prompts = [{"prompt": f"p{n}", "entry_point": "f"} for n in range(2)]
    path = write(tmp_path / "HumanEval.jsonl", prompts)  # preferred over the other
    made = load("humaneval", tmp_path)
    assert [one.raw for one in made] == ["p0", "p1"]
    assert [one.where for one in made] == [f"{path}:1", f"{path}:2"]
    assert {(one.bench, one.group) for one in made} == {("humaneval", "HumanEval")}
    write(tmp_path / "mt_bench.jsonl", TURNS)
    assert {one.group for one in load("mt_bench", tmp_path)} == {"c"}
    (tmp_path / "code_alpaca.json").write_text(json.dumps([{"instruction": "a"}], indent=1))
    assert load("code_alpaca", tmp_path)[0].where == f"{tmp_path / 'code_alpaca.json'}:2"


def test_missing_files(tmp_path):
    for name in parse_names("all"):
        with pytest.raises(UserError, match=f"^no {find(name).files[0]}.* in {tmp_path}; put"):
            load(name, tmp_path)
    with pytest.raises(UserError) as raised:
        load("humaneval", tmp_path)
    assert str(raised.value) == (
        f"no HumanEval.jsonl or humaneval_eagle.jsonl in {tmp_path}; put it there, or pass no "
        "--data-dir, to download hub:openai/openai_humaneval/openai_humaneval/test-*.parquet"
    )
    by_hand = (
        "put question.jsonl of github.com/hemingkx/Spec-Bench into --data-dir as spec_bench.jsonl"
    )
    with pytest.raises(UserError, match=f"^no spec_bench.jsonl in {tmp_path}; {by_hand}$"):
        load("spec_bench", tmp_path)
    with pytest.raises(UserError, match=f"^Spec-Bench is not on the Hugging Face hub; {by_hand}$"):
        load("spec_bench", None)
    with pytest.raises(UserError, match=r"^no gsm8k_test\.jsonl in"):
        load("gsm8k", tmp_path / "none")


def test_limit(tmp_path):
    """Nothing after the limit is read."""
    path = write(tmp_path / "my.jsonl", TURNS)
    with path.open("a") as file:
        file.write('{"turns": ["q3"\n')
    assert [one.turns[0] for one in load(str(path), None, 2)] == ["q0", "q1"]
    assert len(load(str(path), None, 3)) == 3
    for limit in (4, None):
        with pytest.raises(UserError, match=rf"^{path}:4: broken JSON: "):
            load(str(path), None, limit)
    for limit in (0, -1):
        with pytest.raises(UserError, match=f"at least one question .* not {limit}"):
            load(str(path), None, limit)
    assert len(load(str(write(path, TURNS)), None, 10)) == 3


@pytest.mark.parametrize("content", ["", "\n\n"])
def test_empty_files(tmp_path, content):
    path = tmp_path / "gsm8k_test.jsonl"
    path.write_text(content)
    for name, directory in (("gsm8k", tmp_path), (str(path), None)):
        with pytest.raises(UserError, match=f"^{path} holds no questions; check the file"):
            load(name, directory)


def test_our_own_questions():
    """The first of them are of all kinds; they need neither files nor a network."""
    found = load("questions", None)
    assert len(found) == len({one.turns for one in found}) == 24
    kinds = {one.group for one in found}
    assert len(kinds) == len({one.group for one in found[:4]}) == 4
    assert parse_names("questions,mbpp") == ("questions", "mbpp")
    assert "questions" not in parse_names("all")


def test_plain_text_is_refused(tmp_path):
    path = tmp_path / "my.txt"
    path.write_text("a")
    with pytest.raises(UserError, match=r"my\.txt holds no records; pass a \.jsonl, \.json or"):
        parse_names(str(path))


# The hub


@pytest.mark.long
def test_from_the_hub(tmp_path):
    """In a new process, which reads the hub's settings from its environment."""
    program = """
import dataclasses, json, sys
from dart_jax.programs.command_line import program
from eval.benchmarks.registry import load
with program():
    for name in sys.argv[1:]:
        print(json.dumps([dataclasses.asdict(one) for one in load(name, None)]))
"""

    def lines(*rows):
        return "".join(json.dumps(row) + "\n" for row in rows).encode()

    def table(*rows):
        return parquet(tmp_path, rows)

    content = {
        "tatsu-lab/alpaca": {
            "data/train-00000-of-00001-a0.parquet": table(
                {"instruction": "a", "input": "x", "output": "o", "text": "t"}
            ),
        },
        "sahil2801/CodeAlpaca-20k": {
            "code_alpaca_20k.json": b'[{"instruction": "a", "input": "", "output": "o"}]',
        },
        "openai/openai_humaneval": {
            "openai_humaneval/test-00000-of-00001.parquet": table(
                {"task_id": "0", "prompt": "def f():", "test": "t", "entry_point": "f"}
            ),
        },
        "livecodebench/code_generation_lite": {
            "test5.jsonl": b"!",
            "test6.jsonl": lines({"question_content": "a", "starter_code": "class A:"}),
        },
        "HuggingFaceH4/MATH-500": {
            "test.jsonl": lines({"problem": "a", "solution": "s", "answer": "3"}),
        },
        "google-research-datasets/mbpp": {
            "full/train-00000-of-00001.parquet": b"!",
            "full/test-00000-of-00001.parquet": table(
                {"task_id": 11, "text": "a", "test_list": ["t1", "t2"], "test_setup_code": ""}
            ),
            "sanitized/test-00000-of-00001.parquet": b"!",
        },
        "HuggingFaceH4/mt_bench_prompts": {
            "data/train-00000-of-00001.parquet": b"!",
            "raw/question.jsonl": lines({"prompt": ["a", "b"], "category": "writing"}),
        },
        "openai/gsm8k": {
            "main/train-00000-of-00001.parquet": b"!",
            "main/test-00000-of-00001.parquet": table({"question": "a", "answer": "3"}),
            "socratic/test-00000-of-00001.parquet": b"!",
        },
    }
    names = (*PAPER, "gsm8k")
    assert {"/".join(str(find(name).hub).split("/")[:2]) for name in names} == set(content)
    with local_hub.serve() as served:
        for repository, files in content.items():
            served.repositories[f"datasets/{repository}"] = {"README.md": b"#"} | files

        def ask(*names, endpoint=served.address):
            return subprocess.run(
                [sys.executable, "-c", program, *names],
                capture_output=True,
                text=True,
                timeout=120,
                env=local_hub.environment(tmp_path / "home", endpoint),
            )

        done = ask(*names)
        assert done.returncode == 0, done.stderr
        made = [json.loads(line) for line in done.stdout.splitlines()]
        good = [path for files in content.values() for path in files if files[path] != b"!"]
        assert sorted(served.fetched) == sorted(good)

        # Without a network, downloaded files are enough; others are reported in one line.
        unreachable = "http://127.0.0.1:9"
        again = ask("gsm8k", endpoint=unreachable)
        assert json.loads(again.stdout) == made[-1], again.stderr
        del served.repositories["datasets/openai/gsm8k"]
        (tmp_path / "home").rename(tmp_path / "other")
        missing = ask("gsm8k")
        assert missing.returncode == 2
        assert missing.stderr.splitlines()[-1].endswith(
            "; to read a local gsm8k_test.jsonl, pass --data-dir"
        )
        assert "no repository openai/gsm8k" in missing.stderr

    assert [len(found) for found in made] == [1] * len(names)
    found = {name: one for name, (one,) in zip(names, made, strict=True)}
    assert all(one["bench"] == name for name, one in found.items())
    group = {name: BENCHMARKS[name].title for name in names} | {"mt_bench": "writing"}
    assert {name: one["group"] for name, one in found.items()} == group
    assert found["mt_bench"]["turns"] == ["a", "b"]
    assert found["alpaca"]["turns"] == ["a\n\nx"]
    assert found["code_alpaca"]["turns"] == found["gsm8k"]["turns"] == ["a"]
    assert found["humaneval"]["raw"] == "def f():"
    assert found["humaneval"]["turns"][0].endswith("```python\ndef f():\n```")
    assert found["livecodebench"]["turns"][0].endswith("```python\nclass A:\n```")
    assert found["mbpp"]["turns"][0].endswith("```python\nt1\nt2\n```")
    assert found["math500"]["turns"][0].endswith(r"\boxed{}.")
    assert found["math500"]["where"].endswith("/test.jsonl:1")
    assert found["gsm8k"]["where"].endswith("/main/test-00000-of-00001.parquet, row 1")


# Prompts


@pytest.fixture(scope="module")
def thinking(tmp_path_factory):
    directory = tmp_path_factory.mktemp("thinking")
    tokenizers_made.write_chat(directory, tokenizers_made.byte_level(), tokenizers_made.THINKING)
    return Tokenizer.load(directory)


def said(tokenizer, made, answers=(), thinking=False):
    """Returns the prompt as text."""
    ids = prompt_tokens(made, answers, tokenizer, thinking)
    assert ids.dtype == np.int32
    assert ids.ndim == 1
    return tokenizer.decode(ids, skip_special_tokens=False)


HEADER = "<|im_start|>assistant\n"
NO_THOUGHT = "<think>\n\n</think>\n\n"


def test_prompts_in_a_template(thinking):
    two = question("one?", "two?", raw="not this")
    first = f"<|im_start|>user\none?<|im_end|>\n{HEADER}"
    assert said(thinking, two, thinking=True) == first
    assert said(thinking, two, thinking=False) == first + NO_THOUGHT
    second = f"{first}one.<|im_end|>\n<|im_start|>user\ntwo?<|im_end|>\n{HEADER}"
    assert said(thinking, two, ["one."], thinking=True) == second
    assert said(thinking, two, ["one."], thinking=False) == second + NO_THOUGHT
    # The template drops earlier thinking.
    assert said(thinking, two, ["<think>\nhm\n</think>\n\none."], thinking=True) == second
    three = question("1", "2", "3")
    assert "2<|im_end|>\n<|im_start|>assistant\nb<|im_end|>\n<|im_start|>user\n3" in said(
        thinking, three, ("a", "b")
    )


def test_what_is_before_the_first_turn(thinking):
    two = Question("b", "b", ("one?", "two?"), "f:1", before=(SYSTEM, *alternating(["q", "r"])))
    text = said(thinking, two)
    assert text.startswith("<|im_start|>system\ns<|im_end|>\n<|im_start|>user\nq<|im_end|>\n")
    assert text.count("one?") == 1
    assert said(Tokenizer(tokenizers_made.byte_level()), two) == "s\n\nq\n\nr\n\none?"


def test_plain_prompts():
    bare = Tokenizer(tokenizers_made.byte_level())
    for on in (True, False):
        two = question("one?", "two?\n")
        assert said(bare, two, thinking=on) == "one?"
        assert said(bare, two, ["one."], thinking=on) == "one?\n\none.\n\ntwo?\n"
        assert said(bare, question("Complete ..", raw="\ndef f():\n"), thinking=on) == (
            "\ndef f():\n"
        )
    # With the tokenizer's special tokens.
    spaced = Tokenizer(tokenizers_made.byte_fallback())
    ids = prompt_tokens(question("hello"), (), spaced, False).tolist()
    assert ids == spaced.encode("hello")
    assert ids[0] == spaced.backend.token_to_id("<s>")


def test_a_turn_that_is_not_there(thinking):
    with pytest.raises(ValueError, match="1 answers leave none of 1 turns"):
        prompt_tokens(question("a"), ["b"], thinking, False)


# Real data

# Name or file -> questions, turns of the first one, groups, and digests of the first and the last.
PUBLISHED = {
    "alpaca": (80, 1, 1, "357e06817f6d", "7b5783c21f5f"),
    "code_alpaca": (4535, 1, 1, "778615ae64c3", "2620a6c53ccf"),
    "humaneval": (164, 1, 1, "0a766cfdebb2", "adb7907d324d"),
    "math500": (500, 1, 1, "6f533ecff8ed", "b71d8f5587bb"),
    "mbpp": (974, 1, 1, "ba5f22202497", "ce659399a288"),
    "mt_bench": (80, 2, 8, "67e3d7eb82a7", "8069a7907e16"),
    "gsm8k": (1319, 1, 1, "2b2e3f9639f6", "d633d02dadf2"),
    "spec_bench": (480, 2, 13, "67e3d7eb82a7", "6b27fec4682d"),
    "humaneval_eagle.jsonl": (80, 1, 1, "973446671fd6", "416875deb155"),
    "gsm8k_train.jsonl": (7473, 1, 1, "73429d562982", "b35fb9886951"),
}


def digest(one):
    return hashlib.sha256("\0".join(one.turns).encode()).hexdigest()[:12]


@pytest.mark.skipif(not BENCH, reason="DART_BENCH names no directory")
@pytest.mark.parametrize("name", PUBLISHED)
def test_published_data(thinking, name):
    directory = Path(str(BENCH))
    questions = load(name if name in BENCHMARKS else str(directory / name), directory)
    groups = {one.group for one in questions}
    ends = digest(questions[0]), digest(questions[-1])
    assert (len(questions), len(questions[0].turns), len(groups), *ends) == PUBLISHED[name]
    for one in questions[:20]:
        assert f"\n{one.turns[0]}<|im_end|>" in said(thinking, one)


@pytest.mark.skipif(not BENCH, reason="DART_BENCH names no directory")
def test_published_turns():
    assert BENCH is not None
    mt_bench = load("mt_bench", Path(BENCH))
    assert {len(one.turns) for one in mt_bench} == {2}
    spec_bench = load("spec_bench", Path(BENCH))
    assert [len(one.turns) for one in spec_bench] == [2] * 80 + [1] * 400
    assert [one.turns for one in spec_bench[:80]] == [one.turns for one in mt_bench]
    assert all(one.raw for one in load("humaneval", Path(BENCH)))
