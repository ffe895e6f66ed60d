"""Draws a draft tree as SVG, from numbers and escaped texts only."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from dart_jax.app.markup import escape

STYLE = Path(__file__).with_name("tree.css")

_WIDTH, _HEIGHT = 92, 30  # size of a node's box
_GAP_X, _GAP_Y = 22, 12
_TOP = 26  # space for the levels' names
_LABEL = 11  # maximum characters shown per token


class Node(NamedTuple):
    """One node of a picture.

    Attributes:
      text: the text of its token.
      parent: index of its parent, which comes before it; None for the root.
      kind: `root`, `accepted`, `rejected` or `bonus`, the target's own token.
      score: a short line below the token.
      details: a longer text, shown as a tooltip.
    """

    text: str
    parent: int | None
    kind: str
    score: str = ""
    details: str = ""


def label(text: str) -> str:
    """Shows a token on one line: symbols for white space, and an ellipsis if it is long."""
    for sign, shown in ((" ", "·"), ("\n", "↵"), ("\t", "⇥")):
        text = text.replace(sign, shown)
    return text if len(text) <= _LABEL else text[: _LABEL - 1] + "…"


def draw(nodes: Sequence[Node], title: str, style: str = "") -> str:
    """Draws a tree, the root on the left, with one column per level.

    Args:
      nodes: the nodes, parents first.
      title: the accessible title.
      style: CSS to embed, if no page provides it.
    """
    depth, rows = _places(nodes)
    columns, lines = max(depth) + 1, max(rows) + 1
    width = columns * (_WIDTH + _GAP_X) - _GAP_X + 4
    height = _TOP + lines * (_HEIGHT + _GAP_Y) + 4
    parts = [
        f'<svg class="tree" role="img" width="{width}" height="{height:.0f}" '
        f'viewBox="0 0 {width} {height:.0f}" xmlns="http://www.w3.org/2000/svg">'
        f"<title>{escape(title)}</title>{f'<style>{style}</style>' if style else ''}"
    ]
    for level in range(columns):
        name = "root" if level == 0 else f"level {level}"
        x = 2 + level * (_WIDTH + _GAP_X) + _WIDTH / 2
        parts.append(f'<text class="level" x="{x:.0f}" y="14" text-anchor="middle">{name}</text>')
    corners = [
        (2 + level * (_WIDTH + _GAP_X), _TOP + row * (_HEIGHT + _GAP_Y))
        for level, row in zip(depth, rows, strict=True)
    ]
    for node, (x, y) in zip(nodes, corners, strict=True):
        if node.parent is not None:
            from_x, from_y = corners[node.parent]
            parts.append(_edge(node.kind, from_x + _WIDTH, from_y + _HEIGHT / 2, x, y))
    for node, (x, y) in zip(nodes, corners, strict=True):
        parts.append(_box(node, x, y))
    return "".join([*parts, "</svg>"])


def _places(nodes: Sequence[Node]) -> tuple[list[int], list[float]]:
    """Returns the nodes' columns and rows: a row per leaf, parents in their first child's row."""
    depth: list[int] = []
    children: list[list[int]] = [[] for _ in nodes]
    for index, node in enumerate(nodes):
        depth.append(0 if node.parent is None else depth[node.parent] + 1)
        if node.parent is not None:
            children[node.parent].append(index)
    rows, free = [0.0] * len(nodes), 0
    stack = [0]
    while stack:  # depth first, so that no edge crosses another
        index = stack.pop()
        if children[index]:
            stack.extend(reversed(children[index]))
        else:
            rows[index], free = float(free), free + 1
    for index in reversed(range(len(nodes))):
        if children[index]:
            rows[index] = rows[children[index][0]]
    return depth, rows


def _edge(kind: str, from_x: float, from_y: float, x: float, y: float) -> str:
    middle, end = (from_x + x) / 2, y + _HEIGHT / 2
    return (
        f'<path class="edge {kind}" d="M{from_x:.0f} {from_y:.0f}'
        f'C{middle:.0f} {from_y:.0f} {middle:.0f} {end:.0f} {x:.0f} {end:.0f}"/>'
    )


def _box(node: Node, x: float, y: float) -> str:
    center = x + _WIDTH / 2
    line = y + (_HEIGHT / 2 - 2 if node.score else _HEIGHT / 2 + 4)
    parts = [
        f'<g class="node {node.kind}"><title>{escape(node.details or node.text)}</title>'
        f'<rect x="{x:.0f}" y="{y:.0f}" width="{_WIDTH}" height="{_HEIGHT}" rx="6"/>'
        f'<text x="{center:.0f}" y="{line:.0f}" text-anchor="middle">{escape(label(node.text))}'
        "</text>"
    ]
    if node.score:
        parts.append(
            f'<text class="score" x="{center:.0f}" y="{y + _HEIGHT - 5:.0f}" '
            f'text-anchor="middle">{escape(node.score)}</text>'
        )
    return "".join([*parts, "</g>"])
