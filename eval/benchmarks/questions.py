"""Questions of benchmarks: what the user says, turn by turn, from records of many forms.

Every record is taken by the first of these that its fields fit:

    {"turns": ["..", ".."]}                            MT-bench as FastChat and EAGLE keep it
    {"prompt": ["..", ".."]}                           MT-bench on the Hugging Face hub
    {"prompt": "..", "entry_point": ".."}              HumanEval
    {"text": "..", "test_list": ["..", ..]}            MBPP; `prompt` where it is sanitized
    {"question_content": "..", "starter_code": ".."}   LiveCodeBench; there may be no code
    {"instruction": "..", "input": ".."}               Alpaca, CodeAlpaca; there may be no input
    {"problem": ".."}                                  MATH-500
    {"question": ".."}                                 GSM8K
    {"prompt": ".."}                                   any other, taken as it is
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from dart_jax.data.records import Record, kind
from dart_jax.errors import UserError
from dart_jax.text.tokenizer import Tokenizer

# All that is read of a record; the rest, such as the tests of LiveCodeBench, may be large.
FIELDS = (
    "turns",
    "prompt",
    "entry_point",
    "text",
    "test_list",
    "question_content",
    "starter_code",
    "instruction",
    "input",
    "problem",
    "question",
    "category",
)

_FUNCTION = "Complete this Python function. Answer with the whole function."
_TESTS = "Write it in Python, so that these tests pass:"
_STEPS = r"Reason step by step and put the final answer in \boxed{}."
_STARTER = "Solve this in Python. Go on from this code:"
_PROGRAM = (
    "Solve this with a Python program that reads its input from stdin and writes its output to "
    "stdout."
)


@dataclasses.dataclass(frozen=True)
class Question:
    """One item of a benchmark.

    Attributes:
      bench: the benchmark's name.
      group: the category where the benchmark has some, else its title.
      turns: what the user says, in turn; the model answers each.
      where: file and line, for errors.
      raw: the text to go on from, for models without a chat template; None: what the user says.
    """

    bench: str
    group: str
    turns: tuple[str, ...]
    where: str
    raw: str | None = None


def read_question(record: Record, bench: str, title: str, by_category: bool = False) -> Question:
    """What a record asks.

    Args:
      record: of one of the forms above.
      bench: the benchmark's name.
      title: the group of a record without a category.
      by_category: whether categories are groups.

    Raises:
      UserError: it fits none of the forms, or only almost; says where.
    """
    value = record.value
    try:
        if not isinstance(value, dict):
            raise UserError(f"a record must be an object, not {kind(value)}")
        # Parquet fills the fields that a record lacks.
        fields = {name: field for name, field in value.items() if field is not None}
        turns, raw = _asked(fields)
    except UserError as error:
        raise UserError(f"{record.where}: {error}") from None
    category = fields.get("category") if by_category else None
    group = category if isinstance(category, str) and category.strip() else title
    return Question(bench, group, turns, record.where, raw)


def tokens(
    question: Question, answers: Sequence[str], tokenizer: Tokenizer, thinking: bool
) -> np.ndarray:
    """The prompt of a turn, int32 [P]: in the tokenizer's chat template, or plain where none is.

    Args:
      question: what is asked.
      answers: to the turns before, so their number says which turn it is.
      tokenizer: the target's.
      thinking: the template's `enable_thinking`; nothing to a template that does not know it.

    Raises:
      UserError: the template refuses the messages.
    """
    turn = len(answers)
    if turn >= len(question.turns):
        raise ValueError(f"{turn} answers leave none of {len(question.turns)} turns to ask")
    said = [text for pair in zip(question.turns, answers, strict=False) for text in pair]
    said.append(question.turns[turn])
    if tokenizer.chat_template:
        roles = ("user", "assistant")
        messages = [{"role": roles[n % 2], "content": text} for n, text in enumerate(said)]
        ids = tokenizer.encode_chat(messages, enable_thinking=thinking)
    else:
        ids = tokenizer.encode("\n\n".join(said) if question.raw is None else question.raw)
    return np.array(ids, np.int32)


def _asked(record: dict[str, Any]) -> tuple[tuple[str, ...], str | None]:
    """The turns, and the text to go on from: only HumanEval's prompts are made for that."""
    match record:
        case {"turns": _}:
            return _texts(record, "turns"), None
        case {"prompt": list()}:
            return _texts(record, "prompt"), None
        case {"prompt": prompt, "entry_point": _}:
            return (_humaneval(record),), prompt
        case {"text": _, "test_list": _}:
            turn = _mbpp(record, "text")
        case {"prompt": _, "test_list": _}:
            turn = _mbpp(record, "prompt")
        case {"question_content": _}:
            turn = _livecodebench(record)
        case {"instruction": _}:
            turn = _alpaca(record)
        case {"problem": _}:
            turn = _math(record)
        case {"question": _}:
            turn = _text(record, "question")
        case {"prompt": _}:
            turn = _text(record, "prompt")
        case _:
            fields = ", ".join(map(str, list(record)[:8])) or "none"
            raise UserError(
                f"no question of a form that is known; it has the fields {fields}; `turns` or "
                "`prompt` would do"
            )
    return (turn,), None


def _humaneval(record: dict[str, Any]) -> str:
    return f"{_FUNCTION}\n\n{_fenced(_text(record, 'prompt'))}"


def _mbpp(record: dict[str, Any], task: str) -> str:
    tests = "\n".join(_texts(record, "test_list"))
    return f"{_text(record, task)}\n\n{_TESTS}\n\n{_fenced(tests)}"


def _livecodebench(record: dict[str, Any]) -> str:
    code = _text(record, "starter_code", optional=True)
    how = f"{_STARTER}\n\n{_fenced(code)}" if code.strip() else _PROGRAM
    return f"{_text(record, 'question_content')}\n\n{how}"


def _alpaca(record: dict[str, Any]) -> str:
    instruction, more = _text(record, "instruction"), _text(record, "input", optional=True)
    return f"{instruction}\n\n{more}" if more.strip() else instruction


def _math(record: dict[str, Any]) -> str:
    return f"{_text(record, 'problem')}\n\n{_STEPS}"


def _fenced(code: str) -> str:
    code = code.lstrip("\r\n").rstrip()
    return f"```python\n{code}\n```"


def _text(record: dict[str, Any], field: str, optional: bool = False) -> str:
    if optional and field not in record:
        return ""
    return _checked(record[field], f"`{field}`", optional)


def _texts(record: dict[str, Any], field: str) -> tuple[str, ...]:
    texts = record[field]
    if not isinstance(texts, list) or not texts:
        what = "empty" if texts == [] else kind(texts)
        raise UserError(f"`{field}` must be a list of strings, not {what}")
    return tuple(_checked(text, f"`{field}`, number {n},") for n, text in enumerate(texts, 1))


def _checked(text: Any, name: str, blank: bool = False) -> str:
    if not isinstance(text, str):
        raise UserError(f"{name} must be a string, not {kind(text)}")
    if not blank and not text.strip():
        raise UserError(f"{name} is empty")
    try:
        text.encode()
    except UnicodeEncodeError:
        # JSON can hold these, but no tokenizer takes them.
        raise UserError(f"{name} holds half of a surrogate pair; replace it") from None
    return text
