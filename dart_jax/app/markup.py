"""HTML for texts. All text from a model or a visitor passes through `escape` or `markdown`."""

from __future__ import annotations

import html
import re

# Characters that a template of the page would interpret, besides those of HTML.
TEMPLATE = str.maketrans({sign: f"&#{ord(sign)};" for sign in "$`{}\\"})

# Characters that could hide or reorder text: control characters except tab and line feed, line
# separators, direction marks, unpaired surrogates.
_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)


def visible(text: str) -> str:
    """Replaces hidden and reordering characters by U+FFFD, and carriage returns by line feeds."""
    return _HIDDEN.sub("\ufffd", re.sub("\r\n?", "\n", text))


def escape(text: str) -> str:
    """Escapes a text for HTML and templates; hidden characters become visible."""
    return html.escape(visible(text)).translate(TEMPLATE)


def note(text: str) -> str:
    """Draws a line of text beside what it is about."""
    return f'<p class="note">{escape(text)}</p>'
