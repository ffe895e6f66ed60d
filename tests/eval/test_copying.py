"""Benchmarks whose answers repeat their prompts."""

import io
import json
import re

import jsonschema
import numpy as np
import pytest
import tokenizers_made
from rich.console import Console

from dart_jax.data.records import Record
from dart_jax.errors import UserError
from dart_jax.model import DEMO
from dart_jax.text.tokenizer import Tokenizer
from eval.benchmarks.copying import editing
from eval.benchmarks.made import ORDERS
from eval.benchmarks.prompts import first_prompts, question_prompts
from eval.benchmarks.questions import prompt_tokens
from eval.benchmarks.registry import load, load_all, parse_names
from eval.speedup.config import SpeedupConfig
from eval.speedup.program import Speedup, title_of

CODE = 'import re\n\n\ndef f(values, n):\n    """Say n. """\n'
BODY = "    return values[n]\n"

# Calls and results as Qwen's template shows them, in short.
CALLS = """{% for tool in tools or [] %}{{ tool | tojson }};{% endfor %}
{% for message in messages %}<{{ message.role }}>{{ message.content }}
{%- for call in message.tool_calls %}{{ call.function.name }} {{ call.function.arguments | tojson }}
{%- endfor %}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"""


@pytest.fixture(scope="module")
def bare():
    return Tokenizer.load(DEMO / "target")


@pytest.fixture
def of_template(tmp_path):
    """Returns a function that makes a tokenizer with a chat template."""

    def make(template):
        tokenizers_made.write_chat(tmp_path, tokenizers_made.byte_level(), template)
        return Tokenizer.load(tmp_path)

    return make


def said(tokenizer, question):
    ids = prompt_tokens(question, (), tokenizer, thinking=False)
    return tokenizer.decode(ids, skip_special_tokens=False)


def problem(number, code=CODE):
    value = {"task_id": f"HumanEval/{number}", "prompt": code, "canonical_solution": BODY}
    return Record("f:7", value | {"entry_point": "f"}, 0)


def test_names(bare, tmp_path):
    """What is not found is left out of the group, but not if it is named."""
    assert parse_names("copy") == (
        *("summarization", "rag", "second_turns", "editing", "extraction", "tool_calls"),
    )
    questions, left_out = load_all("copy", bare, tmp_path, 3)
    assert {name: len(some) for name, some in questions.items()} == {
        "extraction": 3,
        "tool_calls": 3,
    }
    assert [line.split(":")[0] for line in left_out] == list(parse_names("copy")[:4])
    with pytest.raises(UserError, match=r"^no spec_bench\.jsonl in .*; put question\.jsonl of"):
        load_all("rag,extraction", bare, tmp_path, 3)


def test_categories(tmp_path, bare):
    records = [{"turns": ["a"], "category": name} for name in ("rag", "qa", "summarization", "rag")]
    path = tmp_path / "spec_bench.jsonl"
    path.write_text("\n".join(map(json.dumps, records)))
    assert [one.where for one in load("rag", tmp_path)] == [f"{path}:1", f"{path}:4"]
    [summary] = load("summarization", tmp_path)
    assert (summary.group, said(bare, summary)) == ("Summarization", "a\n\nSummary:")


def test_second_turns(tmp_path, bare):
    records = [{"turns": [f"one {n}?", "two?"][: 1 + n]} for n in range(2)]
    (tmp_path / "mt_bench.jsonl").write_text("\n".join(map(json.dumps, records)))
    asked = []

    def answer(prompt):
        asked.append(bare.decode(prompt))
        return np.array(bare.encode("yes."))

    questions = load("second_turns", tmp_path)
    [prompt] = question_prompts(questions, bare, answer, thinking=False)
    assert asked == ["one 1?"]
    assert (prompt.text, bare.decode(prompt.tokens)) == ("two?", "one 1?\n\nyes.\n\ntwo?")
    with (
        pytest.warns(UserWarning, match="second_turns is left out: nothing here answers"),
        pytest.raises(UserError, match=r"^second_turns has no first turns"),
    ):
        first_prompts("second_turns", bare, tmp_path, 3)


@pytest.mark.parametrize(
    ("number", "code", "group", "task"),
    [
        (0, CODE, "rename", "Rename the parameter `values` of `f` to `given`"),
        (1, CODE, "docstring", "Add a docstring to `f`"),
        (2, CODE, "type hints", "Add type hints to `f`"),
        (5, CODE.replace("n)", "n: int)"), "type hints", "Remove the type hints from `f`"),
    ],
)
def test_editing(bare, number, code, group, task):
    question = editing(problem(number, code), "b", "B")
    shown = code.replace('    """Say n. """\n', "") if group == "docstring" else code
    turn = f"{task}. Answer with the whole code.\n\n```python\n{shown}{BODY}```"
    assert (question.group, question.turns) == (group, (turn,))
    assert said(bare, question) == f"{turn}\n\nAnswer:\n\n```python\n"


@pytest.mark.parametrize("value", [[], {}, {"prompt": CODE}, problem(0, "def g(:").value])
def test_bad_problems(value):
    with pytest.raises(UserError, match=r"^f:7: no problem of HumanEval with a solution"):
        editing(Record("f:7", value, 0), "b", "B")


@pytest.mark.parametrize("name", ["extraction", "tool_calls"])
def test_made_questions_are_the_same_every_time(name):
    every = load(name, None)
    assert every == load(name, None)
    assert len({one.turns for one in every}) == len(every) == 80
    beginning = {
        "extraction": "Write every order in this letter as JSON:\n\nOrder A2657 is from Anna Eriks",
        "tool_calls": '{"number": "A1072", "customer": "Elena Grant", "email": "elena.grant@examp',
    }
    assert every[0].turns[0].startswith(beginning[name])


def test_tools_return_records_of_the_schema():
    for question in load("tool_calls", None):
        jsonschema.validate({"orders": [json.loads(question.turns[0])]}, ORDERS)
        parameters = {tool["function"]["name"]: tool["function"] for tool in question.tools}
        calls = [each["tool_calls"][0] for each in question.before if "tool_calls" in each]
        assert len(calls) in (3, 5)
        for call in calls:
            function = call["function"]
            jsonschema.validate(function["arguments"], parameters[function["name"]]["parameters"])
        assert question.sender["tool_call_id"] == calls[-1]["id"]


def test_calls_in_a_template(of_template):
    question = load("tool_calls", None, 1)[0]
    text = said(of_template(CALLS), question)
    assert text.startswith('{"type": "function", "function": {"name": "get_order"')
    assert '<assistant>get_order {"number": "A1072"}<tool>' in text
    assert text.endswith(f"<tool>{question.turns[0]}<assistant>")
    as_text = said(of_template(CALLS.replace("arguments | tojson", "arguments")), question)
    assert '<assistant>get_order {"number": "A1072"}<tool>' in as_text


@pytest.mark.parametrize("template", [tokenizers_made.TURNS, None])
def test_calls_as_text(of_template, bare, template):
    """Where there is no template, or it shows no calls."""
    question = load("tool_calls", None, 1)[0]
    text = said(bare if template is None else of_template(template), question)
    messages = text.split("<|im_start|>" if template else "\n\n")
    call = '{"name": "get_order", "arguments": {"number": "A1072"}}'
    if template is None:
        assert messages[0].startswith('Tools:\n{"name": "get_order"')
        assert messages[-2:] == [call, question.turns[0]]
    else:
        assert messages[1].startswith('user\nTools:\n{"name": "get_order"')
        assert messages[-3:] == [
            f"assistant\n{call}<|im_end|>\n",
            f"user\n{question.turns[0]}<|im_end|>\n",
            "assistant\n",
        ]


@pytest.mark.long
def test_texts_follow_their_benchmarks_schema(tmp_path):
    """With all methods, and not those of other benchmarks in the same run."""
    other = tmp_path / "other.jsonl"
    other.write_text(json.dumps({"prompt": "def f(x):"}))
    config = SpeedupConfig(
        model="demo",
        method="pld",
        bench=f"extraction,{other}",
        prompts=1,
        repeats=1,
        max_new_tokens=24,
    )
    speedup = Speedup(config, Console(file=io.StringIO()))
    followed = []
    for workload in speedup.workloads:
        setting = speedup.setting(workload, config.samplings[0], 1)
        assert [row.identical for row in setting.all.values()] == [1, 1]
        decode = speedup.decoder("pld", setting.trees["pld"], workload, config.samplings[0])
        tokens = decode([workload.prompts[0].tokens], 24, 0).tokens[0]
        text = speedup.models["pld"].tokenizer.decode(tokens)
        titled = title_of(config, setting).count("texts follow the benchmark's schema")
        followed.append((re.match(r'\{\s*"orders"', text) is not None, titled))
    assert followed == [(True, 1), (False, 0)]
