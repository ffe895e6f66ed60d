"""What `mkdocs build` adds to the pages of this directory: pages that are generated.

A set of pages is a function that returns Markdown by path; a path replaces a page of the same name,
which then tells readers of the repository where its content is.
"""

from __future__ import annotations

import re

import options_page
import results_pages
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

PAGE_SETS = (options_page.pages, results_pages.pages)


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Leads from the files of results, to which links in the repository go, to their pages."""
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
            if (there := files.get_file_from_path(path)) is not None:
                files.remove(there)
            files.append(File.generated(config, path, content=text))
    return files
