"""Functions called in a new process: results, errors, and an end in any case."""

import os
import time

import pytest

from dart_jax.errors import UserError
from dart_jax.memory import parse_memory
from dart_jax.programs.child import Child, ChildError


def test_a_child(tmp_path):
    """It keeps its state, and what fails in it fails here."""
    with Child(tmp_path / "log") as child:
        pid = child.call(os.getpid)
        assert pid == child.call(os.getpid) != os.getpid()
        with pytest.raises(UserError, match="memory must be written like 4GB"):
            child.call(parse_memory, "much")
        with pytest.raises(ChildError, match=r"^FileNotFoundError: .*nowhere"):
            child.call(os.stat, "nowhere")
        assert child.call(os.system, "echo the last line") == 0
        with pytest.raises(ChildError, match=r"^its process ended with status 3: the last line$"):
            child.call(os._exit, 3)


def test_the_process_ends_with_the_block():
    started = time.monotonic()
    with Child() as child:
        pid = child.call(os.getpid)
        child._pipe.send((time.sleep, (600,)))
    assert time.monotonic() - started < 60
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
