"""Writes the README's pictures of the web app: python tests/app_screenshots.py docs"""

from __future__ import annotations

import sys
from pathlib import Path

from app_browser import Visitor, app, browser


def main(directory: Path) -> None:
    """`app.png`: an answer; `app_tree.png`: a draft tree."""
    with app("--model", "smollm2") as served, browser() as chromium:
        context = chromium.new_context(viewport={"width": 1360, "height": 880})
        visitor = Visitor(context, served.address)
        for _ in range(2):  # the first one compiles
            visitor.page.click("#clear")
            visitor.page.wait_for_selector(".entry", state="detached")
            visitor.write("Write a Python function that merges two sorted lists.")
            visitor.finished()
        visitor.page.locator("#view").get_by_label("Tokens").check()
        visitor.page.wait_for_timeout(500)
        visitor.page.screenshot(path=directory / "app.png")
        visitor.tab("Draft tree")
        visitor.set("step", 3)
        visitor.page.wait_for_selector("#tree:has-text('Step 3 of')")
        visitor.page.wait_for_timeout(1000)
        visitor.page.screenshot(path=directory / "app_tree.png", clip=_above_prompt(visitor))


def _above_prompt(visitor: Visitor) -> dict[str, float]:
    top = visitor.page.locator("#step").bounding_box()
    bottom = visitor.page.locator("#prompt").bounding_box()
    assert top is not None
    assert bottom is not None
    y = top["y"] - 70
    return {"x": top["x"] - 12, "y": y, "width": top["width"] + 24, "height": bottom["y"] - y - 8}


if __name__ == "__main__":
    main(Path(sys.argv[1]))
