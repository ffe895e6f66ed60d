"""What follows from the times: what a tree costs, the speed-up at a given tau, what stands out."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from dart_jax.errors import UserError
from eval.latency.case import Case
from eval.latency.hardware import Hardware

HOST = ("to host", "search", "to device")
PARTS = ("verify", "accept", "draft", "top-k", "pack")

# Beyond these something stands out.
_STEP = 1.3  # of the limit
_BEATEN = 0.8
_VERIFY = 1.2  # of a plain step
_ROWS = 60  # up to which the above is asked for
_HANDOVER = 3e-4  # seconds


class Tree(NamedTuple):
    """What trees of one size cost.

    Attributes:
      nodes: N.
      verify: the target's part over a plain step.
      step: the whole step on the device over a plain step.
      parts: seconds of the device's stages, measured one by one.
      total: seconds of the step as one program, dispatched by itself as a loop on the host must,
        hand-over and search.
      speedup: over plain decoding, by tau.
    """

    nodes: int
    verify: float
    step: float
    parts: float
    total: float
    speedup: dict[float, float]


@dataclasses.dataclass(frozen=True)
class Derived:
    """Of one case.

    Attributes:
      trees: in the order measured.
      best: N of the fastest, with its tau where taus by nodes are given, else at any one tau.
      best_speedup: where taus by nodes are given.
    """

    trees: list[Tree]
    best: int
    best_speedup: float | None


def derive(
    case: Case, taus: Sequence[float], tau_by_nodes: Mapping[int, float] | None = None
) -> Derived:
    """Speed-ups that the times allow.

    Args:
      case: the times.
      taus: tokens per verification, bonus included.
      tau_by_nodes: the tau that trees of N nodes reach.
    """
    plain = case.find("plain").measured.seconds
    trees = []
    for nodes in case.nodes:
        seconds = {
            name: case.find(name, nodes).measured.seconds for name in ("step", *PARTS, *HOST)
        }
        total = case.find("step", nodes).measured.alone + sum(seconds[name] for name in HOST)
        trees.append(
            Tree(
                nodes,
                seconds["verify"] / plain,
                seconds["step"] / plain,
                sum(seconds[name] for name in PARTS),
                total,
                {tau: tau * plain / total for tau in taus},
            )
        )
    rates = {
        tree.nodes: tau_by_nodes[tree.nodes] * plain / tree.total
        for tree in trees
        if tau_by_nodes and tree.nodes in tau_by_nodes
    }
    if rates:
        best = max(rates, key=rates.__getitem__)
        return Derived(trees, best, rates[best])
    return Derived(trees, min(trees, key=lambda tree: tree.total).nodes, None)


def read_tau_by_nodes(path: Path, nodes: Sequence[int]) -> dict[int, float]:
    """A JSON object such as {"8": 3.1, "60": 3.9}.

    Raises:
      UserError: it is none, or tells of none of these nodes.
    """
    try:
        content = json.loads(path.read_text())
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    except ValueError as error:
        raise UserError(f"{path} is not JSON: {error}") from None
    try:
        taus = {int(key): float(value) for key, value in content.items()}
    except (AttributeError, TypeError, ValueError):
        raise UserError(
            f'{path} must hold taus by nodes, such as {{"8": 3.1, "60": 3.9}}'
        ) from None
    if not all(1 <= tau <= count + 1 for count, tau in taus.items()):
        raise UserError(f"{path}: a tree of N nodes has a tau of 1..N + 1")
    if not taus.keys() & set(nodes):
        told = ", ".join(map(str, taus)) or "none"
        raise UserError(f"{path} tells the tau of {told} nodes, and none of these is in --nodes")
    return taus


def flags(case: Case, derived: Derived, hardware: Hardware) -> list[str]:
    """What stands out, in words."""
    found = []
    name = f"{case.shape}, context {case.context}"
    for nodes in (None, *case.nodes):
        row = case.find("plain" if nodes is None else "step", nodes)
        assert row.cost is not None
        ratio = row.measured.seconds / row.cost.limit(hardware.bandwidth, hardware.rate)
        what = "a plain step" if nodes is None else f"the step with {nodes} nodes"
        if ratio < _BEATEN:
            found.append(
                f"{name}: {what} takes {ratio:.2f}x its limit: weights stay in the processor's "
                "caches, or the device was busy when its limits were measured"
            )
        if ratio > _STEP:
            found.append(f"{name}: {what} takes {ratio:.2f}x its limit (wanted: {_STEP}x)")
    largest = max((t for t in derived.trees if t.nodes <= _ROWS), default=None)
    if largest is not None and largest.verify > _VERIFY:
        found.append(
            f"{name}: verifying {largest.nodes} nodes takes {largest.verify:.2f}x a plain step "
            f"(wanted: {_VERIFY}x)"
        )
    for nodes in case.nodes:
        both = sum(case.find(way, nodes).measured.seconds for way in ("to host", "to device"))
        if both > _HANDOVER:
            found.append(
                f"{name}: hand-over with {nodes} nodes takes {1e3 * both:.2f} ms "
                f"(wanted: {1e3 * _HANDOVER:.1f} ms)"
            )
    return found
