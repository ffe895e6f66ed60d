"""Writes the README's pictures of the web app: python tests/app_screenshots.py docs"""

from __future__ import annotations

import sys
from pathlib import Path

from app_browser import Visitor, app, browser


def main(directory: Path) -> None:
    """`app.png`: an answer; `app_tree.png`: a draft tree; `app_race.png`: a race."""
    with app(model="smollm2") as served, browser() as chromium:
        context = chromium.new_context(viewport={"width": 1360, "height": 880})
        visitor = Visitor(context, served.address)
        visitor.page.click("#example-python")
        visitor.page.click("#send")
        # The answer may be complete before its cursor can be seen.
        visitor.page.wait_for_function(
            "document.querySelector('#current .line')?.innerText.includes('cut at')"
        )
        visitor.page.wait_for_timeout(500)
        visitor.page.screenshot(path=directory / "app.png")
        visitor.tab("Draft tree")
        visitor.set("step", 3)
        visitor.page.wait_for_selector("#tree svg")
        visitor.page.wait_for_timeout(1000)
        visitor.page.screenshot(path=directory / "app_tree.png", clip=_above_prompt(visitor))
        visitor.tab("Race")
        for _ in range(2):  # the first one compiles
            visitor.page.click("#race")
            visitor.page.wait_for_selector("#board .winner", state="detached")
            visitor.page.wait_for_selector("#board .winner")
        visitor.page.wait_for_timeout(500)
        visitor.page.screenshot(path=directory / "app_race.png")


def _above_prompt(visitor: Visitor) -> dict[str, float]:
    top = visitor.page.locator("#step").bounding_box()
    bottom = visitor.page.locator("#prompt").bounding_box()
    assert top is not None
    assert bottom is not None
    y = top["y"] - 70
    return {"x": top["x"] - 12, "y": y, "width": top["width"] + 24, "height": bottom["y"] - y - 8}


if __name__ == "__main__":
    main(Path(sys.argv[1]))
