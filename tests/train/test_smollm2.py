"""Questions, the time of answers, and the whole program on the demo's target."""

import functools
import io
import json
import time
from pathlib import Path

import chat_demo
import pytest

from dart_jax.decoding.drafting import drafter_title
from dart_jax.errors import UserError
from dart_jax.model import DartModel
from dart_jax.models.drafter_config import DartConfig, Eagle3Config
from train.recipes import smollm2_stages as smollm2
from train.recipes.config import SmolLM2Config
from train.recipes.questions import benchmark_questions, write_questions
from train.recipes.smollm2_stages import run

CHATS = [
    {"instruction": "Write a haiku about the sea.", "input": "", "output": "x"},
    {"instruction": "Name the capital of the country.", "input": "France", "output": "x"},
    {"question": "Tom has 3 apples and buys 4. How many has he?", "answer": "7"},
    {"messages": [{"role": "user", "content": "¿Qué pasó? Él salió más allá, señor."}]},
    {
        "conversations": [
            {"from": who, "value": f"{n}: explain recursion to a child"}
            for n in range(5)
            for who in ("human", "gpt")
        ]
    },
]
TEMPLATE = "{% for m in messages %}{{ m.role + ': ' + m.content + '\n' }}{% endfor %}"


def write(path, records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def questions(sources, left_out=(), seed=0):
    out = io.BytesIO()
    count = write_questions(sources, out, left_out=left_out, seed=seed)
    lines = [json.loads(line)["messages"] for line in out.getvalue().splitlines()]
    assert len(lines) == count
    assert all(message["content"] == "." for chat in lines for message in chat[1::2])
    return [[message["content"] for message in chat[::2]] for chat in lines]


def test_questions_are_english_turns_of_users(tmp_path):
    """Sources take turns, and what begins as a benchmark's questions do is left out."""
    file = write(tmp_path / "chats.jsonl", CHATS * 2)  # duplicates are left out
    found = questions([[file]])
    assert sorted(map(len, found)) == [1, 1, 1, 3]
    firsts = {chat[0] for chat in found}
    assert "Write a haiku about the sea." in firsts
    assert not any("señor" in first for first in firsts)
    assert questions([[file]], seed=1) != found
    assert sorted(questions([[file]], seed=1)) == sorted(found)
    spanish = write(tmp_path / "spanish.jsonl", [CHATS[3]])
    with pytest.raises(UserError, match=r"no English question in .*spanish\.jsonl; leave it out"):
        questions([[file], [spanish]])
    bench = [
        {"turns": ["name the CAPITAL of  the country."]},
        {"query": "2: explain recursion to a child"},
    ]
    found = questions([[file]], benchmark_questions([write(tmp_path / "bench.jsonl", bench)]))
    assert sorted(map(len, found)) == [1, 1, 2]
    assert not any("capital" in turn for chat in found for turn in chat)
    counts = [{"instruction": f"Count up to {n}, please.", "output": "x"} for n in range(9)]
    firsts = [chat[0] for chat in questions([[write(tmp_path / "many.jsonl", counts)], [file]])]
    assert [first.startswith("Count") for first in firsts] == [True, False] * 4 + [True] * 5


def test_the_time_of_answers_outlasts_an_interruption(tmp_path, monkeypatch):
    given = []

    def answering(config):
        given.append(config.minutes)
        time.sleep(0.3)
        if len(given) == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(smollm2, "regenerate", answering)
    config = SmolLM2Config(minutes=10, work=tmp_path)
    answer = functools.partial(smollm2._answer, config, tmp_path / "q", tmp_path / "a", 4, 8)
    with pytest.raises(KeyboardInterrupt):
        answer()
    for _ in range(2):  # the second finds it done
        answer()
    whole = 10 * smollm2._PARTS["answers"]
    assert given == [whole, pytest.approx(whole - 0.3 / 60, abs=0.003)]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"minutes": 0}, "--minutes must be a finite number above 0"),
        ({"minutes": 1, "no_sharegpt": True}, "no questions: pass --data"),
        ({"minutes": 1, "draft_vocab": -1}, "--draft-vocab must be at least 0"),
        ({"minutes": 1, "seed": 2**32}, "--seed must be in"),
        ({"minutes": 1, "export": Path("build/smollm2")}, "--export and --work must be different"),
    ],
)
def test_options_that_cannot_be_used(options, words):
    with pytest.raises(UserError, match=words):
        SmolLM2Config(**options)


@pytest.mark.long
def test_everything_is_made_once(tmp_path):
    target = chat_demo.write_chat_target(tmp_path, TEMPLATE)
    sums = (f"Write a function that adds {n} to x." for n in range(40))
    chats = [{"instruction": each, "output": "x"} for each in sums]
    data = write(tmp_path / "chats.jsonl", chats)
    config = SmolLM2Config(
        minutes=0.3,
        work=tmp_path / "work",
        export=tmp_path / "export",
        target=str(target),
        data=(str(data),),
        no_sharegpt=True,
        draft_vocab=512,
    )
    run(config)
    export = config.export
    model = DartModel.from_pretrained(target, export / "drafter", export / "ngram.dng")
    assert isinstance(model.drafter, DartConfig)
    assert model.drafter.pair_rank
    assert model.drafter.draft_vocab_size == 512
    assert model.drafter.sliding_window == 256
    eagle3 = model.with_drafter(export / "eagle3")
    assert isinstance(eagle3.drafter, Eagle3Config)
    dspark = model.with_drafter(export / "dspark")
    assert drafter_title(dspark.drafter) == "DSpark"
    plain = model.with_drafter(None).generate("def f(x):", max_new_tokens=16)
    for each in (model, eagle3, dspark):
        assert each.generate("def f(x):", max_new_tokens=16).text == plain.text
    made = {path: path.stat().st_mtime_ns for path in config.work.rglob("*.safetensors")}
    run(config)
    assert made == {path: path.stat().st_mtime_ns for path in config.work.rglob("*.safetensors")}
    with pytest.raises(UserError, match="--seed"):
        run(SmolLM2Config(**{**vars(config), "seed": 1}))
