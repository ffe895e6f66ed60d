"""A conversation in the terminal."""

import io
import os
import pty
import select
import signal
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


class Person:
    """Types lines, and keeps what is answered."""

    def __init__(self, *lines):
        self.lines, self.answers = list(lines), []
        self.err = Console(file=io.StringIO(), width=200)

    def read(self, prompt):
        if not self.lines:
            raise EOFError
        line = self.lines.pop(0)
        if isinstance(line, BaseException):
            raise line
        return line

    def listen(self, generation):
        self.answers.append("".join(generation))

    def talk(self, model, system=None, template=None, config=SHORT):
        talk(model, config, system, template or {}, self.read, self.listen, self.err)
        return self.answers

    @property
    def notices(self):
        return self.err.file.getvalue()


def said(*turns, system=None):
    chat = [] if system is None else [{"role": "system", "content": system}]
    for n, text in enumerate(turns):
        chat.append({"role": ("user", "assistant")[n % 2], "content": text})
    return chat


def test_every_turn_sees_the_ones_before(model):
    first, second = Person("heap?", "  list? ", "").talk(model, "Brief.", {"shout": True})
    options = {"chat_template_kwargs": {"shout": True}}
    chat = said("heap?", system="Brief.")
    assert first == model.generate(chat, SHORT, **options).text
    chat = said("heap?", first, "list?", system="Brief.")
    assert second == model.generate(chat, SHORT, **options).text


def test_reset_and_exit(model):
    person = Person("heap?", "/reset", "list?", "/exit", "never")
    _, second = person.talk(model)
    assert second == model.generate(said("list?"), SHORT).text
    assert person.lines == ["never"]
    assert "/reset begins anew" in person.notices


def test_an_answer_can_be_stopped(model):
    class Impatient(Person):
        def listen(self, generation):
            self.answers.append(next(generation))
            if len(self.answers) == 1:
                raise KeyboardInterrupt

    person = Impatient("heap?", "list?")
    config = GenerationConfig(max_new_tokens=20)
    first, second = person.talk(model, config=config)
    assert "stopped" in person.notices
    start = model.generate(said("heap?"), config).text
    assert start.startswith(first)
    assert second  # the conversation goes on


def test_ctrl_c_between_answers_ends(model):
    with pytest.raises(KeyboardInterrupt):
        Person("heap?", KeyboardInterrupt()).talk(model)


def test_a_conversation_that_is_too_long(model):
    person = Person("heap?", "x " * 3000, "list?")
    answers = person.talk(model)
    assert len(answers) == 2
    assert "leaves no room" in person.notices
    assert answers[1] == model.generate(said("heap?", answers[0], "list?"), SHORT).text


def test_a_model_that_cannot_chat():
    with pytest.raises(UserError, match="no chat template"):
        Person("heap?").talk(DartModel.demo())


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


@pytest.mark.long(ci=True)
def test_in_a_terminal(directory):
    """Two turns, Ctrl-C during a third, Ctrl-D."""
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

    def wait(words, seconds=120):
        nonlocal screen
        end = time.monotonic() + seconds
        while words not in screen:
            assert time.monotonic() < end, (words, screen)
            if select.select([own], [], [], 1)[0]:
                screen += os.read(own, 4096).decode()
        before, _, screen = screen.partition(words)
        return before

    try:
        wait("> ")
        os.write(own, b"heap?\n")
        wait("tokens/s")
        wait("> ")
        os.write(own, b"list?\n")
        wait("tokens/s")
        wait("> ")
        os.write(own, b"\x04")
        assert process.wait(60) == 0
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            process.wait()
        os.close(own)
