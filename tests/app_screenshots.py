"""Writes the README's picture of the web app: python tests/app_screenshots.py docs"""

from __future__ import annotations

import sys
from pathlib import Path

from app_browser import Visitor, app, browser


def main(directory: Path) -> None:
    """`app.png`: an answer, its tokens and a draft tree."""
    with app("--model", "smollm2", "--tree-nodes", "8") as served, browser() as chromium:
        context = chromium.new_context(viewport={"width": 1360, "height": 880})
        visitor = Visitor(context, served.address)
        for _ in range(2):  # the first one compiles
            visitor.page.get_by_role("button", name="New chat").click()
            visitor.send("Write a Python function that merges two sorted lists.")
            visitor.finished()
        visitor.set("step", 3)
        visitor.page.wait_for_selector("#tree:has-text('Step 3 of')")
        visitor.page.wait_for_timeout(1000)
        visitor.page.screenshot(path=directory / "app.png")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
