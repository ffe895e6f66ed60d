"""Cores and memory, as affinity and control groups limit them."""

import os

import pytest

from dart_jax.machine import available_cores, available_memory

CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
MEMORY = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


@pytest.fixture
def tree(tmp_path):
    """Writes files below a root, by path."""

    def write(files):
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return tmp_path

    return write


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({}, CORES),
        ({"proc/self/cgroup": "0::/a/b\n"}, CORES),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "max 100000\n"}, CORES),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "100000 100000\n"}, 1),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "20000 100000\n"}, 1),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "110000 100000\n"}, min(2, CORES)),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "9999999 100000\n"}, CORES),
        # The group around this one has the limit.
        (
            {
                "proc/self/cgroup": "0::/a/b\n",
                "sys/fs/cgroup/a/b/cpu.max": "max 100000\n",
                "sys/fs/cgroup/a/cpu.max": "50000 50000\n",
            },
            1,
        ),
        # The host's path is not there in the container.
        ({"proc/self/cgroup": "0::/x/y\n", "sys/fs/cgroup/cpu.max": "1 1\n"}, 1),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "broken"}, CORES),
    ],
)
def test_cores(tree, files, cores):
    assert available_cores(tree(files)) == cores


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no affinity on this system")
def test_affinity(tmp_path):
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, [min(before)])
    try:
        assert available_cores(tmp_path) == 1
    finally:
        os.sched_setaffinity(0, before)


@pytest.mark.parametrize(
    ("files", "memory"),
    [
        ({}, MEMORY),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "max\n"}, MEMORY),
        ({"proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/a/memory.max": "5000\n"}, 5000),
        ({"proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/memory.max": "7000\n"}, 7000),
        (
            {
                "proc/self/cgroup": "0::/a\n",
                "sys/fs/cgroup/a/memory.max": "7000\n",
                "sys/fs/cgroup/memory.max": "6000\n",
            },
            6000,
        ),
    ],
)
def test_memory(tree, files, memory):
    assert available_memory(tree(files)) == memory


def test_this_process():
    assert 1 <= available_cores() <= CORES
    assert 0 < available_memory() <= MEMORY
