"""Draws one step of an answer, with a line of text."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np

from dart_jax.app.markup import note
from dart_jax.app.scores import Score, scores
from dart_jax.app.tree_picture import STYLE, Node, draw
from dart_jax.decoding.search.config import SearchConfig
from dart_jax.engine.defaults import default_search
from dart_jax.engine.request import Draft
from dart_jax.errors import UserError
from dart_jax.generation import Step
from dart_jax.model import DartModel
from dart_jax.text.tokenizer import Tokenizer

NOTHING = '<p class="note">The draft trees of the next answer will be shown here.</p>'


def nodes_of(step: Step, draft: Draft, model: DartModel, search: SearchConfig) -> list[Node]:
    """Returns the nodes of a step's draft, with the bonus token after the accepted path."""
    tokens, parents, depths = draft.tree.tolist()
    scored = model.drafter is not None and model.drafter.traits.search == "candidates"
    ranks = scores(draft, search, model.ngram) if scored else [None] * len(tokens)
    accepted, text = accepted_path(step, draft), functools.partial(_text, model.tokenizer)
    nodes = [Node(text(tokens[0]), None, "root", details="the newest token of the text")]
    place = {0: 0}  # tree index -> index among the drawn nodes; unused places are not drawn
    for index in range(1, len(tokens)):
        if depths[index] == 0:
            continue
        place[index] = len(nodes)
        kind, score = "accepted" if index in accepted else "rejected", ranks[index]
        short = "" if score is None else f"{score.total:.1f} · {score.drafter:.0%}"
        details = f"{text(tokens[index])!r}, {kind}{_details(score)}"
        nodes.append(Node(text(tokens[index]), place[parents[index]], kind, short, details))
    if len(step.tokens) > step.drafted:
        own = text(int(step.tokens[step.drafted]))
        end = place[accepted[step.drafted]]
        nodes.append(Node(own, end, "bonus", "target", f"{own!r}, the target's own token"))
    return nodes


def accepted_path(step: Step, draft: Draft) -> list[int]:
    """Returns the accepted nodes, from the root down."""
    path = [0]
    tokens, parents, depths = draft.tree.tolist()
    for token in step.tokens[: step.drafted].tolist():
        followers = (
            node
            for node in range(1, len(tokens))
            if depths[node] and parents[node] == path[-1] and tokens[node] == token
        )
        path.append(next(followers))
    return path


def picture(steps: Sequence[Step], number: int, model: DartModel, search: SearchConfig) -> str:
    """Returns the HTML of one of an answer's steps.

    Args:
      steps: those after the first one, which has nothing to verify.
      number: counted from 1; the nearest if there is no such step.
      model: the one that wrote them.
      search: the parameters of its tree search.
    """
    if not steps:
        return NOTHING
    number = min(max(number, 1), len(steps))
    step, caption = steps[number - 1], f"Step {number} of {len(steps)}: "
    if step.draft is None:
        return note(f"{caption}nothing is drafted; the target emits one token.")
    caption += f"{_counts(step, step.draft)}."
    nodes, legend = nodes_of(step, step.draft, model, search), ""
    if any(node.score for node in nodes if node.kind != "bonus"):
        legend = (
            " Below a token: the search's score of its path, and the drafter's probability. "
            "Point at a node for more."
        )
    return f'{note(caption + legend)}<div class="wide">{draw(nodes, caption)}</div>'


def drawing(step: Step, model: DartModel, search: SearchConfig | None = None) -> str:
    """Draws a step of `TextGeneration.steps` as a standalone SVG, for a notebook or a file.

    Args:
      step: a step with its drafts; not the prefill.
      model: the model that generated it.
      search: the search config that was used; None for the default of trees whose size changes.

    Raises:
      UserError: the step has no drafts.
    """
    if step.draft is None:
        raise UserError("this step has no drafts: use steps(with_drafts=True) and skip the prefill")
    nodes = nodes_of(step, step.draft, model, search or default_search(model.drafter))
    return draw(nodes, f"{_counts(step, step.draft)}.", STYLE.read_text())


def _counts(step: Step, draft: Draft) -> str:
    drafted = np.count_nonzero(draft.tree[2])
    return f"{drafted} drafted, {step.drafted} accepted, {len(step.tokens)} emitted"


def _text(tokenizer: Tokenizer, token: int) -> str:
    """Decodes a token; special tokens are shown by name."""
    if token in tokenizer.special_ids:
        return tokenizer.backend.id_to_token(token) or ""
    return tokenizer.decode([token])


def _details(score: Score | None) -> str:
    if score is None:
        return ""
    ngram = "" if score.ngram is None else f", n-gram model {score.ngram:.1%}"
    return f"; drafter {score.drafter:.1%}{ngram}; score {score.total:.2f}"
