"""Draws an answer's tokens, and the draft tree of a step. All texts pass through `escape`."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from dart_jax.engine.request import Draft
from dart_jax.engine.thread import ServedModel
from dart_jax.errors import UserError
from dart_jax.generation import Piece, Step

_STYLE = Path(__file__).with_name("tree.css")

# Characters that a template of the page would interpret, besides HTML's special characters.
_TEMPLATE = str.maketrans({sign: f"&#{ord(sign)};" for sign in "$`{}\\"})
# Characters that could hide or reorder text, such as direction marks and unpaired surrogates.
_HIDDEN = "[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]"

_WIDTH, _HEIGHT, _GAP_X, _GAP_Y = 92, 30, 22, 12  # of a node's box, and between two
_LABEL = 11  # characters shown of a token, at most
# A node's text, parent (before it; the root is its own), kind, and line below the text.
Node = tuple[str, int, str, str]
_SIGNS = str.maketrans({" ": "·", "\n": "↵", "\t": "⇥"})


def escape(text: str) -> str:
    """Escapes a text for HTML and templates; hidden characters become U+FFFD."""
    shown = re.sub(_HIDDEN, "\ufffd", re.sub("\r\n?", "\n", text))
    return html.escape(shown).translate(_TEMPLATE)


def coloured(pieces: Iterable[Piece]) -> str:
    """Colours the pieces of a text by who wrote them."""
    kinds = {True: "drafted", False: "own"}
    return "".join(f'<span class="{kinds[each.drafted]}">{escape(each)}</span>' for each in pieces)


def counts(step: Step) -> str:
    """Describes how many tokens a step drafted, accepted and emitted."""
    drafted = 0 if step.draft is None else np.count_nonzero(step.draft.tree[2])
    return f"{drafted} drafted, {step.drafted} accepted, {len(step.tokens)} emitted"


def drawing(step: Step, model: ServedModel) -> str:
    """Draws the tree of a step of `TextGeneration.steps`, from left to right.

    Args:
      step: a step with its drafts; not the prefill.
      model: the model that generated it.

    Raises:
      UserError: the step has no drafts.
    """
    if step.draft is None:
        raise UserError("this step has no drafts: use steps(with_drafts=True) and skip the prefill")
    nodes = nodes_of(step, step.draft, model)
    places = range(len(nodes))
    children = [[n for n in places if nodes[n][1] == place < n] for place in places]
    xs, ys, leaves, stack = [2] * len(nodes), [2] * len(nodes), 0, [0]
    while stack:  # depth first, so that no edge crosses another; a row for each leaf
        index = stack.pop()
        xs[index] = xs[nodes[index][1]] + (index > 0) * (_WIDTH + _GAP_X)
        ys[index] += leaves * (_HEIGHT + _GAP_Y)
        leaves += not children[index]
        stack += reversed(children[index])
    edges = boxes = ""
    for (text, parent, kind, line), x, y in zip(nodes, xs, ys, strict=True):
        begin, top = xs[parent] + _WIDTH, ys[parent] + _HEIGHT // 2
        middle, end, center = (begin + x) // 2, y + _HEIGHT // 2, x + _WIDTH // 2
        if kind != "root":
            curve = f"M{begin} {top}C{middle} {top} {middle} {end} {x} {end}"
            edges += f'<path class="edge {kind}" d="{curve}"/>'
        token = text.translate(_SIGNS)
        token = token if len(token) <= _LABEL else token[: _LABEL - 1] + "…"
        boxes += (
            f'<g class="node {kind}"><title>{escape(f"{text!r}, {kind}")}</title>'
            f'<rect x="{x}" y="{y}" width="{_WIDTH}" height="{_HEIGHT}" rx="6"/>'
            f'<text x="{center}" y="{end + (-2 if line else 4)}">{escape(token)}</text>'
            f'<text class="line" x="{center}" y="{y + _HEIGHT - 5}">{escape(line)}</text></g>'
        )
    width, height = max(xs) + _WIDTH + 2, max(ys) + _HEIGHT + 2
    return (
        f'<svg class="tree" role="img" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">'
        f"<title>{counts(step)}</title><style>{_STYLE.read_text()}</style>{edges}{boxes}</svg>"
    )


def nodes_of(step: Step, draft: Draft, model: ServedModel) -> list[Node]:
    """Returns the nodes of a step's draft, with the bonus token after the accepted path."""

    def text(token: int) -> str:  # special tokens by name
        name = model.tokenizer.backend.id_to_token(token) or ""
        return name if token in model.tokenizer.special_ids else model.tokenizer.decode([token])

    tokens, parents, depths = draft.tree.tolist()
    emitted, path = step.tokens.tolist(), [0]
    nodes, place = [(text(tokens[0]), 0, "root", "")], {0: 0}  # tree's index -> picture's
    for index, (token, parent, depth) in enumerate(zip(tokens, parents, depths, strict=True)):
        if not depth:
            continue  # the root and unused places
        taken = parent == path[-1] and [token] == emitted[len(path) - 1 : step.drafted][:1]
        path += [index] * taken
        place[index], line = len(nodes), ""
        by_text = nodes[place[parent]][3] == "text"
        if not by_text and depth <= len(draft.ids) and token in draft.ids[depth - 1]:
            line = f"{probability(draft, depth - 1, token, tokens[parent]):.0%}"
        elif len(draft.ids):
            line = "text"  # only the text itself drafted it
        nodes.append((text(token), place[parent], "accepted" if taken else "rejected", line))
    bonus = emitted[step.drafted :][:1]
    return nodes + [(text(token), place[path[-1]], "bonus", "target") for token in bonus]


def probability(draft: Draft, level: int, token: int, parent: int) -> float:
    """Returns the drafter's probability of a token among its level's candidates, after a parent."""
    ids, logits = draft.ids[level], draft.logits[level]
    if level and len(draft.pairs):
        before = np.where(draft.ids[level - 1] == parent, draft.logits[level - 1], -np.inf)
        logits = logits + draft.pairs[level - 1, before.argmax()]
    weights = np.exp(logits - logits.max())
    return float(weights[ids == token].sum() / weights.sum())
