"""The table and the JSON report."""

from __future__ import annotations

import dataclasses
import datetime
import statistics
from collections.abc import Sequence
from typing import Any

from rich import box
from rich.table import Table

from dart_jax.programs.provenance import environment, revision
from dart_jax.programs.spread import spread
from eval.peers.config import PeersConfig
from eval.peers.measurement import Measurement


def table(measured: Sequence[Measurement], prompts: int) -> Table:
    """Shows all measurements; the first one is the baseline."""
    plain = measured[0]
    shown = Table(
        title=f"{prompts} prompts, {plain.new_tokens} new tokens, batch 1, greedy",
        title_justify="left",
        caption=(
            "tok/s: median over repeats and half the spread, without the prefill\n"
            "ratio: to plain decoding here; /CPU s: tokens per second of processor time\n"
            "same: prompts with the tokens of plain decoding here (first token that differs)\n"
            "float32*: stored in bfloat16, which holds these weights exactly"
        ),
        caption_justify="left",
        box=box.SIMPLE,
        padding=(0, 0, 0, 1),
        pad_edge=False,
    )
    for column in ("engine", "weights"):
        shown.add_column(column, no_wrap=True)
    for column in ("cores", "tok/s", "ratio", "/CPU s", "same"):
        shown.add_column(column, justify="right", no_wrap=True)
    for each in measured:
        shown.add_row(
            each.title,
            each.precision,
            str(each.threads),
            spread(each.rates),
            "" if each is plain else spread(each.ratios(plain), ".2f", "x"),
            f"{statistics.median(each.cpu_rates):,.0f}",
            "" if each is plain else agreement(each),
        )
    return shown


def agreement(measured: Measurement) -> str:
    """How many prompts have the tokens of plain decoding, and where the first one differs."""
    whole = sum(length == measured.new_tokens for length in measured.same)
    text = f"{whole}/{len(measured.same)}"
    return text if whole == len(measured.same) else f"{text} ({min(measured.same) + 1})"


def versions(measured: Sequence[Measurement]) -> dict[str, str]:
    """Versions of all engines' packages."""
    return {name: version for each in measured for name, version in each.versions.items()}


def as_json(
    config: PeersConfig, measured: Sequence[Measurement], left_out: Sequence[str]
) -> dict[str, Any]:
    """Returns all measurements and everything needed to repeat them."""
    return {
        "environment": environment(),
        "revision": revision(),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "config": dataclasses.asdict(config),
        "left_out": list(left_out),
        "measurements": [
            {
                **dataclasses.asdict(each),
                "rates": each.rates,
                "cpu_rates": each.cpu_rates,
                "ratios": each.ratios(measured[0]),
            }
            for each in measured
        ],
    }
