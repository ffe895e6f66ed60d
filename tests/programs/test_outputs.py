"""Output files: tried before the work, written whole, and kept elsewhere if that fails."""

import json
import os
import stat
import tempfile
from pathlib import Path

import pytest

from dart_jax.errors import UserError
from dart_jax.files import check_writable, write_atomically
from dart_jax.programs import outputs


def test_trying_leaves_nothing_behind_and_changes_nothing(tmp_path):
    old = tmp_path / "old.json"
    old.write_text("old")
    outputs.check_outputs(old, tmp_path / "made" / "new.json", drawing=tmp_path / "a.png")
    check_writable(tmp_path / "run", directory=True)
    assert {path.name for path in tmp_path.rglob("*")} == {"old.json", "made", "run"}
    assert old.read_text() == "old"


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/proc/x.json", r"cannot write /proc/x\.json: "),
        ("file/a/b.json", "cannot write .*b.json: file is a file, not a directory"),
        ("x" * 300, "cannot write x*: File name too long"),
    ],
)
def test_what_cannot_be_written_is_refused(path, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("kept")
    with pytest.raises(UserError, match=message):
        outputs.check_outputs(Path(path))
    assert [path.name for path in tmp_path.rglob("*")] == ["file"]


def test_a_device_is_written_and_not_replaced(tmp_path):
    check_writable(Path("/dev/null"))
    write_atomically(Path("/dev/null"), b"text")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    check_writable(fifo)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    outputs.write_bytes(fifo, b"a report")
    assert os.read(reader, 100) == b"a report"
    os.close(reader)
    assert fifo.is_fifo()


def test_a_report_that_cannot_be_written_is_kept_elsewhere(tmp_path, monkeypatch):
    """The directory was there when the work began."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    (tmp_path / "gone").touch()
    path = tmp_path / "gone" / "report.json"
    with pytest.raises(UserError) as raised:
        outputs.write_json(path, {"tau": 4.5})
    [kept] = (tmp_path / "temporary").iterdir()
    message = f"cannot write {path}: File exists; what it would hold is in {kept}"
    assert str(raised.value) == message
    assert json.loads(kept.read_text()) == {"tau": 4.5}
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    with pytest.raises(UserError, match=r"cannot write .*; nor can .*/none: No such file"):
        outputs.write_bytes(tmp_path / "gone" / "a.md", b"text")
