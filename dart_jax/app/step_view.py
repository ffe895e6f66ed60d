"""One step of an answer as a picture with a line of text."""

from __future__ import annotations

from dart_jax.app.answer import Answer, Verified
from dart_jax.app.markup import escape
from dart_jax.app.scores import Score, scores
from dart_jax.app.tree_picture import STYLE, Node, draw
from dart_jax.decoding.pruner import SearchConfig
from dart_jax.errors import UserError
from dart_jax.generation import Step, default_tree
from dart_jax.model import DartModel
from dart_jax.models.drafter_config import DrafterConfig
from dart_jax.text.tokenizer import Tokenizer

NOTHING = '<p class="note">The drafts of the next answer are shown here.</p>'


def nodes_of(step: Verified, model: DartModel, search: SearchConfig | None = None) -> list[Node]:
    """The nodes of a step's tree, and behind the accepted path the target's own token; `search` is
    the one that made it, None the default."""
    tokenizer = model.tokenizer
    found: list[Score | None] = [None] * step.tree.shape[1]
    if _scored(model):
        search = search or default_tree(model.drafter)[1]
        found = scores(step, search, model.ngram)
    tokens, parents, depths = step.tree.tolist()
    accepted = accepted_path(step)
    made = [Node(_text(tokenizer, tokens[0]), None, "root", details="the newest known token")]
    place = {0: 0}  # of a tree's node among those drawn: unused ones are not
    for index in range(1, len(tokens)):
        if depths[index] == 0:
            continue
        place[index] = len(made)
        text, score = _text(tokenizer, tokens[index]), found[index]
        kind = "accepted" if index in accepted else "rejected"
        short = "" if score is None else f"{score.total:.1f} · {score.drafter:.0%}"
        details = f"{text!r}, {kind}{_details(score)}"
        made.append(Node(text, place[parents[index]], kind, short, details))
    if len(step.tokens) > step.drafted:
        text = _text(tokenizer, int(step.tokens[step.drafted]))
        end = place[accepted[step.drafted]]
        made.append(Node(text, end, "bonus", "target", f"{text!r}, the target's own token"))
    return made


def accepted_path(step: Verified) -> list[int]:
    """The nodes whose tokens were emitted, from the root down."""
    path = [0]
    tokens, parents, depths = step.tree.tolist()
    for token in step.tokens[: step.drafted].tolist():
        followers = (
            node
            for node in range(1, len(tokens))
            if depths[node] and parents[node] == path[-1] and tokens[node] == token
        )
        path.append(next(followers))
    return path


def picture(answer: Answer, model: DartModel, number: int) -> str:
    """HTML of an answer's step, counted from 1."""
    if not answer.verified:
        return NOTHING
    number = min(max(number, 1), len(answer.verified))
    step = answer.verified[number - 1]
    nodes, drafted = nodes_of(step, model), _drafted(step)
    said = f"Step {number} of {len(answer.verified)}: {_counts(step)}."
    legend = ""
    if any(node.score for node in nodes if node.kind != "bonus"):
        legend = (
            " Below a token: the search's score of its path, and the drafter's probability. "
            "Point at a node for more."
        )
    elif not drafted:
        legend = " Nothing is drafted here: the target gives one token a step."
    elif not _scored(model):
        legend = " This method keeps its scores on the device."
    drawn = draw(nodes, said)
    return f'<p class="line">{escape(said + legend)}</p><div class="wide">{drawn}</div>'


def drawing(step: Step, model: DartModel, search: SearchConfig | None = None) -> str:
    """A step of `TextGeneration.steps` as an SVG that needs no page, for a notebook or a file.

    Args:
      step: with its drafts: watched, and not the prefill.
      model: that made it.
      search: that it was made with; None for the default.

    Raises:
      UserError: the step has no drafts.
    """
    verified = Verified.of(step)
    if verified is None:
        raise UserError("this step has no drafts: ask for steps(watch=True), and skip the prefill")
    style = STYLE.read_text()
    return draw(nodes_of(verified, model, search), f"{_counts(verified)}.", style)


def _scored(model: DartModel) -> bool:
    """Whether the host's search knows what its nodes are worth."""
    return isinstance(model.drafter, DrafterConfig)


def _drafted(step: Verified) -> int:
    return int((step.tree[2] > 0).sum())


def _counts(step: Verified) -> str:
    return f"{_drafted(step)} drafted, {step.drafted} accepted, {len(step.tokens)} won"


def _text(tokenizer: Tokenizer, token: int) -> str:
    """What a token reads as; its name where it is a special one."""
    if token in tokenizer.special_ids:
        return tokenizer.backend.id_to_token(token) or ""
    return tokenizer.decode([token])


def _details(score: Score | None) -> str:
    if score is None:
        return ""
    ngram = "" if score.ngram is None else f", n-gram model {score.ngram:.1%}"
    return f"; drafter {score.drafter:.1%}{ngram}; score {score.total:.2f}"
