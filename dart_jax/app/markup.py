"""HTML for texts. All text from a model or a visitor passes through `escape`."""

from __future__ import annotations

import html
import itertools
import re
from collections.abc import Iterable, Sequence

from dart_jax.app.answer import Answer
from dart_jax.generation import Piece

# Characters that a template of the page would interpret, besides those of HTML.
_TEMPLATE = str.maketrans({sign: f"&#{ord(sign)};" for sign in "$`{}\\"})

# Characters that could hide or reorder text: control characters except tab and line feed, line
# separators, direction marks, unpaired surrogates.
_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)

LEGEND = (
    '<p class="legend"><span class="drafted">Drafted</span> and accepted, or the target\'s '
    '<span class="own">own</span>.</p>'
)

NO_ANSWER = '<p class="note">The answer will be shown here.</p>'


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


def statistics(answer: Answer, *, with_limit: bool = False) -> str:
    """Returns the answer's statistics as a line of plain text; `with_limit`: "3 of 8 tokens"."""
    if not answer.tokens:
        return ""
    limit = f" of {answer.limit}" if with_limit else ""
    words = [f"{answer.tokens}{limit} tokens", f"{answer.tokens_per_second:,.0f} tokens/s"]
    if any(step.draft is not None for step in answer.steps):
        words.append(f"tau {answer.tau:.2f}")
    if answer.ended:
        ends = {"stop": "finished", "length": "cut at the maximum length", None: "stopped"}
        if not (with_limit and answer.tokens == answer.limit):
            words.append(ends[answer.finish])
    return " · ".join(words)


def entry(prompt: str, answer: Answer, *, chat: bool) -> str:
    """Draws a prompt and its answer: two chat messages, or one continuous text."""
    body = f'<span class="answer">{coloured(answer.pieces)}</span>'
    if chat:
        text = f'<div class="text said">{escape(prompt)}</div><div class="text">{body}</div>'
    else:
        text = f'<div class="text"><span class="prompt">{escape(prompt)}</span>{body}</div>'
    return f'<div class="entry">{text}<p class="line">{escape(statistics(answer))}</p></div>'


def note(text: str, kind: str = "note") -> str:
    """Draws a message to the visitor; `kind` is note, line or winner."""
    return f'<p class="{kind}" role="status">{escape(text)}</p>' if text else ""


def lane(answer: Answer, prompt: str) -> str:
    """Draws the text of one side of a race."""
    return (
        f'<div class="lane"><h2>{escape(answer.title)}</h2>'
        f'<div class="text"><span class="prompt">{escape(prompt)}</span>'
        f'<span class="answer">{coloured(answer.pieces)}</span></div></div>'
    )


def board(runners: Sequence[Answer]) -> str:
    """Draws the progress of a race: for every runner its clock and a bar of its tokens.

    The bar of a text that ended before its limit is full.
    """
    over = all(answer.finish for answer in runners)
    best = min(answer.seconds for answer in runners)
    return "".join(
        f'<div class="runner{(" won" if answer.seconds == best else " lost") if over else ""}">'
        f'<span class="name">{escape(answer.title)}</span>'
        f'<progress max="{answer.limit}" aria-label="tokens of {escape(answer.title)}" '
        f'value="{answer.limit if answer.finish else answer.tokens}"></progress>'
        f'<span class="clock">{answer.seconds:.2f} s</span>'
        f'<span class="line">{escape(statistics(answer, with_limit=True))}</span></div>'
        for answer in runners
    )


def verdict(left: Answer, right: Answer) -> str:
    """Says in plain text who won a finished race, and whether both texts are the same."""
    if None in (left.finish, right.finish):
        return "The race was stopped."
    first, second = sorted((left, right), key=lambda answer: answer.seconds)
    won = (
        f"{first.title} wins: {first.seconds:.2f} s against {second.seconds:.2f} s, "
        f"{second.seconds / first.seconds:.2f} times as fast as {second.title}."
    )
    if left.text == right.text:
        return f"{won} Both texts are the same."
    return f"{won} The texts differ: two tokens were almost equally likely, and rounding decided."
