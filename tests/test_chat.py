"""A conversation in the terminal."""

import dataclasses
import io
import os
import pty
import select
import subprocess
import sys
import time

import pytest
from chat_demo import write_chat_target
from rich.console import Console

from dart_jax import generate
from dart_jax.errors import UserError
from dart_jax.generate import GenerateConfig, talk
from dart_jax.generation import GenerationConfig
from dart_jax.model import DEMO, DartModel
from dart_jax.named.models import MODELS

TEMPLATE = (
    "{% for m in messages %}# {{ m.role }}: {{ m.content }}\n{% endfor %}# assistant:"
    "{% if shout %}!{% endif %}"
)
SHORT = GenerationConfig(max_new_tokens=6)


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return write_chat_target(tmp_path_factory.mktemp("chat"), TEMPLATE)


@pytest.fixture(scope="module")
def model(directory):
    return DartModel.from_pretrained(directory, DEMO / "drafter", DEMO / "ngram.dng")


def conversation(model, *lines, config=SHORT, system=None, template=None, stopped=()):
    """Types lines; returns the answers, of which some are stopped, the notices, and what is left
    to type."""
    left, answers, err = list(lines), [], Console(file=io.StringIO(), width=200)

    def read(prompt):
        if not left:
            raise EOFError
        return left.pop(0)

    def answer(generation):
        stops = len(answers) in stopped
        answers.append(next(generation) if stops else "".join(generation))
        if stops:
            raise KeyboardInterrupt

    talk(model, config, system, template or {}, read, answer, err)
    return answers, err.file.getvalue(), left


def said(*turns, system=None):
    chat = [] if system is None else [{"role": "system", "content": system}]
    for n, text in enumerate(turns):
        chat.append({"role": ("user", "assistant")[n % 2], "content": text})
    return chat


def test_every_turn_sees_the_ones_before(model):
    """Since the last reset; lines are stripped, empty ones asked for again."""
    lines = ("heap?", "  list? ", "", "/reset", "list?", "/exit", "never")
    template = {"shout": True}
    (first, second, third), notices, left = conversation(
        model, *lines, system="Brief.", template=template
    )
    for text, *turns in ((first, "heap?"), (second, "heap?", first, "list?"), (third, "list?")):
        chat = said(*turns, system="Brief.")
        assert text == model.generate(chat, SHORT, chat_template_kwargs=template).text
    assert left == ["never"]
    assert "/reset begins anew" in notices


def test_a_command_that_does_not_exist_lists_those_that_do(model):
    (only,), notices, _ = conversation(model, "/help", "/usr/bin?", "/quit")
    assert only == model.generate(said("/usr/bin?"), SHORT).text
    assert notices.count("/reset begins anew, /exit or Ctrl-D ends") == 3


def test_an_answer_can_be_stopped(model):
    config = GenerationConfig(max_new_tokens=20)
    (first, second), notices, _ = conversation(model, "heap?", "list?", config=config, stopped=[0])
    assert "stopped" in notices
    assert model.generate(said("heap?"), config).text.startswith(first)
    assert second  # the conversation goes on


def test_a_conversation_that_is_too_long(model):
    (first, second), notices, _ = conversation(model, "heap?", "x " * 3000, "list?")
    assert "leaves no room" in notices
    assert second == model.generate(said("heap?", first, "list?"), SHORT).text


def test_a_model_that_cannot_chat():
    with pytest.raises(UserError, match="no chat template"):
        conversation(DartModel.demo(), "heap?")


def test_options_on_top_of_the_targets_own(directory):
    model = DartModel.from_pretrained(directory)
    (directory / "generation_config.json").write_text(
        '{"do_sample": true, "temperature": 0.6, "top_k": 20, "eos_token_id": 0}'
    )
    plain = GenerateConfig(generation=GenerationConfig(top_p=0.5))
    assert generate.options(plain, model) == plain.generation
    for given, expected in (
        ({"top_p": 0.5}, {"temperature": 0.6, "top_p": 0.5, "do_sample": True}),
        ({"temperature": 0.2}, {"temperature": 0.2, "do_sample": None}),
    ):
        config = GenerateConfig(use_generation_config=True, generation=GenerationConfig(**given))
        union = generate.options(config, model)
        assert union == GenerationConfig(top_k=20, eos_token_id=0, **expected)


def test_chats_with_a_named_model_have_its_options(model):
    """Unless a temperature is given; what else is given comes first. Texts are greedy."""
    own = MODELS["smollm2"].options
    given = {}, {"top_p": 0.5}, {"temperature": 0.0}, {"temperature": 1.0}
    for options in given:
        config = GenerateConfig(model="smollm2", chat=True, generation=GenerationConfig(**options))
        expected = options if "temperature" in options else {**own, **options}
        assert generate.options(config, model) == GenerationConfig(**expected)
        text = dataclasses.replace(config, chat=False)
        assert generate.options(text, model) == config.generation


@pytest.mark.long(ci=True)
def test_in_a_terminal(directory):
    """Two turns, then Ctrl-D."""
    own, other = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "dart_jax.generate", "--chat", "--target", str(directory)],
        stdin=other,
        stdout=other,
        stderr=other,
        start_new_session=True,
        env=os.environ | {"TERM": "dumb", "COLUMNS": "200"},
    )
    os.close(other)
    screen = ""

    def wait(words):
        nonlocal screen
        end = time.monotonic() + 120
        while words not in screen:
            assert time.monotonic() < end, (words, screen)
            if select.select([own], [], [], 1)[0]:
                screen += os.read(own, 4096).decode()
        _, _, screen = screen.partition(words)

    try:
        for line in (b"heap?\n", b"list?\n", b"\x04"):
            wait("> ")
            os.write(own, line)
            if line != b"\x04":
                wait("tokens/s")
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
        os.close(own)
