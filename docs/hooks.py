"""What `mkdocs build` adds to the pages of this directory: pages that are generated.

A set of pages is a function that returns Markdown by path.
"""

from __future__ import annotations

import re
from pathlib import Path

import options_page
import results_pages
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]

# Documents beside this directory, and the pages that they become.
OUTSIDE = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md"}
SOURCES = {"dart_jax/generation/config.py": "api/generation.md"}  # and those of their API


def outside_pages() -> dict[str, str]:
    """Returns the documents beside this directory, whose links then lead to pages."""
    return {path: _as_page((ROOT / name).read_text()) for name, path in OUTSIDE.items()}


def _as_page(text: str) -> str:
    """Leaves of a link to a file that the site lacks only its text."""

    def led(link: re.Match[str]) -> str:
        text, target = link[1], link[2]
        if re.match(r"[a-z]+:|#", target):
            return link[0]
        path = OUTSIDE.get(target) or target.removeprefix("docs/")
        there = target in OUTSIDE or target.startswith("docs/")
        return f"[{text}]({path})" if there else text

    return re.sub(r"\[([^\]]*)\]\(([^)\s]+)\)", led, text)


PAGE_SETS = (options_page.pages, results_pages.pages, outside_pages)


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Leads from files beside this directory, to which links in the repository go, to pages."""
    for name, path in (OUTSIDE | SOURCES).items():
        markdown = markdown.replace(f"](../{name}", f"]({path}")
    return re.sub(r"\]\(\.\./(results\b[^)]*)\)", lambda link: f"]({_page_of(link[1])})", markdown)


def _page_of(path: str) -> str:
    return path.replace(".json", ".md") if path.endswith(".json") else results_pages.INDEX


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the generated pages, and leaves out these programs."""
    for file in [*files]:
        if file.src_uri.endswith(".py"):
            files.remove(file)
    for pages in PAGE_SETS:
        for path, text in pages().items():
            files.append(File.generated(config, path, content=text))
    return files
