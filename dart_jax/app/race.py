"""A race of drafted against plain decoding, and whether its result is more than noise."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from dart_jax.app.markup import escape, note
from dart_jax.generation import Completion

# Who wins has won 8 of 9 rounds, which happens to one of two equals with a probability of 4 %, and
# is faster by a margin.
ROUNDS = 9  # of an answer of each method, after one that warms up
_WON = 8
_MARGIN = 1.05
MAX_NEW_TOKENS = 64  # of an answer

NOTHING = note(
    f"Has your last message answered {ROUNDS} times with drafting and {ROUNDS} times without, in "
    f"turn, by up to {MAX_NEW_TOKENS} tokens."
)


def verdict(name: str, drafted: Sequence[Completion], plain: Sequence[Completion]) -> str:
    """Returns a sentence: who won, or why nobody did.

    Args:
      name: of the drafting method.
      drafted: its answers, one per round.
      plain: those of plain decoding.
    """
    if not any(answer.drafted.any() for answer in drafted):
        return "No winner: no drafted token was accepted, so both wrote token by token."
    # Both answers of a round meet the same load of the machine.
    rounds = zip(_speeds(drafted), _speeds(plain), strict=True)
    ratios = [ours / theirs for ours, theirs in rounds]
    ratio, won = statistics.median(ratios), sum(ratio > 1 for ratio in ratios)
    if won >= _WON and ratio >= _MARGIN:
        return f"{name} won {won} of {ROUNDS} rounds; it is {ratio:.2f} times as fast."
    lost = sum(ratio < 1 for ratio in ratios)
    if lost >= _WON and 1 / ratio >= _MARGIN:
        return f"Plain decoding won {lost} of {ROUNDS} rounds; it is {1 / ratio:.2f} times as fast."
    return "No winner: the difference is within the noise."


def standings(name: str, drafted: Sequence[Completion], plain: Sequence[Completion]) -> str:
    """Draws each method's median speed as a bar, and the verdict once all answers are there."""
    lanes = {name: drafted, "Plain decoding": plain}
    medians = {title: statistics.median(_speeds(each) or [0.0]) for title, each in lanes.items()}
    fastest = max(*medians.values(), 1e-9)
    bars = "".join(
        f'<div class="lane"><span>{escape(title)}</span><span>{escape(_line(lanes[title]))}</span>'
        f'<div class="bar {kind}" style="width: {100 * median / fastest:.0f}%"></div></div>'
        for (title, median), kind in zip(medians.items(), ("draft", "plain"), strict=True)
    )
    done = len(drafted) + len(plain)
    if done < 2 * ROUNDS:
        return f"{bars}{note(f'{done} of {2 * ROUNDS} answers, after one each to warm up')}"
    return f'{bars}<p class="verdict">{escape(verdict(name, drafted, plain))}</p>'


def _speeds(answers: Sequence[Completion]) -> list[float]:
    return [answer.tokens_per_second for answer in answers]


def _line(answers: Sequence[Completion]) -> str:
    """Returns the median and the range of speeds, and tau where something was drafted."""
    if not answers:
        return "…"
    speeds = _speeds(answers)
    line = f"{statistics.median(speeds):,.0f} tokens/s ({min(speeds):,.0f} to {max(speeds):,.0f})"
    taus = [answer.tau for answer in answers if answer.drafted.any()]
    return f"{line} · tau {statistics.median(taus):.2f}" if taus else line
