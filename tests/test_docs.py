"""Documents tell the truth: commands parse, names exist, links lead somewhere."""

import ast
import contextlib
import functools
import importlib
import importlib.util
import io
import re
import runpy
import sys
import tomllib
import warnings
from dataclasses import fields, is_dataclass
from xml.etree import ElementTree

import pytest
import tyro
from documents import ROOT, anchors, commands, documents, fenced, inline, links
from stub_engine import StubEngine

from dart_jax.__main__ import PROGRAMS as NAMED
from dart_jax.serve.__main__ import ServeConfig
from dart_jax.serve.app import make_app
from dart_jax.serve.service import Limits, Service
from train.run import config_file

COMMANDS = [command for path in documents() for command in commands(path)]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

# Our programs, whose options stand between backticks in the documents.
PROGRAMS = {program.module for program in NAMED.values()} - {"dart_jax.programs.ngram"}
PROGRAMS |= {f"dart_jax.programs.ngram {name}" for name in ("info", "query", "convert")}

# Modules of others that are run with `python -m`.
OTHERS = ("build", "cibuildwheel", "venv")

# Environment variables of others.
VARIABLES = ("JAX_COMPILATION_CACHE_DIR", "JAX_PLATFORMS", "XLA_PYTHON_CLIENT_PREALLOCATE")


# Directories whose files the documents name; what programs make lies elsewhere.
ROOMS = r"dart_jax|train|eval|native|tests|docs|examples|notebooks|\.ci"


class Parsed(BaseException):
    """A program's command line was read; it goes no further."""


def parse(module: str, args: list[str]) -> None:
    """Reads a command line as the program itself would, and runs nothing of it.

    Files and repositories that are named need not exist; the options must.
    """
    real, read = tyro.cli, config_file._read
    if "--bench" in args and (name := args.index("--bench") + 1) and args[name].endswith(".jsonl"):
        args = [*args[:name], "questions", *args[name + 1 :]]

    def cli(*given, **options):
        raise Parsed(real(*given, **options))

    def recipe(path):
        there = (ROOT / path).is_file()
        return read(ROOT / path) if there else {"target": "owner/name", "data": ["chats.jsonl"]}

    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # the module was imported before
        patch.setattr(tyro, "cli", cli)
        patch.setattr(config_file, "_read", recipe)
        patch.setattr(sys, "argv", [module, *args])
        with contextlib.suppress(Parsed):
            runpy.run_module(module, run_name="__main__", alter_sys=True)
            pytest.fail(f"{module} reads no command line by tyro.cli")


def check_python(words, parser):
    if words[0] == "-c":
        for node in ast.walk(ast.parse(words[1])):
            if isinstance(node, ast.Import):
                assert [importlib.import_module(alias.name) for alias in node.names]
        return
    if words[0] != "-m":
        assert [(ROOT / word).is_file() for word in words] == [True], "a file without options"
        return
    module, args = words[1], words[2:]
    if module in OTHERS:
        return
    if module == "dart_jax":
        check_program(args, parser)
        return
    assert module.startswith(("dart_jax.", "train.", "eval.")), f"no program {module}"
    error = io.StringIO()
    status = 0
    try:
        with contextlib.redirect_stderr(error), contextlib.redirect_stdout(io.StringIO()):
            parse(module, args)
    except SystemExit as end:
        status = end.code
    assert not status, error.getvalue()


def check_program(words, parser):
    """The dispatcher: a name, and what that program takes."""
    if words:
        check_python(["-m", NAMED[words[0]].module, *words[1:]], parser)


def check_pip(words, parser):
    assert words[0] == "install"
    for word in words[1:]:
        for extra in ",".join(re.findall(r"\[([\w,]+)\]", word)).split(","):
            assert extra in ("", *PROJECT["optional-dependencies"]), f"no extra {extra}"


def check_pytest(words, parser):
    _, unknown = parser.parse_known_and_unknown_args(words)
    assert not unknown
    for word in words:
        if word.startswith("tests/"):
            assert (ROOT / word.split("::")[0]).exists()


def check_cmake(words, parser):
    cmake = (ROOT / "native/CMakeLists.txt").read_text()
    for word in words:
        if (option := re.match(r"-D(DART_\w+)=", word)) is not None:
            assert f"option({option[1]} " in cmake
    if "-S" in words:
        assert (ROOT / words[words.index("-S") + 1] / "CMakeLists.txt").is_file()


def check_file(words, parser):
    assert (ROOT / words[0]).is_file()


def check_docker(words, parser):
    """Built targets and programs that are run exist."""
    stages = re.findall(r"^FROM .* AS (\w+)$", (ROOT / "Dockerfile").read_text(), re.M)
    if words[0] == "compose":
        text = (ROOT / words[words.index("--file") + 1]).read_text()
        assert f"profiles: [{words[words.index('--profile') + 1]}]" in text
        return
    image = next(place for place, word in enumerate(words) if word.startswith("dart-jax:"))
    assert words[image].partition(":")[2] in stages
    if words[0] == "build":
        assert words[words.index("--target") + 1] in stages
    else:
        assert words[0] == "run"
        check_program(words[image + 1 :], parser)


def check_client(words, parser):
    """Programs that ask the server: where it listens by default, what it has."""
    found = re.findall(r"http://127\.0\.0\.1:(\d+)([/\w]*)", " ".join(words))
    assert [port for port, _ in found] == [str(ServeConfig.port)]
    routes = {route.path for route in make_app(Service(StubEngine(), ["x"], "x", Limits())).routes}
    assert {path for _, path in found} - {""} <= routes
    options = re.findall(r"(?:--endpoint |request_format=)(\S+)", " ".join(words))
    assert set(options) <= routes


CHECKS = {
    "python": check_python,
    "pip": check_pip,
    "dart-jax": check_program,
    "docker": check_docker,
    **dict.fromkeys(("curl", "vllm", "guidellm", "aiperf", "lm_eval"), check_client),
    "pytest": check_pytest,
    "cmake": check_cmake,
    "bash": check_file,
}

# Programs of others, whose options nobody checks here.
UNCHECKED = ("ray", "ctest", "git", "cd", ".", "mkdocs", "ruff", "pyright")


@pytest.mark.parametrize("command", COMMANDS, ids=str)
def test_commands(command, request, monkeypatch):
    monkeypatch.chdir(ROOT)
    program, *words = command.words
    if program not in UNCHECKED:
        assert program in CHECKS, f"a command that no test knows: {command}"
        CHECKS[program](words, request.config._parser)
    for variable in command.variables:
        assert known_variable(variable.split("=")[0])


def known_variable(name: str) -> bool:
    """Tells whether something reads a variable."""
    if name in VARIABLES:
        return True
    sources = [*ROOT.glob("tests/*.py"), ROOT / ".ci/run"]
    return name.startswith("DART_") and any(name in path.read_text() for path in sources)


def test_there_are_commands():
    found = {command.document for command in COMMANDS}
    assert {"README.md", "CONTRIBUTING.md", "docs/training.md", "docs/performance.md"} <= found


@pytest.mark.parametrize("words", ["eval.speedup --no-such", "train.drafter --out a --targt b"])
def test_a_wrong_option_is_found(words):
    module, *args = words.split()
    with pytest.raises(AssertionError, match=args[-2] if args[-1] == "b" else args[-1]):
        check_python(["-m", module, *args], None)


@functools.cache
def options_of(program: str) -> set[str]:
    """The options that a program's help names."""
    module, *sub = program.split()
    out = io.StringIO()
    with contextlib.redirect_stdout(out), pytest.raises(SystemExit):
        parse(module, [*sub, "--help"])
    return set(re.findall(r"--[a-z][\w-]*", out.getvalue()))


def test_options_between_backticks():
    known = set[str]().union(*map(options_of, PROGRAMS)) | {"--config", "--help"}
    for path in documents():
        for code in inline(path.read_text()):
            if code.startswith("--"):
                found = re.findall(r"(?<!\S)--[a-z][\w-]*", code)
                assert set(found) <= known, f"{path.name}: `{code}`"


@pytest.mark.parametrize("path", documents(), ids=lambda path: path.name)
def test_links(path):
    for link in links(path):
        file, _, anchor = link.partition("#")
        target = (path.parent / file).resolve() if file else path
        assert target.exists(), f"{path.name}: {link}"
        if anchor:
            assert anchor in anchors(target), f"{path.name}: {link}"


def resolve(name: str):
    """Resolves a dotted name; a dataclass's field is there without a value."""
    parts = name.split(".")
    thing = importlib.import_module(parts[0])
    for n, part in enumerate(parts[1:], 2):
        if is_dataclass(thing) and part in {field.name for field in fields(thing)}:
            return None
        try:
            thing = getattr(thing, part)
        except AttributeError:
            thing = importlib.import_module(".".join(parts[:n]))
    return thing


@pytest.mark.parametrize("path", documents(), ids=lambda path: path.name)
def test_names_and_files(path):
    for code in inline(path.read_text()):
        if re.fullmatch(r"(dart_jax|train|eval)(\.[A-Za-z_]\w*)+", code):
            if (ROOT / code).is_file():  # train.toml reads like a name
                continue
            resolve(code)
        elif re.fullmatch(rf"({ROOMS})/[\w./*-]*", code):
            assert any(ROOT.glob(code.rstrip("/"))), f"{path.name}: no {code}"


def test_python_of_the_documents():
    blocks = [block for path in documents() for block in fenced(path.read_text(), "python")]
    assert len(blocks) > 4
    for block in blocks:
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    importlib.import_module(alias.name)
            elif isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    resolve(f"{node.module}.{alias.name}")


def test_blocks_have_a_language():
    for path in documents():
        opened = re.findall(r"^ *```(\S*)$", path.read_text(), re.M)[::2]
        assert set(opened) <= {"bash", "sh", "python", "text", "bibtex", "cpp", "toml"}, path.name


# The diagram of a step.


def diagram() -> set[str]:
    """The names in the diagram."""
    elements = ElementTree.parse(ROOT / "docs/step.svg").iter()
    return {element.text or "" for element in elements if element.get("class") == "name"}


# Where the diagram's names are looked up, in this order.
PACKAGES = ("dart_jax.decoding", "dart_jax.models", "dart_jax")


def package_of(name: str) -> str | None:
    """The first of the packages with a module or subpackage of a dotted name's first part."""
    module = name.split(".")[0]
    found = (each for each in PACKAGES if importlib.util.find_spec(f"{each}.{module}"))
    return next(found, None)


def test_names_in_the_diagram():
    names = diagram()
    assert len(names) > 15
    for name in names:
        resolve(f"{package_of(name)}.{name}")
    for code in inline((ROOT / "docs/how-it-works.md").read_text()):
        if re.fullmatch(r"\w+(\.\w+)+", code) and (package := package_of(code)) is not None:
            resolve(f"{package}.{code}")
