"""Results derived from the times: cost of trees, speed-up at a given tau, and outliers."""

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

# Bounds beyond which a time is an outlier.
_MAX_STEP = 1.3  # times the limit
_MIN_STEP = 0.8  # times the limit
_MAX_VERIFY = 1.2  # times a plain step
_VERIFY_NODES = 60  # largest tree that _MAX_VERIFY applies to
_MAX_HOST_COPIES = 3e-4  # seconds


class Tree(NamedTuple):
    """Cost of trees of one size.

    Attributes:
      nodes: number of nodes, N.
      verify: time of verification over time of a plain step.
      step: time of the whole step on the device over time of a plain step.
      parts: seconds of the stages on the device, measured separately and summed.
      total: seconds of the step as a single dispatched call, as in a host loop, plus the host
        copies and the search.
      speedup: tau -> speed-up over plain decoding.
    """

    nodes: int
    verify: float
    step: float
    parts: float
    total: float
    speedup: dict[float, float]


@dataclasses.dataclass(frozen=True)
class Derived:
    """Derived results of one case.

    Attributes:
      trees: the trees, in the order measured.
      best: N of the fastest tree, at its own tau if taus by nodes are given, otherwise at the same
        tau for all.
      best_speedup: its speed-up, if taus by nodes are given.
    """

    trees: list[Tree]
    best: int
    best_speedup: float | None


def derive(
    case: Case, taus: Sequence[float], tau_by_nodes: Mapping[int, float] | None = None
) -> Derived:
    """Derives speed-ups from the times.

    Args:
      case: the times.
      taus: tokens per verification, bonus token included.
      tau_by_nodes: N -> the tau of trees of N nodes.
    """
    plain = case.find("plain").times.seconds
    trees = []
    for nodes in case.nodes:
        seconds = {name: case.find(name, nodes).times.seconds for name in ("step", *PARTS, *HOST)}
        total = case.find("step", nodes).times.single_call + sum(seconds[name] for name in HOST)
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
    """Reads a JSON object such as {"8": 3.1, "60": 3.9}.

    Raises:
      UserError: the file cannot be read, is invalid, or has no tau for any of `nodes`.
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
        sizes = ", ".join(map(str, taus)) or "no"
        raise UserError(f"{path} has taus for {sizes} nodes, none of which are in --tree-nodes")
    return taus


def contradiction(case: Case) -> str | None:
    """Describes a stage that took longer than the step it is a part of, if there is one.

    Its lower quartile is above the step's upper one: the device did other work meanwhile.
    """
    for nodes in case.nodes:
        step = case.find("step", nodes).times
        for name in PARTS:
            part = case.find(name, nodes).times
            if part.quartiles[0] > step.quartiles[1]:
                return (
                    f"{name} with {nodes} nodes took {1e3 * part.seconds:.3g} ms and the step that "
                    f"contains it {1e3 * step.seconds:.3g} ms; measure again on an idle machine"
                )
    return None


def outliers(case: Case, derived: Derived, hardware: Hardware) -> list[str]:
    """Describes the times that are beyond their bounds."""
    found = []
    name = f"{case.shape}, context {case.context}"
    for nodes in (None, *case.nodes):
        row = case.find("plain" if nodes is None else "step", nodes)
        assert row.cost is not None
        ratio = row.times.seconds / row.cost.limit(hardware.bandwidth, hardware.rate)
        what = "a plain step" if nodes is None else f"the step with {nodes} nodes"
        if ratio < _MIN_STEP:
            found.append(
                f"{name}: {what} takes {ratio:.2f}x its limit: the weights fit into the "
                "processor's caches, or the device was busy when its limits were measured"
            )
        if ratio > _MAX_STEP:
            found.append(f"{name}: {what} takes {ratio:.2f}x its limit (goal: {_MAX_STEP}x)")
    largest = max((t for t in derived.trees if t.nodes <= _VERIFY_NODES), default=None)
    if largest is not None and largest.verify > _MAX_VERIFY:
        found.append(
            f"{name}: verifying {largest.nodes} nodes takes {largest.verify:.2f}x a plain step "
            f"(goal: {_MAX_VERIFY}x)"
        )
    for nodes in case.nodes:
        both = sum(case.find(copy, nodes).times.seconds for copy in ("to host", "to device"))
        if both > _MAX_HOST_COPIES:
            found.append(
                f"{name}: host copies with {nodes} nodes take {1e3 * both:.2f} ms "
                f"(goal: {1e3 * _MAX_HOST_COPIES:.1f} ms)"
            )
    return found
