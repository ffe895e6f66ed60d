"""Questions whose answers repeat much of their prompts, from records of published benchmarks."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Callable

from dart_jax.data.records import Record
from dart_jax.errors import UserError
from eval.benchmarks.questions import Question, fenced, read_question


def of_category(category: str, answer: str) -> Callable[[Record, str, str], Question | None]:
    """Returns a function that reads the questions of a category, and None from other records;
    errors as for `read_question`. `answer` is what a text to continue has before the answer."""

    def read(record: Record, bench: str, title: str) -> Question | None:
        question = read_question(record, bench, title, by_category=True)
        if question.group != category:
            return None
        raw = "\n\n".join((*question.turns, answer))
        return dataclasses.replace(question, group=title, raw=raw)

    return read


def second_turn(record: Record, bench: str, title: str) -> Question | None:
    """Reads a question of which the turns after the first are prompts; None if it has no others.
    Errors as for `read_question`."""
    question = read_question(record, bench, title)
    return dataclasses.replace(question, first=1) if len(question.turns) > 1 else None


def editing(record: Record, bench: str, title: str) -> Question:
    """Reads a problem of HumanEval with its solution: it is to be rewritten with another name, with
    a docstring, or with type hints or without them, as the problem's number says; these are the
    groups. Raises UserError if the record is no such problem."""
    try:
        fields = record.value
        code = fields["prompt"] + fields["canonical_solution"]
        number = int(fields["task_id"].rpartition("/")[-1])
        function = _function(code, fields["entry_point"])
        argument = function.args.args[0].arg
    except (AttributeError, IndexError, KeyError, SyntaxError, TypeError, ValueError) as error:
        message = "no problem of HumanEval with a solution; check the file"
        raise UserError(f"{record.where}: {message}") from error
    name = f"`{function.name}`"
    match number % 3:
        case 0:
            group = "rename"
            new = next(each for each in _NEW_NAMES if each not in code)
            task = f"Rename the parameter `{argument}` of {name} to `{new}`"
        case 1:
            group, task = "docstring", f"Add a docstring to {name}"
            code = _without_docstring(code, function)
        case _:
            group = "type hints"
            hinted = any(each.annotation for each in function.args.args)
            task = f"{'Remove the type hints from' if hinted else 'Add type hints to'} {name}"
    turn = f"{task}. Answer with the whole code.\n\n{fenced(code)}"
    return Question(bench, group, (turn,), record.where, f"{turn}\n\nAnswer:\n\n```python\n")


_NEW_NAMES = ("values", "given", "source", "argument", "the_first_argument")


def _function(code: str, name: str) -> ast.FunctionDef:
    """Returns the function of a name; raises ValueError without one."""
    for node in ast.parse(code).body:
        if isinstance(node, ast.FunctionDef) and node.name == name:
            return node
    raise ValueError(name)


def _without_docstring(code: str, function: ast.FunctionDef) -> str:
    """Removes the function's first text, which may come after imports."""
    lines = code.splitlines(keepends=True)
    for node in function.body:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            del lines[node.lineno - 1 : node.end_lineno]
            break
    return "".join(lines)
