"""Chats and prompts that the target answers itself, turn by turn."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dart_jax.errors import UserError
from dart_jax.generation import GenerationConfig
from dart_jax.model import DartModel
from dart_jax.text.tokenizer import Tokenizer
from train.data.examples import Chat, Completion, Content, Text, Tokens


class Answer(NamedTuple):
    """What the target wrote.

    Attributes:
      prompt: token ids before it.
      tokens: its own, with the one that ended it.
      finish: `stop`, or `length` where it was cut off.
    """

    prompt: list[int]
    tokens: list[int]
    finish: str


@dataclasses.dataclass
class Dialogue:
    """One record, answered in one way of sampling.

    Attributes:
      where: file and line, for errors.
      digest: of the record.
      sampling: number of the way.
      turns: what is said before each answer: messages, or the tokens of one prompt.
      messages: what was said and answered.
      answers: so far.
    """

    where: str
    digest: int
    sampling: int
    turns: list[list[dict[str, Any]]] | list[list[int]]
    messages: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    answers: list[Answer] = dataclasses.field(default_factory=list)

    def prompt(self, tokenizer: Tokenizer, template_kwargs: Mapping[str, Any]) -> list[int]:
        """Token ids up to where the next answer begins.

        Raises:
          UserError: the chat template refuses the messages, or there is none.
        """
        turn: list[Any] = self.turns[len(self.answers)]
        if isinstance(turn[0], int):
            return turn
        return tokenizer.encode_chat([*self.messages, *turn], **template_kwargs)

    def take(self, answer: Answer, tokenizer: Tokenizer) -> None:
        """The answer to the turn that is due; it takes the place of the record's own."""
        turn: list[Any] = self.turns[len(self.answers)]
        reply = {"role": "assistant", "content": tokenizer.decode(answer.tokens)}
        self.messages += [*turn, reply]
        self.answers.append(answer)

    def end(self) -> None:
        """No further answers."""
        self.turns = self.turns[: len(self.answers)]

    @property
    def due(self) -> bool:
        """Whether there is a turn to answer."""
        return len(self.answers) < len(self.turns)


def turns_of(
    content: Content, tokenizer: Tokenizer
) -> list[list[dict[str, Any]]] | list[list[int]]:
    """What is said before each answer; see `Dialogue`.

    A chat that calls tools is answered up to the first call: what a tool gave fits no other answer.

    Raises:
      UserError: there is nothing to answer.
    """
    match content:
        case Chat(messages):
            turns = _user_turns(messages)
        case Tokens(tokens, length):
            turns = [tokens[:length]]
        case Completion(prompt, _) | Text(prompt):
            turns = [tokenizer.encode(prompt)]
    if not turns or not all(turns):
        raise UserError("there is no prompt in it to answer")
    return turns


def _user_turns(messages: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    turns: list[list[dict[str, Any]]] = [[]]
    for message in messages:
        if message["role"] == "tool" or "tool_calls" in message:
            break
        if message["role"] != "assistant":
            turns[-1].append(message)
        elif turns[-1]:
            turns.append([])
    return [turn for turn in turns if turn and turn[-1]["role"] == "user"]


class Journal:
    """Answers of a block of dialogues, kept as they come, a line each.

    What a killed process left half-written is cut off.
    """

    def __init__(self, path: Path):
        self._path = path
        data = path.read_bytes() if path.is_file() else b""
        data = data[: data.rfind(b"\n") + 1]
        self._found: dict[tuple[int, int], Answer] = {}
        for line in data.splitlines():
            dialogue, turn, *answer = json.loads(line)
            self._found[dialogue, turn] = Answer(*answer)
        self._file = path.open("r+b" if path.is_file() else "wb")
        self._file.seek(len(data))
        self._file.truncate()

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def find(self, dialogues: Sequence[int], turn: int) -> list[Answer] | None:
        """The answers of these dialogues to one turn, if all are there."""
        found = [self._found.get((dialogue, turn)) for dialogue in dialogues]
        answers = [answer for answer in found if answer is not None]
        return answers if len(answers) == len(found) else None

    def add(self, dialogues: Sequence[int], turn: int, answers: Sequence[Answer]) -> None:
        """Keeps them."""
        lines = [
            json.dumps([dialogue, turn, *answer]) + "\n"
            for dialogue, answer in zip(dialogues, answers, strict=True)
        ]
        self._file.write("".join(lines).encode())
        self._file.flush()


@dataclasses.dataclass(frozen=True)
class Answering:
    """Who answers, and how.

    Attributes:
      model: the target, maybe with a drafter.
      samplings: at least one; their seeds are replaced.
      batch: dialogues decoded together.
      template_kwargs: for the chat template.
      unfinished: whether an answer that was cut off is kept; else its dialogue ends before it.
      seed: of all draws.
      bad: is told of a dialogue that the chat template refuses, which ends there.
      too_long: likewise, of one that leaves no room for an answer.
    """

    model: DartModel
    samplings: Sequence[GenerationConfig]
    batch: int
    template_kwargs: Mapping[str, Any]
    unfinished: bool
    seed: int
    bad: Callable[[UserError], None]
    too_long: Callable[[UserError], None]

    def run(self, dialogues: list[Dialogue], block: int, journal: Journal) -> Iterator[int]:
        """Answers all turns; yields how many, every now and then.

        Args:
          dialogues: a block of them.
          block: its number, which the draws depend on.
          journal: of this block.
        """
        for turn in range(max((len(dialogue.turns) for dialogue in dialogues), default=0)):
            prompts = {}
            for n, dialogue in enumerate(dialogues):
                if dialogue.due and (prompt := self._prompt(dialogue)) is not None:
                    prompts[n] = prompt
            for number, chunk in enumerate(self._chunks(dialogues, prompts)):
                answers = journal.find(chunk, turn)
                if answers is None:
                    seed = np.random.SeedSequence([self.seed, block, turn, number])
                    answers = self._decode(
                        [prompts[n] for n in chunk],
                        self.samplings[dialogues[chunk[0]].sampling],
                        int(seed.generate_state(1)[0]),
                    )
                    journal.add(chunk, turn, answers)
                for n, answer in zip(chunk, answers, strict=True):
                    if self.unfinished or answer.finish == "stop":
                        dialogues[n].take(answer, self.model.tokenizer)
                    else:
                        dialogues[n].end()
                yield len(chunk)

    def _prompt(self, dialogue: Dialogue) -> list[int] | None:
        """Of the turn that is due; None if it cannot be answered."""
        longest, vocab_size = self.model.target.max_length, self.model.target.vocab_size
        try:
            prompt = dialogue.prompt(self.model.tokenizer, self.template_kwargs)
            if not 0 <= min(prompt) <= max(prompt) < vocab_size:
                raise UserError(f"the prompt's tokens must be in 0..{vocab_size - 1}")
        except UserError as error:
            dialogue.end()
            self.bad(UserError(f"{dialogue.where}: {error}"))
            return None
        if len(prompt) >= longest:
            dialogue.end()
            reason = f"a prompt of {len(prompt)} tokens leaves no room in {longest} positions"
            self.too_long(UserError(f"{dialogue.where}: {reason}"))
            return None
        return prompt

    def _chunks(
        self, dialogues: list[Dialogue], prompts: dict[int, list[int]]
    ) -> Iterator[list[int]]:
        """Numbers of the dialogues that are decoded together: of like length and one sampling."""
        for sampling in range(len(self.samplings)):
            chosen = [n for n in prompts if dialogues[n].sampling == sampling]
            chosen.sort(key=lambda n: (len(prompts[n]), n))
            for begin in range(0, len(chosen), self.batch):
                yield chosen[begin : begin + self.batch]

    def _decode(
        self, prompts: list[list[int]], config: GenerationConfig, seed: int
    ) -> list[Answer]:
        # A full batch always, so that programs stay few; what is decoded twice is left out.
        full = [*prompts, *[prompts[0]] * (self.batch - len(prompts))]
        made = self.model.generate(full, dataclasses.replace(config, seed=seed))
        return [
            Answer(prompt, completion.tokens.tolist(), completion.finish)
            for prompt, completion in zip(prompts, made[: len(prompts)], strict=True)
        ]
