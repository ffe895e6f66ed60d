"""Draws a prompt and its answer: as Markdown, and token by token."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML

from dart_jax.app.markup import TEMPLATE, escape, visible
from dart_jax.generation import Completion, Piece

_LEGEND = (
    '<span class="legend"><span class="drafted">Drafted</span> and accepted, or the target\'s '
    '<span class="own">own</span>.</span>'
)
_COPY = '<button class="copy" type="button">Copy</button>'

# Copies the code beside a button, or an answer as it was written; also where the browser offers no
# clipboard because the page came over plain HTTP.
COPYING = """
element.addEventListener("click", ({target}) => {
  if (!target.matches(".copy")) return;
  const box = document.createElement("textarea");
  const source = target.closest(".code")?.querySelector("code")
    ?? target.closest(".entry").querySelector(".written");
  box.value = source.textContent;
  box.className = "copied";
  document.body.append(box);
  box.select();
  document.execCommand("copy");
  box.remove();
  target.focus();
  target.textContent = "Copied";
  setTimeout(() => { target.textContent = "Copy"; }, 1500);
});
"""


class _Renderer(RendererHTML):
    """Adds a button to code, and opens links beside the conversation."""

    def fence(self, *args: Any) -> str:
        return f'<div class="code">{_COPY}{super().fence(*args)}</div>'

    def code_block(self, *args: Any) -> str:
        return f'<div class="code">{_COPY}{super().code_block(*args)}</div>'

    def link_open(self, tokens: Sequence[Any], idx: int, options: Any, env: Any) -> str:
        tokens[idx].attrs |= {"target": "_blank", "rel": "noopener noreferrer"}
        return self.renderToken(tokens, idx, options, env)


# HTML is text. Images are not fetched: their addresses could tell others what was said.
_MARKDOWN = MarkdownIt(
    "js-default", {"html": False, "breaks": True}, renderer_cls=_Renderer
).disable("image")


def markdown(text: str) -> str:
    """Renders Markdown, whose entities can name characters that hide text as well."""
    return visible(_MARKDOWN.render(visible(text))).translate(TEMPLATE)


def coloured(pieces: Iterable[Piece]) -> str:
    """Colours a text by who wrote it; neighbouring pieces of the same origin are one run."""
    return "".join(
        f'<span class="{"drafted" if drafted else "own"}">{escape("".join(run))}</span>'
        for drafted, run in itertools.groupby(pieces, key=lambda piece: piece.drafted)
    )


def statistics(completion: Completion, *, drafts: bool) -> str:
    """Returns a line of plain text: tokens, speed, tau or that nothing was drafted."""
    if not len(completion.tokens):
        return "no tokens yet" if completion.finish is None else "no tokens"
    words = [f"{len(completion.tokens)} tokens", f"{completion.tokens_per_second:,.0f} tokens/s"]
    if completion.steps:
        words.append(f"tau {completion.tau:.2f}" if drafts else "nothing drafted")
    if completion.finish is not None:
        words.append({"stop": "finished", "length": "cut at the maximum length"}[completion.finish])
    return " · ".join(words)


def entry(prompt: str, completion: Completion, *, chat: bool, drafts: bool) -> str:
    """Draws a prompt and its answer: two chat messages, or one continuous text.

    Args:
      prompt: what was asked.
      completion: the answer so far.
      chat: whether it answers; such an answer is there as Markdown, too.
      drafts: whether something was drafted; if nothing was, there is nothing to colour.
    """
    text = coloured(completion.pieces) if drafts else escape(completion.text)
    written = f'<span class="written">{text}</span>'
    if chat:
        body = (
            f'<div class="text said">{escape(prompt)}</div>'
            f'<div class="markdown">{markdown(completion.text)}</div>'
            f'<div class="text tokens">{written}</div>'
        )
    else:
        body = f'<div class="text"><span class="prompt">{escape(prompt)}</span>{written}</div>'
    line = f"<span>{escape(statistics(completion, drafts=drafts))}</span>"
    legend = _LEGEND if drafts else ""
    return f'<div class="entry">{body}<p class="note">{line} {legend} {_COPY}</p></div>'
