"""`--help` of every program: at once, at any width, and in the same words everywhere."""

import contextlib
import io
import re
import subprocess
import sys
from itertools import pairwise

import pytest
from documents import ROOT

from dart_jax import __main__ as programs
from dart_jax.programs.options import Wrapped

COMMANDS = {name: [name] for name in programs.PROGRAMS}
COMMANDS |= {f"ngram {name}": ["ngram", name] for name in ("count", "info", "query", "convert")}
RECIPES = "train.recipes.smollm2", "train.recipes.demo"
HEAVY = "jax", "flax", "optax", "orbax", "transformers", "torch", "duckdb", "gradio"


def test_help_comes_at_once():
    """None of these is imported, which take a second."""
    code = f"""
import runpy, sys
from dart_jax import __main__ as programs
def ask(main, words):
    sys.argv = ["dart-jax", *words, "--help"]
    try:
        main()
    except SystemExit as end:
        assert not end.code, words
    print(words, *{{*sys.modules}} & {{*{HEAVY}}})
for words in {[*COMMANDS.values()]}:
    ask(programs.main, words)
for module in {RECIPES}:
    ask(programs.find_main(programs.Program(module, "")), [])
"""
    child = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert child.returncode == 0, child.stderr
    assert child.stdout.count("usage: ") == len(COMMANDS) + len(RECIPES)
    lines = [line for line in child.stdout.splitlines() if line.startswith("[")]
    assert lines == [*map(str, COMMANDS.values()), *["[]"] * len(RECIPES)]


def help_of(words, columns, monkeypatch):
    """The description and the boxes of a program's help."""
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setattr(sys, "argv", ["/bin/dart-jax", *words, "--help"])
    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)
    with contextlib.redirect_stdout(out), pytest.raises(SystemExit):
        programs.main()
    lines = out.buffer.getvalue().decode().splitlines()
    boxes = next(n for n, line in enumerate(lines) if line.startswith("╭"))
    assert lines[0].startswith(f"usage: dart-jax {words[0]}")
    return lines[1:boxes], lines[boxes:]


def entries(boxes):
    """Each option's help, as its lines, and the column in which they begin."""
    found, before, lines = {}, {}, []
    indented = [line[2:-1].rstrip() for line in boxes if line.startswith("│    ")]
    begin = min((len(line) - len(line.lstrip()) for line in indented if line), default=0)
    for line in (line[2:-1].rstrip() if line.startswith("│") else line[:2] for line in boxes):
        if line.startswith("   "):
            lines.append(line.strip())
        elif line.startswith("-"):
            option, _, beside = line.partition("  ")
            found[option.split()[0]] = lines = [beside.strip()] if beside else []
        elif line.startswith(("──", "╭")):
            found = before if line.startswith("──") else found  # without a box's description
            before, lines = dict(found), []
    return found, begin


@pytest.mark.parametrize("name", COMMANDS)
def test_help(name, monkeypatch):
    words = {}
    for columns in (60, 80, 120):
        description, boxes = help_of(COMMANDS[name], columns, monkeypatch)
        text = [line for line in description if not line.startswith("    ")]
        assert max(map(len, [*text, *boxes])) <= columns
        assert "\n\n\n" not in "\n".join(description)
        told, begin = entries(boxes)
        assert "-h," in told
        for option, lines in told.items():
            assert lines, f"{option} has no help"
            # Lines end where the next word has no room, and nowhere else.
            for line, after in pairwise(lines):
                assert begin + len(f"{line} {after.split()[0]}") > columns - 6, (line, after)
        words[columns] = {option: "".join(lines).replace(" ", "") for option, lines in told.items()}
    assert words[60] == words[80] == words[120]
    examples = [line.split() for line in description if line.startswith("    ")]
    called = [each for each in examples if each[0] not in ("pip", '{"tokens":')]
    assert all(each[:2] == ["dart-jax", COMMANDS[name][0]] for each in called)
    for option, told in words[120].items():
        if option.startswith("--no-"):
            assert re.match("Donot|.*without", told), f"{option} is told as if it were the contrary"
    titles = [found[1] for line in boxes if (found := re.match("╭─ ([a-z -]+) ─", line))]
    assert "loading options" not in titles[:-1]
    if "--no-text-drafts" in words[120]:
        assert titles[-1] == "loading options"


def test_a_description():
    """Paragraphs fit, and examples stay as they are."""
    long = " ".join(["word"] * 60)
    text = f"First line.\n\n    dart-jax {long}\n    dart-jax\n\n{long}\n--option goes on\n"
    first, example, rest = str(Wrapped(text)).split("\n\n")
    assert (first, example) == ("First line.", f"    dart-jax {long}\n    dart-jax")
    assert rest.replace("\n", " ") == f"{long} --option goes on"
    assert max(map(len, rest.split("\n"))) <= 100
