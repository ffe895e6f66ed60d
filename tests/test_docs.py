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

import options_page
import pytest
import tyro
from documents import ROOT, anchors, blocks, commands, documents, inline, links, prose, tracked

import dart_jax
from dart_jax.__main__ import PROGRAMS as NAMED
from dart_jax.serve.body.fields import ChatFields, CompletionFields, ResponseFields
from train.run import config_file

COMMANDS = [command for path in documents() for command in commands(path)]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

# Our programs, whose options stand between backticks in the documents.
PROGRAMS = {program.module for program in NAMED.values()} - {"train.ngram"}
PROGRAMS |= {f"train.ngram {name}" for name in ("count", "info", "query", "convert")}

# Programs of a checkout.
RECIPES = {"train.recipes.demo", "train.recipes.smollm2"}

# Modules of others that are run with `python -m`.
OTHERS = ("build", "cibuildwheel", "venv")

# Environment variables of others.
VARIABLES = (
    "CUDA_VISIBLE_DEVICES", "JAX_COMPILATION_CACHE_DIR", "JAX_PLATFORMS", "LD_LIBRARY_PATH",
    "XLA_CLIENT_MEM_FRACTION", "XLA_FLAGS", "XLA_PYTHON_CLIENT_PREALLOCATE",
)  # fmt: skip

# Classes of others that no code of ours names, a file of readers, and one that nobody should add.
OF_OTHERS = ("CpuDevice", "CudaDevice", "llama.cpp", "recipe.toml", "utils.py")

# Files with code, whose names and words may be between backticks.
CODE = (
    *(".py", ".pyi", ".cpp", ".h", ".toml", ".yml", ".ipynb"),
    *("run", "Dockerfile", "CMakeLists.txt"),
)

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
        of_a_reader = {"target": "owner/name", "data": ["chats.jsonl"], "out": "runs/recipe"}
        return read(ROOT / path) if there else of_a_reader

    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # the module was imported before
        patch.setattr(tyro, "cli", cli)
        patch.setattr(config_file, "_read", recipe)
        patch.setattr(sys, "argv", [module, *args])
        with contextlib.suppress(Parsed):
            runpy.run_module(module, run_name="__main__", alter_sys=True)
            pytest.fail(f"{module} reads no command line by tyro.cli")


def check_python(words):
    if words[0] == "-c":
        ast.parse(words[1])
        return
    if words[0] != "-m":
        assert [(ROOT / word).is_file() for word in words] == [True], "a file without options"
        return
    module, args = words[1], words[2:]
    if module in OTHERS:
        return
    if module == "dart_jax":
        check_program(args)
        return
    assert module.startswith(("dart_jax.", "train.", "eval.")), f"no program {module}"
    with contextlib.redirect_stdout(io.StringIO()):
        try:
            parse(module, args)
        except SystemExit as end:  # of --help
            if end.code:
                raise


def check_program(words):
    """The dispatcher: a name, and what that program takes."""
    if words:
        check_python(["-m", NAMED[words[0]].module, *words[1:]])


def check_pip(words):
    assert words[0] == "install"
    for word in words[1:]:
        for extra in ",".join(re.findall(r"\[([\w,]+)\]", word)).split(","):
            assert extra in ("", *PROJECT["optional-dependencies"]), f"no extra {extra}"


def check_file(words):
    assert (ROOT / words[0]).is_file()


CHECKS = {
    "python": check_python,
    "pip": check_pip,
    "dart-jax": check_program,
    "bash": check_file,
}

# Programs of others, whose options nobody checks here.
UNCHECKED = (
    *(
        "export",
        "ray",
        "pytest",
        "cmake",
        "ctest",
        "git",
        "cd",
        ".",
        "mkdocs",
        "ruff",
        "pyright",
        "docker",
    ),
    *("curl", "vllm", "guidellm", "aiperf", "lm_eval"),  # tests/test_guides.py asks a server
)


@pytest.mark.parametrize("command", COMMANDS, ids=str)
def test_commands(command, monkeypatch):
    monkeypatch.chdir(ROOT)
    program, *words = command.words
    if program not in UNCHECKED:
        assert program in CHECKS, f"a command that no test knows: {command}"
        CHECKS[program](words)
    for variable in command.variables:
        name = variable.split("=")[0]
        assert name in VARIABLES or (name.startswith("DART_") and name in words_of_the_code())


@functools.cache
def options_of(program: str) -> set[str]:
    """The options that a program's help lists."""
    module, *sub = program.split()
    out = io.StringIO()
    with contextlib.redirect_stdout(out), pytest.raises(SystemExit):
        parse(module, [*sub, "--help"])
    # Indented, or in a frame, as the terminal is.
    listed = re.findall(r"^(?:  |│ )(-.*?)(?:  |$)", out.getvalue(), re.M)
    return set(re.findall(r"--[a-z][\w-]*", " ".join(listed)))


def test_options_outside_of_commands():
    known = set[str]().union(*map(options_of, PROGRAMS | RECIPES)) | {"--config", "--help"}
    for path in documents():
        text = path.read_text()
        for code in inline(text):
            if code.startswith("--"):
                found = re.findall(r"(?<!\S)--[a-z][\w-]*", code)
                assert set(found) <= known, f"{path.name}: `{code}`"
        if path.name != "CHANGELOG.md":
            bare = re.findall(r"(?<![\w-])--[a-z][\w-]*", re.sub(r"`[^`]*`", "", prose(text)))
            assert set(bare) <= known, f"{path.name}: {set(bare) - known}"


def test_the_page_of_all_options():
    """It has every program with the very options of its help."""
    text = options_page.pages()[options_page.PAGE]
    for name, program in NAMED.items():
        for command, options in options_page.options_of(name):
            assert f"\n## {command}\n" in text
            written = {word for each in options for word in each.name.split() if word[:2] == "--"}
            helped = options_of(" ".join([program.module, *command.split()[1:]]))
            assert written == helped - {"--help"}, command
            assert all(f"\n| `{each.name.split()[0]}" in text for each in options)


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


@functools.cache
def code_files() -> dict[str, str]:
    """Path of every file with code -> its text."""
    paths = [path for path in sorted(tracked()) if path.endswith(CODE)]
    return {path: (ROOT / path).read_text() for path in paths if (ROOT / path).is_file()}


@functools.cache
def words_of_the_code() -> set[str]:
    return {word for text in code_files().values() for word in re.findall(r"[A-Za-z]\w*", text)}


def unknown_names(text: str) -> list[str]:
    """Names between backticks that stand nowhere in the code: files, classes, and whatever is
    written with underscores, but indices of formulas."""
    files = {path.rpartition("/")[2] for path in code_files()}
    unknown = []
    for code in inline(text):
        if re.fullmatch(r"[\w-]+\.(py|cpp|h|toml)", code):
            unknown += [code] * (code not in files)
        elif re.fullmatch(r"\.?[A-Za-z_][\w.]*(\(.*\))?", code):
            words = re.findall(r"[A-Za-z]\w*", code)
            names = [word for word in words if re.search(r"[a-z][A-Z]|_\w{2}", word)]
            unknown += [n for n in names if n.removesuffix("_total") not in words_of_the_code()]
    return [name for name in unknown if name not in (*OF_OTHERS, *VARIABLES)]


@pytest.mark.parametrize("path", documents(), ids=lambda path: path.name)
def test_bare_names(path):
    # Of these, one is about the past, and the others name what other software has.
    if path.name not in ("CHANGELOG.md", "migrating.md", "proxy.md"):
        assert not unknown_names(path.read_text())


def test_python_of_the_documents():
    examples = [block for path in documents() for block in blocks(path.read_text(), "python")]
    assert len(examples) > 4
    for example in examples:
        for node in ast.walk(ast.parse(example.text)):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    importlib.import_module(alias.name)
            elif isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    resolve(f"{node.module}.{alias.name}")


def test_fields_of_requests():
    """All that the server reads is named."""
    named = set(inline((ROOT / "docs/serving.md").read_text()))
    for kind in (CompletionFields, ChatFields, ResponseFields):
        assert {*kind.model_fields} <= named


def test_pages_of_the_api():
    """Each module is there once, and so is all that `dart_jax` exports."""
    pages = [path.read_text() for path in (ROOT / "docs/api").glob("*.md")]
    modules = [name for page in pages for name in re.findall(r"^::: (\S+)$", page, re.M)]
    assert len(modules) == len(set(modules)) > 60
    for module in modules:
        importlib.import_module(module)
    assert set(dart_jax._EXPORTS.values()) <= set(modules)


def test_documents_stay_short():
    """Words have a letter or a digit; of tables also their cells."""

    def words(path):
        return sum(re.search(r"\w", word) is not None for word in path.read_text().split())

    assert len((ROOT / "README.md").read_text().split()) <= 900
    assert sum(map(words, ROOT.glob("docs/**/*.md"))) <= 20_000


def test_blocks_have_a_language():
    for path in documents():
        opened = {block.language for block in blocks(path.read_text())}
        assert opened <= {"bash", "sh", "python", "text", "bibtex", "cpp", "toml"}, path.name
