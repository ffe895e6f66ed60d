"""The package's own description: versions, stubs, and programs."""

import ast
import importlib.metadata
import re
import sys
import tomllib

import pytest
import yaml
from documents import ROOT, tracked
from packaging.requirements import Requirement

import dart_jax
from dart_jax import __main__ as programs
from dart_jax import _core

PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_one_version():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert PYPROJECT["project"]["version"] == dart_jax.__version__
    assert citation["version"] == dart_jax.__version__
    assert f"## {dart_jax.__version__}" in (ROOT / "CHANGELOG.md").read_text()


def test_python_versions_agree():
    project, wheels = PYPROJECT["project"], PYPROJECT["tool"]["cibuildwheel"]
    named = {text.rpartition(" ")[2] for text in project["classifiers"] if ":: 3." in text}
    [minors] = re.findall(r"cp3(\d)\{([\d,]+)\}", wheels["build"])
    built = {f"3.{minors[0]}{last}" for last in minors[1].split(",")}
    assert named == built
    oldest = min(named, key=lambda version: int(version.split(".")[1]))
    assert project["requires-python"] == f">={oldest}"
    assert (ROOT / "dart_jax/py.typed").is_file()


EXTRAS = PYPROJECT["project"]["optional-dependencies"]


def test_documents_and_messages_name_extras_that_there_are():
    named = {}
    for path in tracked():
        if path.endswith((".md", ".py", ".ipynb", "Dockerfile")) and (ROOT / path).is_file():
            text = (ROOT / path).read_text()
            for extras in re.findall(r"(?:'\.|dart-jax|/wheels/\*\.whl\)\")\[([a-z,]+)\]", text):
                named |= dict.fromkeys(extras.split(","), path)
    assert {"aot", "cuda", "docs", "serve"} <= named.keys() <= EXTRAS.keys(), named


def test_a_plugin_of_jax_is_of_jaxlibs_version():
    """By way of JAX's own extras, which say so: jaxlib refuses another, and then has no device."""
    parts = [text for extra in EXTRAS.values() for text in extra if re.match(r"jax(?!\[)", text)]
    assert not parts
    named = {text for name in ("aot", "cuda") for text in EXTRAS[name] if text.startswith("jax[")}
    assert named == {"jax[cuda13-local]", "jax[cuda13]"}
    required = [Requirement(text) for text in importlib.metadata.requires("jax") or ()]
    for extra in ("cuda13-local", "cuda13"):
        own = [one for one in required if one.marker and one.marker.evaluate({"extra": extra})]
        pins = {one.name: one.specifier for one in own if re.match(r"jaxlib$|jax-cuda", one.name)}
        assert {"jaxlib", "jax-cuda13-plugin"} <= pins.keys()
        assert len({*pins.values()}) == 1, pins
        assert {one.operator for one in pins["jaxlib"]} in ({"<=", ">="}, {"=="}), pins
        assert len({one.version for one in pins["jaxlib"]}) == 1, pins


def test_a_wheel_puts_only_dart_jax_at_the_top():
    packages = PYPROJECT["tool"]["scikit-build"]["wheel"]["packages"]
    assert {name.split("/")[0] for name in packages} == {"dart_jax"}
    inside = {path: name for name, path in packages.items()}
    for pattern in PYPROJECT["tool"]["scikit-build"]["wheel"]["exclude"]:
        assert (ROOT / pattern.removeprefix("dart_jax/_programs/").removesuffix("/**")).is_dir()
    for module in {program.module.split(".")[0] for program in programs.PROGRAMS.values()}:
        assert inside[module] in (module, f"dart_jax/_programs/{module}")


@pytest.mark.parametrize("installed", [True, False])
def test_the_dispatcher_finds_the_programs(installed, tmp_path, monkeypatch):
    """Before others of the same name: in a wheel inside of `dart_jax`, in a checkout beside it."""
    (tmp_path / "dart_jax").mkdir()
    place = tmp_path / "dart_jax/_programs" if installed else tmp_path
    (place / "eval").mkdir(parents=True)
    monkeypatch.setattr(dart_jax, "__file__", str(tmp_path / "dart_jax/__init__.py"))
    monkeypatch.setattr(sys, "path", ["/elsewhere", *sys.path])
    programs.find_programs()
    assert sys.path[0] == str(place)


# The stubs of the compiled module.


def members(body: list[ast.stmt]) -> dict[str, ast.stmt]:
    """Public names of a module's or a class's stubs, and `__init__`."""
    nodes = {}
    for node in body:
        match node:
            case ast.FunctionDef() | ast.ClassDef():
                nodes[node.name] = node
            case ast.AnnAssign(target=ast.Name(id=name)):
                nodes[name] = node
    return {name: node for name, node in nodes.items() if name[0] != "_" or name == "__init__"}


def compiled(thing) -> dict:
    """The same of the compiled module or class."""
    return {
        name: value for name, value in vars(thing).items() if name[0] != "_" or name == "__init__"
    }


def test_stubs_are_those_of_the_compiled_module():
    stubs = members(ast.parse((ROOT / "dart_jax/_core.pyi").read_text()).body)
    there = compiled(_core)
    assert stubs.keys() == there.keys()
    for name, stub in stubs.items():
        if isinstance(stub, ast.ClassDef):
            assert members(stub.body).keys() == compiled(there[name]).keys(), name
