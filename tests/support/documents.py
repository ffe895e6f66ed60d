"""What the documents say to type, to follow and to import."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]

_FENCE = re.compile(r"^( *)```(\w*)[^\n]*\n(.*?)^\1```$", re.M | re.S)
_COMMENT = re.compile(r"<!--.*?-->", re.S)


class Command(NamedTuple):
    """One command line of a document: its words, and assignments in front."""

    words: list[str]
    variables: list[str]

    def __str__(self) -> str:
        return shlex.join([*self.variables, *self.words])


class Block(NamedTuple):
    """A block between fences, without the indentation of a list, and the document up to it."""

    language: str
    text: str
    before: str

    @property
    def commands(self) -> list[Command]:
        lines = re.sub(r"\\\n\s*", " ", self.text).splitlines()
        return [each for line in lines for each in _split(line)]


def documents() -> list[Path]:
    """The Markdown files of the project; what tests hold belongs to them."""
    names = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("dart_jax/**/*.md")]
    return sorted(names)


def blocks(text: str, *languages: str) -> list[Block]:
    """The blocks between fences, of some languages if any are named."""
    found = _FENCE.finditer(text)
    every = [
        Block(m[2], re.sub(f"^{m[1]}", "", m[3], flags=re.M), text[: m.start()]) for m in found
    ]
    return [block for block in every if not languages or block.language in languages]


def prose(text: str) -> str:
    """The text without fenced blocks and comments."""
    return _COMMENT.sub("", _FENCE.sub("\n", text))


def inline(text: str) -> list[str]:
    """What stands between backticks in prose, on one line or over two."""
    found = re.findall(r"(?<!`)`([^`\n]+(?:\n[^`\n]+)?)`(?!`)", prose(text))
    return [re.sub(r"\s*\n\s*", " ", code) for code in found]


def commands(path: Path) -> list[Command]:
    """Every command line of a document: in bash and sh blocks, and between backticks where it has
    options or files; others name a program and leave the rest to the reader."""
    text = path.read_text()
    typed = re.compile(r"python -m \S+ .*(--|/)")
    lines = [code for code in inline(text) if typed.match(code) and "..." not in code]
    found = [each for block in blocks(text, "bash", "sh") for each in block.commands]
    return found + [each for line in lines for each in _split(line)]


def _split(line: str) -> list[Command]:
    """The commands of a line; raises ValueError where a shell could not read it."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    parts: list[list[str]] = [[]]
    for word in lexer:
        if word in ("&&", ";", "|", "||"):
            parts.append([])
        else:
            parts[-1].append(word)
    made = []
    for words in filter(None, parts):
        count = next((n for n, word in enumerate(words) if not re.match(r"[A-Z_]+=", word)), 0)
        made.append(Command(words[count:], words[:count]))
    return made


def anchors(path: Path) -> set[str]:
    """The anchors of a document's headings, as GitHub and the site both make them."""
    headings = re.findall(r"^#+ +(.+?) *#*$", prose(path.read_text()), re.M)
    return {re.sub(r"\s", "-", re.sub(r"[^\w\- ]", "", x.lower()).strip()) for x in headings}


def links(path: Path) -> list[str]:
    """Targets of a document's links and pictures that are within the project."""
    found = re.findall(r"\]\(([^)\s]+)\)", prose(path.read_text()))
    return [link for link in found if not re.match(r"[a-z]+:", link)]


def tracked() -> set[str]:
    """Files of the checkout, as git lists them; all files where there is no git."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        return {str(path.relative_to(ROOT)) for path in ROOT.rglob("*") if path.is_file()}
    return set(listed.stdout.splitlines())
