"""HTML for texts. All text from a model or a visitor passes through `escape`."""

from __future__ import annotations

import html
import itertools
import re
from collections.abc import Iterable

from dart_jax.generation import Completion, Piece

# Characters that a template of the page would interpret, besides those of HTML.
_TEMPLATE = str.maketrans({sign: f"&#{ord(sign)};" for sign in "$`{}\\"})

# Characters that could hide or reorder text: control characters except tab and line feed, line
# separators, direction marks, unpaired surrogates.
_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)

LEGEND = (
    '<p class="note"><span class="drafted">Drafted</span> and accepted, or the target\'s '
    '<span class="own">own</span>.</p>'
)


def escape(text: str) -> str:
    """Escapes a text for HTML and templates; hidden and reordering characters become U+FFFD."""
    visible = _HIDDEN.sub("\ufffd", re.sub("\r\n?", "\n", text))
    return html.escape(visible).translate(_TEMPLATE)


def coloured(pieces: Iterable[Piece]) -> str:
    """Colours a text by who wrote it; neighbouring pieces of the same origin are one run."""
    return "".join(
        f'<span class="{"drafted" if drafted else "own"}">{escape("".join(run))}</span>'
        for drafted, run in itertools.groupby(pieces, key=lambda piece: piece.drafted)
    )


def statistics(completion: Completion) -> str:
    """Returns a line of plain text: tokens, speed, and tau where something was drafted."""
    words = [f"{len(completion.tokens)} tokens", f"{completion.tokens_per_second:,.0f} tokens/s"]
    if completion.drafted.any():
        words.append(f"tau {completion.tau:.2f}")
    if completion.finish is not None:
        words.append({"stop": "finished", "length": "cut at the maximum length"}[completion.finish])
    return " · ".join(words)


def entry(prompt: str, completion: Completion, *, chat: bool) -> str:
    """Draws a prompt and its answer: two chat messages, or one continuous text."""
    body = coloured(completion.pieces)
    if chat:
        text = f'<div class="text said">{escape(prompt)}</div><div class="text">{body}</div>'
    else:
        text = f'<div class="text"><span class="prompt">{escape(prompt)}</span>{body}</div>'
    return f'<div class="entry">{text}<p class="note">{escape(statistics(completion))}</p></div>'


def note(text: str) -> str:
    """Draws a line of text beside what it is about."""
    return f'<p class="note">{escape(text)}</p>'
