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
    columns = max(depth) + 1
    width = columns * (_WIDTH + _GAP_X) - _GAP_X + 4
    height = _TOP + (max(rows) + 1) * (_HEIGHT + _GAP_Y) + 4
    names, edges, boxes = [], [], []
    for level in range(columns):
        name = "root" if level == 0 else f"level {level}"
        x = 2 + level * (_WIDTH + _GAP_X) + _WIDTH // 2
        names.append(f'<text class="level" x="{x}" y="14" text-anchor="middle">{name}</text>')
    corners = [
        (2 + level * (_WIDTH + _GAP_X), _TOP + row * (_HEIGHT + _GAP_Y))
        for level, row in zip(depth, rows, strict=True)
    ]
    for node, (x, y) in zip(nodes, corners, strict=True):
        if node.parent is not None:
            edges.append(_edge(node.kind, *corners[node.parent], x, y))
        boxes.append(_box(node, x, y))
    return "".join(
        [
            f'<svg class="tree" role="img" width="{width}" height="{height}" '
            f'viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">'
            f"<title>{escape(title)}</title>{style and f'<style>{style}</style>'}",
            *(*names, *edges, *boxes),
            "</svg>",
        ]
    )


def _places(nodes: Sequence[Node]) -> tuple[list[int], list[int]]:
    """Returns the nodes' columns and rows: a row per leaf, parents in their first child's row."""
    depth = [0] * len(nodes)
    children: list[list[int]] = [[] for _ in nodes]
    for index, node in enumerate(nodes):
        if node.parent is not None:
            depth[index] = depth[node.parent] + 1
            children[node.parent].append(index)
    rows, leaves = [0] * len(nodes), 0
    stack = [0]
    while stack:  # depth first, so that no edge crosses another
        index = stack.pop()
        rows[index] = leaves
        leaves += not children[index]
        stack.extend(reversed(children[index]))
    return depth, rows


def _edge(kind: str, from_x: int, from_y: int, x: int, y: int) -> str:
    begin, middle = from_x + _WIDTH, (from_x + _WIDTH + x) // 2
    top, end = from_y + _HEIGHT // 2, y + _HEIGHT // 2
    curve = f"M{begin} {top}C{middle} {top} {middle} {end} {x} {end}"
    return f'<path class="edge {kind}" d="{curve}"/>'


def _box(node: Node, x: int, y: int) -> str:
    center, line = x + _WIDTH // 2, y + _HEIGHT // 2 + (-2 if node.score else 4)
    score = (
        f'<text class="score" x="{center}" y="{y + _HEIGHT - 5}" text-anchor="middle">'
        f"{escape(node.score)}</text>"
    )
    return (
        f'<g class="node {node.kind}"><title>{escape(node.details or node.text)}</title>'
        f'<rect x="{x}" y="{y}" width="{_WIDTH}" height="{_HEIGHT}" rx="6"/>'
        f'<text x="{center}" y="{line}" text-anchor="middle">{escape(label(node.text))}</text>'
        f"{score if node.score else ''}</g>"
    )
