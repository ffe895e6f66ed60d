"""What must hold after a soak."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from eval.serving.client.completion import Answer
from eval.serving.client.metrics import Counters
from eval.serving.soak.pool import Malformed
from eval.serving.soak.visits import Visit

# Differences in time that the network, the event loop and a busy machine explain, in seconds.
SLACK = 0.1
# Memory that may be gained in the second half of a soak: a share, and bytes.
GROWTH, GROWTH_BYTES = 0.02, 2**24


class Check(NamedTuple):
    """One thing that must hold.

    Attributes:
      what: in a few words.
      held: whether it did; None if it cannot be told here.
      detail: figures, or what was wrong.
    """

    what: str
    held: bool | None
    detail: str

    def __str__(self) -> str:
        state = {True: "ok", False: "WRONG", None: "unknown"}[self.held]
        return f"{state}: {self.what}: {self.detail}"


def check_errors(visits: Sequence[Visit]) -> Check:
    """Well-formed requests are answered, unless the queue is full."""
    failed = [
        each
        for each in visits
        if each.kind != "malformed" and each.answer.error and not each.refused
    ]
    counts = Counter(each.kind for each in visits)
    refused = sum(each.refused for each in visits)
    shown = ", ".join(f"{count} {kind}" for kind, count in counts.most_common())
    if failed:
        shown = f"{len(failed)} of {len(visits)} failed, the first with: {failed[0].answer.error}"
    return Check("requests are answered", not failed, f"{shown}; {refused} refused")


def check_malformed(visits: Sequence[Visit], wrong: Sequence[Malformed]) -> Check:
    """Malformed requests are refused with a status from 400 to 499, and the error as JSON."""
    sent = [each for each in visits if each.kind == "malformed" and not each.refused]
    faults = []
    for each in sent:
        answer, case = each.answer, wrong[each.number]
        if answer.error:
            faults.append(f"{case.what}: {answer.error}")
        elif not 400 <= answer.status < 500:
            faults.append(f"{case.what}: status {answer.status}")
        elif case.path.endswith("/completions") and case.method == "POST" and not _tells(answer):
            faults.append(f"{case.what}: no error object in {answer.text[:60]!r}")
    kinds = len({each.number for each in sent})
    detail = "; ".join(dict.fromkeys(faults)) or f"{len(sent)} requests, {kinds} kinds"
    return Check("malformed requests are refused", not faults, detail)


def _tells(answer: Answer) -> bool:
    try:
        return bool(json.loads(answer.text)["error"])
    except (ValueError, KeyError, TypeError):
        return False


def check_texts(visits: Sequence[Visit], references: Mapping[int, Answer]) -> Check:
    """Every text is the one that the same request gets alone; one that was cancelled, its
    beginning.

    Args:
      visits: what clients did.
      references: answers to the pool's requests, asked one by one.
    """
    compared, faults = 0, []
    for each in visits:
        answer = each.answer
        if each.kind == "malformed" or answer.error:
            continue
        alone = references[each.number]
        compared += 1
        if answer.cancelled:
            right = alone.text.startswith(answer.text)
        else:
            right = (answer.text, answer.finish, answer.tokens) == (
                alone.text,
                alone.finish,
                alone.tokens,
            )
        if not right or alone.error:
            faults.append(
                f"request {each.number}, {each.kind}: {alone.error or _difference(answer, alone)}"
            )
    detail = f"{compared - len(faults)} of {compared} texts are the same"
    if faults:
        detail += f"; {faults[0]}"
    return Check("texts are those of each request alone", not faults, detail)


def _difference(answer: Answer, alone: Answer) -> str:
    pairs = zip(answer.text, alone.text, strict=False)
    place = next((n for n, (a, b) in enumerate(pairs) if a != b), None)
    if place is not None:
        span = slice(place, place + 20)
        return f"{answer.text[span]!r} at {place}, alone {alone.text[span]!r}"
    return (
        f"{len(answer.text)} characters, {answer.tokens} tokens, {answer.finish}; alone "
        f"{len(alone.text)}, {alone.tokens}, {alone.finish}"
    )


def check_generated(expected: Mapping[int, str], references: Mapping[int, Answer]) -> Check:
    """Texts alone are those of `DartModel.generate`."""
    other = [number for number, text in expected.items() if references[number].text != text]
    detail = f"{len(expected) - len(other)} of {len(expected)} texts are the same"
    if other:
        detail += f"; request {other[0]} is not"
    return Check("texts are those of DartModel.generate", not other, detail)


def check_memory(samples: Sequence[int]) -> Check:
    """Memory is flat: the median of the last quarter is not above that of the second quarter.

    The first quarter is left out: what a process needs once, it takes then.

    Args:
      samples: resident bytes of the server, at equal intervals.
    """
    what = "the server's memory is flat"
    if len(samples) < 8:
        return Check(what, None, "not measured")
    quarter = len(samples) // 4
    before = float(np.median(samples[quarter : 2 * quarter]))
    after = float(np.median(samples[-quarter:]))
    held = after - before <= max(GROWTH * before, GROWTH_BYTES)
    detail = (
        f"{before / 1e6:,.1f} MB in the second quarter, {after / 1e6:,.1f} MB in the last one; at "
        f"the start {samples[0] / 1e6:,.1f}, at most {max(samples) / 1e6:,.1f}"
    )
    return Check(what, held, detail)


def check_leaks(counters: Counters | None) -> Check:
    """In the end no request runs or waits, and none holds pages of the KV cache."""
    what = "nothing is left of the requests"
    if counters is None or counters.running is None:
        return Check(what, None, "the server does not tell")
    left = {
        "running": counters.running,
        "waiting": counters.waiting,
        "pages held": counters.pages_used,
    }
    detail = ", ".join(f"{'?' if n is None else f'{n:g}'} {name}" for name, n in left.items())
    return Check(what, not any(left.values()), detail)


def check_compilations(counters: Counters | None) -> Check:
    """Nothing is compiled after the warm-up."""
    count = None if counters is None else counters.compilations
    detail = "the server does not tell" if count is None else f"{count:g} programs"
    return Check("nothing was compiled", None if count is None else not count, detail)


def check_fairness(visits: Sequence[Visit], slots: int) -> Check:
    """Requests get their first token in the order of their arrival, as far as can be seen.

    A request is overtaken by one that was sent later and had its first token earlier, both by more
    than `SLACK`. It may be overtaken by as many as are decoded beside it, since prompts of
    different lengths take different time; if by more than `slots`, one of them was let in before
    it. Requests whose first text may be held back, because of stop strings or a slow reader, are
    not looked at, but overtake others.
    """
    what = "requests are served in the order of their arrival"
    seen = [each for each in visits if each.kind != "malformed" and each.answer.times]
    seen = [each for each in seen if each.kind != "at once"]
    sent = np.array([each.answer.sent for each in seen])
    first = np.array([each.answer.times[0] for each in seen])
    worst, waits = 0, []
    for each in seen:
        if each.kind == "slow" or each.answer.finish == "stop":
            continue
        later = sent > each.answer.sent + SLACK
        overtaken = int(np.sum(later & (first < each.answer.times[0] - SLACK)))
        worst = max(worst, overtaken)
        waits.append(each.answer.times[0] - each.answer.sent)
    if not waits:
        return Check(what, None, "no request was streamed")
    detail = (
        f"none was overtaken by more than {worst}, with {slots} slots; first tokens after "
        f"{np.median(waits):.3f} s in the median, {max(waits):.3f} s at most"
    )
    return Check(what, worst <= slots, detail)
