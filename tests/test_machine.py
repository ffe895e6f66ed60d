"""Cores and memory, as affinity and control groups limit them."""

import os

import pytest

from dart_jax.machine import available_cores, available_memory

CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
MEMORY = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


@pytest.fixture
def tree(tmp_path):
    """Writes the name of this process's group, and files of groups, below a root."""

    def write(group, files):
        files = {f"sys/fs/cgroup/{name}": text for name, text in files.items()}
        for name, text in files.items() | {("proc/self/cgroup", f"0::{group}\n")}:
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return tmp_path

    return write


@pytest.mark.parametrize(
    ("group", "files", "cores"),
    [
        ("/a/b", {}, CORES),
        ("/", {"cpu.max": "max 100000\n"}, CORES),
        ("/", {"cpu.max": "20000 100000\n"}, 1),
        ("/", {"cpu.max": "110000 100000\n"}, min(2, CORES)),
        # The group around this one has the limit.
        ("/a/b", {"a/b/cpu.max": "max 100000\n", "a/cpu.max": "50000 50000\n"}, 1),
        # The host's path is not there in the container.
        ("/x/y", {"cpu.max": "1 1\n"}, 1),
        ("/", {"cpu.max": "broken"}, CORES),
    ],
)
def test_cores(tree, group, files, cores):
    assert available_cores(tree(group, files)) == cores


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no affinity on this system")
def test_affinity(tmp_path):
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, [min(before)])
    try:
        assert available_cores(tmp_path) == 1
    finally:
        os.sched_setaffinity(0, before)


@pytest.mark.parametrize(
    ("group", "files", "memory"),
    [
        ("/", {"memory.max": "max\n"}, MEMORY),
        ("/a", {"a/memory.max": "5000\n"}, 5000),
        ("/a", {"a/memory.max": "7000\n", "memory.max": "6000\n"}, 6000),
    ],
)
def test_memory(tree, group, files, memory):
    assert available_memory(tree(group, files)) == memory


def test_this_process(tmp_path):
    """With its groups and without any."""
    assert (available_cores(tmp_path), available_memory(tmp_path)) == (CORES, MEMORY)
    assert 1 <= available_cores() <= CORES
    assert 0 < available_memory() <= MEMORY
