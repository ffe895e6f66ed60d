"""Sources of installed packages, further text of the demo's target."""

import importlib.util
from pathlib import Path

import pytest

from dart_jax.data import packages
from dart_jax.data.packages import PACKAGES, package_files
from dart_jax.errors import UserError


def roots():
    """Name -> directory of each package."""
    specs = {name: importlib.util.find_spec(name) for name in PACKAGES}
    return {name: Path(spec.submodule_search_locations[0]) for name, spec in specs.items()}


def test_files_are_sources_of_every_package_in_order():
    files, places = package_files(), roots()
    assert files == package_files()
    assert len(files) == len(set(files))
    owners = []
    for path in files:
        [(name, root)] = [each for each in places.items() if path.is_relative_to(each[1])]
        owners.append(name)
        assert path.suffix == ".py"
        assert not {"test", "tests", "testing"}.intersection(path.relative_to(root).parts)
        assert not path.name.startswith("test_")
        assert not path.is_relative_to(places["transformers"] / "models")
    assert list(dict.fromkeys(owners)) == list(PACKAGES)


def test_a_package_that_is_missing(monkeypatch):
    monkeypatch.setattr(packages, "PACKAGES", ("no_such_package",))
    with pytest.raises(UserError, match="needs the package no_such_package"):
        package_files()
