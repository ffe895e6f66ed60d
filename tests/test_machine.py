"""Cores and memory, as affinity and control groups limit them."""

import os

import pytest

from dart_jax.machine import available_cores, available_memory

CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
MEMORY = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


@pytest.mark.parametrize(
    ("group", "files", "cores", "memory"),
    [
        ("/a/b", {}, CORES, MEMORY),
        ("/", {"cpu.max": "max 100000\n", "memory.max": "max\n"}, CORES, MEMORY),
        ("/", {"cpu.max": "20000 100000\n"}, 1, MEMORY),
        ("/", {"cpu.max": "110000 100000\n"}, min(2, CORES), MEMORY),
        ("/", {"cpu.max": "9999999 100000\n"}, CORES, MEMORY),
        # The group around this one has the limit.
        ("/a/b", {"a/b/cpu.max": "max 100000\n", "a/cpu.max": "50000 50000\n"}, 1, MEMORY),
        ("/a", {"a/memory.max": "7000\n", "memory.max": "6000\n"}, CORES, 6000),
        # The host's path is not there in the container.
        ("/x/y", {"cpu.max": "1 1\n", "memory.max": "7000\n"}, 1, 7000),
        ("/", {"cpu.max": "broken"}, CORES, MEMORY),
    ],
)
def test_limits_of_groups(tmp_path, group, files, cores, memory):
    files = {f"sys/fs/cgroup/{name}": text for name, text in files.items()}
    for name, text in files.items() | {("proc/self/cgroup", f"0::{group}\n")}:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert (available_cores(tmp_path), available_memory(tmp_path)) == (cores, memory)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no affinity on this system")
def test_affinity(tmp_path):
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, [min(before)])
    try:
        assert available_cores(tmp_path) == 1
    finally:
        os.sched_setaffinity(0, before)


def test_this_process():
    assert 1 <= available_cores() <= CORES
    assert 0 < available_memory() <= MEMORY
