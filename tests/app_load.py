"""Ten visitors at once, in a real browser: python tests/app_load.py

First measures the time to load the page and to a first answer, without compiled programs, and
until the server, which compiles while it is idle, has ended. Then four visitors are served and six
wait. Every round prints how many got the whole answer, how long it took and the server's memory,
which should stay flat from the second round on. Exit status 1 if any visitor got no answer.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path

from app_browser import Visitor, app, browser

from dart_jax.model import DartModel

PROMPT = "def heappush(heap, item):\n"
VISITORS, ROUNDS, NEW_TOKENS = 10, 5, 64


def main() -> bool:
    """Whether everyone was answered, with the text that `stream` gives."""
    expected = "".join(DartModel.demo().stream(PROMPT, max_new_tokens=NEW_TOKENS))
    limits = ("--visitors", "4", "--max-new-tokens", str(NEW_TOKENS))
    everyone = True
    began = time.perf_counter()
    with (
        tempfile.TemporaryDirectory(prefix="dart_jax_") as empty,
        app(*limits, JAX_COMPILATION_CACHE_DIR=empty) as served,
        browser() as chromium,
    ):
        first = Visitor(chromium.new_context(), served.address)
        up = time.perf_counter() - began
        first.write(PROMPT)
        first.finished()
        print(f"up in {up:.1f} s, a first answer after {time.perf_counter() - began:.1f} s")
        while busy(served.pid):
            pass
        print(f"all compiled after {time.perf_counter() - began:.0f} s", flush=True)
        visitors = [Visitor(chromium.new_context(), served.address) for _ in range(VISITORS)]
        for number in range(ROUNDS):
            began = time.perf_counter()
            for visitor in visitors:
                visitor.page.fill("#prompt textarea", PROMPT)
                visitor.page.click("#send")
            for visitor in visitors:
                visitor.page.wait_for_selector(f"#current .line:has-text('{NEW_TOKENS} tokens')")
            seconds = time.perf_counter() - began
            answered = sum(visitor.answer == expected for visitor in visitors)
            everyone = everyone and answered == VISITORS
            for visitor in visitors:
                visitor.clear()
            print(
                f"round {number + 1}: {answered} of {VISITORS} answered in {seconds:.1f} s, "
                f"server {resident(served.pid):.1f} MB",
                flush=True,
            )
    return everyone


def busy(pid: int) -> bool:
    """Whether a process computes anything during the next seconds."""

    def ticks() -> int:
        return sum(
            map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13])
        )

    before = ticks()
    time.sleep(3)
    return ticks() - before > 0.3 * os.sysconf("SC_CLK_TCK")


def resident(pid: int) -> float:
    """Memory of a process, in MB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1000


if __name__ == "__main__":
    sys.exit(not main())
