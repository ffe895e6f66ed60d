"""The command line of every program: typos, Ctrl-C and pipes, in processes of their own."""

import re
import signal
import socket
import subprocess
import sys
import textwrap

import pytest
from documents import ROOT

from dart_jax import __main__ as programs

PREPARED = """
import os, signal, sys
from dart_jax.programs.command_line import program
"""


def start(*words, **options):
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options
    # Where this process ignores Ctrl-C, a child would inherit that.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return subprocess.Popen([sys.executable, *words], cwd=ROOT, text=True, **options)
    finally:
        signal.signal(signal.SIGINT, before)


def run(code, **options):
    process = start("-c", PREPARED + textwrap.dedent(code), **options)
    output, error = process.communicate(timeout=120)
    return process.returncode, output, error


# Ctrl-C


@pytest.mark.parametrize(
    "work",
    [
        "os.kill(os.getpid(), signal.SIGINT)",
        # Hidden by another exception, as libraries do.
        """
        try:
            os.kill(os.getpid(), signal.SIGINT)
        except KeyboardInterrupt:
            raise RuntimeError("a callback failed")
        """,
    ],
    ids=["at work", "hidden"],
)
def test_ctrl_c_at_work(work, tmp_path):
    """A file that was half written is as before."""
    work = textwrap.indent(textwrap.dedent(work), "    ")
    (tmp_path / "out").write_text("old")
    code = f"""from pathlib import Path
from dart_jax.files import atomic_path
with program('again') as advice, atomic_path(Path({str(tmp_path / "out")!r})) as part:
    advice.text = 'half is done'
    part.write_text("half")
{work}"""
    assert run(code) == (130, "", "interrupted; half is done\n")
    assert [path.read_text() for path in tmp_path.iterdir()] == ["old"]


def test_after_a_ctrl_c_that_is_taken_back_errors_are_reported():
    """As in a conversation, where it only stops an answer."""
    status, _, error = run("""
        with program():
            try:
                os.kill(os.getpid(), signal.SIGINT)
            except KeyboardInterrupt:
                pass
            open("/nowhere/file")
    """)
    assert status == 1
    assert "FileNotFoundError" in error


# Pipes


def closed():
    """The writing end of a pipe whose reader has gone.

    Of a pair of sockets: shut down, the reading end is gone even if another process that was just
    started still holds a copy of it.
    """
    reader, writer = socket.socketpair()
    reader.shutdown(socket.SHUT_RD)
    reader.close()
    return writer.detach()


def test_a_closed_pipe_is_quiet():
    process = start("-m", "dart_jax", "compare", "--help", stdout=closed())
    _, error = process.communicate(timeout=120)
    assert (process.returncode, error) == (141, "")
    code = """
        with program():
            for _ in range(100):
                print("text", flush=True)
    """
    assert run(code, stdout=closed())[::2] == (141, "")


# Names


def test_typos_end_with_the_command_as_it_was_typed():
    script = "import sys; sys.argv[0] = '/bin/dart-jax'; from dart_jax.__main__ import main; main()"
    for words, command in (
        (("-m", "eval.compare"), "python -m eval.compare"),
        (("-m", "dart_jax", "compare"), "python -m dart_jax compare"),
        (("-c", script, "compare"), "dart-jax compare"),
    ):
        process = start(*words, "a", "b", "--nothing", "x")
        output, error = process.communicate(timeout=120)
        assert (process.returncode, output) == (2, "")
        assert "Unrecognized options: " in error
        assert f"run {command} --help" in error


def test_the_dispatcher(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["/bin/dart-jax"])
    programs.main()
    output = capsys.readouterr().out
    monkeypatch.setattr(sys, "argv", ["/bin/dart-jax", "help"])
    programs.main()
    assert capsys.readouterr().out == output
    for name, program in programs.PROGRAMS.items():
        assert re.search(rf"dart-jax {name} +{re.escape(program.what)}\n", output)
    monkeypatch.setattr(sys, "argv", ["/bin/dart-jax", "--version"])
    programs.main()
    assert re.fullmatch(r"dart-jax [\d.]+\n", capsys.readouterr().out)
    monkeypatch.setattr(sys, "argv", ["/bin/dart-jax", "speedpu"])
    with pytest.raises(SystemExit):
        programs.main()
    error = capsys.readouterr().err
    assert error == "error: no program 'speedpu'; did you mean speedup?\n"
