"""The packages are as docs/architecture.svg draws them: what is imported is drawn further down."""

import ast
import graphlib
import importlib
import re
import subprocess
import sys
from xml.etree import ElementTree

import pytest
from documents import ROOT

SVG = "{http://www.w3.org/2000/svg}"
PICTURE = ElementTree.parse(ROOT / "docs/architecture.svg")
TREES = ("dart_jax", "train", "eval")
MOST_FILES = 18
MOST_LINES = 500
PATHS = {
    path: ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    for tree in TREES
    for path in sorted((ROOT / tree).rglob("*.py"))
}
MODULES = {*PATHS.values(), "dart_jax._core"}
PACKAGES = {module for path, module in PATHS.items() if path.name == "__init__.py"}
# Packages that still import their parent and are imported by it. None may be added.
MUTUAL = {"dart_jax.decoding.drafting"}


# Modules and packages in the picture -> their box.
DRAWN = {
    name: box for box in PICTURE.iter(f"{SVG}rect") for name in box.get("data-holds", "").split()
}


def box_of(module):
    """The box of a module or of the innermost package around it."""
    parts = module.split(".")
    names = [".".join(parts[:n]) for n in range(len(parts), 0, -1)]
    name = next((name for name in names if name in DRAWN), None)
    # Nothing inside of `dart_jax` is drawn by the box of its `__init__.py`.
    assert name is not None, f"{module} is not drawn"
    assert name != "dart_jax" or module == name, f"{module} is not drawn"
    return DRAWN[name]


def imports(path):
    """The modules of this repository that a file imports, inside functions as well."""
    modules = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                modules.add(full if full in MODULES else node.module)
    return modules & MODULES


# What `from dart_jax import DartModel` loads is loaded lazily, and so are the exports of packages.
IMPORTS = {
    module: imports(path) - {module} for path, module in PATHS.items() if module != "dart_jax"
}


def fault(importer, imported):
    """Describes the fault of an import; None if there is none."""
    if {importer.split(".")[0], imported.split(".")[0]} == {"train", "eval"}:
        return f"{importer} imports {imported}: train and eval do not know each other"
    one, other = box_of(importer), box_of(imported)
    if one is not other and float(other.get("y")) <= float(one.get("y")):
        return f"{importer} imports {imported}, which is drawn no further down"
    return None


def test_imports_go_down():
    faults = [fault(one, other) for one, others in IMPORTS.items() for other in sorted(others)]
    assert not list(filter(None, faults))


def test_everything_is_drawn_and_everything_drawn_exists():
    for module in sorted(MODULES):
        box_of(module)
    for name in DRAWN:
        assert name in MODULES, name


def test_no_circles():
    graphlib.TopologicalSorter(IMPORTS).prepare()


def test_no_circles_between_the_packages_of_models():
    graph = {}
    for module, imported in IMPORTS.items():
        if module.startswith("dart_jax.models."):
            one = module.split(".")[2]
            others = {x.split(".")[2] for x in imported if x.startswith("dart_jax.models.")}
            graph.setdefault(one, set()).update(others - {one})
    graphlib.TopologicalSorter(graph).prepare()


def package(module):
    """The package of a module; that of a package is itself."""
    return module if module in PACKAGES else module.rpartition(".")[0]


def test_packages_and_their_parents_do_not_import_each_other():
    """Between the files of a package and a package in it, imports go one way. (The tops are no
    packages of this kind: `dart_jax/errors.py` is for all, and `dart_jax/model.py` on top.)"""
    pairs = {(package(one), package(other)) for one, others in IMPORTS.items() for other in others}
    mutual = {
        inner
        for inner, outer in pairs
        if "." in outer and inner.startswith(f"{outer}.") and (outer, inner) in pairs
    }
    assert mutual <= MUTUAL


def test_packages_and_files_are_small():
    for tree in TREES:
        for package in {path.parent for path in PATHS if path.is_relative_to(ROOT / tree)}:
            files = [*package.glob("*.py"), *package.glob("*.pyi")]
            assert len(files) <= MOST_FILES, f"{package}: {len(files)} files"
    sources = [*PATHS, *(ROOT / "native").rglob("*.cpp"), *(ROOT / "native").rglob("*.h")]
    assert len(sources) > 200
    for path in sources:
        lines = len(path.read_text().splitlines())
        assert lines <= MOST_LINES, f"{path}: {lines} lines"


def test_packages_say_what_they_are_for():
    for path, module in PATHS.items():
        if path.name == "__init__.py":
            doc = ast.get_docstring(ast.parse(path.read_text()))
            assert doc, module
            assert re.search(r"\bimports?\b", doc, re.IGNORECASE), f"{module}: what may it import?"


def test_the_document_lists_the_packages():
    """One row a package, with the first sentence of its docstring."""
    rows = []
    for path in PATHS:
        package = path.relative_to(ROOT).parent
        if path.name == "__init__.py" and len(package.parts) == 2:
            doc = ast.get_docstring(ast.parse(path.read_text())) or ""
            sentence = re.match(r".*?\.(?=\s|$)", doc.replace("\n", " "))
            assert sentence is not None, package
            rows.append(f"| `{package.as_posix()}/` | {sentence[0]} |")
    document = (ROOT / "docs/architecture.md").read_text()
    assert re.findall(r"^\| `[^`]+/` \| .*$", document, re.M) == rows


def test_the_names_of_a_step_exist():
    names = [text.get("data-name") for text in PICTURE.iter(f"{SVG}text") if text.get("data-name")]
    assert len(names) == 9
    for name in names:
        module, attribute = name.rsplit(".", 1)
        assert hasattr(importlib.import_module(module), attribute), name


def test_the_package_loads_its_exports_lazily():
    import dart_jax

    for name in dart_jax.__all__:
        assert getattr(dart_jax, name) is not None
    code = "import sys, dart_jax; print(sorted({'jax', 'numpy', 'flax'} & set(sys.modules)))"
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert child.stdout == "[]\n"
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = dart_jax.Nothing
    with pytest.raises(ImportError):
        importlib.import_module("dart_jax.nothing")


def test_generating_imports_nothing_that_only_others_need():
    """Each of these takes a tenth of a second or more, and several MB."""
    others = "duckdb", "orbax", "gguf", "transformers", "torch", "scipy", "jax.experimental.pallas"
    code = f"import sys, dart_jax.generate; print(sorted({set(others)} & set(sys.modules)))"
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert child.stdout == "[]\n"
